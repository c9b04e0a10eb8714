//! Checks the figures that this project promises for its heap and its arena.
//!
//! ```text
//! cargo bench --bench figures
//! cargo bench --bench figures -- --runs 15 --check    # exit status 1 when a figure is not met
//! ```
//!
//! Every run is a fresh process that starts with no memory, so the time inside it includes populating the heap, and
//! so does the time from spawn to exit. Runs under libc malloc and under `HugeAlloc` take turns, and what counts is
//! the median of the ratios of the pairs. The figures of `examples/quickstart` are printed by its own `--check`.
#![allow(unsafe_code)]

mod claims;
mod environment;
mod workloads;

#[path = "../examples/quickstart/chooser.rs"]
mod chooser;
#[path = "../examples/quickstart/judge.rs"]
mod judge;
#[path = "../examples/quickstart/measure.rs"]
mod measure;
#[path = "../examples/quickstart/rounds.rs"]
mod rounds;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use chooser::{Chooser, Side};
use measure::{Readings, Summary};
use workloads::BATCH;

#[global_allocator]
static GLOBAL: Chooser = Chooser::new();

/// Work for one process, and how many times as long libc malloc must take at least.
struct Figure {
    name: &'static str,
    least_gain: f64,
    work: fn(),
}

/// A median of fewer says more about the machine than about the allocators.
const LEAST_ROUNDS: usize = 9;

/// Equal, as far as medians of runs on a shared machine can tell.
const PARITY: f64 = 0.97;

/// For one claim and release.
const MOST_NANOSECONDS: f64 = 100.0;

const FIGURES: [Figure; 4] = [
    Figure { name: "alloc_zeroed + touch of 256 MiB, 16 times", least_gain: 5.0, work: zeroed },
    Figure { name: "Vec growth to 512 MiB, once", least_gain: PARITY, work: growth },
    Figure { name: "small churn, pairs of 16, 64, 256 B", least_gain: PARITY, work: pairs },
    Figure { name: "small churn, batches of 16, 64, 256 B", least_gain: PARITY, work: batches },
];

fn zeroed() {
    (0..16).for_each(|_| workloads::zeroed_and_touched(&GLOBAL, 256 << 20));
}

fn growth() {
    workloads::growth(&GLOBAL, 512 << 20);
}

fn pairs() {
    [16, 64, 256].iter().for_each(|size| workloads::churn_pairs(&GLOBAL, *size, 20_000_000));
}

fn batches() {
    [16, 64, 256].iter().for_each(|size| workloads::churn_batches(&GLOBAL, *size, 20_000_000 / BATCH as u64));
}

fn main() -> ExitCode {
    judge::exit("figures", run())
}

fn run() -> Result<bool, String> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == rounds::CHILD) {
        return child(arguments.get(1).map_or("", String::as_str)).map(|()| true);
    }
    // cargo adds `--bench` to what the user gave, unless it runs the benches as tests.
    let given = arguments.len();
    arguments.retain(|argument| argument != "--bench");
    if arguments.len() == given {
        println!("figures take minutes: cargo bench --bench figures");
        return Ok(true);
    }
    let (runs, is_check) = options(&arguments)?;
    println!("{}\n", environment::describe());
    println!("Medians of {runs} rounds; gain is the time under libc malloc over the time under HugeAlloc.\n");
    let mut all_met = true;
    for figure in &FIGURES {
        all_met &= measure(figure, runs)?;
    }
    all_met &= measure_claims(runs)?;
    Ok(all_met || !is_check)
}

fn options(arguments: &[String]) -> Result<(usize, bool), String> {
    let (mut runs, mut is_check) = (LEAST_ROUNDS, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--runs" => {
                runs = arguments
                    .next()
                    .and_then(|text| text.parse().ok())
                    .filter(|runs| *runs > 0)
                    .ok_or("--runs wants a number from 1 up")?
            }
            "--check" => is_check = true,
            unknown => return Err(format!("unknown option {unknown}; there are --runs N and --check")),
        }
    }
    if is_check && runs < LEAST_ROUNDS {
        return Err(format!("--check wants {LEAST_ROUNDS} rounds at least: fewer say nothing on a shared machine"));
    }
    Ok((runs, is_check))
}

/// Prints the gain inside the process and from spawn to exit, and says whether both are enough.
fn measure(figure: &Figure, runs: usize) -> Result<bool, String> {
    let rounds = rounds::run(runs, &[OsString::from(figure.name)])?;
    let mut is_met = true;
    for (reading, name) in [("time", "in process"), ("wall", "spawn to exit")] {
        let gain = rounds.ratio(reading);
        let is_enough = gain.median >= figure.least_gain;
        is_met &= is_enough;
        let name = format!("{}, {name}", figure.name);
        print!("{}", judge::line(is_enough, &name, gain, &format!(">= {}x", figure.least_gain)));
    }
    let [libc, huge] = Side::BOTH.map(|side| rounds.summary(side, "time").median / 1e6);
    let run = rounds.example(Side::Huge);
    let mib = |name| run.number(name) / f64::from(1 << 20);
    println!(
        "        {libc:.0} ms and {huge:.0} ms in process; HugeAlloc had {:.0} MiB in 2M pages, {} fallbacks\n",
        mib("heap_2m"),
        run.text("fallbacks"),
    );
    Ok(is_met)
}

/// Prints what a claim and release of a 2 MiB chunk takes, and whether it asks the kernel for anything.
fn measure_claims(runs: usize) -> Result<bool, String> {
    let arguments = [OsString::from(claims::TIMED)];
    let children = (0..runs).map(|_| rounds::child(Side::Huge, &arguments)).collect::<Result<Vec<_>, _>>()?;
    let mut is_met = true;
    for (reading, name) in [("time", "in process"), ("wall", "spawn to exit")] {
        let each = Summary::of(children.iter().map(|child| child.number(reading) / claims::COUNT as f64));
        let is_fast = each.median <= MOST_NANOSECONDS;
        is_met &= is_fast;
        let name = format!("claim + release of a 2 MiB chunk, {name}");
        print!("{}", judge::line(is_fast, &name, each, &format!("<= {MOST_NANOSECONDS} ns")));
    }
    let (is_silent, line) = claims::system_calls()?;
    println!("{line}");
    Ok(is_met && is_silent)
}

fn child(name: &str) -> Result<(), String> {
    let mut readings = Readings::default();
    if !claims::child(name, &mut readings)? {
        let figure = FIGURES.iter().find(|figure| figure.name == name).ok_or("no such figure")?;
        let start = Instant::now();
        (figure.work)();
        readings.set_time("time", start.elapsed());
    }
    let stats = GLOBAL.huge().stats();
    readings.set("allocator", GLOBAL.side().value());
    readings.set("heap_2m", stats.huge_2m_bytes);
    readings.set("fallbacks", stats.fallbacks);
    readings.print();
    Ok(())
}
