//! `hugearena create`: a named arena, populated, with a progress bar.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hugearena::arena::{Restart, remove, remove_from};
use hugearena::backing::BackingKind;
use hugearena::{Arena, ArenaBuilder, PageSize, Placement, PopulateProgress};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::arenas::{self, RecordDir};
use crate::json::Json;
use crate::{Answer, size, status};

/// As a shell reports a command that was interrupted.
const INTERRUPTED: u8 = 130;
/// Cells of the bar.
const CELLS: usize = 40;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Its name: 1 to 64 letters, digits, '-', '_' and '.'
    name: String,
    /// How large it is, rounded up to whole pages
    #[arg(value_parser = size::parse)]
    size: u64,
    /// The size of its pages
    #[arg(long, value_name = "2M|1G", default_value = "2M", value_parser = size::parse_page)]
    page: PageSize,
    /// A directory on hugetlbfs, the mount or anything below it [default: the mount with the most room]
    #[arg(long, value_name = "DIR")]
    huge_dir: Option<PathBuf>,
    /// Pages of this NUMA node only: as --placement strict:NODE
    #[arg(long, value_name = "NODE", conflicts_with = "placement")]
    node: Option<u32>,
    /// Where its pages come from: any, interleave, preferred:NODE or strict:NODE
    #[arg(long, value_name = "WHERE", default_value = "any", value_parser = parse_placement)]
    placement: Placement,
    /// How many threads populate it [default: one for each CPU that may be used]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Leave its memory in core dumps, in whichever process maps it
    #[arg(long)]
    core_dumps: bool,
    #[command(flatten)]
    records: RecordDir,
}

fn parse_placement(text: &str) -> Result<Placement, String> {
    let wrong = || format!("{text:?}: want any, interleave, preferred:NODE or strict:NODE");
    let node = |text: &str| text.parse().map_err(|_| wrong());
    match text.split_once(':') {
        None if text == "any" => Ok(Placement::Any),
        None if text == "interleave" => Ok(Placement::Interleave),
        Some(("preferred", id)) => node(id).map(Placement::Preferred),
        Some(("strict", id)) => node(id).map(Placement::Strict),
        _ => Err(wrong()),
    }
}

pub fn run(options: &Options, quiet: bool) -> Answer {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // It fails for signals that cannot be handled; these can.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    let bar = (!quiet && std::io::stderr().is_terminal()).then(Bar::new);
    let has_bar = bar.is_some();
    let told = Arc::clone(&stop);
    let opened = builder(options)
        .on_progress(move |progress| {
            bar.iter().for_each(|bar| bar.draw(progress));
            if told.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .open();
    if has_bar {
        Bar::erase();
    }
    match opened {
        // Whoever interrupts wants to be as before, also when that came a moment too late.
        Ok(arena) if stop.load(Relaxed) && restart(&arena) == &Restart::Created => {
            drop(arena);
            interrupted(options.records.of(&options.name, remove, remove_from).err())
        }
        Ok(arena) => created(&options.name, &arena),
        Err(_) if stop.load(Relaxed) => interrupted(None),
        Err(error) => Answer::failure(&error),
    }
}

fn builder(options: &Options) -> ArenaBuilder {
    let kind = BackingKind::Hugetlbfs { dir: options.huge_dir.clone() };
    let placement = options.node.map_or(options.placement, Placement::Strict);
    let bytes = usize::try_from(options.size).unwrap_or(usize::MAX);
    let builder = Arena::builder().name(&options.name).backing(kind).page_size(options.page);
    let builder = builder.capacity(bytes).placement(placement);
    let builder = if options.core_dumps { builder.include_in_core_dumps() } else { builder };
    let builder = options.threads.into_iter().fold(builder, ArenaBuilder::populate_threads);
    options.records.path().into_iter().fold(builder, ArenaBuilder::record_dir)
}

fn restart(arena: &Arena) -> &Restart {
    arena.named().expect("it was given a name").restart()
}

fn created(name: &str, arena: &Arena) -> Answer {
    let named = arena.named().expect("it was given a name");
    let (stats, nodes) = (arena.stats(), &arena.obtained().nodes);
    let size = size::print(arena.capacity() as u64);
    let mut text = format!("{name}: {size} on {} pages of {}, {}", stats.pages, stats.page_size, named.restart());
    text += &format!("\nfile:   {}\nrecord: {}", named.path().display(), named.record_path().display());
    if arena.obtained().placement != Placement::Any {
        text += &format!("\nnodes:  {nodes}");
    }
    let json = Json::Object(vec![
        ("name", name.to_owned().into()),
        ("is_new", (named.restart() == &Restart::Created).into()),
        ("page_bytes", stats.page_size.bytes().into()),
        ("pages", stats.pages.into()),
        ("clean_pages", (stats.fresh + stats.clean).into()),
        ("path", named.path().display().to_string().into()),
        ("record_path", named.record_path().display().to_string().into()),
        ("nodes", arenas::nodes_json(nodes)),
    ]);
    Answer { status: status(true), text, json }
}

fn interrupted(left: Option<hugearena::Error>) -> Answer {
    let text = left.map_or("interrupted: nothing is left behind".into(), |error| format!("interrupted: {error}"));
    let json = Json::Object(vec![("error", (&text).into())]);
    Answer { status: INTERRUPTED, text, json }
}

/// A line of a terminal, drawn over and over.
struct Bar {
    start: Instant,
}

impl Bar {
    fn new() -> Bar {
        Bar { start: Instant::now() }
    }

    fn draw(&self, progress: PopulateProgress) {
        // A terminal that is gone is no reason to stop.
        let _ = write!(std::io::stderr(), "\r{}\x1b[K", line(progress, self.start.elapsed()));
    }

    fn erase() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// `[#####     ]  50 %  2048 of 4096 MiB on 2M pages, 1 s left`
fn line(progress: PopulateProgress, elapsed: Duration) -> String {
    let (done, total) = (progress.done_bytes, progress.total_bytes.max(1));
    let part = done as f64 / total as f64;
    let cells = "#".repeat((part * CELLS as f64) as usize);
    let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(f64::EPSILON);
    let left = if done == 0 { String::new() } else { format!(", {left:.0} s left") };
    format!("[{cells:CELLS$}] {:3.0} %  {progress}{left}", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_as_they_are_printed_in_the_manual() {
        let parsed = ["any", "interleave", "preferred:0", "strict:12"].map(|text| parse_placement(text).unwrap());
        assert_eq!(parsed, [Placement::Any, Placement::Interleave, Placement::Preferred(0), Placement::Strict(12)]);
        for text in ["", "strict", "strict:", "strict:x", "near:1", "any:1", "1", "strict:-1"] {
            assert!(parse_placement(text).is_err(), "{text}");
        }
    }
}
