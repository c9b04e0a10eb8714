//! Order x kernel x pace together, against plain loops.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use proptest::prelude::*;

/// Bytes before and behind the region that nobody may write.
const GUARD: usize = 100;
const OLD: u8 = 0xA5;

fn pattern(index: usize) -> u8 {
    (index * 31 + index / 251) as u8
}

fn source(len: usize) -> Vec<u8> {
    (0..len).map(pattern).collect()
}

/// A dirty region of `len` bytes between guards.
struct Region {
    bytes: Vec<u8>,
    len: usize,
}

impl Region {
    fn new(len: usize) -> Region {
        Region { bytes: vec![OLD; len + 2 * GUARD], len }
    }

    fn start(&mut self) -> *mut u8 {
        self.bytes[GUARD..].as_mut_ptr()
    }

    fn assert_is(&self, inside: impl Fn(usize) -> u8, context: &str) {
        for (index, &byte) in self.bytes.iter().enumerate() {
            let in_region = (GUARD..GUARD + self.len).contains(&index);
            let expected = if in_region { inside(index - GUARD) } else { OLD };
            assert_eq!(byte, expected, "byte {index} of {}: {context}", self.len);
        }
    }

    fn zeroes(&self) -> usize {
        self.bytes.iter().filter(|&&byte| byte == 0).count()
    }
}

fn every_method() -> impl Iterator<Item = Method> {
    [Order::Ascending, Order::Butterfly, Order::Ranges].into_iter().flat_map(|order| {
        Kernel::available().flat_map(move |far| {
            [(far, far, usize::MAX), (far, Kernel::cached(), 8192)].map(|(far, near, near_bytes)| Method {
                order,
                far,
                near,
                near_bytes,
            })
        })
    })
}

fn check(len: usize, touch: FirstTouch, method: &Method, batch_bytes: usize) {
    let context = format!("{touch:?} {method:?} {batch_bytes}");
    let (mut cleared, mut copied) = (Region::new(len), Region::new(len));
    let source = source(len);
    let mut pace = Nothing.in_batches_of(batch_bytes);
    // SAFETY: the regions and the source have `len` bytes each and are distinct.
    let outcomes = unsafe {
        [
            clear_with(cleared.start(), len, touch, method, &mut pace),
            copy_with(copied.start(), source.as_ptr(), len, touch, method, &mut pace),
        ]
    };
    assert_eq!(outcomes, [ControlFlow::Continue(()); 2]);
    cleared.assert_is(|_| 0, &context);
    copied.assert_is(pattern, &context);
}

#[test]
fn every_method_writes_the_region_and_nothing_else() {
    for method in every_method() {
        for (len, touch) in [
            (0, FirstTouch::whole()),
            (1, FirstTouch::unknown()),
            (5000, FirstTouch::at(4999, 1)),
            (100_000, FirstTouch::at(50_000, 10_000)),
            (65_536, FirstTouch::at(usize::MAX, usize::MAX)),
        ] {
            check(len, touch, &method, 8192);
        }
    }
}

#[test]
fn the_default_works_on_both_sides_of_every_threshold() {
    let caches = kernel::caches();
    for len in [0, 1, 4096, SMALL, SMALL + 1, caches.level_2, caches.level_2 + 1] {
        for touch in [FirstTouch::unknown(), FirstTouch::whole(), FirstTouch::at(len, 1)] {
            let (mut cleared, mut copied, source) = (Region::new(len), Region::new(len), source(len));
            // SAFETY: the regions and the source have `len` bytes each and are distinct.
            unsafe {
                clear(cleared.start(), len, touch);
                copy(copied.start(), source.as_ptr(), len, touch);
            }
            cleared.assert_is(|_| 0, "clear");
            copied.assert_is(pattern, "copy");
        }
    }
}

#[test]
fn the_choice_follows_the_caches() {
    let caches = kernel::caches();
    let far = |len, hot| Method::choose(len, hot).far;
    assert_eq!(far(caches.level_2, false), Kernel::cached());
    assert_eq!(far(caches.level_2 + 1, false), Kernel::non_caching());
    assert_eq!(far(caches.level_3, true), Kernel::cached());
    assert_eq!(far(caches.level_3 + 1, true), Kernel::non_caching());
    assert_eq!(Method::choose(usize::MAX, true).near, Kernel::cached());
}

