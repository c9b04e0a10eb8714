//! Runs this program again as child processes, the two allocators in turn, and keeps what they say.

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::chooser::{Side, VARIABLE};
use crate::measure::{Readings, Summary};

/// The first argument of a child process.
pub const CHILD: &str = "--child";

/// What the child processes said: for each round one on each side, in the order of [`Side::BOTH`].
pub struct Rounds {
    pub runs: Vec<[Readings; 2]>,
}

impl Rounds {
    /// The first run on `side`, for what is the same in all of them.
    pub fn example(&self, side: Side) -> &Readings {
        &self.runs[0][side as usize]
    }

    pub fn summary(&self, side: Side, name: &str) -> Summary {
        Summary::of(self.runs.iter().map(|round| round[side as usize].number(name)))
    }

    /// How many times more libc malloc took than HugeAlloc in the same round.
    pub fn ratio(&self, name: &str) -> Summary {
        Summary::of(self.runs.iter().map(|[libc, huge]| libc.number(name) / huge.number(name).max(1.0)))
    }
}

/// Runs `runs` rounds, at least one, of a process on each side. Who goes first alternates, so that a trend of the
/// machine favours neither.
pub fn run(runs: usize, arguments: &[OsString]) -> Result<Rounds, String> {
    let round = |number: usize| {
        let mut round = [Readings::default(), Readings::default()];
        let order = if number.is_multiple_of(2) { Side::BOTH } else { [Side::Huge, Side::Libc] };
        for side in order {
            let readings = child(side, arguments)?;
            note(&format!("round {} of {runs}, {}: {:.2} s", number + 1, side.value(), readings.number("wall") / 1e9));
            round[side as usize] = readings;
        }
        Ok(round)
    };
    (0..runs.max(1)).map(round).collect::<Result<_, _>>().map(|runs| Rounds { runs })
}

/// One process of this program on `side`; its readings, and `wall`, the time from before it was started until it
/// was gone.
pub fn child(side: Side, arguments: &[OsString]) -> Result<Readings, String> {
    let mut command = command(side, arguments)?;
    let start = Instant::now();
    let output = command.output().map_err(|error| format!("cannot run myself: {error}"))?;
    let wall = start.elapsed();
    if !output.status.success() {
        return Err(format!("the run under {} failed: {}", side.value(), output.status));
    }
    let mut readings = Readings::parse(&String::from_utf8_lossy(&output.stdout));
    if readings.text("allocator") != side.value() {
        return Err(format!("the run under {} says it used {}", side.value(), readings.text("allocator")));
    }
    readings.set_time("wall", wall);
    Ok(readings)
}

/// This program as a child on `side`, which may show progress on our terminal.
pub fn command(side: Side, arguments: &[OsString]) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let mut command = Command::new(program);
    command.arg(CHILD).args(arguments).env(VARIABLE, side.value());
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    Ok(command)
}

/// A line for people at a terminal, who wait.
fn note(text: &str) {
    if stderr().is_terminal() {
        eprintln!("{text}");
    }
}
