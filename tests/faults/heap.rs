//! The heap when huge pages run out: smaller pages and a counter, or null; never a signal.

use std::alloc::{GlobalAlloc, Layout};

use super::*;
use crate::support::Child;
use crate::support::machine::{address_space_in_use, become_nobody, limit_resource};
use hugearena::HugeAlloc;

static HEAP: HugeAlloc = HugeAlloc::new();

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).unwrap()
}

/// Allocates and writes `blocks` blocks of `size` bytes; returns how many it got. All stay allocated.
fn fill(heap: &HugeAlloc, blocks: usize, size: usize) -> usize {
    let got = (0..blocks).take_while(|_| {
        // SAFETY: the size is not 0, and a block is written only if there is one.
        unsafe {
            let block = heap.alloc_zeroed(layout(size));
            if !block.is_null() {
                assert!(support::is_zero(std::slice::from_raw_parts(block, size)));
                block.write_bytes(0xA5, size);
            }
            !block.is_null()
        }
    });
    got.count()
}

/// Small and large blocks, allocated, written, resized and freed.
pub fn use_heap() {
    for size in [1, 100, 5_000, 300_000, 3 << 20, 9 << 20] {
        // SAFETY: the sizes are not 0; the block is freed once, with its layout of the moment.
        unsafe {
            let block = HEAP.alloc(layout(size));
            block.write_bytes(1, size);
            let grown = HEAP.realloc(block, layout(size), 2 * size);
            grown.write_bytes(2, 2 * size);
            HEAP.dealloc(grown, layout(2 * size));
        }
    }
}

/// The heap takes the huge pages that there are, goes on without, and says so.
pub fn check_fallback(huge_pages: u64) {
    assert_eq!(fill(&HEAP, 20, 3 << 20), 20);
    assert_eq!(fill(&HEAP, 20_000, 100), 20_000);
    let stats = HEAP.stats();
    assert!(stats.fallbacks > 0, "{stats}");
    assert!(stats.huge_2m_bytes <= huge_pages * HUGE as u64, "{stats}");
    assert_eq!(stats.huge_2m_bytes + stats.transparent_bytes + stats.base_bytes, stats.mapped_bytes);
    // Where they were asked for the system gives them, as it gives them to anybody at this moment.
    assert!(stats.transparent_obtained_bytes <= stats.transparent_bytes, "{stats}");
    if support::gives_transparent_pages() {
        assert!(stats.transparent_obtained_bytes >= stats.transparent_bytes / 2, "{stats}");
    }
    assert!(stats.live_bytes >= 62 << 20 && stats.live_bytes <= stats.mapped_bytes, "{stats}");
    let text = stats.to_string();
    assert!(stats.last_fallback.is_some() && text.contains(stats.last_fallback.as_ref().unwrap()), "{text}");
    let remedy = stats.remedy.as_ref().unwrap_or_else(|| panic!("no remedy: {text}"));
    assert!(text.contains(&format!("to improve: {remedy}")), "{text}");
    use_heap();
}

#[test]
fn an_empty_pool_means_smaller_pages() {
    Child::new().pool_of(0).run(|| {
        check_fallback(0);
        assert!(HEAP.stats().last_fallback.unwrap().contains("pool"));
        assert!(HEAP.stats().remedy.unwrap().starts_with("echo "));
    });
}

#[test]
fn a_pool_that_is_one_page_short_means_smaller_pages() {
    Child::new().pool_of(1).run(|| check_fallback(1));
}

/// Experiments: 41.
#[test]
fn the_last_pages_are_used_and_then_smaller_ones() {
    Child::new().pool_of(5).run(|| {
        check_fallback(5);
        assert!(HEAP.stats().huge_2m_bytes > 0, "{}", HEAP.stats());
    });
}

/// Experiments: 47.
#[test]
fn strict_gets_null_where_others_fall_back() {
    static STRICT: HugeAlloc = HugeAlloc::new().strict();
    Child::new().pool_of(0).run(|| {
        for size in [1, 100, 300_000, 5 << 20] {
            assert_eq!(fill(&STRICT, 1, size), 0, "{size} bytes");
        }
        assert_eq!(STRICT.stats().mapped_bytes, 0, "{}", STRICT.stats());
    });
}

#[test]
fn strict_gets_what_there_is() {
    static STRICT: HugeAlloc = HugeAlloc::new().strict();
    Child::new().pool_of(3).run(|| {
        let got = fill(&STRICT, 10_000, 1_000);
        assert!((5_000..6_300).contains(&got), "{got} blocks of 1,000 bytes on 6 MiB");
        assert_eq!(fill(&STRICT, 1, 5 << 20), 0);
        let stats = STRICT.stats();
        assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes), (3 * HUGE as u64, 3 * HUGE as u64), "{stats}");
    });
}

