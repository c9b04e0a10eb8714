//! Clearing and copying from inside a global allocator, from the very first call: nothing there may allocate.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use hugearena::memops::{self, FirstTouch};

/// Clears and copies by `memops`, and counts the requests that arrive from the same thread while it does.
struct Clearing;

thread_local! {
    /// The harness's own thread may allocate at any time. Without a destructor: nothing here allocates.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

static NESTED: AtomicUsize = AtomicUsize::new(0);
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// Far above every level-2 cache, so that the choice of kernels is made.
const LEN: usize = 64 << 20;

// SAFETY: the system's allocator serves every request; a new block is exclusively ours while it is written.
unsafe impl GlobalAlloc for Clearing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NESTED.fetch_add(DEPTH.get(), SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract; the block has `layout.size()` bytes.
        unsafe {
            let block = self.alloc(layout);
            if layout.size() < LEN || block.is_null() {
                block.write_bytes(0, if block.is_null() { 0 } else { layout.size() });
                return block;
            }
            LARGE.fetch_add(1, SeqCst);
            block.write_bytes(0xA5, layout.size());
            DEPTH.set(DEPTH.get() + 1);
            memops::clear(block, layout.size(), FirstTouch::unknown());
            let half = layout.size() / 2;
            memops::copy(block.add(half), block, half, FirstTouch::whole());
            DEPTH.set(DEPTH.get() - 1);
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static GLOBAL: Clearing = Clearing;

#[test]
fn clearing_and_copying_allocate_nothing() {
    let block = vec![0u8; LEN];
    assert!(block.iter().all(|&byte| byte == 0));
    assert_eq!((LARGE.load(SeqCst), NESTED.load(SeqCst)), (1, 0));
}
