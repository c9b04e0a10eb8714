//! Zeroed chunks by every way there is: at once, paced, resumed, scrubbed ahead, zeroed on release, copied.

#![allow(unsafe_code)]

mod support;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugearena::backing::BackingKind;
use hugearena::memops::{Callback, Nothing, Pace, Progress};
use hugearena::{Arena, FirstTouch, PageSize, Worker};

fn open(size: PageSize, pages: usize) -> Arena {
    private(size, pages).open().unwrap()
}

fn private(size: PageSize, pages: usize) -> hugearena::ArenaBuilder {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).backing(BackingKind::Anonymous).strict()
}

/// Fills every free page, so that all are dirty.
fn soil(arena: &Arena) {
    let mut all = arena.claim(arena.stats().pages).expect("nothing is claimed");
    all.as_mut_slice().unwrap().fill(0xa5);
}

fn soil_page(arena: &Arena) {
    arena.claim(1).expect("a page is free").as_mut_slice().unwrap().fill(0xa5);
}

#[test]
fn a_stopped_pace_gives_the_pages_back_dirty() {
    support::for_each_page_size(2, |size, pages| {
        let arena = open(size, pages);
        soil(&arena);
        let mut stop = Callback::new(|_: Progress| ControlFlow::Break(())).in_batches_of(4096);
        let chunk = arena.claim_zeroed_at(pages, FirstTouch::unknown(), &mut stop);
        assert!(chunk.is_none());
        assert_eq!(arena.stats().dirty, pages);
        let chunk = arena.claim_zeroed(pages, FirstTouch::unknown()).unwrap();
        assert!(support::is_zero(chunk.as_slice().unwrap()));
    });
}

#[test]
fn a_panicking_pace_gives_the_pages_back_dirty() {
    let arena = open(PageSize::base(), 64);
    soil(&arena);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut pace = Callback::new(|_: Progress| panic!("the poll loop has had enough"));
        arena.claim_zeroed_at(64, FirstTouch::unknown(), &mut pace)
    }));
    assert!(panicked.is_err());
    assert_eq!((arena.stats().dirty, arena.stats().claimed), (64, 0));
}

#[test]
fn progress_rises_to_the_whole_chunk_also_over_clean_pages() {
    let arena = open(PageSize::base(), 64);
    soil(&arena);
    let clean = 10 * PageSize::base().bytes();
    assert_eq!(arena.scrub(clean, &mut Nothing), clean);
    let mut seen = Vec::new();
    let mut pace = Callback::new(|progress: Progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    })
    .in_batches_of(8192);
    let chunk = arena.claim_zeroed_at(64, FirstTouch::at(100_000, 1), &mut pace).unwrap();
    assert!(support::is_zero(chunk.as_slice().unwrap()));
    assert!(seen.windows(2).all(|pair| pair[0].done_bytes <= pair[1].done_bytes), "{seen:?}");
    assert!(seen.iter().all(|progress| progress.total_bytes == chunk.len() && !progress.is_done()), "{seen:?}");
}

#[test]
fn a_resumed_chunk_is_zero_when_it_is_done() {
    support::for_each_page_size(2, |size, pages| {
        let arena = open(size, pages);
        soil(&arena);
        let mut zeroing = arena.start_zeroed(pages, FirstTouch::at(5000, 100), 1 << 20).unwrap();
        assert_eq!(zeroing.progress().done_bytes, 0);
        while !zeroing.advance().is_done() {}
        let chunk = zeroing.finish().unwrap();
        assert!(support::is_zero(chunk.as_slice().unwrap()));
        assert_eq!(arena.stats().cleared_bytes, chunk.len() as u64);
    });
}

#[test]
fn a_resumed_chunk_dropped_half_way_is_dirty() {
    let arena = open(PageSize::base(), 64);
    soil(&arena);
    let mut zeroing = arena.start_zeroed(64, FirstTouch::unknown(), 4096).unwrap();
    for _ in 0..10 {
        zeroing.advance();
    }
    let zeroing = zeroing.finish().expect_err("it is not done");
    drop(zeroing);
    assert_eq!(arena.stats().dirty, 64);
    let chunk = arena.claim_zeroed(64, FirstTouch::unknown()).unwrap();
    assert!(support::is_zero(chunk.as_slice().unwrap()));
}

#[test]
fn a_fresh_chunk_is_done_without_clearing() {
    let arena = open(PageSize::base(), 8);
    let mut zeroing = arena.start_zeroed(8, FirstTouch::unknown(), 4096).unwrap();
    assert!(zeroing.advance().is_done());
    assert_eq!(arena.stats().cleared_bytes, 0);
    assert!(zeroing.finish().is_ok());
}

