//! Too few pages in the kernel's pool.

use std::sync::Barrier;

use super::*;
use crate::support::{Child, PoolUnchanged, fork, machine::address_space_in_use, resident_bytes};
use hugearena::Populate;
use hugearena::supply::Supply;

fn free_pages() -> u64 {
    Supply::read().pool(PageSize::HUGE_2M).unwrap().available_pages()
}

/// Experiments: 41, 47, 49.
#[test]
fn an_empty_pool_is_named() {
    Child::new().pool_of(0).run(|| {
        for kind in KINDS {
            for populate in [Populate::Eager, Populate::Lazy] {
                let wanted = arena(3).backing(kind.clone()).populate(populate);
                let error = wanted.clone().strict().open().unwrap_err();
                assert_eq!(error.operation(), Operation::Map);
                let limit = assert_names(&error, LimitKind::Pool, 3 * HUGE, 0);
                assert!(limit.source.ends_with("hugepages-2048kB/free_hugepages"), "{limit}");
                assert!(limit.remedy.starts_with("echo ") && limit.remedy.ends_with("/nr_hugepages"), "{limit}");
                assert_fell_back(wanted, LimitKind::Pool);
            }
        }
    });
}

/// Experiments: 7, 9.
#[test]
fn a_pool_that_is_one_page_short_is_named() {
    Child::new().pool_of(4).run(|| {
        for kind in KINDS {
            let error = arena(5).backing(kind.clone()).strict().open().unwrap_err();
            assert_names(&error, LimitKind::Pool, 5 * HUGE, 4 * HUGE);
            assert_eq!(free_pages(), 4, "what the failed call took is back");
            assert_fell_back(arena(5).backing(kind.clone()), LimitKind::Pool);
            let exact = arena(4).backing(kind).strict().open().unwrap();
            assert_eq!(free_pages(), 0);
            assert!(exact.claim(4).is_some());
        }
    });
}

/// Experiments: 76.
#[test]
fn a_lazy_arena_holds_its_pages_from_the_start() {
    Child::new().pool_of(4).run(|| {
        let lazy = arena(3).populate(Populate::Lazy).strict().open().unwrap();
        let error = arena(2).strict().open().unwrap_err();
        assert_names(&error, LimitKind::Pool, 2 * HUGE, HUGE);
        let rest = arena(1).strict().open().unwrap();
        assert!(lazy.claim_zeroed(3, FirstTouch::whole()).is_some() && rest.claim(1).is_some());
    });
}

/// The loser of every race gets an error, and the pages are neither lost nor given out twice.
#[test]
fn of_two_who_race_for_the_last_pages_one_gets_an_error() {
    Child::new().pool_of(5).run(|| {
        for round in 0..60 {
            let barrier = Barrier::new(2);
            let kind = KINDS[round % 2].clone();
            let open = || {
                barrier.wait();
                let result = arena(3).backing(kind.clone()).strict().open();
                barrier.wait();
                result
            };
            let results = std::thread::scope(|scope| [scope.spawn(open), scope.spawn(open)].map(|t| t.join().unwrap()));
            let won = results.iter().filter(|result| result.is_ok()).count();
            assert_eq!(won, 1, "{results:?}");
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                assert_names(error, LimitKind::Pool, 3 * HUGE, 2 * HUGE);
            }
        }
    });
}

#[test]
fn a_lazy_stand_in_is_not_populated_when_opened() {
    const PAGES: usize = 64;
    Child::new().pool_of(0).run(|| {
        for kind in KINDS {
            let before = resident_bytes();
            let arena = arena(PAGES).backing(kind).populate(Populate::Lazy).open().unwrap();
            let grown = resident_bytes().saturating_sub(before);
            assert!(grown < PAGES * HUGE / 4, "{grown} bytes are resident: {}", arena.obtained());
            assert!(address_space_in_use() > (PAGES * HUGE) as u64);
        }
    });
}

#[test]
fn an_eager_stand_in_says_how_much_is_on_transparent_huge_pages() {
    Child::new().pool_of(0).run(|| {
        let arena = arena(8).backing(BackingKind::Anonymous).open().unwrap();
        let obtained = arena.obtained();
        let mut chunk = arena.claim(8).unwrap();
        chunk.as_mut_slice().unwrap().fill(1);
        let entry = crate::support::smaps_of(chunk.as_ptr().addr().get()).unwrap();
        let kib = entry.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
        let bytes = kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10;
        assert_eq!(obtained.transparent_bytes, bytes, "{obtained}\n{entry}");
        assert_eq!(obtained.to_string().contains("transparent huge pages"), bytes > 0, "{obtained}");
    });
}

/// Experiments: 14.
#[test]
fn a_killed_process_leaves_no_pages_behind() {
    Child::new().needs_pages(PageSize::HUGE_2M, 4).run(|| {
        for kind in KINDS {
            let _guard = PoolUnchanged::begin();
            let status = fork(|| {
                let arena = arena(4).backing(kind.clone()).strict().open().unwrap();
                let chunk = arena.claim(2);
                // SAFETY: ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                i32::from(chunk.is_none())
            });
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
        }
    });
}

/// Experiments: 6.
#[test]
fn no_signal_handler_is_installed() {
    Child::new().run(|| {
        let handler = || {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: asks for the action only, which is written to a live struct.
            unsafe {
                assert_eq!(libc::sigaction(libc::SIGBUS, std::ptr::null(), action.as_mut_ptr()), 0);
                action.assume_init().sa_sigaction
            }
        };
        // The standard library has one of its own, which looks for overflown stacks.
        // SAFETY: the default action is what a program without a handler has.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        drop(arena(2).open().map(|arena| arena.claim_zeroed(2, FirstTouch::whole())));
        let _ = arena(1 << 20).strict().open();
        drop(arena(2).populate(Populate::Lazy).open().map(|arena| arena.claim(1)));
        heap::use_heap();
        assert_eq!(handler(), libc::SIG_DFL);
    });
}
