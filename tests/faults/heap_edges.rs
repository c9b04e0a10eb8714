//! The heap at its edges: address space that comes back, blocks that do not fit, what trim leaves.

use std::alloc::{GlobalAlloc, Layout};

use super::*;
use crate::support::child::deny_calls;
use crate::support::machine::limit_resource;
use crate::support::{Child, resident_bytes};
use hugearena::HugeAlloc;

static HEAP: HugeAlloc = HugeAlloc::new();

const MIB: usize = 1 << 20;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn alloc(heap: &HugeAlloc, size: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    unsafe { heap.alloc(layout(size)) }
}

fn free(heap: &HugeAlloc, block: *mut u8, size: usize) {
    // SAFETY: a live block of that layout.
    unsafe { heap.dealloc(block, layout(size)) }
}

#[test]
fn a_block_that_does_not_fit_says_nothing_about_the_next() {
    static STRICT: HugeAlloc = HugeAlloc::new().strict();
    Child::new().pool_of(4).run(|| {
        assert!(alloc(&STRICT, 64 << 30).is_null());
        for _ in 0..20 {
            assert!(!alloc(&STRICT, 64).is_null());
        }
    });
}

#[test]
fn addresses_given_back_join_those_never_used() {
    Child::new().run(|| {
        limit_resource(libc::RLIMIT_AS, support::machine::address_space_in_use() + (400 << 20));
        for size in [40 * MIB, 50 * MIB, 60 * MIB] {
            let block = alloc(&HEAP, size);
            assert!(!block.is_null(), "{size} bytes");
            free(&HEAP, block, size);
            HEAP.trim();
        }
    });
}

/// A sandbox that a program enters on its way: what has been had stays, and what is had from then on is ordinary.
#[test]
fn calls_that_are_denied_later_do_not_end_the_process() {
    for denied in [&[libc::SYS_mmap, libc::SYS_madvise][..], &[libc::SYS_mmap, libc::SYS_madvise, libc::SYS_msync]] {
        for errno in [libc::EPERM, libc::EINVAL, libc::ENOSYS] {
            Child::new().run(|| {
                let block = alloc(&HEAP, 40 * MIB);
                free(&HEAP, block, 40 * MIB);
                assert!(deny_calls(denied, errno), "seccomp is not allowed here");
                assert_eq!(HEAP.trim(), 0);
                for _ in 0..10 {
                    let block = alloc(&HEAP, 10 * MIB);
                    assert!(!block.is_null());
                    // SAFETY: a live block of that size.
                    unsafe { block.write_bytes(7, 10 * MIB) };
                }
            });
        }
    }
}

#[test]
fn room_of_blocks_that_are_gone_is_used_again() {
    Child::new().run(|| {
        for _ in 0..3_000 {
            let block = alloc(&HEAP, 8 * MIB);
            // SAFETY: one live block, resized and freed with its layout of the moment.
            unsafe {
                let grown = HEAP.realloc(block, layout(8 * MIB), 10 * MIB);
                let shrunk = HEAP.realloc(grown, layout(10 * MIB), 4 * MIB);
                HEAP.dealloc(shrunk, layout(4 * MIB));
            }
            HEAP.trim();
        }
        let block = alloc(&HEAP, 2 << 30);
        assert!(!block.is_null());
    });
}

#[test]
fn trimming_leaves_neither_memory_nor_tables() {
    Child::new().run(|| {
        let before = resident_bytes();
        for _ in 0..200 {
            let block = alloc(&HEAP, 64 * MIB);
            assert!(!block.is_null());
            free(&HEAP, block, 64 * MIB);
            HEAP.trim();
        }
        assert!(resident_bytes() < before + 32 * MIB, "{} bytes more", resident_bytes() - before);
    });
}

#[test]
fn trimming_returns_what_small_blocks_held() {
    Child::new().run(|| {
        let sizes = || (0..40_000usize).map(|turn| 16 + turn * 37 % 6_000);
        let blocks: Vec<_> = sizes().map(|size| (alloc(&HEAP, size), size)).collect();
        for (block, size) in blocks {
            free(&HEAP, block, size);
        }
        HEAP.trim();
        let stats = HEAP.stats();
        assert!(stats.mapped_bytes <= 4 * MIB as u64, "{stats}");
    });
}

