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
                    // Generous: none of this takes longer than milliseconds.
                    // SAFETY: no preconditions.
                    unsafe { libc::alarm(20) };
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
