//! Atomics and ways to wait: std's and crossbeam's.
//!
//! `heap/lock.rs` and `arena/bitmap.rs` with its `holders` take theirs from here, so that the models in `tests/loom` can
//! include them as they are, with a module of this name that has loom's.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
pub(crate) use std::thread::sleep;

pub(crate) use crossbeam::utils::{Backoff, CachePadded};

/// Tries for a lock before a thread goes to sleep: critical sections are tens to hundreds of nanoseconds.
pub(crate) const SPINS: u32 = 100;
