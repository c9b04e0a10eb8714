//! `hugearena inspect`, `list` and `remove`: named arenas, from outside.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use hugearena::arena::{self, Inspection, Owner, PageState, RecordState};
use hugearena::numa::Located;

use crate::json::Json;
use crate::{Answer, Outcome, size, status};

/// Where records are.
#[derive(Debug, clap::Args)]
pub struct RecordDir {
    /// Where its record is kept [default: /run/hugearena for root, $XDG_RUNTIME_DIR/hugearena for others]
    #[arg(long, value_name = "DIR")]
    record_dir: Option<PathBuf>,
}

impl RecordDir {
    pub fn path(&self) -> Option<&Path> {
        self.record_dir.as_deref()
    }

    /// One of two functions of the library: with the usual directory, or with the one that was named.
    pub fn of<T>(&self, name: &str, usual: impl Fn(&str) -> T, from: impl Fn(PathBuf, &str) -> T) -> T {
        match &self.record_dir {
            None => usual(name),
            Some(directory) => from(directory.clone(), name),
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct One {
    /// The name of the arena
    pub name: String,
    #[command(flatten)]
    pub records: RecordDir,
}

impl One {
    pub fn look(&self) -> Result<Inspection, Answer> {
        self.records.of(&self.name, arena::inspect, arena::inspect_from).map_err(|error| Answer::failure(&error))
    }
}

#[derive(Debug, clap::Args)]
pub struct All {
    #[command(flatten)]
    records: RecordDir,
}

pub fn inspect(options: &One) -> Outcome {
    let found = options.look()?;
    Ok(Answer { status: status(true), text: found.to_string(), json: inspection_json(&found) })
}

pub fn remove(options: &One) -> Outcome {
    let removed = options.records.of(&options.name, arena::remove, arena::remove_from);
    removed.map_err(|error| Answer::failure(&error))?;
    let json = Json::Object(vec![("removed", (&options.name).into())]);
    Ok(Answer { status: status(true), text: format!("{}: removed", options.name), json })
}

pub fn list(options: &All) -> Answer {
    let found = match options.records.path() {
        None => arena::list(),
        Some(directory) => arena::list_from(directory),
    };
    let json = Json::Object(vec![("arenas", Json::list(found.iter().map(inspection_json)))]);
    Answer { status: status(true), text: table(&found), json }
}

fn table(found: &[Inspection]) -> String {
    if found.is_empty() {
        return "no arena is seen".into();
    }
    let wide = found.iter().map(|one| one.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:wide$} {:>6} {:>5} {:>7} {:>7}  owner, file\n", "name", "size", "page", "pages", "clean");
    for one in found {
        let Inspection { name, page_size, pages, owner, path, .. } = one;
        let (size, page, clean) = (size::print(bytes(one)), page_size.to_string(), one.count(PageState::Clean));
        let _ = write!(text, "{name:wide$} {size:>6} {page:>5} {pages:>7} {clean:>7}  {owner}, {}", path.display());
        text += match one.record {
            RecordState::Fits => "\n",
            _ => " (see inspect)\n",
        };
    }
    text
}

fn bytes(one: &Inspection) -> u64 {
    one.pages as u64 * one.page_size.bytes() as u64
}

pub fn inspection_json(one: &Inspection) -> Json {
    let process = match one.owner {
        Owner::Alive { process } => process,
        _ => None,
    };
    let clean = one.count(PageState::Clean);
    Json::Object(vec![
        ("name", (&one.name).into()),
        ("is_owned", (one.owner != Owner::Nobody).into()),
        ("owner_process", process.into()),
        ("page_bytes", one.page_size.bytes().into()),
        ("pages", one.pages.into()),
        ("present_pages", one.present_pages.into()),
        ("clean_pages", clean.into()),
        ("dirty_pages", one.count(PageState::Dirty).into()),
        ("claimed_pages", one.count(PageState::Claimed).into()),
        ("absent_pages", one.count(PageState::Absent).into()),
        ("nodes", nodes_json(&one.nodes)),
        ("path", one.path.display().to_string().into()),
        ("record_path", one.record_path.display().to_string().into()),
        ("record", one.record.to_string().into()),
        ("is_record_believed", (one.record == RecordState::Fits).into()),
        ("is_resizable", one.is_resizable.into()),
        ("in_core_dumps", one.in_core_dumps.into()),
    ])
}

/// Pages by node; null where that is unknown.
pub fn nodes_json(nodes: &Located) -> Json {
    match nodes {
        Located::Counted(counts) => Json::list(
            counts.iter().map(|count| Json::Object(vec![("node", count.node.into()), ("pages", count.pages.into())])),
        ),
        _ => Json::Null,
    }
}
