//! Zeroed chunks: at once, at a pace, or a batch at a time; and chunks that are copies of others.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use super::bitmap::{Contents, Prefer};
use super::{Arena, Chunk};
use crate::memops::{self, Clearing, DirtyRegions, FirstTouch, Method, Nothing, Pace, Progress, Region};

impl Arena {
    /// Claims `pages` contiguous pages, every byte zero. Only what is dirty is cleared, with no lock held, so that
    /// other threads claim and release meanwhile; the bytes of `touch` are cleared last and are in cache when
    /// the call returns. Zeroed pages go first.
    ///
    /// In a shared arena, zero means that nobody here has written since; a peer that writes to free pages is
    /// beyond what can be promised.
    ///
    /// `None` as for [`claim`](Self::claim).
    #[must_use]
    pub fn claim_zeroed(&self, pages: usize, touch: FirstTouch) -> Option<Chunk> {
        self.claim_zeroed_at(pages, touch, &mut Nothing.in_batches_of(usize::MAX))
    }

    /// As [`claim_zeroed`](Self::claim_zeroed), at a pace: yields, polls or looks at a deadline between batches.
    ///
    /// `None` also when the pace stopped it; the pages are free again then, and count as dirty as far as they
    /// were cleared or not yet known to be clean.
    ///
    /// # Panics
    ///
    /// Only if the pace does; the pages are free again then as well.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::memops::{Callback, Progress};
    /// use hugearena::{Arena, FirstTouch, PageSize};
    /// use std::ops::ControlFlow;
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
    /// drop(arena.claim(256)); // all dirty
    /// let mut polls = 0;
    /// let mut pace = Callback::new(|_: Progress| {
    ///     polls += 1; // poll the ring here
    ///     ControlFlow::Continue(())
    /// });
    /// let chunk = arena.claim_zeroed_at(256, FirstTouch::unknown(), &mut pace);
    /// assert!(chunk.is_some() && polls > 10);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn claim_zeroed_at(&self, pages: usize, touch: FirstTouch, pace: &mut impl Pace) -> Option<Chunk> {
        let chunk = self.claim_preferring(pages, Prefer::Zero)?;
        let start = chunk.as_ptr().as_ptr();
        let regions = DirtyRegions::new(chunk.len(), self.page_size().bytes(), touch);
        let is_dirty = |page| chunk.take_contents(page) == Contents::Dirty;
        // SAFETY: the chunk is ours alone, and what of it was taken stays dirty in the books if this unwinds.
        let outcome =
            unsafe { memops::clear_dirty_with(start, regions, is_dirty, |region| chunk.method(region), pace) };
        let (ControlFlow::Continue(cleared) | ControlFlow::Break(cleared)) = outcome;
        self.count_cleared(cleared);
        outcome.is_continue().then_some(chunk)
    }

    /// Claims `pages` contiguous pages that the caller zeroes a batch at a time, from its own loop or task.
    /// Nothing is cleared yet. `None` as for [`claim`](Self::claim).
    #[must_use]
    pub fn start_zeroed(&self, pages: usize, touch: FirstTouch, batch_bytes: usize) -> Option<ZeroingChunk> {
        let chunk = self.claim_preferring(pages, Prefer::Zero)?;
        let regions = DirtyRegions::new(chunk.len(), self.page_size().bytes(), touch);
        Some(ZeroingChunk { current: None, regions, batch_bytes, chunk })
    }

    /// Claims as many contiguous pages as hold `source`, which may be another arena's or another page size's, and
    /// copies it there, the bytes of `touch` last. What the pages hold beyond its length is unknown.
    ///
    /// Bytes of shared memory that a peer writes meanwhile arrive as they were at some moment of the copy.
    ///
    /// `None` as for [`claim`](Self::claim), and in a forked child when `source` is shared memory.
    #[must_use]
    pub fn claim_copy(&self, source: &Chunk, touch: FirstTouch) -> Option<Chunk> {
        if !source.arena().inner.mapping.is_here() {
            return None;
        }
        let copy = self.claim(self.page_size().pages_for(source.len())?)?;
        // SAFETY: two chunks never overlap; both are mapped for the length of the source. The copy is ours; that
        // a peer may write to shared memory meanwhile is outside what Rust knows of, as for any mapped file.
        unsafe { memops::copy(copy.as_ptr().as_ptr(), source.as_ptr().as_ptr(), source.len(), touch) };
        Some(copy)
    }

    pub(super) fn count_cleared(&self, bytes: usize) {
        if bytes > 0 {
            self.inner.cleared_bytes.fetch_add(bytes as u64, Relaxed);
        }
    }
}

