//! Pages that come and go while others are claimed: absent ones are taken to be populated, free ones to be given back.
//!
//! Whoever takes a page here owns it like a claim does, so nothing is locked while the system is asked.

use std::ops::Range;

use super::{Bitmap, Prefer, WORD, masks, whole_word};
use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

impl Bitmap {
    /// Makes all but the first `pages` pages absent. Before anybody uses the bitmap.
    pub(crate) fn with_room(self, pages: usize) -> Bitmap {
        for (word, mask) in masks(pages, self.pages - pages) {
            for bits in [&self.free, &self.zero, &self.fresh, &self.populated] {
                bits[word].fetch_and(!mask, Relaxed);
            }
            self.absent[word].fetch_or(mask, Relaxed);
        }
        self
    }

    /// Nothing is populated yet: pages are when they are claimed, or before. Before anybody uses the bitmap.
    pub(crate) fn unpopulated(mut self) -> Bitmap {
        self.is_lazy = true;
        for word in &self.populated {
            word.store(0, Relaxed);
        }
        self
    }

    /// Whether a page that the caller has claimed has been populated.
    pub(crate) fn is_populated(&self, page: usize) -> bool {
        // Relaxed: whoever set it gave the page back, and the caller has claimed it since.
        self.populated[page / WORD].load(Relaxed) >> (page % WORD) & 1 != 0
    }

    /// Notes that pages which the caller has claimed are populated.
    pub(crate) fn mark_populated(&self, pages: Range<usize>) {
        for (word, mask) in masks(pages.start, pages.len()) {
            self.populated[word].fetch_or(mask, Relaxed);
        }
    }

    /// Runs of absent pages, or of those that are not.
    pub(crate) fn runs(&self, absent: bool) -> Vec<Range<usize>> {
        let mut runs = Runs::default();
        for word in 0..self.absent.len() {
            let bits = self.absent[word].load(Relaxed);
            runs.add_word(word, if absent { bits } else { !bits & whole_word(self.pages, word) });
        }
        runs.ranges
    }

    /// Pages that the arena has.
    pub(crate) fn present_pages(&self) -> usize {
        self.pages - self.absent_pages()
    }