#[test]
fn progress_counts_to_the_end_and_the_last_batch_is_silent() {
    let mut region = Region::new(10 * 4096);
    let mut seen = Vec::new();
    let mut pace = Callback::new(|progress: Progress| {
        seen.push(progress.done_bytes / 4096);
        assert!(progress.total_bytes == 10 * 4096 && !progress.is_done());
        ControlFlow::Continue(())
    })
    .in_batches_of(4096);
    let (len, touch) = (region.len, FirstTouch::unknown());
    // SAFETY: the region is ours, and the callback does not look at it.
    let outcome = unsafe { clear_with(region.start(), len, touch, &Method::choose(len, false), &mut pace) };
    assert!(outcome.is_continue());
    assert_eq!(seen, (1..10).collect::<Vec<_>>());
    region.assert_is(|_| 0, "callback");
}

#[test]
fn a_callback_that_stops_leaves_the_rest() {
    for method in every_method() {
        let mut region = Region::new(10 * 4096);
        let stop = |progress: Progress| {
            if progress.done_bytes < 3 * 4096 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let (len, touch) = (region.len, FirstTouch::at(0, 4096));
        let mut pace = Callback::new(stop).in_batches_of(4096);
        // SAFETY: the region is ours, and the callback does not look at it.
        let outcome = unsafe { clear_with(region.start(), len, touch, &method, &mut pace) };
        assert!(outcome.is_break());
        assert_eq!(region.zeroes(), 3 * 4096, "{method:?}");
    }
}

#[test]
fn a_callback_that_panics_unwinds_between_two_batches() {
    for method in every_method() {
        let mut region = Region::new(10 * 4096);
        let (start, len) = (region.start(), region.len);
        let mut pace = Callback::new(|_: Progress| std::panic::resume_unwind(Box::new(7u32))).in_batches_of(4096);
        let touch = FirstTouch::at(0, 4096);
        // SAFETY: the region is ours, and the callback does not look at it.
        let unwound = catch_unwind(AssertUnwindSafe(|| unsafe { clear_with(start, len, touch, &method, &mut pace) }))
            .unwrap_err();
        assert_eq!(unwound.downcast_ref(), Some(&7u32));
        assert_eq!(region.zeroes(), 4096, "{method:?}");
    }
}

#[test]
fn yielding_finishes() {
    let mut region = Region::new(100_000);
    let (len, touch) = (region.len, FirstTouch::unknown());
    // SAFETY: the region is ours.
    let outcome = unsafe { clear_with(region.start(), len, touch, &Method::choose(len, false), &mut Yield) };
    assert!(outcome.is_continue());
    region.assert_is(|_| 0, "yield");
}

#[test]
fn a_clearing_advances_a_batch_at_a_time_on_any_thread() {
    for method in every_method() {
        let mut region = Region::new(5 * 4096 + 7);
        let (start, len) = (region.start(), region.len);
        // SAFETY: the region is ours, and untouched until the clearing is done.
        let mut clearing = unsafe { Clearing::new(start, len, FirstTouch::at(8192, 1), &method, 4096) };
        assert!(!clearing.is_done() && clearing.remaining_bytes() == len);
        assert!(!clearing.advance().is_done());
        assert!(clearing.remaining_bytes() < len && clearing.remaining_bytes() >= len - 4096);
        let done = std::thread::spawn(move || {
            while !clearing.advance().is_done() {}
            assert_eq!(clearing.advance(), Progress { done_bytes: len, total_bytes: len }, "advancing on is harmless");
            clearing.is_done()
        });
        assert!(done.join().unwrap());
        region.assert_is(|_| 0, "clearing");
    }
}

#[test]
fn a_clearing_dropped_half_way_leaves_the_rest() {
    let mut region = Region::new(4 * 4096);
    let (start, len) = (region.start(), region.len);
    // SAFETY: the region is ours, and untouched until the clearing is dropped.
    let mut clearing = unsafe { Clearing::new(start, len, FirstTouch::unknown(), &Method::choose(len, false), 4096) };
    clearing.advance();
    drop(clearing);
    assert_eq!(region.zeroes(), 4096);
}

proptest! {
    #[test]
    fn any_combination_is_right(
        len in 0usize..60_000,
        offset in prop_oneof![0usize..70_000, Just(usize::MAX)],
        window_len in prop_oneof![0usize..70_000, Just(usize::MAX)],
        batch_bytes in prop_oneof![64usize..40_000, Just(usize::MAX)],
        pick in any::<prop::sample::Index>(),
    ) {
        let methods: Vec<Method> = every_method().collect();
        check(len, FirstTouch::at(offset, window_len), pick.get(&methods), batch_bytes);
    }
}
