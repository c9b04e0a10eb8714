//! Memory for a ring inside one process: zeroed, aligned, from the global allocator.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The memory of a ring that is not in anybody else's.
#[derive(Debug)]
pub struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, whose uses the ring's ends order.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn new(layout: Layout) -> Block {
        assert!(layout.size() > 0, "a ring has a header");
        // SAFETY: not of size 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Block { start: start.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    pub(super) fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; the ends of the ring are gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