impl Chunk {
    /// What is in one of the chunk's pages, counted from its first; dirty from now on.
    pub(super) fn take_contents(&self, page: usize) -> Contents {
        self.arena().inner.pages.take_contents(self.first_page() + page)
    }

    /// How a region of this chunk is best cleared. Only what was released a short while ago may still be in
    /// cache; whether it is, the cache itself is asked.
    fn method(&self, region: &Region) -> Method {
        let arena = self.arena();
        let page_bytes = arena.page_size().bytes();
        let page = self.first_page() + region.offset / page_bytes;
        let released_since = arena.inner.pages.released_since(page) as usize;
        if released_since.saturating_mul(page_bytes) > memops::last_level_cache_bytes() {
            return Method::choose(region.len, false);
        }
        // SAFETY: a region of our own chunk.
        unsafe { Method::choose_to_clear(self.as_ptr().as_ptr().add(region.offset), region.len, region.touch) }
    }
}

/// A chunk that is being zeroed a batch at a time: [`advance`](Self::advance) until done, then
/// [`finish`](Self::finish).
///
/// Dropped half-way, its pages are free again and count as dirty where they are not known to be zero. It may move
/// to another thread between batches.
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, FirstTouch, PageSize};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// drop(arena.claim(256)); // all dirty
/// let mut zeroing = arena.start_zeroed(256, FirstTouch::unknown(), 64 << 10).expect("all are free");
/// while !zeroing.advance().is_done() {
///     // poll the ring here
/// }
/// let chunk = zeroing.finish().expect("it is done");
/// assert_eq!(chunk.pages(), 256);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is zeroed until it is advanced"]
pub struct ZeroingChunk {
    /// The region being cleared, with its length until it has been counted. Before the chunk: dropped first.
    current: Option<(Clearing, usize)>,
    regions: DirtyRegions,
    batch_bytes: usize,
    chunk: Chunk,
}

impl ZeroingChunk {
    /// Zeroes the next batch, if any is left, and says how far it has come, in bytes of the chunk.
    ///
    /// # Panics
    ///
    /// In a child of fork(2) that inherited it and has not the memory, because the arena is shared.
    pub fn advance(&mut self) -> Progress {
        assert!(self.chunk.arena().inner.mapping.is_here(), "a forked child has none of a shared arena's memory");
        if self.current.is_none() {
            self.current = self.next_region();
        }
        if let Some((clearing, len)) = &mut self.current
            && clearing.advance().is_done()
        {
            self.chunk.arena().count_cleared(*len);
            self.current = None;
        }
        self.progress()
    }

    /// How far it has come, in bytes of the chunk.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let current = self.current.as_ref().map_or(0, |(clearing, _)| clearing.remaining_bytes());
        let total_bytes = self.chunk.len();
        Progress { done_bytes: total_bytes - self.regions.remaining_bytes() - current, total_bytes }
    }

    /// The zeroed chunk.
    ///
    /// # Errors
    ///
    /// Itself, when it is not done.
    #[expect(clippy::result_large_err, reason = "the error is the value itself, moved, not a cost of its own")]
    pub fn finish(self) -> Result<Chunk, ZeroingChunk> {
        if self.progress().is_done() { Ok(self.chunk) } else { Err(self) }
    }

    fn next_region(&mut self) -> Option<(Clearing, usize)> {
        let region = self.regions.next(|page| self.chunk.take_contents(page) == Contents::Dirty)?;
        let method = self.chunk.method(&region);
        // SAFETY: part of the chunk, which lives longer than the clearing and is ours alone.
        let clearing = unsafe {
            let start = self.chunk.as_ptr().as_ptr().add(region.offset);
            Clearing::new(start, region.len, region.touch, &method, self.batch_bytes)
        };
        Some((clearing, region.len))
    }
}

impl fmt::Debug for ZeroingChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZeroingChunk").field("chunk", &self.chunk).field("progress", &self.progress()).finish()
    }
}
