//! How many bytes are written in one go, and what happens before the next: nothing, a yield, or the caller's code.

use std::ops::ControlFlow;

use crate::sys::process::yield_now;

/// How far an operation has come, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written so far, from 0 to `total_bytes`. In [`Order`](super::Order), not from the start.
    pub done_bytes: usize,
    /// Bytes of the whole region.
    pub total_bytes: usize,
}

impl Progress {
    /// Whether nothing remains.
    #[must_use]
    pub const fn is_done(self) -> bool {
        self.done_bytes == self.total_bytes
    }
}

/// The size of a batch, and what happens between two of them.
///
/// # Examples
///
/// ```
/// use hugearena::memops::{Callback, Nothing, Pace, Progress};
/// use std::ops::ControlFlow;
///
/// // Polls something between batches of 8 KiB and stops half-way.
/// let mut polls = 0;
/// let mut pace = Callback::new(|progress: Progress| {
///     polls += 1;
///     if progress.done_bytes * 2 < progress.total_bytes { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
/// })
/// .in_batches_of(8 << 10);
/// assert_eq!(pace.batch_bytes(), 8 << 10);
/// assert!(pace.between(Progress { done_bytes: 1, total_bytes: 2 }).is_break());
/// assert_eq!(Nothing.batch_bytes(), 32 << 10);
/// ```
pub trait Pace {
    /// The longest batch, in bytes. Asked once per operation; [`Order::batches`](super::Order::batches) says how
    /// it is rounded.
    fn batch_bytes(&self) -> usize {
        DEFAULT_BATCH_BYTES
    }

    /// Runs after every batch but the last. `Break` stops the operation, which leaves the rest of the region
    /// as it was; what is done is visible to other threads that synchronise with this one.
    fn between(&mut self, progress: Progress) -> ControlFlow<()>;

    /// The same pace with batches of `batch_bytes`.
    fn in_batches_of(self, batch_bytes: usize) -> Batched<Self>
    where
        Self: Sized,
    {
        Batched { pace: self, batch_bytes }
    }
}

/// 32 KiB: eight pages. Long enough that a fence or a call per batch costs under 3 %, short enough to take a few
/// microseconds and to fit the smallest level-1 cache still sold.
pub const DEFAULT_BATCH_BYTES: usize = 32 << 10;

/// Goes straight on. The call per batch disappears in the compiler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Pace for Nothing {
    #[inline]
    fn between(&mut self, _: Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Calls sched_yield(2), which lets another runnable thread of this CPU go first.
///
/// A system call, about 0.3 us each: a tenth of a cached batch of 32 KiB, a quarter of a non-caching one. Larger
/// batches make it cheaper.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yield;

impl Pace for Yield {
    fn between(&mut self, _: Progress) -> ControlFlow<()> {
        yield_now();
        ControlFlow::Continue(())
    }
}

/// Calls a closure: polls a ring, looks at a deadline, stops.
///
/// # Panics
///
/// Only if the closure does. The operation then unwinds between two batches, and the region is partly written.
#[derive(Clone, Copy, Debug)]
pub struct Callback<F>(F);

impl<F: FnMut(Progress) -> ControlFlow<()>> Callback<F> {
    /// Calls `between` between batches of 32 KiB.
    pub const fn new(between: F) -> Callback<F> {
        Callback(between)
    }
}

impl<F: FnMut(Progress) -> ControlFlow<()>> Pace for Callback<F> {
    #[inline]
    fn between(&mut self, progress: Progress) -> ControlFlow<()> {
        (self.0)(progress)
    }
}

/// A [`Pace`] with another batch size: what [`Pace::in_batches_of`] makes.
#[derive(Clone, Copy, Debug)]
pub struct Batched<P> {
    pace: P,
    batch_bytes: usize,
}

impl<P: Pace> Pace for Batched<P> {
    fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    #[inline]
    fn between(&mut self, progress: Progress) -> ControlFlow<()> {
        self.pace.between(progress)
    }
}
