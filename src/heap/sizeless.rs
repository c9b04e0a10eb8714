//! Blocks by their address alone: what a `malloc` has to do, whose `free` is told no size.
//!
//! The unit that a block lies in says what the block is: a span of some class, or a run of its own. That is one
//! look-up apart from the block; a free with a `Layout` does without.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, null_mut};
use std::sync::atomic::Ordering::Relaxed;

use super::size_class::{ALIGNED_MAX, CLASS, CLASSES, SMALL_MAX};
use super::space::{Kind, Space, UNIT_BYTES, Unit};
use super::{HEAP, HugeAlloc, checks, large, size_class, thread};

/// Bytes in a block by class: all that is asked for on the way, on few cache lines. A power of two long, so that an
/// index needs no check.
static BLOCK_BYTES: [u32; CLASSES.next_power_of_two()] = {
    let mut table = [0; CLASSES.next_power_of_two()];
    let mut class = 0;
    while class < CLASSES {
        table[class] = CLASS[class].size;
        class += 1;
    }
    table
};

impl HugeAlloc {
    /// Bytes that may be used from `block` on: at least what was asked for. 0 for a pointer that is not from this
    /// heap, null included.
    ///
    /// All of them may be read and written, as after malloc_usable_size(3). The figure stays the same until the block
    /// is reallocated. `realloc` copies no more than the layout that it is given says;
    /// [`realloc_unsized`](Self::realloc_unsized) copies all.
    ///
    /// # Safety
    ///
    /// `block` is a block of this heap that has not been freed, or a pointer that is not from this heap.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::HugeAlloc;
    /// use std::alloc::{GlobalAlloc, Layout};
    ///
    /// let heap = HugeAlloc::new();
    /// let layout = Layout::from_size_align(1000, 16).unwrap();
    /// // SAFETY: the layout's size is not 0; what is written is within the block, which is freed once.
    /// unsafe {
    ///     let block = heap.alloc(layout);
    ///     assert!(!block.is_null());
    ///     let usable = heap.usable_size(block);
    ///     assert!(usable >= 1000);
    ///     block.write_bytes(1, usable);
    ///     heap.dealloc(block, layout);
    /// }
    /// assert_eq!(unsafe { heap.usable_size(&0) }, 0);
    /// ```
    ///
    /// # Sources
    ///
    /// malloc_usable_size(3).
    #[inline]
    #[must_use]
    pub unsafe fn usable_size(&self, block: *const u8) -> usize {
        let Some((space, entry)) = find(block) else {
            return 0;
        };
        if entry.kind() == Kind::Span {
            return BLOCK_BYTES[entry.class() % BLOCK_BYTES.len()] as usize;
        }
        run_bytes(space, block.cast_mut())
    }

    /// Frees `block`, whatever the layout that it was allocated with. Returns whether it is from this heap; if not,
    /// null included, nothing was done.
    ///
    /// Costs a look-up more than `dealloc`, and leaves errno alone.
    ///
    /// # Safety
    ///
    /// `block` is a block of this heap that has not been freed and is not used any more, or a pointer that is not from
    /// this heap.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::HugeAlloc;
    /// use std::alloc::{GlobalAlloc, Layout};
    ///
    /// let heap = HugeAlloc::new();
    /// // SAFETY: the layout's size is not 0; the block is freed once.
    /// unsafe {
    ///     let block = heap.alloc(Layout::new::<[u64; 100]>());
    ///     assert!(heap.dealloc_unsized(block));
    ///     assert!(!heap.dealloc_unsized(std::ptr::null_mut()));
    /// }
    /// ```
    ///
    /// # Sources
    ///
    /// free(3); POSIX.1-2024, which has `free` preserve errno.
    #[inline]
    pub unsafe fn dealloc_unsized(&self, block: *mut u8) -> bool {
        let Some((_, entry)) = find(block) else {
            return false;
        };
        // SAFETY: the caller's contract.
        unsafe { checks::check_free_unsized(block, || self.usable_size(block)) };
        let class = entry.class();
        // A class out of range is no class: `large` aborts then.
        if entry.kind() != Kind::Span || class >= CLASSES {
            large::dealloc(block);
        } else if !thread::push(class, block) {
            thread::dealloc_slow(class, block);
        }
        true
    }

