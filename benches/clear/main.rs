//! Clearing and copying: every way against memset and memcpy, and the figures that this project promises for them.
//!
//! ```text
//! cargo bench --bench clear                 # about five minutes; table, CSV and SVG files
//! cargo bench --bench clear -- --quick      # under three
//! cargo bench --bench clear -- --full       # every kernel in every cell
//! cargo bench --bench clear -- --check      # exit status 1 when a figure is not met
//! cargo bench --bench clear -- --runs 9     # all of it nine times: a figure is the median of its runs
//! ```
//!
//! Every comparison is inside one run, by turns, of medians. Chunks are 2 MiB from a ring of 128 MiB, written by
//! their holder before they go back, so that neither the chunk nor its neighbours are in cache when its turn comes
//! again and what is pushed out of the cache has to be written. `hot` is a ring of one chunk.
#![allow(unsafe_code)]

mod bare;
mod context;
mod copies;
mod crew;
#[path = "../environment.rs"]
mod environment;
mod gaps;
mod holds;
#[path = "../../examples/quickstart/judge.rs"]
mod judge;
mod matrix;
#[expect(dead_code, reason = "of what processes tell each other only the arithmetic is used here")]
#[path = "../../examples/quickstart/measure.rs"]
mod measure;
mod options;
mod plots;
mod ring;
mod scrubbed;
mod sequential;
mod single;
mod svg;
mod sweep;
mod table;
mod uses;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use context::Context;
use hugearena::memops::Kernel;
use options::Options;

/// A part of the bench, or why it could not run.
type Part = fn(&mut Context) -> Result<(), String>;

/// The figures first: they are repeated in each run, and the matrix only fills the table.
const PARTS: [(&str, Part); 13] = [
    ("cold", single::cold),
    ("kernels", single::kernels),
    ("hot", single::hot),
    ("unknown", single::unknown),
    ("batches", single::batches),
    ("matrix", matrix::small),
    ("every-kernel", matrix::every_kernel),
    ("1g", matrix::large),
    ("sequential", sequential::run),
    ("copies", copies::run),
    ("scrubbed", scrubbed::run),
    ("gaps", gaps::run),
    ("holds", holds::run),
];

fn main() -> ExitCode {
    judge::exit("clear", run())
}

fn run() -> Result<bool, String> {
    let Some(options) = Options::parse(env::args().skip(1), &PARTS.map(|(name, _)| name))? else {
        println!("clear takes minutes: cargo bench --bench clear");
        return Ok(true);
    };
    println!("{}", environment::describe());
    println!("kernels:     {}", Kernel::available().map(Kernel::name).collect::<Vec<_>>().join(" "));
    println!("chosen:      {} near, {} far", Kernel::cached().name(), Kernel::non_caching().name());
    println!("{} runs, {:?}\n", options.runs, options.extent);
    let start = Instant::now();
    let mut context = Context::new(options.extent);
    for run in 1..=options.runs {
        measure(&mut context, &options, run);
    }
    println!("{}\n{}", context.table.text(), context.verdicts.text());
    let directory = directory();
    write(&directory, &context).map_err(|error| format!("{}: {error}", directory.display()))?;
    println!("\nCSV and SVG files: {} ({:.0} s)", directory.display(), start.elapsed().as_secs_f64());
    Ok(context.verdicts.all_met() || !options.is_check)
}

/// Every part that was asked for and could be run so far.
fn measure(context: &mut Context, options: &Options, run: usize) {
    for (name, part) in PARTS.iter().filter(|(name, _)| options.wants(name)) {
        let start = Instant::now();
        if let Err(reason) = part(context) {
            context.verdicts.skip(name, &reason);
        }
        eprintln!("run {run} of {}: {name}, {:.1} s", options.runs, start.elapsed().as_secs_f64());
    }
}

/// `clear` in cargo's target directory, in which this program lies two levels deep.
fn directory() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    program.ancestors().nth(3).unwrap_or(Path::new("target")).join("clear")
}

fn write(directory: &Path, context: &Context) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("times.csv"), context.table.csv())?;
    fs::write(directory.join("figures.csv"), context.verdicts.csv())?;
    for (name, plot) in plots::all(context) {
        fs::write(directory.join(format!("{name}.svg")), plot)?;
    }
    Ok(())
}
