//! Which pages of an arena are free, and what is known about their contents. Safe code, no locks on the way of
//! a single page, no system calls.
//!
//! | page | free | zero | fresh | populated | absent |
//! |---|---|---|---|---|---|
//! | never handed out since the kernel zeroed it | 1 | 1 | 1 | 1 | 0 |
//! | the same, and not populated yet (lazy arenas) | 1 | 1 | 1 | 0 | 0 |
//! | zeroed by us (clean) | 1 | 1 | 0 | 1 | 0 |
//! | contents unknown (dirty) | 1 | 0 | 0 | 1 | 0 |
//! | claimed | 0 | kept until its owner reads it, then 0 | as zero | 1 | 0 |
//! | room to grow into | 0 | 0 | 0 | 0 | 1 |
//! | taken to be populated or given back | 0 | any | as zero | any | 0 |
//!
//! A page is claimed by clearing its free bit with one compare-exchange; whoever cleared it owns the page's
//! other bits. Longer runs are claimed word by word and given back if a page in the middle was lost; while that
//! goes on, a claim that finds nothing looks again instead of failing on pages that are about to come back.

// The paths are what they would be anyhow, but for tests/loom, which includes this file.
#[path = "bitmap/counts.rs"]
mod counts;
#[path = "bitmap/holders.rs"]
mod holders;
#[path = "bitmap/presence.rs"]
mod presence;
#[cfg(test)]
#[path = "bitmap/tests.rs"]
mod tests;

use std::time::{Duration, Instant};

use super::state::PageState;
use crate::mapping::words::Words;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Backoff, CachePadded, compiler_fence, fence, sleep};
pub(crate) use counts::Counts;
use holders::{Holders, Turn};

const WORD: usize = u64::BITS as usize;

/// How often a claim searches again when pages came back behind its search.
const SEARCHES: u32 = 8;
/// How long a claim sleeps at a time when all that is free is held for a moment by somebody else, and for how long in
/// all. A holder under `SCHED_IDLE` that may not be lifted gets its turn within seconds on a machine that is busy.
const NAP: Duration = Duration::from_micros(20);
const PATIENCE: Duration = Duration::from_secs(5);

/// A page's contents, as known when it was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// As the kernel zeroed it.
    Fresh,
    /// Zeroed by us.
    Clean,
    /// Unknown.
    Dirty,
}

/// Which pages a claim of one page looks at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefer {
    /// Pages known to be zero, which save clearing.
    Zero,
    /// Dirty pages, which leave the others to those who want zeroes.
    Dirty,
}

/// Who claims, asked when pages are in somebody's hands for a moment.
pub(crate) trait Claimer {
    /// How many pages that are being scrubbed are in the hands of this very thread: it would wait for itself.
    fn scrubs(&self) -> usize;
    /// The claim is about to sleep until they are back.
    fn urge(&self);
}

#[cfg(any(test, loom))]
impl Claimer for () {
    fn scrubs(&self) -> usize {
        0
    }

    fn urge(&self) {}
}

/// The state of every page.
#[derive(Debug)]
pub(crate) struct Bitmap {
    pages: usize,
    /// Shared: one bit per page; see the table above.
    free: Box<[AtomicU64]>,
    zero: Box<[AtomicU64]>,
    fresh: Box<[AtomicU64]>,
    populated: Box<[AtomicU64]>,
    absent: Box<[AtomicU64]>,
    /// Some pages may not be populated.
    is_lazy: bool,
    /// Shared: the word in which the last single page was found; only a hint.
    hint: CachePadded<AtomicUsize>,
    /// Shared: claims of runs that hold pages they may have to give back.
    runs_in_flight: Holders,
    /// Shared: pages released so far, and runs given back; when it changes, a failed search is worth repeating.
    returns: CachePadded<AtomicUsize>,
    /// The low half of `returns` when a page was last released. Written by the page's owner.
    stamps: Box<[AtomicU32]>,
    /// Shared: pages that the scrubber holds, and would give up for a claim.
    scrubbing: Holders,
    /// Shared: claims that wait for pages which somebody holds only for a moment.
    waiting: Holders,
    /// Claims of runs go one at a time: two that overlap would both fail on each other's half.
    run_claims: Turn,
    /// So do takings of room; and nobody takes any while the system is asked about it.
    room_claims: Turn,
    record: Option<Recorded>,
}

/// What the next owner of a named arena reads, and who looks at one from outside.
#[derive(Debug)]
struct Recorded {
    words: Words,
    /// Words of one kind.
    len: usize,
}

