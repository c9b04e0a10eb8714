//! Clearing and copying memory: order x kernel x pace.
//!
//! A block that is cleared in one ascending sweep leaves its end in cache, while most callers start elsewhere. So
//! the batches that hold the caller's [`FirstTouch`] are written last, by stores that stay in cache; the others
//! are written before, by stores that go around it, which is two to three times as fast on cold memory. Three
//! things compose, each replaceable: the [`Order`] of the batches, the [`Kernel`] that writes one, and the
//! [`Pace`], which is what happens between two. A [`Method`] names the first two.
//!
//! [`clear`] and [`copy`] choose everything and are what the heap calls: they neither allocate, lock nor panic.
//!
//! # Fences
//!
//! Non-caching stores are invisible to Rust's memory model until their thread fences them. Every operation here
//! fences before it returns or unwinds, and [`Clearing`] after each batch. It does not fence before a callback:
//! the region belongs to the operation until it returns, so nobody may look, and 64 fences cost a third of the
//! time that clearing 2 MiB takes (31.5 against 24 us on Zen 4).
//!
//! [`measured`] has figures, and how to get them for another machine.
//!
//! # Sources
//!
//! Linux 7.0 `mm/memory.c`, `folio_zero_user()`; Intel and AMD manuals as named in the kernels; Rust
//! `core::arch::x86_64::_mm_sfence`.
#![allow(unsafe_code)]

mod ahead;
mod dirty;
mod kernel;
pub mod measured;
mod method;
mod order;
mod pace;
mod residency;

use std::ops::ControlFlow;

use ahead::Ahead;
pub(crate) use dirty::{DirtyRegions, Region, clear_dirty, clear_dirty_with};
pub use kernel::Kernel;
pub use method::Method;
pub use order::{Batch, Batches, FirstTouch, Order};
pub use pace::{Batched, Callback, DEFAULT_BATCH_BYTES, Nothing, Pace, Progress, Yield};

/// Up to this many bytes [`clear`] and [`copy`] are `memset` and `memcpy`, because no level-2 cache is smaller and
/// [`Method::choose`] would say the same.
const SMALL: usize = 256 << 10;

/// Zeroes `len` bytes at `dst`, the window of `touch` last. Everything else is chosen, for memory that is cold.
///
/// As cheap as `memset` for small blocks. Never allocates, locks or panics, makes no system call. On x86-64 it
/// reads the time stamp counter for blocks between the size of the level-2 and the last-level cache.
///
/// # Safety
///
/// - `dst` is valid for reading and writing `len` bytes, whatever they hold (a few are read, to see whether the
///   block is in cache).
/// - Nothing else reads or writes them until this returns.
///
/// # Examples
///
/// ```
/// use hugearena::memops::{self, FirstTouch};
///
/// let mut block = vec![0xA5u8; 1 << 20];
/// // SAFETY: the vector owns its bytes.
/// unsafe { memops::clear(block.as_mut_ptr(), block.len(), FirstTouch::at(4096, 512)) };
/// assert!(block.iter().all(|&byte| byte == 0));
/// ```
#[inline]
pub unsafe fn clear(dst: *mut u8, len: usize, touch: FirstTouch) {
    if len <= SMALL {
        // SAFETY: the caller's contract.
        unsafe { dst.write_bytes(0, len) };
    } else {
        // SAFETY: the same contract.
        unsafe { clear_large(dst, len, touch) };
    }
}

/// # Safety
///
/// As [`clear`].
#[cold]
unsafe fn clear_large(dst: *mut u8, len: usize, touch: FirstTouch) {
    // SAFETY: the same contract; what the region holds does not matter to the choice.
    let method = unsafe { Method::choose_to_clear(dst, len, touch) };
    // SAFETY: the same contract.
    let _ = unsafe { clear_with(dst, len, touch, &method, &mut Nothing.in_batches_of(usize::MAX)) };
}

/// Zeroes `len` bytes at `dst` by `method`, at `pace`. `Break` if the pace stopped it; then some batches are
/// zero and the others as they were.
///
/// # Panics
///
/// Only if the pace does; the region is then partly zeroed.
///
/// # Safety
///
/// - `dst` is valid for writing `len` bytes.
/// - Nothing else, the pace included, reads or writes them until this returns or unwinds.
///
/// # Examples
///
/// ```
/// use hugearena::memops::{self, Callback, FirstTouch, Method, Progress};
/// use std::ops::ControlFlow;
///
/// let mut block = vec![0xA5u8; 256 << 10];
/// let touch = FirstTouch::unknown();
/// let mut polls = 0;
/// let mut pace = Callback::new(|_: Progress| {
///     polls += 1;
///     ControlFlow::Continue(())
/// });
/// let method = Method::choose(block.len(), false);
/// // SAFETY: the vector owns its bytes, and the callback does not look at them.
/// let outcome = unsafe { memops::clear_with(block.as_mut_ptr(), block.len(), touch, &method, &mut pace) };
/// assert!(outcome.is_continue() && block.iter().all(|&byte| byte == 0));
/// assert_eq!(polls, 7);
/// ```
pub unsafe fn clear_with(
    dst: *mut u8,
    len: usize,
    touch: FirstTouch,
    method: &Method,
    pace: &mut impl Pace,
) -> ControlFlow<()> {
    let mut task = Task::new(Zeroes { dst }, len, touch, method, pace.batch_bytes());
    // SAFETY: the caller's contract is the task's.
    unsafe { task.run(pace) }
}

