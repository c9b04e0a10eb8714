//! The paths that hand memory out make no system call, once it is there: proved in a process for which any call
//! is the end.

#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

use hugearena::backing::BackingKind;
use hugearena::{Arena, FirstTouch, HugeAlloc};

use support::{PoolUnchanged, for_each_page_size, without_system_calls};

#[test]
fn claim_and_release_make_no_system_call() {
    for_each_page_size(4, |size, pages| {
        for kind in [BackingKind::Memfd, BackingKind::Anonymous] {
            // Opened by the process that claims: a child has no shared memory of its parent's.
            let builder =
                Arena::builder().page_size(size).capacity(pages * size.bytes()).backing(kind.clone()).strict();
            let open = || builder.open().unwrap();
            let rounds = if size.is_huge() { 20 } else { 1_000 };
            without_system_calls(open, |arena| {
                for _ in 0..1_000 {
                    black_box((arena.claim(1), arena.claim(pages)));
                }
                for _ in 0..rounds {
                    black_box(arena.claim_zeroed(pages, FirstTouch::unknown()));
                }
            });
        }
    });
}

static HEAP: HugeAlloc = HugeAlloc::new();

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Runs `work` in a process whose heap has served the same work before.
fn heap_works_without_system_calls(work: impl Fn()) {
    let _guard = PoolUnchanged::begin();
    without_system_calls(|| (0..3).for_each(|_| work()), |()| (0..100).for_each(|_| work()));
}

/// Allocates `count` blocks, then frees them, each with a byte written to it.
fn alloc_and_free(count: usize, size: usize, zeroed: bool) {
    let mut blocks = [std::ptr::null_mut(); 64];
    for block in &mut blocks[..count] {
        // SAFETY: the size is not 0.
        *block = unsafe { if zeroed { HEAP.alloc_zeroed(layout(size)) } else { HEAP.alloc(layout(size)) } };
        assert!(!block.is_null());
        if zeroed {
            // SAFETY: a live block of that size.
            assert!(support::is_zero(unsafe { std::slice::from_raw_parts(*block, size) }));
        }
        // SAFETY: a live block of that size.
        unsafe { block.write_bytes(0xA5, size) };
    }
    for block in &blocks[..count] {
        // SAFETY: allocated above with this layout.
        unsafe { HEAP.dealloc(*block, layout(size)) };
    }
}

#[test]
fn small_blocks_need_no_system_call() {
    heap_works_without_system_calls(|| {
        for size in [1, 64, 1_000, 20_000, 200_000] {
            alloc_and_free(64, size, false);
            alloc_and_free(64, size, true);
        }
    });
}

#[test]
fn large_blocks_need_no_system_call() {
    heap_works_without_system_calls(|| {
        for size in [300 << 10, 1 << 20, 8 << 20] {
            alloc_and_free(4, size, false);
        }
    });
}

/// The loops of those who give back too early, and pay for it each time.
#[test]
fn one_block_at_a_time_needs_no_system_call() {
    for size in [32 << 10, 1 << 20, 8 << 20, 64 << 20] {
        heap_works_without_system_calls(|| {
            for _ in 0..20 {
                // SAFETY: the size is not 0; the block is live until it is freed, with its layout.
                unsafe {
                    let block = HEAP.alloc(layout(size));
                    assert!(!block.is_null());
                    (0..size).step_by(4096).for_each(|at| block.add(at).write(1));
                    HEAP.dealloc(block, layout(size));
                }
            }
        });
    }
}

#[test]
fn dirty_large_blocks_are_zeroed_without_a_system_call() {
    heap_works_without_system_calls(|| alloc_and_free(2, 4 << 20, true));
}

#[test]
fn blocks_that_grow_into_memory_that_is_there_need_no_system_call() {
    heap_works_without_system_calls(|| {
        let mut size = 16;
        // SAFETY: one live block, resized and freed with its layout of the moment.
        unsafe {
            let mut block = HEAP.alloc(layout(size));
            while size < 6 << 20 {
                block = HEAP.realloc(block, layout(size), size * 2);
                size *= 2;
                block.add(size - 1).write(1);
            }
            HEAP.dealloc(block, layout(size));
        }
    });
}
