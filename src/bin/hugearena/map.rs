//! `hugearena map`: a picture of an arena, a cell for each page or for several.

use hugearena::arena::{Inspection, PageState};

use crate::arenas::{One, inspection_json};
use crate::json::Json;
use crate::{Answer, Outcome, status};

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

pub fn run(options: &Options) -> Outcome {
    let found = options.one.look()?;
    Ok(Answer { status: status(true), text: text(&found, options.all), json: json(&found) })
}

fn text(found: &Inspection, all: bool) -> String {
    let Inspection { name, pages, page_size, owner, .. } = found;
    let each = if all { 1 } else { pages.div_ceil(ROW * ROWS).max(1) };
    let cells: String = found.page_states().chunks(each).map(cell).collect();
    let digits = pages.to_string().len();
    let rows = cells.as_bytes().chunks(ROW).enumerate();
    let rows = rows.map(|(row, cells)| format!("{:digits$} {}\n", row * ROW * each, String::from_utf8_lossy(cells)));
    let legend = legend(found.page_states(), each);
    format!("{name}: {pages} pages of {page_size}, owned by {owner}\n{}{legend}", rows.collect::<String>())
}

/// One character for all of these pages.
fn cell(pages: &[PageState]) -> char {
    if pages.iter().all(|state| *state == pages[0]) { letter(pages[0]) } else { '+' }
}

fn letter(state: PageState) -> char {
    match state {
        PageState::Fresh | PageState::Clean => '.',
        PageState::Claimed => '@',
        PageState::Reserved => '_',
        PageState::Absent => ' ',
        // Dirty, and what this command does not know.
        _ => '#',
    }
}

/// What the letters in the picture stand for.
fn legend(pages: &[PageState], each: usize) -> String {
    let mut seen: Vec<PageState> = Vec::new();
    for state in pages {
        if !seen.contains(state) {
            seen.push(*state);
        }
    }
    let mut parts: Vec<_> = seen.into_iter().map(|state| format!("{} {}", letter(state), meaning(state))).collect();
    if each > 1 {
        parts.push(format!("+ some of each; {each} pages a cell"));
    }
    parts.join("  ")
}

fn meaning(state: PageState) -> String {
    match state {
        PageState::Absent => "(blank) absent".into(),
        state => state.to_string(),
    }
}

/// Runs of pages in one state, which together are all of them.
fn json(found: &Inspection) -> Json {
    let mut runs: Vec<(usize, usize, PageState)> = Vec::new();
    for (page, &state) in found.page_states().iter().enumerate() {
        match runs.last_mut() {
            Some((_, count, last)) if *last == state => *count += 1,
            _ => runs.push((page, 1, state)),
        }
    }
    let runs = runs.into_iter().map(|(first, pages, state)| {
        let state = state.to_string();
        Json::Object(vec![("first_page", first.into()), ("pages", pages.into()), ("state", state.into())])
    });
    Json::Object(vec![("arena", inspection_json(found)), ("runs", Json::list(runs))])
}
