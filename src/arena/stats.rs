//! An arena's figures.

use std::fmt;

use super::bitmap::Counts;
use crate::page_size::PageSize;

/// A snapshot of an arena: exact while nobody claims or releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// The grain of claims.
    pub page_size: PageSize,
    /// Pages in all: the sum of the four below.
    pub pages: usize,
    /// Free, and never handed out since the kernel zeroed them.
    pub fresh: usize,
    /// Free, and zeroed by us.
    pub clean: usize,
    /// Free, contents unknown.
    pub dirty: usize,
    /// Held by chunks.
    pub claimed: usize,
    /// Bytes that this arena has cleared so far.
    pub cleared_bytes: u64,
}

impl ArenaStats {
    pub(super) fn new(page_size: PageSize, counts: Counts, cleared_bytes: u64) -> ArenaStats {
        let Counts { fresh, clean, dirty, claimed } = counts;
        ArenaStats { page_size, pages: fresh + clean + dirty + claimed, fresh, clean, dirty, claimed, cleared_bytes }
    }
}

impl fmt::Display for ArenaStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pages of {}: {} claimed, {} fresh, {} clean, {} dirty; {} bytes cleared",
            self.pages, self.page_size, self.claimed, self.fresh, self.clean, self.dirty, self.cleared_bytes
        )
    }
}
