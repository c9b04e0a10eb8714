//! A small data plane: packets go through a pool, a ring, a worker and back to the pool, on two CPUs that poll; and a
//! gigabyte of returned memory is cleared meanwhile without a packet waiting for it.
//!
//! ```text
//! cargo run --release --example dataplane
//! cargo run --release --example dataplane -- --check           # exit status 1 when a figure is not met
//! cargo run --release --example dataplane -- --runs 3
//! ```
//!
//! `lane.rs` is the part to copy: two loops, and the pool between them. `clearing.rs` shows how to clear in the slack of
//! a loop. Needs no privileges and no huge pages; it says what it fell back to, and whether it had two CPUs to itself.
//!
//! Every run is a process of its own. Runs on the pool and on libc malloc take turns, and so do runs that clear a
//! gigabyte and runs of as many turns that clear nothing; what counts is the median of the pairs. A gap is the time
//! from one poll of the receiving loop to the next.

mod clearing;
mod gaps;
#[path = "../quickstart/judge.rs"]
mod judge;
mod lane;
mod malloc;
#[path = "../quickstart/measure.rs"]
#[expect(dead_code, reason = "shared with the quickstart, which uses all of it")]
mod measure;
mod packet;
mod run;

use std::error::Error;
use std::process::{Command, ExitCode};

use clearing::Way;
use measure::{Readings, Summary};
use run::Job;

const CHILD: &str = "--child";
/// Pairs of runs. The longest gaps are judged by the median of ten.
const RUNS: usize = 10;
/// Packets a second, over libc malloc.
const LEAST_GAIN: f64 = 1.3;
/// p99.9 of the gaps while clearing, over that of clearing nothing.
const MOST_STRETCH: f64 = 1.25;
/// The longest gap while clearing, less the longest when clearing nothing.
const MOST_LONGER_US: f64 = 100.0;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    judge::exit("dataplane", run())
}

fn run() -> Outcome<bool> {
    let mut arguments = std::env::args().skip(1);
    let (mut is_check, mut runs) = (false, RUNS);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            CHILD => {
                let job = arguments.next().and_then(|name| Job::parse(&name)).ok_or("no such job")?;
                job.run()?.print();
                return Ok(true);
            }
            "--check" => is_check = true,
            "--runs" => runs = arguments.next().ok_or("--runs wants a number")?.parse()?,
            unknown => return Err(format!("unknown option {unknown}; there are --check and --runs N").into()),
        }
    }
    let are_met = [throughput(runs.max(1))?, gaps(runs.max(1))?];
    Ok(are_met == [true, true] || !is_check)
}

/// Runs a job in a process of its own; no packet may be lost or damaged there.
fn child(job: Job) -> Outcome<Readings> {
    let output = Command::new(std::env::current_exe()?).args([CHILD, &job.name()]).output()?;
    if !output.status.success() {
        return Err(format!("{job:?}: {}{}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    let readings = Readings::parse(&String::from_utf8_lossy(&output.stdout));
    if readings.number("bad") > 0.0 || readings.number("lost") > 0.0 || readings.number("packets") == 0.0 {
        return Err(format!("{job:?}: packets were lost or damaged").into());
    }
    Ok(readings)
}

fn throughput(runs: usize) -> Outcome<bool> {
    let pairs = (0..runs).map(|_| Ok([child(Job::Pool)?, child(Job::Malloc)?])).collect::<Outcome<Vec<_>>>()?;
    let first = &pairs[0][0];
    println!("buffers: {}", first.text("pages"));
    println!("loops:   {}\n", if first.text("pinned") == "true" { "on two CPUs" } else { "NOT pinned: one CPU" });
    println!("Medians of {runs} runs        pool      libc malloc");
    let of = |side: usize, name: &str| Summary::of(pairs.iter().map(|pair| pair[side].number(name)));
    for (name, unit, scale) in [
        ("rate", "million packets/s", 1e6),
        ("median", "gap, median, us", 1e3),
        ("p999", "gap, p99.9, us", 1e3),
        ("longest", "gap, longest, us", 1e3),
        ("faults", "page faults", 1.0),
    ] {
        println!("{unit:<22}{:>12.2}{:>17.2}", of(0, name).median / scale, of(1, name).median / scale);
    }
    let gain = Summary::of(pairs.iter().map(|[pool, malloc]| pool.number("rate") / malloc.number("rate")));
    let is_met = gain.median >= LEAST_GAIN;
    println!("\n{}", judge::line(is_met, "packets/s over libc malloc", gain, &format!(">= {LEAST_GAIN}x")));
    Ok(is_met)
}

fn gaps(runs: usize) -> Outcome<bool> {
    let mut triples = Vec::new();
    for _ in 0..runs {
        let paced = child(Job::Gaps(Way::Paced))?;
        let turns = paced.number("turns") as u64;
        triples.push([child(Job::Gaps(Way::Nothing { turns }))?, paced, child(Job::Gaps(Way::Memset))?]);
    }
    println!("cleared: {}\n", triples[0][1].text("pages"));
    println!("While 1 GiB is cleared     nothing        paced  libc memset");
    let of = |side: usize, name: &str| Summary::of(triples.iter().map(|triple| triple[side].number(name))).median;
    for (name, unit, scale) in [
        ("median", "gap, median, us", 1e3),
        ("p99", "gap, p99, us", 1e3),
        ("p999", "gap, p99.9, us", 1e3),
        ("longest", "gap, longest, us", 1e3),
        ("took", "cleared after, ms", 1e6),
    ] {
        let [nothing, paced, memset] = [0, 1, 2].map(|side| of(side, name) / scale);
        println!("{unit:<22}{nothing:>12.2}{paced:>13.2}{memset:>13.2}");
    }
    let stretch = Summary::of(triples.iter().map(|[nothing, paced, _]| paced.number("p999") / nothing.number("p999")));
    let longer = triples.iter().map(|[nothing, paced, _]| (paced.number("longest") - nothing.number("longest")) / 1e3);
    let longer = Summary::of(longer);
    let are_met = [stretch.median <= MOST_STRETCH, longer.median <= MOST_LONGER_US];
    println!();
    print!("{}", judge::line(are_met[0], "p99.9 of gaps while clearing, over clearing nothing", stretch, "<= 1.25x"));
    print!("{}", judge::line(are_met[1], "longest gap while clearing, longer by, us", longer, "<= 100 us"));
    Ok(are_met == [true, true])
}
