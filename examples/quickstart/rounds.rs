//! Runs the job in fresh processes, the two allocators in turn.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::chooser::{Side, VARIABLE};
use crate::corpus;
use crate::measure::{Readings, Summary};
use crate::options::Options;
use crate::progress::{self, Progress};

/// The first argument of a child process.
pub const CHILD: &str = "--child";

/// What the two processes of one round said, in the order of [`Side::BOTH`].
pub struct Round([Readings; 2]);

impl Round {
    pub fn of(&self, side: Side) -> &Readings {
        &self.0[side as usize]
    }
}

/// Readings of every round.
pub struct Rounds(Vec<Round>);

impl Rounds {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Any run's readings on `side`, for what is equal in all of them.
    pub fn example(&self, side: Side) -> &Readings {
        self.0[0].of(side)
    }

    pub fn summary(&self, side: Side, name: &str) -> Summary {
        Summary::of(self.0.iter().map(|round| round.of(side).number(name)))
    }

    /// How many times more libc malloc took than HugeAlloc in the same round.
    pub fn ratio(&self, name: &str) -> Summary {
        let ratio = |round: &Round| round.of(Side::Libc).number(name) / round.of(Side::Huge).number(name).max(1.0);
        Summary::of(self.0.iter().map(ratio))
    }
}

/// Runs the rounds that `options` ask for, after reading every file once so that no run waits for the disk.
pub fn run(options: &Options) -> Result<Rounds, String> {
    warm_page_cache(options)?;
    let rounds = (0..options.runs()).map(|number| round(number, options.runs())).collect::<Result<Vec<_>, _>>()?;
    let answers = |side| rounds.iter().map(move |round: &Round| round.of(side).text("checksum"));
    let first = rounds[0].of(Side::Libc).text("checksum");
    if answers(Side::Libc).chain(answers(Side::Huge)).any(|checksum| checksum != first) {
        return Err("two runs gave different answers: the files changed meanwhile, or memory was corrupted".to_owned());
    }
    Ok(Rounds(rounds))
}

fn warm_page_cache(options: &Options) -> Result<(), String> {
    let source = options.source();
    let files = source.files().map_err(|error| format!("{}: {error}", source.root.display()))?;
    let mut progress = Progress::new("reading the files once:");
    for (done, path) in files.iter().enumerate() {
        corpus::read(path);
        progress.at(done, files.len());
    }
    Ok(())
}

/// One process on each side. Who goes first alternates, so that a trend of the machine favours neither.
fn round(number: usize, of: usize) -> Result<Round, String> {
    let mut round = Round([Readings::default(), Readings::default()]);
    let order = if number.is_multiple_of(2) { Side::BOTH } else { [Side::Huge, Side::Libc] };
    for side in order {
        let readings = child(side)?;
        progress::note(&format!(
            "round {} of {of}, {}: {:.1} s",
            number + 1,
            side.value(),
            readings.number("wall") / 1e9
        ));
        round.0[side as usize] = readings;
    }
    Ok(round)
}

/// Runs this program again as the job, with the arguments it was given itself.
fn child(side: Side) -> Result<Readings, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let mut command = Command::new(program);
    command.arg(CHILD).args(std::env::args_os().skip(1)).stdout(Stdio::piped());
    command.env(VARIABLE, side.value());
    let start = Instant::now();
    let child = command.spawn().map_err(|error| format!("cannot start myself: {error}"))?;
    let output = child.wait_with_output().map_err(|error| format!("lost the {} run: {error}", side.value()))?;
    let wall = start.elapsed();
    if !output.status.success() {
        return Err(format!("the run under {} failed: {}", side.value(), output.status));
    }
    let mut readings = Readings::parse(&String::from_utf8_lossy(&output.stdout));
    if readings.text("allocator") != side.value() {
        return Err(format!("the run under {} says it used {}", side.value(), readings.text("allocator")));
    }
    readings.set_time("wall", wall);
    let peak = readings.number("resident_peak") + readings.number("hugetlb");
    readings.set("peak", peak);
    Ok(readings)
}