/// In a process of its own with a pool of its own: what the heap says it holds is what the pool lacks, and what the
/// kernel says of this process.
#[test]
fn the_pool_and_the_process_agree_with_the_statistics() {
    static STRICT: HugeAlloc = HugeAlloc::new().strict();
    Child::new().pool_of(12).run(|| {
        let free = || hugearena::supply::Supply::read().pool(PageSize::HUGE_2M).unwrap().free;
        let before = free();
        let agree = |when: &str| {
            let stats = STRICT.stats();
            assert_eq!((before - free()) * HUGE as u64, stats.huge_2m_bytes, "{when}: {stats}");
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")).unwrap();
            let kib: u64 = line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap();
            assert_eq!(kib << 10, stats.huge_2m_bytes, "{when}: {stats}");
        };
        agree("nothing");
        // SAFETY: the sizes are not 0; each block is freed once, with its layout.
        unsafe {
            let small = STRICT.alloc(layout(1_000));
            agree("a small block");
            let large = STRICT.alloc(layout(5 << 20));
            agree("a large block");
            let large = STRICT.realloc(large, layout(5 << 20), 9 << 20);
            agree("a larger one");
            STRICT.dealloc(large, layout(9 << 20));
            agree("freed");
            STRICT.trim();
            agree("trimmed");
            assert!(STRICT.stats().huge_2m_bytes <= 2 * HUGE as u64, "{}", STRICT.stats());
            STRICT.dealloc(small, layout(1_000));
        }
    });
}

#[test]
fn a_limit_is_kept() {
    const LIMIT: u64 = 16 << 20;
    static LIMITED: HugeAlloc = HugeAlloc::new().limit(LIMIT + 5_000);
    Child::new().run(|| {
        let got = fill(&LIMITED, 1_000_000, 1_000);
        assert!((14_000..16_800).contains(&got), "{got} blocks of 1,000 bytes in 16 MiB");
        assert_eq!(LIMITED.stats().mapped_bytes, LIMIT, "{}", LIMITED.stats());
        assert_eq!(fill(&LIMITED, 1, 1 << 20), 0);
    });
}

#[test]
fn a_limit_is_kept_by_large_blocks_that_grow() {
    static LIMITED: HugeAlloc = HugeAlloc::new().limit(32 << 20);
    Child::new().run(|| {
        // SAFETY: one live block, resized with its layout of the moment.
        unsafe {
            let block = LIMITED.alloc(layout(12 << 20));
            block.write_bytes(7, 12 << 20);
            assert!(LIMITED.realloc(block, layout(12 << 20), 40 << 20).is_null());
            assert!(support::is_filled(std::slice::from_raw_parts(block, 12 << 20), 7), "the block survives");
            assert!(LIMITED.stats().mapped_bytes <= 32 << 20, "{}", LIMITED.stats());
            LIMITED.dealloc(block, layout(12 << 20));
        }
        assert_eq!(fill(&LIMITED, 1, 24 << 20), 1, "memory that was freed serves again");
    });
}

#[test]
fn a_limited_address_space_means_a_smaller_range() {
    Child::new().run(|| {
        for (mib, blocks) in [(32, 3), (64, 3), (300, 20), (512, 20), (2048, 20)] {
            let status = support::fork(|| {
                limit_resource(libc::RLIMIT_AS, address_space_in_use() + (mib << 20));
                assert_eq!(fill(&HEAP, blocks, 1 << 20), blocks, "{}", HEAP.stats());
                // What this uses does not fit into the smallest.
                if blocks > 3 {
                    use_heap();
                }
                0
            });
            assert!(status.success(), "{mib} MiB: {status}");
        }
    });
}

#[test]
fn a_good_part_of_a_limited_address_space_is_for_blocks() {
    Child::new().run(|| {
        for mib in [200, 1000, 4000] {
            let status = support::fork(|| {
                limit_resource(libc::RLIMIT_AS, address_space_in_use() + (mib << 20));
                let blocks = mib as usize * 2 / 5;
                assert_eq!(fill(&HEAP, blocks, 1 << 20), blocks, "{}", HEAP.stats());
                0
            });
            assert!(status.success(), "{mib} MiB: {status}");
        }
    });
}

#[test]
fn no_address_space_means_null() {
    Child::new().run(|| {
        limit_resource(libc::RLIMIT_AS, address_space_in_use() + (8 << 20));
        assert_eq!(fill(&HEAP, 1, 100) + fill(&HEAP, 1, 1 << 20), 0);
        limit_resource(libc::RLIMIT_AS, libc::RLIM_INFINITY);
    });
}

#[test]
fn an_unprivileged_user_needs_no_locked_memory() {
    Child::new().run(|| {
        limit_resource(libc::RLIMIT_MEMLOCK, 0);
        become_nobody();
        use_heap();
        assert!(HEAP.stats().mapped_bytes > 0);
    });
}
