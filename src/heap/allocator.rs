//! [`HugeAlloc`] for collections that take an allocator.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::HugeAlloc;

/// A block of the heap, or nothing for a layout without bytes.
fn block_of(at: *mut u8, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    let at = NonNull::new(at).ok_or(AllocError)?;
    Ok(NonNull::slice_from_raw_parts(at, layout.size()))
}

impl HugeAlloc {
    /// # Safety
    ///
    /// As for [`Allocator::grow`] and [`Allocator::shrink`].
    unsafe fn resize(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() == 0 || new.size() == 0 || old.align() != new.align() {
            let to = self.allocate(new)?;
            // SAFETY: two blocks of at least that length, one of them new; the caller's contract.
            unsafe {
                block.copy_to_nonoverlapping(to.cast(), old.size().min(new.size()));
                self.deallocate(block, old);
            }
            return Ok(to);
        }
        // SAFETY: the caller's contract; the new size is not 0.
        block_of(unsafe { self.realloc(block.as_ptr(), old, new.size()) }, new)
    }
}

// SAFETY: every `HugeAlloc` is a handle to the heap of the process, whose blocks stay until they are freed.
unsafe impl Allocator for HugeAlloc {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match layout.size() {
            0 => block_of(layout.dangling_ptr().as_ptr(), layout),
            // SAFETY: the size is not 0.
            _ => block_of(unsafe { self.alloc(layout) }, layout),
        }
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match layout.size() {
            0 => self.allocate(layout),
            // SAFETY: the size is not 0.
            _ => block_of(unsafe { self.alloc_zeroed(layout) }, layout),
        }
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller's contract.
            unsafe { self.dealloc(block.as_ptr(), layout) };
        }
    }

    #[inline]
    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's contract.
        unsafe { self.resize(block, old, new) }
    }

    #[inline]
    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's contract; the tail is inside the new block.
        unsafe {
            let grown = self.resize(block, old, new)?;
            grown.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size());
            Ok(grown)
        }
    }

    #[inline]
    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's contract.
        unsafe { self.resize(block, old, new) }
    }
}
