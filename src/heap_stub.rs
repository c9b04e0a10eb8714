//! THROWAWAY: the names the demo and the benches code against, forwarding to libc malloc. Delete with the real heap.
#![allow(unsafe_code, missing_docs, missing_debug_implementations, clippy::missing_safety_doc)]
#![allow(clippy::undocumented_unsafe_blocks, clippy::new_without_default)]

use std::alloc::{GlobalAlloc, Layout, System};

use crate::{PageSize, Result};

#[derive(Clone, Copy)]
pub struct FirstTouch;

impl FirstTouch {
    pub const fn unknown() -> FirstTouch {
        FirstTouch
    }
}

pub struct HugeAlloc(());

impl HugeAlloc {
    pub const fn new() -> HugeAlloc {
        HugeAlloc(())
    }

    pub fn stats(&self) -> HeapStats {
        HeapStats::default()
    }

    pub unsafe fn alloc_zeroed_hint(&self, layout: Layout, _touch: FirstTouch) -> *mut u8 {
        unsafe { System.alloc_zeroed(layout) }
    }
}

unsafe impl GlobalAlloc for HugeAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        unsafe { System.realloc(ptr, layout, new) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct HeapStats {
    pub mapped_bytes: u64,
    pub huge_2m_bytes: u64,
    pub huge_1g_bytes: u64,
    pub transparent_bytes: u64,
    pub base_bytes: u64,
    pub live_bytes: u64,
    pub fallbacks: u64,
    pub remedy: Option<String>,
}

impl std::fmt::Display for HeapStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:#?}")
    }
}

#[derive(Clone)]
pub struct Arena(PageSize);

pub struct Builder(PageSize);

impl Arena {
    pub fn builder() -> Builder {
        Builder(PageSize::HUGE_2M)
    }
    pub fn claim(&self, n_pages: usize) -> Option<Chunk> {
        let layout = Layout::from_size_align(n_pages * self.0.bytes(), 4096).ok()?;
        let at = unsafe { System.alloc(layout) };
        (!at.is_null()).then_some(Chunk(at, layout))
    }
    pub fn claim_zeroed(&self, n_pages: usize, _touch: FirstTouch) -> Option<Chunk> {
        let chunk = self.claim(n_pages)?;
        unsafe { chunk.0.write_bytes(0, chunk.1.size()) };
        Some(chunk)
    }
}

impl Builder {
    pub fn page_size(self, size: PageSize) -> Builder {
        Builder(size)
    }
    pub fn capacity(self, _bytes: usize) -> Builder {
        self
    }
    pub fn open(self) -> Result<Arena> {
        Ok(Arena(self.0))
    }
}

pub struct Chunk(*mut u8, Layout);

unsafe impl Send for Chunk {}

impl std::ops::Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.0, self.1.size()) }
    }
}

impl std::ops::DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1.size()) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        unsafe { System.dealloc(self.0, self.1) }
    }
}
