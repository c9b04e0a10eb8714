//! What every page of an arena is at this moment, for pictures and reports.

use std::fmt;

use super::Arena;

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

/// How many pages are in which state: `3 clean, 2 dirty`.
pub(super) fn summary(states: &[PageState]) -> String {
    let all = [
        PageState::Fresh,
        PageState::Clean,
        PageState::Dirty,
        PageState::Claimed,
        PageState::Reserved,
        PageState::Absent,
    ];
    let counted = all.map(|state| (state, states.iter().filter(|one| **one == state).count()));
    let parts: Vec<_> =
        counted.iter().filter(|(_, pages)| *pages > 0).map(|(state, pages)| format!("{pages} {state}")).collect();
    parts.join(", ")
}
