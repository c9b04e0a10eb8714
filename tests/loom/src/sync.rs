//! In the place of the crate's `sync`: loom's atomics, which can be made in a `const fn` here, and waiting that lets
//! another thread run.

pub(crate) use loom::sync::atomic::{Ordering, fence};
pub(crate) use std::sync::atomic::compiler_fence;

/// Once, so that the way to sleep is taken as well.
pub(crate) const SPINS: u32 = 1;

pub(crate) fn spin_loop() {
    loom::thread::yield_now();
}

pub(crate) fn sleep(_: std::time::Duration) {
    loom::thread::yield_now();
}

pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize};

/// Can be made in a `const fn`, as the heap's lock is: loom's atomic is there from the first use on, which has to be
/// before other threads know of it.
#[derive(Debug)]
pub(crate) struct AtomicU32 {
    value: u32,
    atomic: std::sync::OnceLock<loom::sync::atomic::AtomicU32>,
}

impl AtomicU32 {
    pub(crate) const fn new(value: u32) -> AtomicU32 {
        AtomicU32 { value, atomic: std::sync::OnceLock::new() }
    }
}

impl std::ops::Deref for AtomicU32 {
    type Target = loom::sync::atomic::AtomicU32;

    fn deref(&self) -> &Self::Target {
        self.atomic.get_or_init(|| loom::sync::atomic::AtomicU32::new(self.value))
    }
}

#[derive(Debug, Default)]
pub(crate) struct CachePadded<T>(T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

pub(crate) struct Backoff;

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff
    }

    pub(crate) fn snooze(&self) {
        loom::thread::yield_now();
    }

    pub(crate) fn is_completed(&self) -> bool {
        false
    }
}
