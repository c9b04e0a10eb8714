//! `hugearena create`: a named arena, populated, with a progress bar.

use std::env;
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
use crate::{Answer, Outcome, size, status};

/// As a shell reports a command that was interrupted.
const INTERRUPTED: u8 = 130;
/// Cells of the bar: its line fits 80 columns.
const CELLS: usize = 20;

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
    /// Leave its memory in core dumps, in whichever process maps it, until it has an owner that does not ask for that
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

pub fn run(options: &Options, quiet: bool) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // It fails for signals that cannot be handled; these can.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    let bar = (!quiet && can_draw()).then(Bar::new);
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
            Err(interrupted(options.records.of(&options.name, remove, remove_from).err()))
        }
        Ok(arena) => Ok(created(&options.name, &arena)),
        Err(_) if stop.load(Relaxed) => Err(interrupted(None)),
        Err(error) => Err(Answer::failure(&error)),
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

/// Whether standard error is a terminal that knows escape sequences.
fn can_draw() -> bool {
    let is_dumb = env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb");
    !is_dumb && std::io::stderr().is_terminal()
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
        // Cut off at the margin of a narrow terminal: what runs over to the next line could not be drawn over.
        let text = format!("\r\x1b[?7l{}\x1b[K\x1b[?7h", line(progress, self.start.elapsed()));
        // A terminal that is gone is no reason to stop.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn erase() {
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
    }
}

/// `[#####     ]  50 %  2048 of 4096 MiB on 2M pages, 1 s left`
fn line(progress: PopulateProgress, elapsed: Duration) -> String {
    let part = progress.done_bytes as f64 / progress.total_bytes.max(1) as f64;
    drawn(part, &progress.to_string(), elapsed)
}

fn drawn(part: f64, progress: &str, elapsed: Duration) -> String {
    let cells = "#".repeat((part * CELLS as f64) as usize);
    let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(f64::EPSILON);
    let left = if part > 0.0 { format!(", {left:.0} s left") } else { String::new() };
    format!("[{cells:CELLS$}] {:3.0} %  {progress}{left}", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fits_80_columns() {
        let half = drawn(0.5, "2048 of 4096 MiB on 2M pages", Duration::from_secs(1));
        assert_eq!(half, "[##########          ]  50 %  2048 of 4096 MiB on 2M pages, 1 s left");
        let start = drawn(0.0, "0 of 4096 MiB on 2M pages", Duration::ZERO);
        assert_eq!(start, "[                    ]   0 %  0 of 4096 MiB on 2M pages");
        // A tebibyte, for hours.
        let slow = drawn(0.1, "104857 of 1048576 MiB on 2M pages", Duration::from_secs(3000));
        assert!(slow.ends_with(", 27000 s left") && slow.len() < 80, "{slow}");
    }

    #[test]
    fn placements_are_as_they_are_printed_in_the_manual() {
        let parsed = ["any", "interleave", "preferred:0", "strict:12"].map(|text| parse_placement(text).unwrap());
        assert_eq!(parsed, [Placement::Any, Placement::Interleave, Placement::Preferred(0), Placement::Strict(12)]);
        for text in ["", "strict", "strict:", "strict:x", "near:1", "any:1", "1", "strict:-1"] {
            assert!(parse_placement(text).is_err(), "{text}");
        }
    }
}
