//! Atomics and cells: std's, or loom's when the models run.

#[cfg(not(loom))]
pub(super) use std::hint::spin_loop;
#[cfg(not(loom))]
pub(super) use std::sync::atomic::AtomicU64;

#[cfg(loom)]
pub(super) use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(super) fn spin_loop() {
    loom::thread::yield_now();
}

/// A place for one element, which the positions say who may touch.
#[cfg(not(loom))]
pub(super) type Slot<T> = std::cell::UnsafeCell<T>;
#[cfg(loom)]
pub(super) type Slot<T> = loom::cell::UnsafeCell<T>;