impl Recorded {
    /// Like `zero`, but never 1 for a page that is not zero, at whatever instruction this process is killed.
    fn zero(&self, word: usize) -> &AtomicU64 {
        &self.words.as_slice()[word]
    }

    /// Like `absent`, and 1 from before a page goes until after it has come: the next owner makes sure that it is gone.
    fn absent(&self, word: usize) -> &AtomicU64 {
        &self.words.as_slice()[self.len + word]
    }

    /// For who looks from outside. Of absent pages it tells the next owner which were about to come: see
    /// [`unfinished`](Bitmap::unfinished).
    fn claimed(&self, word: usize) -> &AtomicU64 {
        &self.words.as_slice()[2 * self.len + word]
    }
}

impl Bitmap {
    /// `pages` pages, all free and fresh.
    pub(crate) fn new(pages: usize) -> Bitmap {
        let filled = || (0..pages.div_ceil(WORD)).map(|word| AtomicU64::new(whole_word(pages, word))).collect();
        Bitmap {
            pages,
            free: filled(),
            zero: filled(),
            fresh: filled(),
            populated: filled(),
            absent: (0..pages.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect(),
            is_lazy: false,
            hint: CachePadded::default(),
            runs_in_flight: Holders::default(),
            returns: CachePadded::default(),
            stamps: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            scrubbing: Holders::default(),
            waiting: Holders::default(),
            run_claims: Turn::default(),
            room_claims: Turn::default(),
            record: None,
        }
    }

    /// `pages` pages, all free but those that `record` calls absent; it says which hold zeroes. From now on it is kept
    /// up to date.
    pub(crate) fn recorded(pages: usize, record: Words, fresh: bool) -> Bitmap {
        let record = Recorded { words: record, len: pages.div_ceil(WORD) };
        let bitmap = Bitmap::new(pages);
        for word in 0..record.len {
            let absent = record.absent(word).load(Relaxed) & whole_word(pages, word);
            let zero = record.zero(word).load(Relaxed) & !absent;
            bitmap.absent[word].store(absent, Relaxed);
            for bits in [&bitmap.free, &bitmap.populated] {
                bits[word].fetch_and(!absent, Relaxed);
            }
            bitmap.zero[word].fetch_and(zero, Relaxed);
            bitmap.fresh[word].fetch_and(if fresh { zero } else { 0 }, Relaxed);
        }
        Bitmap { record: Some(record), ..bitmap }
    }

    #[cfg(any(test, loom))]
    pub(crate) fn claim(&self, count: usize, prefer: Prefer) -> Option<usize> {
        self.claim_waiting(count, prefer, &())
    }

    /// Claims `count` adjacent pages, at least one; returns the first, or `None` when there are none.
    pub(crate) fn claim_waiting(&self, count: usize, prefer: Prefer, claimer: &dyn Claimer) -> Option<usize> {
        let returns = self.returns.load(SeqCst);
        let first = self.search(count, prefer).or_else(|| self.claim_slow((count, prefer), returns, claimer))?;
        self.record_claimed(first, count);
        Some(first)
    }

    /// Tells those who look from outside that the pages are in somebody's hands.
    fn record_claimed(&self, first: usize, count: usize) {
        if let Some(record) = &self.record {
            masks(first, count).for_each(|(word, mask)| {
                record.claimed(word).fetch_or(mask, Relaxed);
            });
        }
    }

    /// Takes [`record_claimed`](Self::record_claimed) back.
    fn record_released(&self, first: usize, count: usize) {
        if let Some(record) = &self.record {
            masks(first, count).for_each(|(word, mask)| {
                record.claimed(word).fetch_and(!mask, Relaxed);
            });
        }
    }

    /// Looks again when pages may have been missed: those that a run or the scrubber held and gave back, and those
    /// that were released behind the search. `returns` is from before the search that found nothing.
    #[cold]
    fn claim_slow(&self, (count, prefer): (usize, Prefer), mut returns: usize, claimer: &dyn Claimer) -> Option<usize> {
        if count == 0 || count > self.pages {
            return None;
        }
        self.waiting.enter();
        let (mut found, mut since) = (None, None);
        for _ in 0..SEARCHES {
            // Pairs with the holders, which announce themselves before they take a page: a search that saw the
            // page gone is followed by a look that sees the holder.
            fence(SeqCst);
            let waited = self.wait_for_holders(&mut since, claimer);
            let now = self.returns.load(SeqCst);
            if !waited && now == returns {
                break;
            }
            returns = now;
            found = self.search(count, prefer);
            if found.is_some() {
                break;
            }
        }
        self.waiting.leave();
        found
    }

    /// Waits until nobody holds pages only for a moment; returns whether anybody did. The scrubber takes no new
    /// page meanwhile. Gives up [`PATIENCE`] after the first sleep, which is `since`: a holder that does not get to run
    /// may never come back.
    fn wait_for_holders(&self, since: &mut Option<Instant>, claimer: &dyn Claimer) -> bool {
        let backoff = Backoff::new();
        let (mut waited, own) = (false, claimer.scrubs());
        while self.runs_in_flight.is_any() || self.scrubbing.is_more_than(own) {
            waited = true;
            if !backoff.is_completed() {
                backoff.snooze();
            } else if since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                claimer.urge();
                // The holder may need this CPU to go on.
                sleep(NAP);
            } else {
                break;
            }
        }
        waited
    }

