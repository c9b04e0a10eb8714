//! Room on loan: what thread caches and central depots may hold beyond what is theirs by right, so small beside the heap
//! in all that memory stays bounded.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::Heap;

/// Bytes that are lent.
#[derive(Debug)]
pub(crate) struct Loans {
    /// Room lent to thread caches beyond their own budgets.
    to_caches: AtomicU64,
    /// How often that has been forgotten, in children of fork(2).
    lives: AtomicU32,
    /// Room lent to central depots beyond what they may hold by right.
    pub(crate) to_depots: AtomicU64,
}

impl Loans {
    pub(crate) const fn new() -> Loans {
        Loans { to_caches: AtomicU64::new(0), lives: AtomicU32::new(0), to_depots: AtomicU64::new(0) }
    }
}

impl Heap {
    /// Lets a thread cache have room for `bytes` more than its own budget, if all that is lent stays small beside
    /// the heap: blocks of many sizes, or large ones, need caches in proportion to what is live.
    pub(crate) fn lend_room(&self, bytes: usize) -> bool {
        const LENT_PART: u64 = 16;
        self.lend(&self.loans.to_caches, bytes, LENT_PART)
    }

    /// Lets a central depot have room for `bytes` more than its own; all that depots have on loan is less than what
    /// caches may have, because blocks in depots keep spans and serve nobody.
    pub(crate) fn lend_to_depot(&self, bytes: usize) -> bool {
        const LENT_PART: u64 = 64;
        self.lend(&self.loans.to_depots, bytes, LENT_PART)
    }

    fn lend(&self, lent: &AtomicU64, bytes: usize, part: u64) -> bool {
        const LENT_BYTES: u64 = 1 << 20;
        let Some(committed) = self.committed_bytes_now() else {
            return false;
        };
        let allowed = LENT_BYTES + committed / part;
        let lend = |lent: u64| Some(lent + bytes as u64).filter(|lent| *lent <= allowed);
        lent.fetch_update(Relaxed, Relaxed, lend).is_ok()
    }

    /// Takes back what [`lend_room`](Self::lend_room) gave.
    pub(crate) fn return_room(&self, bytes: usize) {
        self.loans.to_caches.fetch_sub(bytes as u64, Relaxed);
    }

    /// Takes back what [`lend_to_depot`](Self::lend_to_depot) gave.
    pub(crate) fn return_from_depot(&self, bytes: usize) {
        self.loans.to_depots.fetch_sub(bytes as u64, Relaxed);
    }

    /// In a child of fork(2): forgets what was lent to threads that it does not have. What its only thread has on loan is
    /// [counted](Self::count_loan) when that next comes to the heap: it is written in the thread's cache, whose page may be
    /// gone, so that a child which does not come must not be made to look.
    pub(crate) fn forget_loans(&self) {
        self.loans.to_caches.store(0, Relaxed);
        self.loans.lives.fetch_add(1, Relaxed);
    }

    /// How often loans have been forgotten.
    pub(crate) fn lives(&self) -> u32 {
        self.loans.lives.load(Relaxed)
    }

    /// Counts again what a cache borrowed before that.
    pub(crate) fn count_loan(&self, bytes: usize) {
        self.loans.to_caches.fetch_add(bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_may_lend_what_threads_it_has_not_had_borrowed() {
        static IN_CHILD: Heap = Heap::new();
        assert!(IN_CHILD.lend_room(1 << 20) && !IN_CHILD.lend_room(4 << 10));
        IN_CHILD.forget_loans();
        assert_eq!((IN_CHILD.lives(), IN_CHILD.loans.to_caches.load(Relaxed)), (1, 0));
        // Of the thread that it has.
        IN_CHILD.count_loan(64 << 10);
        assert!(IN_CHILD.lend_room(4 << 10));
        IN_CHILD.return_room(68 << 10);
        assert_eq!(IN_CHILD.loans.to_caches.load(Relaxed), 0);
    }

    #[test]
    fn what_is_lent_to_depots_is_bounded() {
        static HEAP: Heap = Heap::new();
        assert!(HEAP.lend_to_depot(1 << 20));
        assert!(!HEAP.lend_to_depot(1));
        HEAP.return_from_depot(1 << 20);
        assert!(HEAP.lend_to_depot(1));
    }
}
