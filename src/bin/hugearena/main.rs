//! The `hugearena` command: what huge pages can be had, how to have more, who has them, named arenas, and programs
//! that use huge pages unknowingly.

mod arenas;
mod create;
mod doctor;
mod help;
mod holders;
mod json;
mod map;
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
    #[command(about = help::CREATE, long_about = help::CREATE_LONG, after_long_help = help::CREATE_AFTER)]
    Create(create::Options),
    #[command(about = help::INSPECT, long_about = help::INSPECT_LONG, after_long_help = help::INSPECT_AFTER)]
    Inspect(arenas::One),
    #[command(about = help::MAP, long_about = help::MAP_LONG, after_long_help = help::MAP_AFTER)]
    Map(map::Options),
    #[command(about = help::LIST, long_about = help::LIST_LONG, after_long_help = help::LIST_AFTER)]
    List(arenas::All),
    #[command(about = help::REMOVE, long_about = help::REMOVE_LONG, after_long_help = help::REMOVE_AFTER)]
    Remove(arenas::One),
    #[command(about = help::RUN, long_about = help::RUN_LONG, after_long_help = help::RUN_AFTER)]
    Run(run::Options),
}

/// What a command has to say, both ways, and how the process ends.
struct Answer {
    status: u8,
    text: String,
    json: Json,
}

/// The exit status of an answer that is yes or no.
fn status(is_yes: bool) -> u8 {
    u8::from(!is_yes)
}

impl Answer {
    /// What the library could not do, and why.
    fn failure(error: &hugearena::Error) -> Answer {
        let json = Json::Object(vec![
            ("error", error.to_string().into()),
            ("operation", error.operation().to_string().into()),
            ("limit", error.limit().map(doctor::limit_json).into()),
        ]);
        Answer { status: status(false), text: error.to_string(), json }
    }
}

fn main() -> ExitCode {
    // A usage error ends the process here, with 2.
    let cli = Cli::parse();
    let answer = match &cli.command {
        Command::Doctor(options) => doctor::run(options),
        Command::Reserve(options) => reserve::run(options),
        Command::Holders(options) => holders::run(options),
        Command::Create(options) => create::run(options, cli.json),
        Command::Inspect(options) => arenas::inspect(options),
        Command::Map(options) => map::run(options),
        Command::List(options) => arenas::list(options),
        Command::Remove(options) => arenas::remove(options),
        Command::Run(options) => return run::run(options),
    };
    let text = if cli.json { answer.json.to_string() } else { answer.text };
    // Whoever reads may stop reading, as head(1) does: the exit status still tells.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    ExitCode::from(answer.status)
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