    fn search(&self, count: usize, prefer: Prefer) -> Option<usize> {
        match count {
            0 => None,
            1 => self.claim_one(prefer),
            _ => self.claim_run(count),
        }
    }

    /// Claims the pages `first..first + count`, if all of them are free. Does not wait for who holds some for a moment.
    pub(crate) fn claim_at(&self, first: usize, count: usize) -> bool {
        let is_had =
            first.checked_add(count).is_some_and(|end| end <= self.pages) && self.try_claim_run(first, count).is_ok();
        if is_had {
            self.record_claimed(first, count);
        }
        is_had
    }

    /// What is in a page that the caller has claimed. From now on it counts as dirty.
    pub(crate) fn take_contents(&self, page: usize) -> Contents {
        let (word, bit) = (page / WORD, 1 << (page % WORD));
        // Relaxed: the claim's acquire ordered us after whoever released or scrubbed the page.
        let was_zero = self.zero[word].load(Relaxed) & bit != 0;
        if !was_zero {
            return Contents::Dirty;
        }
        self.zero[word].fetch_and(!bit, Relaxed);
        if let Some(record) = &self.record {
            // A thread that is killed has done all that comes before in program order, so the compiler alone could
            // move the owner's first store before this one. Other threads get the page through an acquire.
            record.zero(word).fetch_and(!bit, AcqRel);
            compiler_fence(SeqCst);
        }
        let was_fresh = self.fresh[word].load(Relaxed) & bit != 0;
        if was_fresh {
            self.fresh[word].fetch_and(!bit, Relaxed);
            return Contents::Fresh;
        }
        Contents::Clean
    }

    /// Gives `count` claimed pages back, dirty unless they were never looked at.
    pub(crate) fn release(&self, first: usize, count: usize) {
        let stamp = self.returns.load(Relaxed) as u32;
        for page in &self.stamps[first..first + count] {
            page.store(stamp, Relaxed);
        }
        self.record_released(first, count);
        self.give_back(first, count);
    }

    /// How many pages have been released since a page that the caller has claimed was, modulo 2^32.
    pub(crate) fn released_since(&self, page: usize) -> u32 {
        (self.returns.load(Relaxed) as u32).wrapping_sub(self.stamps[page].load(Relaxed))
    }

    /// Claims a dirty page to be zeroed while nobody needs it. Until [`end_scrub`](Self::end_scrub) it counts
    /// as available: claims that find nothing else wait for it.
    pub(crate) fn begin_scrub(&self) -> Option<usize> {
        if self.is_wanted() {
            return None;
        }
        // First, so that no claim sees the page gone and nobody holding it.
        self.scrubbing.enter();
        let page = self.claim_one_of(|word| !self.zero[word].load(Relaxed));
        if page.is_none() {
            self.scrubbing.leave();
        }
        page
    }

    /// Gives a page back that [`begin_scrub`](Self::begin_scrub) claimed, zeroed or as it was.
    pub(crate) fn end_scrub(&self, page: usize, zeroed: bool) {
        if zeroed {
            self.mark_zeroed(page);
        }
        self.give_back(page, 1);
        self.scrubbing.leave();
    }

    /// Records that a page which the caller has claimed holds zeroes.
    pub(crate) fn mark_zeroed(&self, page: usize) {
        self.zero[page / WORD].fetch_or(1 << (page % WORD), Relaxed);
        if let Some(record) = &self.record {
            // Release: the zeroes, which ended with a fence if they went around the cache, come first.
            record.zero(page / WORD).fetch_or(1 << (page % WORD), Release);
        }
    }

