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
    /// Pages that the arena has: the sum of the four below.
    pub pages: usize,
    /// Free, and never handed out since the kernel zeroed them.
    pub fresh: usize,
    /// Free, and zeroed by us.
    pub clean: usize,
    /// Free, contents unknown.
    pub dirty: usize,
    /// Held by chunks; for a moment also those that are coming or going, by [`Arena::grow`](super::Arena::grow) and the
    /// like.
    pub claimed: usize,
    /// Of all of them, those that the kernel has promised and that are not populated yet, because the arena is populated
    /// lazily or in the background.
    pub unpopulated: usize,
    /// Pages beyond those that it may still have: [`Arena::grow`](super::Arena::grow).
    pub absent: usize,
    /// Bytes that this arena has cleared so far.
    pub cleared_bytes: u64,
    /// Page sizes that could not be had when it was opened: [`Obtained::declined`](super::Obtained::declined) says why.
    pub fallbacks: usize,
}

impl ArenaStats {
    pub(super) fn new(page_size: PageSize, counts: Counts, cleared_bytes: u64, fallbacks: usize) -> ArenaStats {
        let Counts { fresh, clean, dirty, claimed, absent, unpopulated } = counts;
        let pages = fresh + clean + dirty + claimed;
        ArenaStats { page_size, pages, fresh, clean, dirty, claimed, unpopulated, absent, cleared_bytes, fallbacks }
    }
}

impl fmt::Display for ArenaStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pages of {}: {} claimed, {} fresh, {} clean, {} dirty; {} bytes cleared",
            self.pages, self.page_size, self.claimed, self.fresh, self.clean, self.dirty, self.cleared_bytes
        )?;
        if self.unpopulated > 0 {
            write!(f, "; {} not populated yet", self.unpopulated)?;
        }
        if self.fallbacks > 0 {
            write!(f, "; {} page sizes could not be had", self.fallbacks)?;
        }
        if self.absent > 0 {
            write!(f, "; room for {} more", self.absent)?;
        }
        Ok(())
    }
}