#[test]
fn scrubbed_pages_are_zero_and_are_not_cleared_again() {
    support::for_each_page_size(4, |size, pages| {
        let arena = open(size, pages);
        soil(&arena);
        assert_eq!(arena.scrub(1, &mut Nothing), size.bytes(), "budgets are rounded up to pages");
        assert_eq!(arena.stats().clean, 1);
        arena.scrub(usize::MAX, &mut Nothing);
        assert_eq!((arena.stats().clean, arena.stats().dirty), (pages, 0));
        let cleared = arena.stats().cleared_bytes;
        let chunk = arena.claim_zeroed(pages, FirstTouch::unknown()).unwrap();
        assert!(support::is_zero(chunk.as_slice().unwrap()));
        assert_eq!(arena.stats().cleared_bytes, cleared);
    });
}

/// Experiments: 74.
#[test]
fn zeroes_are_left_to_those_who_ask_for_them() {
    let arena = open(PageSize::base(), 8);
    soil(&arena);
    arena.scrub(PageSize::base().bytes(), &mut Nothing);
    let plain: Vec<_> = (0..7).map(|_| arena.claim(1).unwrap()).collect();
    assert_eq!(arena.stats().clean, 1, "a plain claim takes dirty pages first");
    let cleared = arena.stats().cleared_bytes;
    let zeroed = arena.claim_zeroed(1, FirstTouch::unknown()).unwrap();
    assert_eq!(arena.stats().cleared_bytes, cleared);
    drop((plain, zeroed));
}

#[test]
fn a_claim_never_fails_because_the_scrubber_holds_the_last_page() {
    let arena = open(PageSize::base(), 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                arena.scrub(usize::MAX, &mut Nothing.in_batches_of(64));
            }
        });
        for _ in 0..500 {
            let mut chunk = claim_with_patience(&arena);
            chunk.as_mut_slice().unwrap().fill(1);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A claim waits for the scrubber, unless that does not get to run: on a machine that is busy enough the claim gives up,
/// but not before it has waited.
fn claim_with_patience(arena: &Arena) -> hugearena::Chunk {
    loop {
        let start = Instant::now();
        match arena.claim(1) {
            Some(chunk) => return chunk,
            None => assert!(start.elapsed() > Duration::from_millis(40), "the scrubber's page counts as free"),
        }
    }
}

#[test]
fn scrubbing_beside_claims_never_zeroes_what_somebody_holds() {
    let arena = open(PageSize::base(), 24);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                arena.scrub(usize::MAX, &mut Nothing.in_batches_of(512));
            }
        });
        let claimers: Vec<_> = (1..=3u8)
            .map(|thread| {
                let arena = &arena;
                scope.spawn(move || {
                    for turn in 0..3_000usize {
                        let pages = 1 + turn % 4;
                        let Some(mut chunk) = arena.claim_zeroed(pages, FirstTouch::at(turn * 100, 1)) else {
                            continue;
                        };
                        let bytes = chunk.as_mut_slice().unwrap();
                        assert!(support::is_zero(bytes));
                        bytes.fill(thread);
                        assert!(support::is_filled(bytes, thread));
                    }
                })
            })
            .collect();
        for claimer in claimers {
            claimer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_worker_scrubs_and_stops_on_demand() {
    let arena = open(PageSize::base(), 64);
    let worker = Worker::start(&arena).unwrap();
    soil_page(&arena);
    // It runs only while the CPU has nothing else to do.
    let is_clean = || arena.stats().dirty == 0;
    assert!(support::is_so_within(Duration::from_secs(600), is_clean), "the worker did not get to it");
    drop(worker);
    soil_page(&arena);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(arena.stats().dirty, 1, "a stopped worker does nothing");
}

#[test]
fn a_claim_lifts_a_worker_that_does_not_get_to_run() {
    support::Child::new().needs_root().run(|| {
        let arena = open(PageSize::base(), 16_384);
        let mut longest = Duration::ZERO;
        support::machine::on_a_busy_cpu(|| {
            let worker = Worker::start(&arena).unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            let mut waited = 0;
            while waited < 2 && Instant::now() < until {
                soil(&arena);
                // Until it has a page in hand; it comes to that once in a while.
                while arena.stats().claimed == 0 && arena.stats().dirty > 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let start = Instant::now();
                waited += u32::from(arena.stats().claimed > 0);
                assert!(arena.claim(16_384).is_some(), "what the worker has in hand counts as free");
                longest = longest.max(start.elapsed());
            }
            soil(&arena);
            let start = Instant::now();
            drop(worker);
            longest = longest.max(start.elapsed());
        });
        // A claim whose worker nobody lifts gives up after 5 s.
        assert!(longest < Duration::from_secs(4), "{longest:?}: as long as a thread waits that nobody lifts");
    });
}

#[test]
fn zero_on_release_leaves_nothing_behind() {
    support::for_each_page_size(2, |size, pages| {
        let arena = private(size, pages).zero_on_release().open().unwrap();
        let mut chunk = arena.claim(pages).unwrap();
        chunk.as_mut_slice().unwrap().fill(0x5e);
        let at = chunk.as_ptr();
        let len = chunk.len();
        drop(chunk);
        // SAFETY: the arena lives, so its pages are mapped; nobody else uses them.
        assert!(support::is_zero(unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }));
        assert_eq!((arena.stats().clean, arena.stats().dirty), (pages, 0));
    });
}