/// Copies `len` bytes from `src` to `dst`, the window of `touch` last; otherwise like [`clear`].
///
/// # Safety
///
/// - `dst` is valid for writing and `src` for reading `len` bytes, and the two do not overlap.
/// - Nothing else writes either, or reads `dst`, until this returns.
///
/// # Examples
///
/// ```
/// use hugearena::memops::{self, FirstTouch};
///
/// let src: Vec<u8> = (0..1 << 20).map(|index| index as u8).collect();
/// let mut dst = vec![0; src.len()];
/// // SAFETY: two vectors of equal length.
/// unsafe { memops::copy(dst.as_mut_ptr(), src.as_ptr(), src.len(), FirstTouch::unknown()) };
/// assert!(dst == src);
/// ```
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, touch: FirstTouch) {
    if len <= SMALL {
        // SAFETY: the caller's contract.
        unsafe { dst.copy_from_nonoverlapping(src, len) };
    } else {
        // SAFETY: the same contract.
        unsafe { copy_large(dst, src, len, touch) };
    }
}

/// # Safety
///
/// As [`copy`].
#[cold]
unsafe fn copy_large(dst: *mut u8, src: *const u8, len: usize, touch: FirstTouch) {
    let method = Method::choose_to_copy(len, touch);
    // SAFETY: the same contract.
    let _ = unsafe { copy_with(dst, src, len, touch, &method, &mut Nothing.in_batches_of(usize::MAX)) };
}

/// Copies `len` bytes from `src` to `dst` by `method`, at `pace`; otherwise like [`clear_with`].
///
/// # Panics
///
/// Only if the pace does; `dst` is then partly written.
///
/// # Safety
///
/// - `dst` is valid for writing and `src` for reading `len` bytes, and the two do not overlap.
/// - Nothing else, the pace included, writes either, or reads `dst`, until this returns or unwinds.
pub unsafe fn copy_with(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    touch: FirstTouch,
    method: &Method,
    pace: &mut impl Pace,
) -> ControlFlow<()> {
    let mut task = Task::new(Copies { dst, src }, len, touch, method, pace.batch_bytes());
    // SAFETY: the caller's contract is the task's.
    unsafe { task.run(pace) }
}

/// A region that is being zeroed a batch at a time, from a poll loop or an async task.
///
/// Dropping it half-way leaves the rest of the region as it was. It may move to another thread between batches.
///
/// # Examples
///
/// ```
/// use hugearena::memops::{Clearing, FirstTouch, Method};
///
/// let mut block = vec![0xA5u8; 1 << 20];
/// let touch = FirstTouch::whole();
/// let method = Method::choose(block.len(), false);
/// // SAFETY: the vector owns its bytes, and is not touched until the clearing is done.
/// let mut clearing = unsafe { Clearing::new(block.as_mut_ptr(), block.len(), touch, &method, 64 << 10) };
/// let mut batches = 0;
/// while !clearing.advance().is_done() {
///     batches += 1; // Poll the ring here.
/// }
/// assert!(batches == 15 && block.iter().all(|&byte| byte == 0));
/// ```
#[derive(Debug)]
#[must_use = "nothing is zeroed until it is advanced"]
pub struct Clearing {
    task: Task<Zeroes>,
}

// SAFETY: the pointer inside is to a region that nothing but this value touches while it lives (the contract of
// `new`), whichever thread holds it; each batch was fenced by the thread that wrote it.
unsafe impl Send for Clearing {}

impl Clearing {
    /// Prepares to zero `len` bytes at `dst` by `method`, in batches of `batch_bytes`. Writes nothing yet.
    ///
    /// Non-caching batches are fenced one by one here, about 0.1 us each: batches of 128 KiB and more hide it.
    ///
    /// # Safety
    ///
    /// Until the clearing is done or dropped:
    /// - `dst` is valid for writing `len` bytes, from every thread that advances it;
    /// - nothing else reads or writes them.
    pub unsafe fn new(dst: *mut u8, len: usize, touch: FirstTouch, method: &Method, batch_bytes: usize) -> Clearing {
        Clearing { task: Task::new(Zeroes { dst }, len, touch, method, batch_bytes) }
    }

    /// Zeroes the next batch, if any is left, and says how far it has come.
    pub fn advance(&mut self) -> Progress {
        // SAFETY: `new`'s caller promised that the region is valid and ours until done; the fence follows.
        unsafe { self.task.write_batch() };
        self.task.fence();
        self.task.progress()
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.task.progress()
    }

