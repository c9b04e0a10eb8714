//! Children of fork(2) that are made while other threads are inside the arena.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::named::{Ground, child};
use super::*;

/// Whatever another thread had in hand at that moment, a child of a private arena claims, fails to claim, scrubs, grows
/// and shrinks: nothing waits for a thread that does not exist there. A child that does is ended by SIGALRM.
#[test]
fn a_child_waits_for_no_thread_of_its_parent() {
    Child::new().run(|| {
        let size = PageSize::base();
        let arena = builder(size, 300, 400).backing(BackingKind::Anonymous).open().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (arena, done) = (&arena, &done);
                scope.spawn(move || {
                    while !done.load(Relaxed) {
                        if thread == 2 {
                            arena.scrub(16 * size.bytes(), &mut hugearena::memops::Nothing);
                        } else {
                            drop(arena.claim(2 + thread * 70));
                        }
                    }
                });
            }
            for round in 0..150 {
                let status = fork(|| {
                    for _ in 0..100 {
                        // More than there are.
                        assert!(arena.claim(301).is_none());
                    }
                    arena.grow(40).unwrap();
                    let mut chunk = arena.claim_zeroed(20, FirstTouch::unknown()).unwrap();
                    assert!(is_zero(bytes_of(&mut chunk)));
                    mark(&mut chunk, 5);
                    drop(chunk);
                    assert!(arena.scrub(usize::MAX, &mut hugearena::memops::Nothing) > 0);
                    i32::from(arena.trim().unwrap() == 0)
                });
                if !status.success() {
                    done.store(true, Relaxed);
                }
                assert!(status.success(), "round {round}: {status}");
            }
            done.store(true, Relaxed);
        });
        assert_eq!(arena.stats().claimed, 0);
        assert!(arena.claim(300).is_some());
    });
}

#[test]
fn what_a_child_drops_is_still_its_parents() {
    child(4).run(|| {
        let ground = Ground::new("");
        let arena = ground.builder(3, 4).open().unwrap();
        let mut chunk = Some(arena.claim(2).unwrap());
        let claimed = || {
            let found = hugearena::arena::inspect_from(ground.records.path(), "x").unwrap();
            found.count(PageState::Claimed)
        };
        assert_eq!(claimed(), 2);
        let status = fork(|| {
            drop(chunk.take());
            0
        });
        assert!(status.success());
        assert_eq!((claimed(), arena.stats().claimed), (2, 2));
        drop(chunk);
        assert_eq!((claimed(), arena.stats().claimed), (0, 0));
        drop(arena);
        ground.remove();
    });
}

/// A child that cannot zero what it gives back keeps it to itself.
#[test]
fn a_child_gives_no_secret_back() {
    Child::new().pool_of(2).run(|| {
        let builder = Arena::builder().capacity(2 * HUGE).strict().backing(BackingKind::Anonymous).zero_on_release();
        let arena = builder.open().unwrap();
        let mut held = Some(arena.claim(2).unwrap());
        mark(held.as_mut().unwrap(), 9);
        let status = fork(|| {
            drop(held.take());
            i32::from(arena.claim(1).is_some() || arena.stats().claimed != 2)
        });
        assert!(status.success(), "{status}");
        assert!(is_marked(held.as_mut().unwrap(), 9));
        drop(held);
        assert_eq!(arena.stats().clean, 2);
    });
}

/// A child's pages are its parent's until one of them writes, which takes a page from the pool: where there is none, its
/// claims are refused, and the parent keeps what it has.
#[test]
fn a_child_is_handed_nothing_that_it_cannot_write_to() {
    Child::new().pool_of(6).run(|| {
        let plain = Arena::builder().capacity(4 * HUGE).strict().backing(BackingKind::Anonymous);
        for builder in [plain.clone(), plain.max_capacity(8 * HUGE)] {
            let arena = builder.open().unwrap();
            drop(arena.claim(3));
            let mut held = arena.claim(1).unwrap();
            mark(&mut held, 9);
            let status = fork(|| {
                // Two pages are left in the pool, for the child to copy to.
                let mut chunks: Vec<_> = std::iter::from_fn(|| arena.claim_zeroed(1, FirstTouch::unknown())).collect();
                chunks.iter_mut().for_each(|chunk| mark(chunk, 1));
                assert_eq!(chunks.len(), 2);
                let error = arena.last_error().expect("it says why");
                assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::Pool), "{error}");
                assert!(arena.claim(1).is_none() && !chunks[0].grow_in_place(1));
                assert_eq!(arena.scrub(usize::MAX, &mut hugearena::memops::Nothing), 0);
                // What was claimed and given back is the child's own.
                drop(chunks.pop());
                let again = arena.claim_zeroed(1, FirstTouch::unknown()).map(|mut chunk| is_marked(&mut chunk, 0));
                i32::from(again != Some(true))
            });
            assert!(status.success(), "{status}");
            drop(arena.claim(1));
            // The parent writes while a child lives that has all of its pages, and nothing is left to copy to.
            let (hog, waiting) = (
                support::pool::Hog::leaving(0).unwrap(),
                support::child::start(|| {
                    loop {
                        std::thread::park();
                    }
                }),
            );
            mark(&mut held, 10);
            let mut rest = arena.claim_zeroed(3, FirstTouch::unknown()).unwrap();
            assert!(is_marked(&mut rest, 0) && is_marked(&mut held, 10));
            // SAFETY: our own child.
            unsafe { libc::kill(waiting, libc::SIGKILL) };
            support::child::wait_for(waiting);
            drop(hog);
        }
    });
}
