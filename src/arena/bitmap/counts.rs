//! What all pages are at one moment, counted or one by one.

use super::{Bitmap, PageState, WORD, whole_word};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

/// How many pages are in which state; read one by one, so only exact while nobody claims or releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) fresh: usize,
    pub(crate) clean: usize,
    pub(crate) dirty: usize,
    pub(crate) claimed: usize,
    pub(crate) absent: usize,
    /// Of all that are not absent, those that are not populated yet.
    pub(crate) unpopulated: usize,
}

impl Bitmap {
    /// Counts the pages by state.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for word in 0..self.free.len() {
            let free = self.free[word].load(Relaxed);
            let zero = self.zero[word].load(Relaxed);
            let fresh = self.fresh[word].load(Relaxed);
            let absent = self.absent[word].load(Relaxed);
            let populated = self.populated[word].load(Relaxed);
            counts.fresh += (free & fresh).count_ones() as usize;
            counts.clean += (free & zero & !fresh).count_ones() as usize;
            counts.dirty += (free & !zero & !fresh).count_ones() as usize;
            counts.claimed += (!free & !absent & whole_word(self.pages, word)).count_ones() as usize;
            counts.absent += absent.count_ones() as usize;
            counts.unpopulated += (!absent & !populated & whole_word(self.pages, word)).count_ones() as usize;
        }
        counts
    }

    /// The state of every page.
    pub(crate) fn states(&self) -> Vec<PageState> {
        let is_set = |bits: &[AtomicU64], page: usize| bits[page / WORD].load(Relaxed) >> (page % WORD) & 1 != 0;
        let state = |page| match () {
            () if is_set(&self.absent, page) => PageState::Absent,
            () if !is_set(&self.free, page) => PageState::Claimed,
            () if !is_set(&self.populated, page) => PageState::Reserved,
            () if is_set(&self.fresh, page) => PageState::Fresh,
            () if is_set(&self.zero, page) => PageState::Clean,
            () => PageState::Dirty,
        };
        (0..self.pages).map(state).collect()
    }
}
