//! What every page of an arena is at this moment, for pictures and reports.

use std::fmt;
use std::path::Path;

use super::Arena;
use super::records::Place;
use crate::error::{Operation, Result};

/// The state of one page of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageState {
    /// Free, and never handed out since the kernel zeroed it.
    Fresh,
    /// Free, and zeroed by us or by an owner before.
    Clean,
    /// Free, contents unknown.
    Dirty,
    /// Held by a chunk.
    Claimed,
    /// Free, promised by the kernel, and not populated yet: arenas that are populated lazily or in the background.
    Reserved,
    /// Room to grow into: the arena has no page there.
    Absent,
}

impl fmt::Display for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageState::Fresh => "fresh",
            PageState::Clean => "clean",
            PageState::Dirty => "dirty",
            PageState::Claimed => "claimed",
            PageState::Reserved => "reserved",
            PageState::Absent => "absent",
        })
    }
}

impl Arena {
    /// The state of every page, first to last: exact while nobody claims or releases.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize, arena::PageState};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(3 * PageSize::base().bytes()).open()?;
    /// let chunk = arena.claim(1);
    /// assert_eq!(arena.page_states(), [PageState::Claimed, PageState::Fresh, PageState::Fresh]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn page_states(&self) -> Vec<PageState> {
        self.inner.pages.states()
    }
}

/// The state of every page of a named arena of this user, as its record tells, whether or not it has an owner:
/// changes nothing and needs no lock. A record does not tell fresh pages from clean ones, and calls both clean.
///
/// # Errors
///
/// [`Operation::Attach`] when there is no such arena; [`Operation::Record`] for a record that is none.
///
/// # Examples
///
/// ```
/// match hugearena::arena::page_states("packets") {
///     Ok(states) => println!("{} pages", states.len()),
///     Err(error) => println!("{error}"), // there is no such arena here
/// }
/// ```
pub fn page_states(name: &str) -> Result<Vec<PageState>> {
    recorded(&Place::new(name, None)?)
}

/// As [`page_states`], for an arena whose record is in `record_dir`.
///
/// # Errors
///
/// As for [`page_states`].
pub fn page_states_from(record_dir: impl AsRef<Path>, name: &str) -> Result<Vec<PageState>> {
    recorded(&Place::new(name, Some(record_dir.as_ref()))?)
}

fn recorded(place: &Place) -> Result<Vec<PageState>> {
    let missing = || place.error(Operation::Attach, format!("{} does not exist", place.record_path().display()));
    Ok(place.read()?.ok_or_else(missing)?.states())
}
