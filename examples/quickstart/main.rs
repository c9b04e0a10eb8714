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
mod judge;
mod measure;
mod memory;
mod options;
mod prng;
mod progress;
mod report;
mod rounds;

use std::ffi::OsString;
use std::process::ExitCode;

use chooser::Chooser;
use measure::Readings;
use options::{HELP, Options};
use progress::Progress;
use rounds::Rounds;

#[global_allocator]
static GLOBAL: Chooser = Chooser::new();

fn main() -> ExitCode {
    judge::exit("quickstart", run())
}

fn run() -> Result<bool, String> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let is_child = arguments.next_if(|first| first == rounds::CHILD).is_some();
    let given: Vec<OsString> = arguments.collect();
    let options = Options::parse(given.iter().cloned())?;
    if is_child {
        return child(&options).map(|()| true);
    }
    if options.help {
        print!("{HELP}");
        return Ok(true);
    }
    warm_page_cache(&options)?;
    let rounds = rounds::run(options.runs(), &given)?;
    same_answers(&rounds)?;
    print!("{}", report::table(&rounds));
    if !options.check {
        return Ok(true);
    }
    let verdict = check::verdict(&rounds);
    print!("\n{}", verdict.text);
    Ok(verdict.all_met)
}

/// Reads every file once, so that no run waits for the disk.
fn warm_page_cache(options: &Options) -> Result<(), String> {
    let source = options.source();
    let files = source.files().map_err(|error| format!("{}: {error}", source.root.display()))?;
    let mut progress = Progress::new("reading the files once:");
    for (done, path) in files.taken.iter().enumerate() {
        corpus::read(path);
        progress.at(done, files.taken.len());
    }
    Ok(())
}

fn same_answers(rounds: &Rounds) -> Result<(), String> {
    let mut checksums = rounds.runs.iter().flatten().map(|run| run.text("checksum"));
    let first = checksums.next().unwrap_or_default();
    if checksums.all(|checksum| checksum == first) {
        return Ok(());
    }
    Err("two runs gave different answers: the files changed meanwhile, or memory was corrupted".to_owned())
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
    readings.set("page_faults", memory::page_faults());
    let resident = memory::proc_bytes("status", "VmHWM");
    let hugetlb = memory::proc_bytes("status", "HugetlbPages");
    readings.set("resident_peak", resident);
    readings.set("hugetlb", hugetlb);
    readings.set("peak", resident + hugetlb);
    readings.set("transparent", memory::proc_bytes("smaps_rollup", "AnonHugePages"));
    readings.set("heap_mapped", stats.mapped_bytes);
    readings.set("heap_live", stats.live_bytes);
    readings.set("heap_2m", stats.huge_2m_bytes);
    readings.set("heap_transparent", stats.transparent_bytes);
    readings.set("heap_base", stats.base_bytes);
    readings.set("fallbacks", stats.fallbacks);
    readings.set("remedy", stats.remedy.unwrap_or_default());
}
