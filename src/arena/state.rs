//! What a page of an arena can be, for pictures and reports. `tests/loom` includes this file.

use std::fmt;

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