    /// Whether all of the region is zero.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.remaining_bytes() == 0
    }

    /// Bytes still to be zeroed.
    #[must_use]
    pub fn remaining_bytes(&self) -> usize {
        self.task.batches.remaining_bytes()
    }
}

/// Bytes in the last-level cache, as far as the CPU tells. Never allocates, locks or panics.
pub(crate) fn last_level_cache_bytes() -> usize {
    kernel::caches().level_3
}

/// What is done to a batch.
trait Job {
    /// The region that is written.
    fn dst(&self) -> *mut u8;

    /// Writes `batch` with `kernel`, without a fence.
    ///
    /// # Safety
    ///
    /// The batch lies in the job's region, which is valid and exclusive; `kernel` is fenced before it is not.
    unsafe fn write(&self, kernel: Kernel, batch: Batch);
}

#[derive(Debug)]
struct Zeroes {
    dst: *mut u8,
}

impl Job for Zeroes {
    fn dst(&self) -> *mut u8 {
        self.dst
    }

    #[inline]
    unsafe fn write(&self, kernel: Kernel, batch: Batch) {
        // SAFETY: offset and length lie in the region, and the rest of the contract is the same.
        unsafe { kernel.clear_unfenced(self.dst.add(batch.offset), batch.len) }
    }
}

struct Copies {
    dst: *mut u8,
    src: *const u8,
}

impl Job for Copies {
    fn dst(&self) -> *mut u8 {
        self.dst
    }

    #[inline]
    unsafe fn write(&self, kernel: Kernel, batch: Batch) {
        // SAFETY: offset and length lie in both regions, and the rest of the contract is the same.
        unsafe { kernel.copy_unfenced(self.dst.add(batch.offset), self.src.add(batch.offset), batch.len) }
    }
}

/// A job and the batches of it that are left.
#[derive(Debug)]
struct Task<J> {
    job: J,
    batches: Batches,
    total_bytes: usize,
    far: Kernel,
    near: Kernel,
    /// For far batches that leave the cache alone, and regions whose pieces would not have ragged ends.
    ahead: Option<Ahead>,
}

impl<J: Job> Task<J> {
    fn new(job: J, len: usize, touch: FirstTouch, method: &Method, batch_bytes: usize) -> Task<J> {
        let touch = touch.at_most(method.near_bytes);
        let batches = method.order.batches(len, touch, batch_bytes);
        let Method { far, near, .. } = *method;
        let is_window_alone = far.is_non_caching() && !near.is_non_caching() && job.dst().addr().is_multiple_of(64);
        let ahead = if is_window_alone { Ahead::new(touch.window(len), len) } else { None };
        Task { job, batches, total_bytes: len, far, near, ahead }
    }

    fn progress(&self) -> Progress {
        let total_bytes = self.total_bytes;
        Progress { done_bytes: total_bytes - self.batches.remaining_bytes(), total_bytes }
    }

    /// Writes the next batch, if any is left.
    ///
    /// # Safety
    ///
    /// The region is valid and exclusive, and this thread calls [`fence`](Self::fence) before it is not.
    #[inline]
    unsafe fn write_batch(&mut self) {
        let Some(batch) = self.batches.next() else { return };
        // SAFETY: batches lie in the region of `total_bytes`; the rest is the caller's promise.
        unsafe {
            match &mut self.ahead {
                _ if batch.near => self.job.write(self.near, batch),
                None => self.job.write(self.far, batch),
                Some(ahead) => write_and_fetch(&self.job, self.far, batch, ahead),
            }
        }
    }

    fn fence(&self) {
        self.far.fence();
        self.near.fence();
    }

    /// Writes all batches, unless the pace stops it, and fences them however it ends.
    ///
    /// # Safety
    ///
    /// The region is valid, and exclusive until this returns or unwinds.
    unsafe fn run(&mut self, pace: &mut impl Pace) -> ControlFlow<()> {
        /// Drops on every way out, unwinding included.
        struct FenceOnExit<'a, J: Job>(&'a mut Task<J>);

        impl<J: Job> Drop for FenceOnExit<'_, J> {
            fn drop(&mut self) {
                self.0.fence();
            }
        }

        let guard = FenceOnExit(self);
        loop {
            // SAFETY: the caller's promise; the guard fences before this function is left.
            unsafe { guard.0.write_batch() };
            let progress = guard.0.progress();
            if progress.is_done() {
                return ControlFlow::Continue(());
            }
            pace.between(progress)?;
        }
    }
}

/// Writes a far batch, and meanwhile fetches lines of the window.
///
/// # Safety
///
/// As [`Job::write`].
unsafe fn write_and_fetch<J: Job>(job: &J, far: Kernel, batch: Batch, ahead: &mut Ahead) {
    let (end, piece) = (batch.offset + batch.len, ahead.piece());
    for offset in (batch.offset..end).step_by(piece) {
        let len = piece.min(end - offset);
        for line in ahead.before(len) {
            kernel::fetch(job.dst().wrapping_add(line));
        }
        // SAFETY: a part of the batch.
        unsafe { job.write(far, Batch { offset, len, near: false }) };
    }
}

#[cfg(test)]
mod tests;
