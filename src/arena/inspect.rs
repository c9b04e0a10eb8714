//! A named arena seen from outside, while it is owned and when it is not. Takes no lock, takes no page, changes nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::record::{Identity, Record};
use super::records::{self, Place};
use super::state::{self, PageState};
use crate::backing::{Backing, named};
use crate::error::{Error, Operation, Result};
use crate::mapping::Mapping;
use crate::mapping::attach::AttachOptions;
use crate::numa::{self, Located, NodePages, Placement, Topology};
use crate::page_size::PageSize;

/// What can be known of a named arena without owning it: its files and what its record says at this moment.
///
/// `Display` is several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The name.
    pub name: String,
    /// Who owns it.
    pub owner: Owner,
    /// The size of its pages.
    pub page_size: PageSize,
    /// How many pages it has.
    pub pages: usize,
    /// How many of them are there, or `None` where the file is out of reach: it is gone, or its mount is.
    pub present_pages: Option<usize>,
    /// Which nodes the pages are on.
    pub nodes: Located,
    /// The file on hugetlbfs.
    pub path: PathBuf,
    /// The record of which pages are zero.
    pub record_path: PathBuf,
    /// Whether that record is to be believed.
    pub record: RecordState,
    /// Whether it can grow and shrink.
    pub is_resizable: bool,
    /// Whether the memory is in core dumps, as all who map it have agreed on; without a record the default.
    pub in_core_dumps: bool,
    states: Vec<PageState>,
}

/// Who owns a named arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// Nobody: it can be opened or removed.
    Nobody,
    /// A process, alive.
    Alive {
        /// Its id; `None` where it cannot be seen from here, as from another pid namespace.
        process: Option<u32>,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Nobody => f.write_str("nobody"),
            Owner::Alive { process: Some(process) } => write!(f, "process {process}"),
            Owner::Alive { process: None } => f.write_str("a process that is not seen from here"),
        }
    }
}

/// What is to be thought of an arena's record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordState {
    /// It speaks of this file.
    Fits,
    /// It speaks of another file, or was written before this boot: the next owner starts with dirty pages.
    OfAnotherFile,
    /// There is none: the next owner starts with dirty pages.
    Missing,
    /// It cannot be read, for this reason: the next owner is refused.
    Unreadable(String),
}

impl fmt::Display for RecordState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordState::Fits => f.write_str("fits"),
            RecordState::OfAnotherFile => f.write_str("speaks of another file or of another boot: all pages dirty"),
            RecordState::Missing => f.write_str("missing: all pages dirty"),
            RecordState::Unreadable(why) => write!(f, "unreadable: {why}"),
        }
    }
}

impl Inspection {
    /// The state of every page, as the record tells: it does not tell fresh pages from clean ones, and calls both clean.
    #[must_use]
    pub fn page_states(&self) -> &[PageState] {
        &self.states
    }

    /// How many pages are in that state.
    #[must_use]
    pub fn count(&self, state: PageState) -> usize {
        self.states.iter().filter(|one| **one == state).count()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inspection { name, owner, page_size, pages, nodes, record, .. } = self;
        writeln!(f, "{name}: {pages} pages of {page_size}, owned by {owner}")?;
        writeln!(f, "pages:  {}", state::summary(&self.states))?;
        match self.present_pages {
            Some(present) if present == *pages => writeln!(f, "nodes:  {nodes}")?,
            Some(present) => writeln!(f, "nodes:  {} of the pages are not there; {nodes}", pages - present)?,
            None => writeln!(f, "nodes:  the file is out of reach")?,
        }
        writeln!(f, "file:   {}", self.path.display())?;
        writeln!(f, "record: {}, {record}", self.record_path.display())?;
        let dumps = if self.in_core_dumps { "in" } else { "out of" };
        let resizable = if self.is_resizable { ", may lack pages" } else { "" };
        write!(f, "flags:  shared, not inherited by children, {dumps} core dumps{resizable}")
    }
}

/// Looks at the named arena of this user, owned or not.
///
/// # Errors
///
/// [`Operation::Inspect`] when there is no such arena; [`Operation::Configure`] for what is no name.
///
/// # Examples
///
/// ```
/// match hugearena::arena::inspect("packets") {
///     Ok(arena) => println!("{arena}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
///
/// # Sources
///
/// fcntl(2) (`F_OFD_GETLK`), proc_locks(5), get_mempolicy(2).
pub fn inspect(name: &str) -> Result<Inspection> {
    inspect_place(&Place::new(name, None)?)
}

/// As [`inspect`], for an arena whose record is in `record_dir`, of whichever user.
///
/// # Errors
///
/// As for [`inspect`].
pub fn inspect_from(record_dir: impl AsRef<Path>, name: &str) -> Result<Inspection> {
    inspect_place(&Place::new(name, Some(record_dir.as_ref()))?)
}

