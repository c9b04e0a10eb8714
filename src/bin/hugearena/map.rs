//! `hugearena map`: a picture of an arena, a cell for each page or for several.

use std::ops::Range;

use hugearena::arena::{Inspection, Owner, PageState};

use crate::arenas::{One, inspection_json};
use crate::json::Json;
use crate::{Answer, status};

/// Cells of a row.
const ROW: usize = 64;
/// Rows that a picture has at most, unless each page is wanted.
const ROWS: usize = 32;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    one: One,
    /// A cell for each page, however many there are
    #[arg(long)]
    all: bool,
}

pub fn run(options: &Options) -> Answer {
    match options.one.look() {
        Ok(found) => Answer { status: status(true), text: text(&found, options.all), json: json(&found) },
        Err(error) => Answer::failure(&error),
    }
}

fn text(found: &Inspection, all: bool) -> String {
    let Inspection { name, pages, page_size, owner, .. } = found;
    let each = if all { 1 } else { pages.div_ceil(ROW * ROWS) };
    let cells: String =
        (0..*pages).step_by(each).map(|at| cell(found, at..pages.min(&(at + each)).to_owned())).collect();
    let digits = pages.to_string().len();
    let rows = cells
        .as_bytes()
        .chunks(ROW)
        .enumerate()
        .map(|(row, cells)| format!("{:digits$} {}\n", row * ROW * each, String::from_utf8_lossy(cells)));
    let legend = legend(*owner, each);
    format!("{name}: {pages} pages of {page_size}, owned by {owner}\n{}{legend}", rows.collect::<String>())
}

/// One character for all of these pages.
fn cell(found: &Inspection, pages: Range<usize>) -> char {
    let first = found.state(pages.start);
    if pages.clone().all(|page| found.state(page) == first) { letter(first) } else { '+' }
}

fn letter(state: PageState) -> char {
    if state == PageState::Clean { '.' } else { '#' }
}

fn legend(owner: Owner, each: usize) -> String {
    let other = match owner {
        Owner::Nobody => PageState::Dirty.to_string(),
        _ => format!("{} (only the owner knows which)", PageState::InUseOrDirty),
    };
    let mixed = if each > 1 { format!("  + some of each; {each} pages a cell") } else { String::new() };
    format!(". clean  # {other}{mixed}")
}

/// Runs of pages in one state, which together are all of them.
fn json(found: &Inspection) -> Json {
    let mut runs: Vec<(usize, usize, PageState)> = Vec::new();
    for page in 0..found.pages {
        let state = found.state(page);
        match runs.last_mut() {
            Some((_, count, last)) if *last == state => *count += 1,
            _ => runs.push((page, 1, state)),
        }
    }
    let runs = runs.into_iter().map(|(first, pages, state)| {
        let state = state.to_string();
        Json::Object(vec![("first", first.into()), ("pages", pages.into()), ("state", state.into())])
    });
    Json::Object(vec![("arena", inspection_json(found)), ("runs", Json::list(runs))])
}
