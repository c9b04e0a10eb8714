//! The `hugearena` command: what huge pages can be had, how to have more, who has them, and programs that use them.

mod doctor;
mod help;
mod holders;
mod json;
mod reserve;
mod run;
mod size;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use json::Json;

#[derive(Debug, Parser)]
#[command(name = "hugearena", version, about = help::ABOUT, long_about = help::LONG_ABOUT)]
#[command(after_long_help = help::AFTER, max_term_width = 100)]
struct Cli {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(about = help::DOCTOR, long_about = help::DOCTOR_LONG, after_long_help = help::DOCTOR_AFTER)]
    Doctor(doctor::Options),
    #[command(about = help::RESERVE, long_about = help::RESERVE_LONG, after_long_help = help::RESERVE_AFTER)]
    Reserve(reserve::Options),
    #[command(about = help::HOLDERS, long_about = help::HOLDERS_LONG, after_long_help = help::HOLDERS_AFTER)]
    Holders(holders::Options),
    #[command(about = help::RUN, long_about = help::RUN_LONG, after_long_help = help::RUN_AFTER)]
    Run(run::Options),
}

/// What a command has to say, both ways, and whether the answer is yes.
struct Answer {
    is_yes: bool,
    text: String,
    json: Json,
}

fn main() -> ExitCode {
    // A usage error ends the process here, with 2.
    let cli = Cli::parse();
    let answer = match &cli.command {
        Command::Doctor(options) => doctor::run(options),
        Command::Reserve(options) => reserve::run(options),
        Command::Holders(options) => holders::run(options),
        Command::Run(options) => return run::run(options),
    };
    let text = if cli.json { answer.json.to_string() } else { answer.text };
    // Whoever reads may stop reading, as head(1) does: the exit status still tells.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    if answer.is_yes { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_fit_together() {
        Cli::command().debug_assert();
    }
}