#[test]
fn the_last_free_run_under_a_limit_is_found() {
    static LIMITED: HugeAlloc = HugeAlloc::new().limit(8 << 20);
    Child::new().run(|| {
        const UNIT: usize = 8 << 10;
        // Runs of 71 and 64 units with a unit between them, so that they cannot join.
        let runs: Vec<_> = [71, 64, 64, 64, 64].map(|units| (alloc(&LIMITED, units * UNIT), units)).into();
        let fences: Vec<_> = (0..5).map(|_| alloc(&LIMITED, 33 * UNIT)).collect();
        assert!(runs.iter().all(|(block, _)| !block.is_null()) && fences.iter().all(|block| !block.is_null()));
        let mut rest = 0;
        while !alloc(&LIMITED, 40 * UNIT).is_null() {
            rest += 1;
        }
        for (block, units) in runs {
            free(&LIMITED, block, units * UNIT);
        }
        assert!(!alloc(&LIMITED, 70 * UNIT).is_null(), "after {rest} more");
    });
}

#[test]
fn free_pieces_make_a_long_block_under_a_limit() {
    static LIMITED: HugeAlloc = HugeAlloc::new().limit(64 << 20);
    Child::new().run(|| {
        let blocks: Vec<_> = (0..28).map(|_| alloc(&LIMITED, 2 * MIB)).collect();
        assert!(blocks.iter().all(|block| !block.is_null()));
        // No two free neighbours, and no more than the odd ones still to be had.
        blocks.iter().step_by(2).for_each(|block| free(&LIMITED, *block, 2 * MIB));
        let long = alloc(&LIMITED, 24 * MIB);
        assert!(!long.is_null(), "{}", LIMITED.stats());
        assert!(alloc(&LIMITED, 24 * MIB).is_null(), "{}", LIMITED.stats());
        assert!(LIMITED.stats().mapped_bytes <= 64 << 20, "{}", LIMITED.stats());
        // SAFETY: a block of that length.
        unsafe { long.write_bytes(7, 24 * MIB) };
    });
}

/// The pool of eight pages has two of the five that a long block needs, and the heap has the others, apart.
fn free_pieces_make_a_long_block(heap: &HugeAlloc) {
    let blocks: Vec<_> = (0..6).map(|_| alloc(heap, 2 * MIB)).collect();
    assert_eq!(heap.stats().huge_2m_bytes, 12 * MIB as u64, "{}", heap.stats());
    blocks.iter().step_by(2).for_each(|block| free(heap, *block, 2 * MIB));
    let long = alloc(heap, 10 * MIB);
    assert!(!long.is_null(), "{}", heap.stats());
    // SAFETY: a block of that length.
    unsafe { long.write_bytes(7, 10 * MIB) };
    let stats = heap.stats();
    assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes), (16 * MIB as u64, 16 * MIB as u64), "{stats}");
    assert_eq!((stats.fallbacks, stats.hugetlb[0].refused), (0, 0), "{stats}");
    // It grows where it is, on what the others leave.
    blocks.iter().skip(1).step_by(2).for_each(|block| free(heap, *block, 2 * MIB));
    // SAFETY: a live block of that layout.
    let longer = unsafe { heap.realloc(long, layout(10 * MIB), 6 * MIB) };
    assert!(!longer.is_null(), "{}", heap.stats());
    assert_eq!(heap.stats().mapped_bytes, heap.stats().huge_2m_bytes, "{}", heap.stats());
}

#[test]
fn free_pieces_make_a_long_block_with_strict() {
    static STRICT: HugeAlloc = HugeAlloc::new().strict();
    Child::new().pool_of(8).run(|| free_pieces_make_a_long_block(&STRICT));
}

#[test]
fn free_pieces_make_a_long_block_before_the_heap_falls_back() {
    Child::new().pool_of(8).run(|| free_pieces_make_a_long_block(&HEAP));
}