    pub(crate) fn absent_pages(&self) -> usize {
        self.absent.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// Takes `count` absent pages, lowest first.
    ///
    /// # Errors
    ///
    /// How many there are, if there are fewer; none is taken then.
    pub(crate) fn take_absent(&self, count: usize) -> Result<Vec<Range<usize>>, usize> {
        // Two at a time would each take a part of what is enough for one.
        let _one_at_a_time = self.room_claims.take();
        let mut taken = Runs::default();
        for word in 0..self.absent.len() {
            let missing = count - taken.pages;
            if missing == 0 {
                break;
            }
            let lowest = |mut bits: u64| {
                let mut picked = 0u64;
                while bits != 0 && picked.count_ones() < missing.min(WORD) as u32 {
                    picked |= bits & bits.wrapping_neg();
                    bits &= bits - 1;
                }
                picked
            };
            taken.add_word(word, take(&self.absent[word], lowest));
        }
        if taken.pages == count {
            // Before the system is asked for any of them.
            for run in &taken.ranges {
                self.record_claimed(run.start, run.len());
            }
            return Ok(taken.ranges);
        }
        let found = taken.pages;
        taken.ranges.into_iter().for_each(|run| self.put_absent(run));
        Err(found)
    }

    /// Calls `body` with every run of absent pages, which nobody takes meanwhile. Claims do not wait for it.
    pub(crate) fn for_each_absent(&self, body: impl FnMut(Range<usize>)) {
        let _nobody_takes = self.room_claims.take();
        self.runs(true).into_iter().for_each(body);
    }

    /// Gives absent pages back that [`take_absent`](Self::take_absent) took.
    pub(crate) fn put_absent(&self, pages: Range<usize>) {
        // First: from then on somebody else may take them.
        self.record_released(pages.start, pages.len());
        for (word, mask) in masks(pages.start, pages.len()) {
            self.absent[word].fetch_or(mask, Release);
        }
    }

    /// Runs of absent pages that an owner had taken to populate them when it was killed: its file may have reserved some.
    pub(crate) fn unfinished(&self) -> Vec<Range<usize>> {
        let mut runs = Runs::default();
        for (word, record) in self.record.iter().flat_map(|record| (0..record.len).map(move |word| (word, record))) {
            runs.add_word(word, record.claimed(word).load(Relaxed) & self.absent[word].load(Relaxed));
        }
        runs.ranges
    }

    /// Pages that were absent are there now: zeroed by the kernel, free, and fresh.
    pub(crate) fn add(&self, pages: Range<usize>) {
        for (word, mask) in masks(pages.start, pages.len()) {
            if let Some(record) = &self.record {
                // In this order: killed in between, the pages are there and dirty.
                record.absent(word).fetch_and(!mask, SeqCst);
                record.zero(word).fetch_or(mask, SeqCst);
            }
            self.zero[word].fetch_or(mask, Relaxed);
            self.fresh[word].fetch_or(mask, Relaxed);
        }
        self.mark_populated(pages.clone());
        self.release(pages.start, pages.len());
    }

    /// Takes up to `count` free pages, highest first, so that at least `spare` free ones are left.
    pub(crate) fn take_free(&self, count: usize, spare: usize) -> Vec<Range<usize>> {
        // A claim that finds nothing meanwhile waits for what is put back.
        self.runs_in_flight.enter();
        let count = count.min(self.free_pages().saturating_sub(spare));
        let mut taken = Runs::default();
        for word in (0..self.free.len()).rev() {
            let missing = count - taken.pages;
            if missing == 0 {
                break;
            }
            let highest = |mut bits: u64| {
                let mut picked = 0u64;
                while bits != 0 && picked.count_ones() < missing.min(WORD) as u32 {
                    let highest = 1 << (63 - bits.leading_zeros());
                    picked |= highest;
                    bits &= !highest;
                }
                picked
            };
            taken.add_word(word, take(&self.free[word], highest));
        }
        // Who takes pages at the same moment saw the same spare ones. If both put back what is missing, they give
        // less than they might.
        let mut lacking = spare.saturating_sub(self.free_pages());
        while lacking > 0
            && let Some(last) = taken.ranges.pop()
        {
            let keep = last.len().saturating_sub(lacking);
            let back = last.start + keep..last.end;
            lacking -= back.len();
            self.give_back(back.start, back.len());
            if keep > 0 {
                taken.ranges.push(last.start..last.start + keep);
            }
        }
        self.runs_in_flight.leave();
        taken.ranges
    }

    /// Announces that the pages, which the caller holds, are about to go: from now on the next owner takes them for
    /// absent, whatever becomes of this process.
    pub(crate) fn announce_absent(&self, pages: Range<usize>) {
        for (word, mask) in masks(pages.start, pages.len()) {
            for bits in [&self.zero, &self.fresh] {
                bits[word].fetch_and(!mask, Relaxed);
            }
            if let Some(record) = &self.record {
                record.zero(word).fetch_and(!mask, SeqCst);
                record.absent(word).fetch_or(mask, SeqCst);
            }
        }
    }

    /// The pages are gone.
    pub(crate) fn remove(&self, pages: Range<usize>) {
        for (word, mask) in masks(pages.start, pages.len()) {
            self.populated[word].fetch_and(!mask, Relaxed);
        }
        self.put_absent(pages);
    }

    /// The pages did not go after all: free, with contents unknown.
    pub(crate) fn keep_after_all(&self, pages: Range<usize>) {
        if let Some(record) = &self.record {
            for (word, mask) in masks(pages.start, pages.len()) {
                record.absent(word).fetch_and(!mask, SeqCst);
            }
        }
        self.release(pages.start, pages.len());
    }

    /// Takes the first adjacent free pages, at most `most`, that nobody has populated, to populate them ahead of time;
    /// claims that find nothing else wait for [`end_populating`](Self::end_populating).
    pub(crate) fn begin_populating(&self, most: usize) -> Option<Range<usize>> {
        if self.is_wanted() {
            return None;
        }
        // First, so that no claim sees the pages gone and nobody holding them.
        self.scrubbing.enter();
        let found = (0..self.free.len()).find_map(|word| {
            let first_run = |bits: u64| {
                let low = bits & bits.wrapping_neg();
                let run = (!(bits >> bits.trailing_zeros().min(63))).trailing_zeros().min(most.min(WORD) as u32);
                if low == 0 { 0 } else { (u64::MAX >> (64 - run)) << bits.trailing_zeros() }
            };
            let unpopulated = |free: u64| first_run(free & !self.populated[word].load(Relaxed));
            let taken = take(&self.free[word], unpopulated);
            let first = word * WORD + taken.trailing_zeros() as usize;
            (taken != 0).then(|| first..first + taken.count_ones() as usize)
        });
        if found.is_none() {
            self.scrubbing.leave();
        }
        found
    }

    /// Gives back what [`begin_populating`](Self::begin_populating) took.
    pub(crate) fn end_populating(&self, pages: Range<usize>) {
        self.give_back(pages.start, pages.len());
        self.scrubbing.leave();
    }

    /// Whether no page is left that was promised only.
    pub(crate) fn is_all_populated(&self) -> bool {
        let words = self.populated.iter().zip(&self.absent).enumerate();
        words.into_iter().all(|(word, (populated, absent))| {
            populated.load(Relaxed) | absent.load(Relaxed) == whole_word(self.pages, word)
        })
    }

    fn free_pages(&self) -> usize {
        self.free.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// As a claim of one page, populated ones first.
    pub(super) fn claim_one_populated(&self, prefer: Prefer) -> Option<usize> {
        let populated = |word: usize| self.populated[word].load(Relaxed);
        self.claim_one_of(|word| populated(word) & self.preferred(word, prefer))
            .or_else(|| self.claim_one_of(populated))
            .or_else(|| self.claim_one_of(|_| u64::MAX))
    }
}

/// Takes the bits that `pick` chooses among those that are set.
fn take(word: &AtomicU64, pick: impl Fn(u64) -> u64) -> u64 {
    let mut now = word.load(Relaxed);
    loop {
        let picked = pick(now) & now;
        if picked == 0 {
            return 0;
        }
        // Acquire pairs with the release of the page's last owner.
        match word.compare_exchange_weak(now, now & !picked, AcqRel, Acquire) {
            Ok(_) => return picked,
            Err(other) => now = other,
        }
    }
}

/// Pages, joined into runs.
#[derive(Default)]
struct Runs {
    ranges: Vec<Range<usize>>,
    pages: usize,
}

impl Runs {
    fn add_word(&mut self, word: usize, bits: u64) {
        self.pages += bits.count_ones() as usize;
        for bit in (0..WORD).filter(|bit| bits >> bit & 1 != 0) {
            let page = word * WORD + bit;
            match self.ranges.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => self.ranges.push(page..page + 1),
            }
        }
    }
}
