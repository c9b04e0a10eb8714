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

use std::io::{ErrorKind, Write};
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
#[derive(Debug)]
struct Answer {
    status: u8,
    text: String,
    json: Json,
}

/// `Err` is what could not be done: no answer, so its text goes where it cannot be mistaken for one.
type Outcome = Result<Answer, Answer>;

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
    let outcome = match &cli.command {
        Command::Doctor(options) => Ok(doctor::run(options)),
        Command::Reserve(options) => Ok(reserve::run(options)),
        Command::Holders(options) => Ok(holders::run(options)),
        Command::Create(options) => create::run(options, cli.json),
        Command::Inspect(options) => arenas::inspect(options),
        Command::Map(options) => map::run(options),
        Command::List(options) => Ok(arenas::list(options)),
        Command::Remove(options) => arenas::remove(options),
        Command::Run(options) => return run::run(options),
    };
    ExitCode::from(print(outcome, cli.json))
}

/// The exit status: that of the answer, unless it got lost on the way.
fn print(outcome: Outcome, as_json: bool) -> u8 {
    let (is_failure, answer) = match outcome {
        Ok(answer) => (false, answer),
        Err(failure) => (true, failure),
    };
    let Answer { status, text, json } = answer;
    if is_failure && !as_json {
        eprint_line(&text);
        return status;
    }
    let text = if as_json { json.to_string() } else { text };
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Ok(()) => status,
        // Whoever reads may stop reading, as head(1) does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => status,
        Err(error) => {
            eprint_line(&format!("standard output: {error}"));
            status.max(1)
        }
    }
}

/// Not `eprintln`, which panics where nobody listens.
fn eprint_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "hugearena: {}", text.trim_end());
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