#[test]
fn free_ordinary_memory_stays_where_the_pool_has_nothing() {
    Child::new().pool_of(0).run(|| {
        let blocks: Vec<_> = (0..6).map(|_| alloc(&HEAP, 4 * MIB)).collect();
        blocks.iter().step_by(2).for_each(|block| free(&HEAP, *block, 4 * MIB));
        assert!(!alloc(&HEAP, 12 * MIB).is_null());
        let stats = HEAP.stats();
        assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes), (36 * MIB as u64, 0), "{stats}");
    });
}

/// Blocks freed in any order: a few loose ones, for which many spans stay.
#[test]
fn loose_blocks_keep_nobody_from_a_long_block_under_a_limit() {
    static LIMITED: HugeAlloc = HugeAlloc::new().limit(8 << 20);
    Child::new().run(|| {
        for size in [16, 1000] {
            let mut blocks: Vec<_> =
                std::iter::repeat_with(|| alloc(&LIMITED, size)).take_while(|block| !block.is_null()).collect();
            blocks.sort_by_key(|block| block.addr().wrapping_mul(0x9e37_79b9_7f4a_7c15));
            blocks.into_iter().for_each(|block| free(&LIMITED, block, size));
            let long = alloc(&LIMITED, 6 * MIB);
            assert!(!long.is_null(), "{}", LIMITED.stats());
            free(&LIMITED, long, 6 * MIB);
        }
    });
}

#[test]
fn a_block_grows_where_it_is_on_what_is_free_elsewhere_under_a_limit() {
    static LIMITED: HugeAlloc = HugeAlloc::new().limit(32 << 20);
    // SAFETY: a live block of that layout.
    let by_layout = |block| unsafe { LIMITED.realloc(block, layout(12 * MIB), 22 * MIB) };
    // SAFETY: a live block.
    let by_address = |block| unsafe { LIMITED.realloc_unsized(block, 8, 22 * MIB) };
    Child::new().run(|| {
        for grow in [&by_layout as &dyn Fn(*mut u8) -> *mut u8, &by_address] {
            let before = alloc(&LIMITED, 12 * MIB);
            let block = alloc(&LIMITED, 12 * MIB);
            free(&LIMITED, before, 12 * MIB);
            assert!(before < block && alloc(&LIMITED, 22 * MIB).is_null());
            assert_eq!(grow(block), block, "{}", LIMITED.stats());
            // SAFETY: a block of that length, freed once.
            unsafe {
                block.write_bytes(7, 22 * MIB);
                LIMITED.dealloc_unsized(block);
            }
            assert!(LIMITED.stats().mapped_bytes <= 32 << 20, "{}", LIMITED.stats());
            LIMITED.trim();
        }
    });
}

/// What a destructor frees between a failed call and the look at its errno must not change that.
#[test]
fn errno_stays_as_it_is() {
    // There are no such pages, so the first block is had after a call that failed.
    static HEAP: HugeAlloc = HugeAlloc::new().page_sizes(&[PageSize::from_bytes(512 << 20).unwrap()]);
    fn assert_stays<T>(work: impl FnOnce() -> T) -> T {
        // SAFETY: this thread's errno.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 77;
        let result = work();
        assert_eq!(*errno, 77);
        result
    }
    Child::new().run(|| {
        assert_stays(|| alloc(&HEAP, 100));
        let take_and_give = |size| {
            for _ in 0..1000 {
                let blocks = [(); 20].map(|()| assert_stays(|| alloc(&HEAP, size)));
                blocks.into_iter().for_each(|block| assert_stays(|| free(&HEAP, block, size)));
            }
        };
        // They wait for each other.
        std::thread::scope(|scope| {
            (0..8).for_each(|thread| {
                drop(scope.spawn(move || take_and_give(if thread % 2 == 0 { 300_000 } else { 100_000 })))
            });
        });
    });
}

/// Programs for real time lock what they have: not the tables of what they may have.
#[test]
fn locking_all_memory_takes_no_more_than_there_is() {
    Child::new().run(|| {
        let block = alloc(&HEAP, 100);
        let before = resident_bytes();
        // SAFETY: no preconditions.
        if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
            return support::print_skip("mlockall", "it is not allowed here");
        }
        let more = resident_bytes().saturating_sub(before);
        let addresses = support::machine::address_space_in_use();
        assert!((more as u64) < addresses / 512, "{more} bytes of {addresses}");
        free(&HEAP, block, 100);
    });
}
