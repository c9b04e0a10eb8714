//! The workloads on no allocator at all: addresses that rise through one mapping of huge pages, and fall when the last
//! block is freed. What it takes is what memory takes; no allocator is a bound for another, this one is for all.
//! `BARE_PAGE=1G` for pages of 1 GiB.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hugearena::memops::{self, FirstTouch};

/// Addresses, not pages: those are taken when they are touched, while what the kernel cleared is still in cache.
const SPAN_BYTES: usize = 4 << 30;

/// The workloads that are compared with it are of one thread; atomics are what a static may have.
struct Bare {
    start: AtomicUsize,
    /// Bytes in use, from the start.
    used: AtomicUsize,
    /// Bytes that have ever been: beyond them the kernel's zeroes are still there.
    touched: AtomicUsize,
}

#[global_allocator]
static BARE: Bare = Bare { start: AtomicUsize::new(0), used: AtomicUsize::new(0), touched: AtomicUsize::new(0) };

fn main() {
    hugearena_peers::peer::run(String::new);
}

impl Bare {
    /// Where the mapping is; null if there is none to be had.
    fn start(&self) -> *mut u8 {
        let known = self.start.load(Relaxed);
        if known != 0 {
            return known as *mut u8;
        }
        // SAFETY: a literal; the program has one thread, so nobody changes the environment meanwhile.
        let value = unsafe { libc::getenv(c"BARE_PAGE".as_ptr()) };
        // SAFETY: an environment value is a C string.
        let is_gigantic = !value.is_null() && unsafe { libc::strcmp(value, c"1G".as_ptr()) } == 0;
        let page = if is_gigantic { libc::MAP_HUGE_1GB } else { libc::MAP_HUGE_2MB };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_HUGETLB | page;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), SPAN_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return null_mut();
        }
        self.start.store(start as usize, Relaxed);
        start.cast()
    }
}

// SAFETY: blocks lie one behind the other, aligned, within the mapping; bytes are handed out again only when the block
// that had them, the last one, has been freed. One thread, so the loads and stores are not interleaved.
unsafe impl GlobalAlloc for Bare {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.start();
        let first = self.used.load(Relaxed).next_multiple_of(layout.align());
        let end = first + layout.size();
        if start.is_null() || end > SPAN_BYTES {
            return null_mut();
        }
        self.used.store(end, Relaxed);
        self.touched.fetch_max(end, Relaxed);
        start.wrapping_add(first)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let first = block as usize - self.start.load(Relaxed);
        if first + layout.size() == self.used.load(Relaxed) {
            self.used.store(first, Relaxed);
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let touched = self.touched.load(Relaxed);
        // SAFETY: our caller's layout.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            let first = block as usize - self.start.load(Relaxed);
            let dirty = touched.saturating_sub(first).min(layout.size());
            // SAFETY: a part of the new block.
            unsafe { memops::clear(block, dirty, FirstTouch::unknown()) };
        }
        block
    }
}
