//! Who holds pages for a moment, and whose turn it is: among the threads that this process has. A child of fork(2) has a
//! copy of both, and none of the other threads: nobody waits there for what those had in hand.

use super::NAP;
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicU64, AtomicUsize, Backoff, CachePadded, sleep};
use crate::sys::process::forks_counted;

/// How many threads of this process are inside.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// The fork since which it counts.
    forks: AtomicU64,
    count: CachePadded<AtomicUsize>,
}

impl Holders {
    pub(super) fn enter(&self) {
        let (forks, seen) = (forks_counted(), self.forks.load(SeqCst));
        if seen != forks {
            // Nobody enters or leaves before one thread of the child has said that it counts anew.
            let gone = self.count.load(SeqCst);
            if self.forks.compare_exchange(seen, forks, SeqCst, SeqCst).is_ok() {
                self.count.fetch_sub(gone, SeqCst);
            }
        }
        self.count.fetch_add(1, SeqCst);
    }

    /// Nothing for who entered before a fork.
    pub(super) fn leave(&self) {
        if self.forks.load(SeqCst) == forks_counted() {
            let _ = self.count.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.is_more_than(0)
    }

    pub(super) fn is_more_than(&self, some: usize) -> bool {
        self.count.load(SeqCst) > some && self.forks.load(Relaxed) == forks_counted()
    }
}

/// One at a time. Guards no data, so that a child of fork(2) may take it from a thread that it has not.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// 0, or one more than the forks that its holder knows of.
    holder: AtomicU64,
}

impl Turn {
    pub(super) fn take(&self) -> Taken<'_> {
        let ours = forks_counted() + 1;
        let backoff = Backoff::new();
        loop {
            let holder = self.holder.load(Relaxed);
            let may_take = holder != ours;
            if may_take && self.holder.compare_exchange(holder, ours, Acquire, Relaxed).is_ok() {
                return Taken(self);
            }
            if backoff.is_completed() { sleep(NAP) } else { backoff.snooze() }
        }
    }
}

pub(super) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.holder.store(0, Release);
    }
}
