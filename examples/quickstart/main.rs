//! One real program under two allocators: an inverted index of source code, and queries that it answers.
//!
//! ```text
//! cargo run --release --example quickstart
//! cargo run --release --example quickstart -- --check
//! ```
//!
//! The program runs itself as child processes, in turn under libc malloc and under [`hugearena::HugeAlloc`], and
//! prints what each run got and took. It needs no huge pages and no privileges; it says what it fell back to.
//! `job.rs` is what is measured, `index.rs` the data structure; they are ordinary Rust, with nothing in them about
//! memory. `HUGEARENA_ALLOCATOR=libc` or `huge` chooses the allocator of a process (see `chooser.rs`).

mod check;
mod chooser;
mod corpus;
mod index;
mod job;
mod measure;
mod options;
mod prng;
mod progress;
mod report;
mod rounds;

use std::process::ExitCode;

use chooser::Chooser;
use measure::Readings;
use options::{HELP, Options};

#[global_allocator]
static GLOBAL: Chooser = Chooser::new();

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("quickstart: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let is_child = arguments.next_if(|first| first == rounds::CHILD).is_some();
    let options = Options::parse(arguments)?;
    if is_child {
        return child(&options).map(|()| ExitCode::SUCCESS);
    }
    if options.help {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    let rounds = rounds::run(&options)?;
    print!("{}", report::table(&rounds));
    if !options.check {
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = check::verdict(&rounds);
    print!("\n{}", verdict.text);
    Ok(if verdict.all_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Does the job once, prints what it took, and ends like any program does: by dropping what it made.
fn child(options: &Options) -> Result<(), String> {
    let mut readings = Readings::default();
    let index = job::build(options, &mut readings)?;
    job::query(&index, options, &mut readings)?;
    read_memory(&mut readings);
    readings.print();
    drop(index);
    Ok(())
}

/// Taken while the index is still there. The heap gives nothing back, so its huge pages now are its peak.
fn read_memory(readings: &mut Readings) {
    let stats = GLOBAL.huge().stats();
    readings.set("allocator", GLOBAL.side().value());
    readings.set("page_faults", measure::page_faults());
    readings.set("resident_peak", measure::proc_bytes("status", "VmHWM"));
    readings.set("hugetlb", measure::proc_bytes("status", "HugetlbPages"));
    readings.set("transparent", measure::proc_bytes("smaps_rollup", "AnonHugePages"));
    readings.set("heap_mapped", stats.mapped_bytes);
    readings.set("heap_live", stats.live_bytes);
    readings.set("heap_1g", stats.huge_1g_bytes);
    readings.set("heap_2m", stats.huge_2m_bytes);
    readings.set("heap_transparent", stats.transparent_bytes);
    readings.set("heap_base", stats.base_bytes);
    readings.set("fallbacks", stats.fallbacks);
    readings.set("remedy", stats.remedy.unwrap_or_default());
}