#[test]
fn copies_hold_what_the_source_held_and_may_be_elsewhere() {
    support::for_each_page_size(2, |size, pages| {
        let arena = open(size, pages);
        let mut source = arena.claim(1).unwrap();
        for (at, byte) in source.as_mut_slice().unwrap().iter_mut().enumerate().step_by(61) {
            *byte = at as u8;
        }
        let copy = arena.claim_copy(&source, FirstTouch::at(7000, 10)).unwrap();
        assert!(copy.as_slice() == source.as_slice());
        let elsewhere = open(PageSize::base(), source.len() / PageSize::base().bytes());
        let copy = elsewhere.claim_copy(&source, FirstTouch::whole()).unwrap();
        assert!(copy.as_slice() == source.as_slice());
    });
}

#[test]
fn a_copy_that_does_not_fit_is_none() {
    let arena = open(PageSize::base(), 3);
    let source = arena.claim(2).unwrap();
    assert!(arena.claim_copy(&source, FirstTouch::unknown()).is_none());
}

/// Two pages free, one between them held: no two are adjacent.
fn fragmented(arena: &Arena) -> hugearena::Chunk {
    let first = arena.claim(1).unwrap();
    let middle = arena.claim(1).unwrap();
    drop(first);
    middle
}

#[test]
fn an_impossible_claim_ends_beside_the_scrubber() {
    let arena = open(PageSize::base(), 3);
    let _middle = fragmented(&arena);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                soil_one(&arena);
                arena.scrub(usize::MAX, &mut Nothing.in_batches_of(64));
            }
        });
        for _ in 0..200 {
            assert!(arena.claim(2).is_none());
            assert!(arena.claim(4).is_none());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn soil_one(arena: &Arena) {
    if let Some(mut chunk) = arena.claim(1) {
        chunk.as_mut_slice().unwrap()[0] = 1;
    }
}

#[test]
fn an_impossible_claim_ends_beside_claims_of_others() {
    let arena = open(PageSize::base(), 3);
    let _middle = fragmented(&arena);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(arena.claim(1));
                }
            });
        }
        // Each of them ends; how soon is the scheduler's affair.
        (0..2_000).for_each(|_| assert!(arena.claim(2).is_none()));
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn scrubbing_asks_its_pace_between_pages() {
    let arena = open(PageSize::base(), 64);
    soil(&arena);
    let mut stop = Callback::new(|_: Progress| ControlFlow::Break(()));
    assert_eq!(arena.scrub(usize::MAX, &mut stop), PageSize::base().bytes());
    assert_eq!((arena.stats().clean, arena.stats().dirty), (1, 63));
}

/// A poll loop that scrubs, and whose pace claims.
#[test]
fn a_pace_that_claims_does_not_wait_for_the_page_that_it_is_asked_about() {
    let arena = open(PageSize::base(), 1);
    soil(&arena);
    let (mut longest, mut in_hand) = (Duration::ZERO, 0);
    let mut claims = Callback::new(|_: Progress| {
        let start = Instant::now();
        in_hand += u32::from(arena.claim(1).is_none());
        longest = longest.max(start.elapsed());
        ControlFlow::Continue(())
    })
    .in_batches_of(1024);
    arena.scrub(1, &mut claims);
    assert!(in_hand > 0 && longest < Duration::from_secs(2), "{in_hand} claims, {longest:?}");
}

/// In a process of its own: the child panics, and a lock of the panic's printing that another test's thread had when it
/// was forked would be nobody's there.
#[test]
fn a_forked_child_does_nothing_to_memory_that_it_has_not() {
    support::Child::new().run(|| {
        check_forked_child();
    });
}

fn check_forked_child() {
    let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).zero_on_release().open().unwrap();
    let chunk = arena.claim(2).unwrap();
    drop(arena.claim(2));
    let mut zeroing = arena.start_zeroed(2, FirstTouch::unknown(), 4096).unwrap();
    let worker = Worker::start(&arena).unwrap();
    let status = support::fork(|| {
        let advanced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| zeroing.advance()));
        assert!(advanced.is_err(), "it cleared what it has not");
        drop(chunk);
        drop(worker);
        let nothing = arena.claim(1).is_none()
            && arena.claim_zeroed(1, FirstTouch::unknown()).is_none()
            && arena.scrub(usize::MAX, &mut Nothing) == 0;
        drop(arena);
        i32::from(!nothing)
    });
    assert!(status.success(), "{status}");
}