    /// Whether a claim waits for pages that are held for a moment.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.is_any()
    }

    fn claim_one(&self, prefer: Prefer) -> Option<usize> {
        if self.is_lazy {
            return self.claim_one_populated(prefer);
        }
        self.claim_one_of(|word| self.preferred(word, prefer)).or_else(|| self.claim_one_of(|_| u64::MAX))
    }

    fn preferred(&self, word: usize, prefer: Prefer) -> u64 {
        match prefer {
            Prefer::Zero => self.zero[word].load(Relaxed),
            Prefer::Dirty => !self.zero[word].load(Relaxed),
        }
    }

    /// Claims one page among those whose bit is set in `wanted(word)`, starting where the last one was found.
    fn claim_one_of(&self, wanted: impl Fn(usize) -> u64) -> Option<usize> {
        let words = self.free.len();
        let start = self.hint.load(Relaxed);
        (start..words).chain(0..start.min(words)).find_map(|word| {
            let mut free = self.free[word].load(Relaxed);
            loop {
                let candidates = free & wanted(word);
                if candidates == 0 {
                    return None;
                }
                let bit = candidates & candidates.wrapping_neg();
                // Acquire pairs with the release of the page's last owner.
                match self.free[word].compare_exchange_weak(free, free & !bit, AcqRel, Relaxed) {
                    Ok(_) => {
                        if word != start {
                            self.hint.store(word, Relaxed);
                        }
                        return Some(word * WORD + bit.trailing_zeros() as usize);
                    }
                    Err(now) => free = now,
                }
            }
        })
    }

    /// Claims a run of pages, lowest first.
    fn claim_run(&self, count: usize) -> Option<usize> {
        let _one_at_a_time = self.run_claims.take();
        let mut from = 0;
        while let Some(first) = self.find_run(from, count) {
            match self.try_claim_run(first, count) {
                Ok(()) => return Some(first),
                Err(lost) => from = lost + 1,
            }
        }
        None
    }

    /// The first page at or after `from` that starts `count` free pages, as far as can be seen.
    fn find_run(&self, from: usize, count: usize) -> Option<usize> {
        let (mut start, mut at) = (from, from);
        while at < self.pages && at - start < count {
            let (word, bit) = (at / WORD, at % WORD);
            let free = self.free[word].load(Relaxed) >> bit;
            let run = (!free).trailing_zeros() as usize;
            if run == 0 {
                // Not free: skip to the next free page of this word.
                at += (free.trailing_zeros() as usize).min(WORD - bit);
                start = at;
            } else {
                at += run.min(WORD - bit);
            }
        }
        (at - start >= count && start + count <= self.pages).then_some(start)
    }

    /// Claims `count` pages at `first`, or gives back what it got and says which page was lost.
    fn try_claim_run(&self, first: usize, count: usize) -> Result<(), usize> {
        self.runs_in_flight.enter();
        let mut result = Ok(());
        for (word, mask) in masks(first, count) {
            // Acquire pairs with the release of the pages' last owners.
            let was = self.free[word].fetch_and(!mask, Acquire);
            if was & mask != mask {
                // Give back what this word had, and the words before it.
                self.free[word].fetch_or(was & mask, Release);
                let lost = word * WORD + (!was & mask).trailing_zeros() as usize;
                self.give_back(first, (word * WORD).saturating_sub(first));
                result = Err(lost);
                break;
            }
        }
        self.runs_in_flight.leave();
        result
    }

    fn give_back(&self, first: usize, count: usize) {
        for (word, mask) in masks(first, count) {
            // Release pairs with the acquire of the claim: the next owner sees all that this one wrote.
            self.free[word].fetch_or(mask, Release);
        }
        // At least one, so that who searched meanwhile sees a change.
        self.returns.fetch_add(count.max(1), SeqCst);
    }
}

/// The words that hold pages `first..first + count`, each with the mask of those pages; none when there are none.
fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    let words = if count == 0 { 0..0 } else { first / WORD..end.div_ceil(WORD) };
    words.map(move |word| {
        let low = first.saturating_sub(word * WORD);
        let high = (end - word * WORD).min(WORD);
        (word, (u64::MAX >> (WORD - (high - low))) << low)
    })
}

/// All bits of `word` that stand for one of `pages` pages.
fn whole_word(pages: usize, word: usize) -> u64 {
    let bits = (pages - word * WORD).min(WORD);
    u64::MAX >> (WORD - bits)
}
