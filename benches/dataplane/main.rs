//! Checks the figures promised for pools and rings: against DPDK's own perf tests on this machine, and crossbeam.
//!
//! ```text
//! apt install dpdk-dev gcc
//! cargo bench --bench dataplane
//! cargo bench --bench dataplane -- --check    # exit status 1 when a figure is not met
//! cargo bench --bench dataplane -- --runs 15
//! ```
//!
//! `dpdk-test` runs once a round, in between ours, and does what it always does: `mempool_perf_autotest` (a cache of
//! 512, bulks of 32 of 2048-byte objects) and `ring_perf_autotest` (a ring of 4096 pointers, bursts of 32). What is
//! timed here are the same loops. What counts is the median of the rounds' ratios.
//!
//! Cycles are those of the time stamp counter, here as there, so the two compare without conversion; a rate is
//! converted by the counter's frequency, measured against the clock. `mempool_perf_autotest` takes 5 s for each of 720
//! configurations: a preloaded library makes `dpdk-test` believe that the counter is 400 times slower, and with that
//! each takes 12.5 ms; its rates are multiplied by 400 again.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod dpdk;
#[path = "../environment.rs"]
mod environment;
#[path = "../../examples/quickstart/judge.rs"]
mod judge;
#[path = "../../examples/quickstart/measure.rs"]
#[allow(dead_code)]
mod measure;
#[cfg(target_arch = "x86_64")]
mod pools;
#[cfg(target_arch = "x86_64")]
mod rings;
#[cfg(target_arch = "x86_64")]
mod rounds;
#[cfg(target_arch = "x86_64")]
mod timing;

use std::process::ExitCode;

const ROUNDS: usize = 9;

fn main() -> ExitCode {
    judge::exit("dataplane", run())
}

fn run() -> Result<bool, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("figures take a minute: cargo bench --bench dataplane");
        return Ok(true);
    }
    println!("{}\n", environment::describe());
    let is_check = arguments.iter().any(|argument| argument == "--check");
    let runs = arguments.iter().skip_while(|argument| *argument != "--runs").nth(1);
    let runs = runs.map_or(Ok(ROUNDS), |text| text.parse().map_err(|_| format!("--runs {text}: not a number")))?;
    Ok(measure(runs)? || !is_check)
}

#[cfg(target_arch = "x86_64")]
use rounds::measure;

/// `dpdk-test` counts cycles of a counter that is read differently there.
#[cfg(not(target_arch = "x86_64"))]
fn measure(_: usize) -> Result<bool, String> {
    println!("skipped: the comparison is for x86-64");
    Ok(true)
}
