//! `HugeAlloc` beside the allocators that people pick instead, one process each, in turns. README.md says how to read
//! what it prints.

mod binaries;
mod configurations;
mod figures;
mod instructions;
mod machine;
mod options;
mod plot;
mod programs;
mod report;
mod results;
mod run;
#[path = "../../clear/svg.rs"]
#[allow(dead_code, missing_docs)]
mod svg;

use std::fs::{self, File};
use std::path::Path;
use std::process::ExitCode;

use options::Options;
use results::Results;

/// The workloads that are also run on no allocator.
const BOUND_BY_MEMORY: [&str; 2] = ["chase", "zeroed"];

fn main() -> ExitCode {
    let measured = Options::parse(std::env::args().skip(1)).and_then(|options| measure(&options));
    match measured {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("peers: {reason}");
            ExitCode::from(2)
        }
    }
}

/// Runs everything; whether the exit code is to be success.
fn measure(options: &Options) -> Result<bool, String> {
    let missing = configurations::missing();
    if !missing.is_empty() {
        return Err(format!("missing peers, which cargo bench builds: {}", missing.join(", ")));
    }
    let facts = machine::describe();
    facts.iter().for_each(|fact| println!("{fact}"));
    let is_wanted = |at: usize, name: &str| at <= results::LIBC || options.wants_peer(name);
    let wanted = configurations::ALL.into_iter().enumerate().filter(|(at, one)| is_wanted(*at, one.name));
    let mut results = Results::new(options.workloads(), wanted.map(|(_, one)| one).collect());
    for round in 0..options.rounds {
        for workload in 0..results.workloads.len() {
            eprintln!("round {} of {}: {}", round + 1, options.rounds, results.workloads[workload].name);
            take_turns(options, &mut results, workload, round)?;
        }
    }
    if options.is_quick {
        println!(
            "{} workloads give the same result on all {} allocators",
            results.workloads.len(),
            results.configurations.len()
        );
        return Ok(true);
    }
    let instructions = if results.index(instructions::WORKLOADS[0]).is_some() {
        instructions::count(|one| one.family == configurations::Family::HugeAlloc || options.wants_peer(one.name))
    } else {
        Vec::new()
    };
    print!("{}{}", report::tables(&results), report::instruction_table(&instructions));
    write(options, &results, &facts)?;
    results.notes().iter().for_each(|note| println!("note: {note}"));
    println!();
    let mut figures = figures::judge(&results, &instructions);
    if options.is_whole() {
        eprintln!("dd and redis");
        figures.extend(programs::judge());
    }
    figures.iter().for_each(|figure| println!("{} {}", if figure.is_met { "met    " } else { "NOT met" }, figure.text));
    Ok(!options.is_check || figures.iter().all(|figure| figure.is_met))
}

/// One run of each allocator, each round beginning with another.
fn take_turns(options: &Options, results: &mut Results, workload: usize, round: usize) -> Result<(), String> {
    let _lock = options.lock.as_deref().map(take_lock).transpose()?;
    let count = results.configurations.len();
    let what = results.workloads[workload];
    let operations = options.operations(what);
    for turn in 0..count {
        let peer = (turn + round) % count;
        let run = run::run(&results.configurations[peer], what, operations)?;
        results.add(workload, peer, run)?;
    }
    if options.is_quick || !BOUND_BY_MEMORY.contains(&what.name) {
        return Ok(());
    }
    for bare in &configurations::BARE {
        match run::run(bare, what, operations) {
            Ok(run) => results.add_bare(workload, bare, &run)?,
            Err(reason) if round == 0 => println!("note: {reason}: is the pool long enough?"),
            Err(_) => {}
        }
    }
    Ok(())
}

fn take_lock(path: &Path) -> Result<File, String> {
    let file = File::create(path).and_then(|file| file.lock().map(|()| file));
    file.map_err(|error| format!("{}: {error}", path.display()))
}

fn write(options: &Options, results: &Results, facts: &[String]) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", options.out.display());
    fs::create_dir_all(&options.out).map_err(failed)?;
    let (csv, svg) = (options.out.join("peers.csv"), options.out.join("peers.svg"));
    fs::write(&csv, report::csv(results, facts)).map_err(failed)?;
    let subtitle =
        format!("medians of {} rounds; each allocator in its best configuration; {}", results.rounds(), facts[0]);
    fs::write(&svg, plot::draw(results, &subtitle)).map_err(failed)?;
    println!("\n{}\n{}", csv.display(), svg.display());
    Ok(())
}
