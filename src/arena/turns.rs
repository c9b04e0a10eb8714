//! One at a time, for a moment, also after fork(2): a turn that another thread of the parent had when the process was
//! copied is nobody's in the child, and would be waited for without end.

use std::time::Duration;

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, Backoff, sleep};
use crate::sys::process::forks;

/// How long one who waits sleeps, after it has looked a few times.
const NAP: Duration = Duration::from_micros(20);

/// 0 when it is nobody's turn, else one more than [`forks`] when it was taken.
#[derive(Debug, Default)]
pub(super) struct Turns(AtomicU64);

/// The turn, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a AtomicU64);

impl Turns {
    /// Waits until it is this thread's turn.
    pub(super) fn take(&self) -> Turn<'_> {
        let ours = forks() + 1;
        let backoff = Backoff::new();
        loop {
            let held = self.0.load(Relaxed);
            // What was taken before the process was copied is given back by nobody here.
            let is_free = held != ours;
            // Acquire pairs with the release of the last turn.
            if is_free && self.0.compare_exchange(held, ours, Acquire, Relaxed).is_ok() {
                return Turn(&self.0);
            }
            if backoff.is_completed() { sleep(NAP) } else { backoff.snooze() }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn one_at_a_time() {
        let (turns, inside, done) = (Turns::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _turn = turns.take();
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        done.fetch_add(1, Relaxed);
                        inside.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 8_000);
    }

    #[test]
    fn a_turn_of_before_a_fork_is_nobodys() {
        // As a child finds it that was forked while another thread of its parent had the turn.
        let turns = Turns(AtomicU64::new(forks() + 1_000));
        drop(turns.take());
        assert_eq!(turns.0.load(Relaxed), 0);
    }
}