    /// Resizes `block` to `new_size` bytes, at `align`, whatever the layout that it was allocated with; what it
    /// held, up to the smaller of the two [usable](Self::usable_size) sizes, is kept. Returns where it is now, or null
    /// when the heap is exhausted or `block` is not from this heap: then nothing has changed.
    ///
    /// The block stays where it is while it fits and at least half of it would be used; also while it fits and there is no
    /// memory for another one. From now on no `Layout`
    /// describes it: [`dealloc_unsized`](Self::dealloc_unsized) is the way to free it.
    ///
    /// # Safety
    ///
    /// `block` is a block of this heap that has not been freed, or a pointer that is not from this heap. Unless null is
    /// returned, it is not used any more.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::HugeAlloc;
    /// use std::alloc::{GlobalAlloc, Layout};
    ///
    /// let heap = HugeAlloc::new();
    /// // SAFETY: the layout's size is not 0; the old pointer is not used after the call; the block is freed once.
    /// unsafe {
    ///     let block = heap.alloc_zeroed(Layout::new::<[u64; 100]>());
    ///     let block = heap.realloc_unsized(block, 16, 1 << 20);
    ///     assert!(!block.is_null());
    ///     assert_eq!(block.add(799).read(), 0);
    ///     heap.dealloc_unsized(block);
    /// }
    /// ```
    ///
    /// # Sources
    ///
    /// realloc(3).
    pub unsafe fn realloc_unsized(&self, block: *mut u8, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        let held = unsafe { self.usable_size(block) };
        let Ok(layout) = Layout::from_size_align(new_size.max(1), align) else {
            return null_mut();
        };
        if held == 0 {
            return null_mut();
        }
        checks::check_live_unsized(block);
        if block.addr().is_multiple_of(align) && stays(block, held, layout.size()) {
            return block;
        }
        // SAFETY: the caller's contract; the new block is another one, at least as long as what is copied.
        unsafe {
            let grows = held > SMALL_MAX && size_class::of(layout) >= CLASSES;
            let new = if grows { checks::note_alloc(large::alloc_to_grow(self, layout)) } else { self.alloc(layout) };
            if new.is_null() {
                // A smaller block would have been a favour to others.
                let stays = fits(block, held, layout) || grows && grows_at_last(block, layout);
                return if stays { block } else { new };
            }
            ptr::copy_nonoverlapping(block, new, held.min(layout.size()));
            self.dealloc_unsized(block);
            new
        }
    }
}

/// Whether a block that holds `held` bytes would do for `layout`.
fn fits(block: *mut u8, held: usize, layout: Layout) -> bool {
    layout.size() <= held && block.addr().is_multiple_of(layout.align())
}

/// Whether a block could be resized where it is at last, when there was no other.
fn grows_at_last(block: *mut u8, layout: Layout) -> bool {
    let is_run = find(block).is_some_and(|(_, entry)| entry.kind() == Kind::Run);
    is_run && block.addr().is_multiple_of(layout.align()) && large::resize_at_last(block, layout.size())
}

/// The entry of the unit that holds `block`, if it is from this heap.
#[inline(always)]
fn find(block: *const u8) -> Option<(&'static Space, &'static Unit)> {
    let space = HEAP.space()?;
    Some((space, space.entry_of(block.cast_mut())?))
}

#[cold]
#[inline(never)]
fn run_bytes(space: &Space, block: *mut u8) -> usize {
    let run = large::run_of(space, block);
    space.unit(run).len.load(Relaxed) as usize * UNIT_BYTES
}

/// Whether a block that holds `held` bytes can hold `size` where it is, and should. Resizes it if it is a run.
fn stays(block: *mut u8, held: usize, size: usize) -> bool {
    if size <= held && size >= held / 2 && held <= SMALL_MAX {
        return true;
    }
    let Some((_, entry)) = find(block) else {
        return false;
    };
    // What spans hold at every alignment is better off among its equals there.
    let is_run = entry.kind() == Kind::Run && size > ALIGNED_MAX;
    is_run && large::resize_in_place(block, size)
}
