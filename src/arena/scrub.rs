//! Zeroing ahead of time: dirty free pages become clean while nobody needs them, or the moment they come back.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::ControlFlow;
use std::ptr;
use std::sync::Arc;

use super::{Arena, Inner};
use crate::memops::{self, FirstTouch, Kernel, Method, Nothing, Order, Pace, Progress};

/// Nobody is about to touch what is scrubbed: everything goes around the cache.
fn method() -> Method {
    let away = Kernel::non_caching();
    Method { order: Order::Ascending, far: away, near: away, near_bytes: 0 }
}

impl Arena {
    /// Zeroes dirty free pages, so that [`claim_zeroed`](Self::claim_zeroed) finds clean ones: until none is left,
    /// `budget_bytes` are done (rounded up to whole pages), or the pace stops it. Returns the bytes of pages that
    /// became clean.
    ///
    /// The pace is asked between batches, with the page as the whole, and between pages, with the budget as the
    /// whole.
    ///
    /// A page being scrubbed counts as free: a claim that finds no other gets it after the batch in hand, unless it is
    /// the pace that claims. May run in any number of threads; see [`Worker`](super::Worker) for one that does it by itself.
    ///
    /// # Panics
    ///
    /// Only if the pace does; the page in hand is free and dirty again then.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::memops::Nothing;
    /// use hugearena::{Arena, PageSize};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
    /// drop(arena.claim(10));
    /// assert_eq!(arena.scrub(usize::MAX, &mut Nothing), 10 * PageSize::base().bytes());
    /// assert_eq!((arena.stats().clean, arena.stats().dirty), (10, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn scrub(&self, budget_bytes: usize, pace: &mut impl Pace) -> usize {
        let mut done = 0;
        while done < budget_bytes && self.inner.mapping.is_here() {
            let Some(page) = self.inner.pages.begin_scrub() else {
                break;
            };
            let mut held = Held { arena: self, page, zeroed: false };
            if !self.may_write(page..page + 1) {
                break;
            }
            let mut considerate = Considerate { arena: self, pace, stopped: false };
            held.zeroed = self.clear_pages(page, 1, &mut considerate);
            let stopped = considerate.stopped;
            if held.zeroed {
                done += self.page_size().bytes();
            }
            drop(held);
            let progress = Progress { done_bytes: done, total_bytes: budget_bytes };
            if stopped || (done < budget_bytes && pace.between(progress).is_break()) {
                break;
            }
        }
        done
    }

    /// Zeroes claimed pages and records that they are clean.
    pub(super) fn zero_now(&self, first: usize, pages: usize) {
        self.clear_pages(first, pages, &mut Nothing.in_batches_of(usize::MAX));
        for page in first..first + pages {
            self.inner.pages.mark_zeroed(page);
        }
    }

    /// Clears pages that the caller has claimed, or holds to scrub, and lets nobody use; returns whether the pace let
    /// it come to the end.
    fn clear_pages(&self, first: usize, pages: usize, pace: &mut impl Pace) -> bool {
        let (start, bytes) = (self.address_of(first).as_ptr(), pages * self.page_size().bytes());
        // SAFETY: pages of our mapping, which nobody else uses until the caller gives them back.
        let outcome = unsafe { memops::clear_with(start, bytes, FirstTouch::at(0, 1), &method(), pace) };
        if outcome.is_continue() {
            self.count_cleared(bytes);
        }
        outcome.is_continue()
    }
}

/// A page in the scrubber's hands; goes back on every way out.
struct Held<'a> {
    arena: &'a Arena,
    page: usize,
    zeroed: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.arena.inner.pages.end_scrub(self.page, self.zeroed);
    }
}

/// The caller's pace, which also stops a page that somebody waits for.
struct Considerate<'a, P> {
    arena: &'a Arena,
    pace: &'a mut P,
    /// Whether it was the caller's pace that stopped.
    stopped: bool,
}

impl<P: Pace> Pace for Considerate<'_, P> {
    fn batch_bytes(&self) -> usize {
        self.pace.batch_bytes()
    }

    fn between(&mut self, progress: Progress) -> ControlFlow<()> {
        if self.arena.inner.pages.is_wanted() {
            return ControlFlow::Break(());
        }
        let outcome = {
            let _asking = Asking::about_a_page_of(self.arena);
            self.pace.between(progress)
        };
        self.stopped = outcome.is_break();
        outcome
    }
}

thread_local! {
    /// The arena of which this thread has pages in hand while it asks a pace, and how many: a claim that the pace makes
    /// would wait for them in vain.
    static IN_HAND: Cell<(*const Inner, usize)> = const { Cell::new((ptr::null(), 0)) };
}

/// How many pages of an arena this thread is scrubbing.
pub(super) fn in_own_hands(arena: &Inner) -> usize {
    let (whose, pages) = IN_HAND.get();
    if ptr::eq(whose, arena) { pages } else { 0 }
}

/// While it lives this thread asks a pace, with one more page in hand.
struct Asking {
    before: (*const Inner, usize),
}

impl Asking {
    fn about_a_page_of(arena: &Arena) -> Asking {
        let pages = in_own_hands(&arena.inner) + 1;
        Asking { before: IN_HAND.replace((Arc::as_ptr(&arena.inner), pages)) }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        IN_HAND.set(self.before);
    }
}
