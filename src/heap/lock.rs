//! The heap's own lock.
//!
//! Not parking_lot: its contended path allocates, which recurses into the heap. Not `std::sync::Mutex`: fork
//! handlers must take a lock in one function and release it in another, in the child as well.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{SPINS, spin_loop};
use crate::sys::process;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A value that one thread at a time may use. Allocates nothing, poisons nothing, and can be held across fork.
///
/// | word | meaning | set by |
/// |---|---|---|
/// | `FREE` | nobody holds it | the holder, or a child after fork |
/// | `HELD` | held, nobody sleeps | a thread that found `FREE` |
/// | `CONTENDED` | held, somebody may sleep | a thread about to sleep |
///
/// Fork handlers hold it from before fork(2) to after. Handlers of others that run meanwhile, in the same thread, may
/// allocate: they get a guard that borrows what the thread holds, and gives nothing back.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and the word lets one guard exist at a time, with
// acquire and release ordering between one holder and the next. Guards that borrow exist in the thread that holds the
// lock for fork(2) without a guard, one at a time there: nobody locks what he has locked.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let is_borrowed = self.word.compare_exchange_weak(FREE, HELD, Acquire, Relaxed).is_err() && self.wait();
        Guard { lock: self, is_borrowed, value: PhantomData }
    }

    /// Takes the lock, or finds that this thread holds it for fork(2); whether the latter.
    #[cold]
    fn wait(&self) -> bool {
        let is_borrowed = process::is_forking();
        if !is_borrowed {
            self.acquire_slow();
        }
        is_borrowed
    }

    /// Takes the lock if it is free now.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let is_taken = self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok();
        let is_borrowed = !is_taken && process::is_forking();
        (is_taken || is_borrowed).then(|| Guard { lock: self, is_borrowed, value: PhantomData })
    }

    /// Takes the lock without a guard: for fork handlers, paired with [`release`](Self::release).
    #[inline]
    pub(crate) fn acquire(&self) {
        if self.word.compare_exchange_weak(FREE, HELD, Acquire, Relaxed).is_err() {
            self.acquire_slow();
        }
    }

    #[cold]
    fn acquire_slow(&self) {
        for _ in 0..SPINS {
            spin_loop();
            if self.word.load(Relaxed) == FREE && self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
        }
        // From here on the word says CONTENDED while we hold it: a wake too many costs less than one too few.
        while self.word.swap(CONTENDED, Acquire) != FREE {
            process::wait_while(&self.word, CONTENDED);
        }
    }

    /// Gives the lock back without a guard.
    ///
    /// # Safety
    ///
    /// The calling thread holds the lock through [`acquire`](Self::acquire); after fork, the child's only
    /// thread counts as the one that took it.
    #[inline]
    pub(crate) unsafe fn release(&self) {
        // Release pairs with the acquire of the next holder.
        if self.word.swap(FREE, Release) == CONTENDED {
            process::wake_one(&self.word);
        }
    }
}

/// The right to use the value; gives the lock back when dropped.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Whether the fork handlers of this thread hold the lock, and go on holding it.
    is_borrowed: bool,
    /// A guard may be shared or sent as far as the value may.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard's thread holds the lock, so nobody has a mutable reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard's thread holds the lock, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_borrowed {
            // SAFETY: a guard exists only while its thread holds the lock, and this one has taken it.
            unsafe { self.lock.release() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_under_contention() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..20_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        if turn % 1000 == 0 {
                            std::thread::yield_now();
                        }
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
