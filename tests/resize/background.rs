//! Population in the background: chunks are handed out meanwhile, and nothing is worse than in a lazy arena.

use std::time::{Duration, Instant};

use super::support::cgroup::{CgroupSpec, Limit, Version};
use super::*;

const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until it is true: the worker does not have the CPU to itself.
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    assert!(support::is_so_within(PATIENCE, is_so), "not within {PATIENCE:?}: {what}");
}

fn background(size: PageSize, pages: usize) -> ArenaBuilder {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).strict().populate(Populate::Background)
}

/// Threads of this process that work for arenas.
fn workers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "hugearena").count()
}

#[test]
fn all_is_populated_while_chunks_come_and_go() {
    for_each_page_size(48, |size, pages| {
        for kind in KINDS {
            for most in [None, Some(2 * pages)] {
                let builder = background(size, pages).backing(kind.clone());
                let builder = most.map_or(builder.clone(), |most| builder.max_capacity(most * size.bytes()));
                // The worker of the last one may have been its last handle, and give its pages back a moment later.
                let opened = std::cell::OnceCell::new();
                eventually("it can be opened", || builder.clone().open().is_ok_and(|arena| opened.set(arena).is_ok()));
                let arena = opened.into_inner().unwrap();
                // What the worker has in hand at this moment counts as claimed.
                let stats = arena.stats();
                assert!(!arena.obtained().populated && stats.fresh + stats.claimed == pages, "{stats}");
                let mut held: Vec<_> =
                    (0..pages / 2 + 1).map(|_| arena.claim_zeroed(1, FirstTouch::unknown())).collect();
                for chunk in held.iter_mut().flatten() {
                    assert!(is_marked(chunk, 0));
                    mark(chunk, 1);
                }
                assert!(held.iter().all(Option::is_some), "a claim that finds nothing populated populates by itself");
                eventually("all is populated", || arena.stats().unpopulated == 0);
                assert!(held.iter_mut().flatten().all(|chunk| is_marked(chunk, 1)), "nothing was overwritten");
                eventually("all are free", || arena.stats().fresh == pages - held.len());
                drop(held);
                assert!(arena.claim(pages).is_some(), "every page is there");
            }
        }
    });
}

#[test]
fn populated_pages_are_claimed_first() {
    Child::new().needs_pages(PageSize::HUGE_2M, 200).run(|| {
        let arena = background(PageSize::HUGE_2M, 200).open().unwrap();
        // Enough of them, so that the faults of the program itself do not count.
        eventually("the first pages", || arena.stats().unpopulated <= 100);
        arena.cancel_populating();
        eventually("the worker ends", || workers() == 0);
        let there = 200 - arena.stats().unpopulated;
        let faults = minor_faults();
        let chunks: Vec<_> = (0..there).map(|_| arena.claim(1).unwrap()).collect();
        assert!(minor_faults() < faults + there as u64, "nothing had to be populated for them");
        assert!(arena.claim(200 - there).is_some() || there == 200, "and the others still can be had");
        drop(chunks);
    });
}

#[test]
fn the_process_maps_and_unmaps_meanwhile_on_a_busy_cpu() {
    Child::new().needs_pages(PageSize::HUGE_2M, 64).run(|| {
        support::machine::on_a_busy_cpu(|| {
            let arena = background(PageSize::HUGE_2M, 64).open().unwrap();
            let (start, mut longest) = (Instant::now(), Duration::ZERO);
            while arena.stats().unpopulated > 0 && start.elapsed() < PATIENCE {
                let start = Instant::now();
                drop(Arena::builder().page_size(PageSize::base()).capacity(4096).open().unwrap());
                longest = longest.max(start.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            // A fair share of the CPU is milliseconds; on idle time alone it was 13 s.
            assert!(longest < Duration::from_secs(5), "{longest:?}");
        });
    });
}

fn minor_faults() -> u64 {
    // SAFETY: getrusage fills the struct.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt as u64
    }
}

#[test]
fn the_worker_ends_with_the_work_or_with_the_last_handle() {
    Child::new().needs_pages(PageSize::HUGE_2M, 300).run(|| {
        let arena = background(PageSize::HUGE_2M, 4).open().unwrap();
        eventually("its work is done", || arena.stats().unpopulated == 0);
        eventually("it ends", || workers() == 0);
        for pages in [1, 300] {
            let arena = background(PageSize::HUGE_2M, pages).open().unwrap();
            drop(arena.clone());
            drop(arena);
            eventually("it ends with the last handle", || workers() == 0);
        }
    });
}

#[test]
fn a_limit_is_an_error_and_no_signal() {
    let spec = CgroupSpec { version: Version::V2, limit: Limit::Max, bytes: 3 * HUGE as u64, on_parent: false };
    Child::new().needs_pages(PageSize::HUGE_2M, 12).in_cgroup(spec).run(|| {
        for kind in KINDS {
            let arena = background(PageSize::HUGE_2M, 6).backing(kind).open().unwrap();
            let mut chunks: Vec<_> = std::iter::from_fn(|| arena.claim_zeroed(1, FirstTouch::unknown())).collect();
            chunks.iter_mut().for_each(|chunk| mark(chunk, 1));
            assert_eq!(chunks.len(), 3);
            let error = arena.last_error().expect("it says why");
            assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::CgroupMax), "{error}");
            drop((chunks, arena));
            eventually("it ends", || workers() == 0);
        }
    });
}

#[test]
fn a_child_has_no_worker_and_needs_none() {
    let size = PageSize::base();
    for kind in KINDS {
        let arena = background(size, 2_000).backing(kind.clone()).open().unwrap();
        let status = fork(|| {
            if kind == BackingKind::Memfd {
                return i32::from(arena.claim(1).is_some());
            }
            let mut chunk = arena.claim_zeroed(8, FirstTouch::unknown()).unwrap();
            mark(&mut chunk, 1);
            i32::from(!is_marked(&mut chunk, 1))
        });
        assert!(status.success());
    }
}