/// Looks at every named arena of this user: those with a record, and files on hugetlbfs mounts that have lost theirs.
#[must_use]
pub fn list() -> Vec<Inspection> {
    let directory = records::usual_directory();
    let recorded = directory.as_deref().map(Place::names_in).unwrap_or_default();
    list_of(recorded, directory.as_deref())
}

/// As [`list`], with the records that are in `record_dir`.
#[must_use]
pub fn list_from(record_dir: impl AsRef<Path>) -> Vec<Inspection> {
    list_of(Place::names_in(record_dir.as_ref()), Some(record_dir.as_ref()))
}

fn list_of(recorded: Vec<String>, directory: Option<&Path>) -> Vec<Inspection> {
    let names: BTreeSet<String> = recorded.into_iter().chain(named::names()).collect();
    // Those that went meanwhile are left out.
    names.iter().filter_map(|name| inspect_place(&Place::new(name, directory).ok()?).ok()).collect()
}

fn inspect_place(place: &Place) -> Result<Inspection> {
    let (record, unreadable) = match place.read_of_anybody() {
        Ok(record) => (record, None),
        Err(error) => (None, Some(error)),
    };
    let path = record.as_ref().map(|record| record.path.clone()).or_else(|| named::find(place.name()));
    let found = path.as_deref().and_then(Found::at);
    let (page_size, pages) = match (&record, &found) {
        (Some(record), _) => (record.page_size, record.pages),
        (None, Some(found)) => (found.page_size, found.pages()),
        (None, None) => return Err(unreadable.unwrap_or_else(|| place.error(Operation::Inspect, "there is none"))),
    };
    let fits = record.as_ref().zip(found.as_ref()).is_some_and(|(record, found)| found.is_described_by(record));
    let in_core_dumps = record.as_ref().is_some_and(Record::is_dumped);
    let is_resizable = record.as_ref().is_some_and(Record::is_resizable);
    let state = match (&record, unreadable) {
        (None, Some(error)) => RecordState::Unreadable(error.to_string()),
        (None, None) => RecordState::Missing,
        (Some(_), _) if fits => RecordState::Fits,
        (Some(_), _) => RecordState::OfAnotherFile,
    };
    let path = path.unwrap_or_default();
    let owner = place.owner().or_else(|| records::owner_of(&path));
    let owner = owner.map_or(Owner::Nobody, |process| Owner::Alive { process });
    let is_owned = owner != Owner::Nobody;
    let states =
        record.filter(|_| fits).map_or_else(|| vec![PageState::Dirty; pages], |record| record.states(is_owned));
    Ok(Inspection {
        name: place.name().into(),
        owner,
        page_size,
        pages,
        present_pages: found.as_ref().map(Found::present_pages),
        nodes: found.map_or_else(|| Located::Unknown("the file is out of reach".into()), Found::locate),
        record_path: place.record_path(),
        path,
        record: state,
        is_resizable,
        in_core_dumps,
        states,
    })
}

/// An arena's file.
struct Found {
    file: File,
    metadata: Metadata,
    page_size: PageSize,
    path: PathBuf,
}

impl Found {
    fn at(path: &Path) -> Option<Found> {
        let page_size = named::page_size_at(path)?;
        let file = named::open(path, false).ok()?;
        let metadata = file.metadata().ok()?;
        Some(Found { file, metadata, page_size, path: path.into() })
    }

    fn pages(&self) -> usize {
        usize::try_from(self.metadata.len() / self.page_size.bytes() as u64).unwrap_or(usize::MAX)
    }

    fn present_pages(&self) -> usize {
        usize::try_from(self.metadata.blocks().saturating_mul(512) / self.page_size.bytes() as u64)
            .unwrap_or(usize::MAX)
    }

    fn is_described_by(&self, record: &Record) -> bool {
        record.describes(Identity::of(&self.metadata), self.page_size, self.pages())
    }

    /// Asks about each page, which has to be mapped for that: only where all are there, so that none is taken.
    fn locate(self) -> Located {
        let topology = Topology::read();
        let (size, pages) = (self.page_size, self.present_pages());
        if let &[node] = topology.nodes_with_memory() {
            return Located::Counted(vec![NodePages { node, pages }]);
        }
        let unknown = |error: Error| Located::Unknown(error.to_string());
        let backing = match Backing::from_file(self.file, self.path.parent().map(Path::to_path_buf), size) {
            Ok(backing) => backing,
            Err(error) => return unknown(error),
        };
        if !backing.is_allocated() {
            return Located::Unknown("only asked about when all pages are there".into());
        }
        match Mapping::attach(backing, AttachOptions::of_peer(false, false, false, true)) {
            Ok((mapping, _)) => numa::locate(mapping.start().as_ptr().addr(), pages, size, Placement::Any, &topology),
            Err(error) => unknown(error),
        }
    }
}
