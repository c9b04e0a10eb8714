//! Collections in an arena and in the heap: as those of std, never beyond what there is, and nothing kept at the end.

#![allow(unsafe_code)]

mod support;

use std::alloc::Layout;
use std::collections::HashMap as StdMap;
use std::sync::Barrier;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec as AVec;
use hashbrown::HashMap;
use hugearena::arena::ArenaAlloc;
use hugearena::backing::BackingKind;
use hugearena::{Arena, HugeAlloc, PageSize, Populate};
use proptest::prelude::*;

use support::pool::PoolLock;
use support::{for_each_page_size, fork};

fn open(size: PageSize, pages: usize) -> Arena {
    let builder = Arena::builder().page_size(size).capacity(pages * size.bytes());
    builder.backing(BackingKind::Anonymous).strict().open().unwrap()
}

/// Runs what uses the heap, which takes pages as it needs them: never while another test watches the pools. A thread
/// that has been joined has given back what its cache held.
fn on_the_heap(run: impl FnOnce() + Send) {
    let _lock = PoolLock::take();
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn on_base_pages(pages: usize) -> ArenaAlloc {
    ArenaAlloc::new(&open(PageSize::base(), pages)).unwrap()
}

#[test]
fn small_blocks_share_a_page_and_it_goes_back() {
    for_each_page_size(4, |size, pages| {
        let arena = open(size, pages);
        let alloc = ArenaAlloc::new(&arena).unwrap();
        let boxes: Vec<_> = (0..100u64).map(|number| Box::new_in(number, alloc.clone())).collect();
        assert!(boxes.iter().zip(0..).all(|(boxed, number)| **boxed == number));
        assert_eq!(arena.stats().claimed, 1, "a hundred blocks of 32 bytes");
        drop(boxes);
        assert_eq!(arena.stats().claimed, 1, "one page is kept");
        drop(alloc);
        assert_eq!(arena.stats().claimed, 0);
    });
}

#[test]
fn a_vector_grows_in_place_page_by_page_and_gives_pages_back() {
    let size = PageSize::base();
    let arena = open(size, 64);
    let alloc = ArenaAlloc::new(&arena).unwrap();
    let mut vector = AVec::<u8, _>::with_capacity_in(size.bytes() / 2, alloc.clone());
    vector.extend_from_slice(&[7; 100]);
    let at = vector.as_ptr();
    // More than half of the arena: there would be no room for a copy.
    vector.try_reserve_exact(50 * size.bytes()).unwrap();
    assert_eq!((vector.as_ptr(), &vector[..]), (at, &[7; 100][..]));
    assert!(vector.try_reserve_exact(64 * size.bytes()).is_err(), "an error, no panic");
    assert!((50..=52).contains(&arena.stats().claimed), "{:?}", arena.stats());
    vector.shrink_to_fit();
    assert_eq!((vector.as_ptr(), arena.stats().claimed), (at, 2), "one page in use, and one that is kept");
    drop(vector);
    drop(alloc);
    assert_eq!(arena.stats().claimed, 0);
}

#[test]
fn every_alignment_is_kept() {
    for_each_page_size(4, |size, pages| {
        let arena = open(size, pages);
        let alloc = ArenaAlloc::new(&arena).unwrap();
        for log2 in 0..=size.log2().min(21) {
            let layout = Layout::from_size_align(100, 1 << log2).unwrap();
            let block = alloc.allocate_zeroed(layout).unwrap();
            assert!(block.cast::<u8>().addr().get().is_multiple_of(layout.align()), "{layout:?}");
            let wider = Layout::from_size_align(1000, (layout.align() * 2).min(size.bytes())).unwrap();
            // SAFETY: allocated above with that layout, and no longer used but by what grows and frees it.
            unsafe {
                let grown = alloc.grow_zeroed(block.cast(), layout, wider).unwrap();
                assert!(grown.cast::<u8>().addr().get().is_multiple_of(wider.align()), "{wider:?}");
                assert!(support::is_zero(grown.as_ref()));
                let none = Layout::from_size_align(0, layout.align()).unwrap();
                let shrunk = alloc.shrink(grown.cast(), wider, none).unwrap();
                alloc.deallocate(shrunk.cast(), none);
            }
        }
        drop(alloc);
        assert_eq!(arena.stats().claimed, 0);
    });
}

#[test]
fn absurd_layouts_and_an_empty_arena_are_errors() {
    let alloc = on_base_pages(4);
    for (size, align) in [(isize::MAX as usize, 1), (isize::MAX as usize - (1 << 40) + 1, 1 << 40), (1, 1 << 40)] {
        assert!(alloc.allocate(Layout::from_size_align(size, align).unwrap()).is_err());
    }
    let all = alloc.arena().claim(4).unwrap();
    assert!(Box::try_new_in(1u8, alloc.clone()).is_err());
    drop(all);
    assert!(Box::try_new_in(1u8, alloc).is_ok());
}

#[test]
fn a_page_that_is_kept_empty_is_in_nobodys_way() {
    let pages = 8;
    let alloc = on_base_pages(pages);
    let page_bytes = PageSize::base().bytes();
    let (small, large) = (layout(64, 8), layout((pages - 1) * page_bytes + page_bytes / 2, 8));
    for _ in 0..3 {
        for layout in [small, large] {
            let block = alloc.allocate(layout).unwrap();
            // SAFETY: allocated just before with that layout.
            unsafe { alloc.deallocate(block.cast(), layout) };
        }
    }
    // Nor is one behind a block.
    let mut vector = AVec::<u8, _>::with_capacity_in(100, alloc.clone());
    vector.reserve_exact(3 * page_bytes);
    vector.shrink_to(100);
    assert_eq!(alloc.arena().stats().claimed, 2);
    assert!(AVec::<u8, _>::new_in(alloc).try_reserve_exact(large.size() - page_bytes).is_ok());
}

/// While one thread populates what it has claimed, and has not cut its block from it, nobody else may be told that there
/// is no memory: there is, in a moment.
#[test]
fn nobody_is_refused_because_others_are_claiming() {
    const PAGES: usize = 160;
    let page_bytes = PageSize::base().bytes();
    // Its alignment takes 129 pages, of which the block is a line.
    let (aligned, plain) = (layout(64, 128 * page_bytes), layout(50 * page_bytes, 8));
    for _ in 0..50 {
        let builder =
            Arena::builder().page_size(PageSize::base()).capacity(PAGES * page_bytes).populate(Populate::Lazy);
        let arena = builder.backing(BackingKind::Anonymous).strict().open().unwrap();
        let alloc = ArenaAlloc::new(&arena).unwrap();
        let (barrier, alloc) = (&Barrier::new(2), &alloc);
        std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                barrier.wait();
                alloc.allocate(aligned).is_ok()
            });
            barrier.wait();
            let has_first_begun = || arena.stats().claimed > 0;
            (0..1_000_000).take_while(|_| !has_first_begun()).for_each(|_| std::hint::spin_loop());
            let second = alloc.allocate(plain).is_ok();
            assert!(second, "the first: {:?}", first.join());
        });
    }
}

#[test]
fn shared_memory_is_refused() {
    let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 16).open().unwrap();
    assert!(ArenaAlloc::new(&arena).unwrap_err().to_string().contains("Anonymous"));
    // SAFETY: nobody else has the arena.
    let alloc = unsafe { ArenaAlloc::new_shared(&arena) };
    assert_eq!(*Box::new_in(5, alloc), 5);
}

#[test]
fn threads_share_an_allocator() {
    let alloc = on_base_pages(512);
    let arena = alloc.arena().clone();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<AVec<u64, ArenaAlloc>>(64);
        // Freed by another thread than the one that allocates.
        scope.spawn(move || {
            for vector in receiver {
                assert!(vector.iter().all(|number| *number == vector[0]));
            }
        });
        for thread in 0..3u64 {
            let (alloc, sender) = (alloc.clone(), sender.clone());
            scope.spawn(move || {
                for turn in 0..2_000 {
                    let mut vector = AVec::new_in(alloc.clone());
                    (0..=turn * 7 % 300).for_each(|_| vector.push(thread));
                    sender.send(vector).unwrap();
                }
            });
        }
    });
    drop(alloc);
    assert_eq!(arena.stats().claimed, 0);
}

#[test]
fn a_child_has_the_collections_and_waits_for_nobody() {
    let alloc = on_base_pages(64);
    let mut map = HashMap::new_in(alloc.clone());
    map.extend((0..100).map(|number| (number, number)));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(Box::try_new_in([0u8; 500], alloc.clone()));
            }
        });
        for _ in 0..50 {
            let status = fork(|| {
                assert!((0..100).all(|number| map[&number] == number));
                // Either there is memory, or the other thread was inside: never a wait for it.
                let boxed = Box::try_new_in([1u8; 100], alloc.clone());
                boxed.map_or(0, |boxed| i32::from(boxed[99] - 1))
            });
            assert!(status.success(), "{status}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn the_heap_takes_collections() {
    on_the_heap(|| {
        let mut vector = AVec::new_in(HugeAlloc::new());
        vector.extend(0..100_000u32);
        vector.shrink_to(10);
        assert!(vector.iter().zip(0..).all(|(number, expected)| *number == expected));
        let mut map = HashMap::new_in(HugeAlloc::new());
        map.extend((0..1000).map(|number| (number, number.to_string())));
        assert_eq!(map[&77], "77");
        let heap = HugeAlloc::new();
        let (small, wide) = (Layout::new::<u8>(), Layout::from_size_align(64, 4096).unwrap());
        let block = heap.allocate_zeroed(small).unwrap();
        // SAFETY: allocated above with that layout, and no longer used but by what grows and frees it.
        unsafe {
            let grown = heap.grow_zeroed(block.cast(), small, wide).unwrap();
            assert!(grown.cast::<u8>().addr().get().is_multiple_of(4096) && support::is_zero(grown.as_ref()));
            heap.deallocate(grown.cast(), wide);
            let none = Layout::from_size_align(0, 8).unwrap();
            heap.deallocate(heap.allocate(none).unwrap().cast(), none);
        }
    });
}

/// What is done to a collection.
#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Pop,
    Reserve(usize),
    Shrink,
    Truncate(usize),
    Insert(u16, u64),
    Remove(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        1 => Just(Step::Pop),
        1 => (0usize..5000).prop_map(Step::Reserve),
        1 => Just(Step::Shrink),
        1 => (0usize..200).prop_map(Step::Truncate),
        4 => (0u16..500, any::<u64>()).prop_map(|(key, value)| Step::Insert(key, value)),
        1 => (0u16..500).prop_map(Step::Remove),
    ]
}

/// Does the same to collections with an allocator and to those of std, and compares them.
fn agree<A: Allocator + Clone>(alloc: A, steps: &[Step]) {
    let (mut vectors, mut expected) = ([0, 1, 2].map(|_| AVec::new_in(alloc.clone())), [vec![], vec![], vec![]]);
    let (mut map, mut expected_map) = (HashMap::new_in(alloc), StdMap::new());
    for (index, step) in steps.iter().enumerate() {
        let (vector, expected) = (&mut vectors[index % 3], &mut expected[index % 3]);
        match *step {
            Step::Push(value) => {
                vector.push(value);
                expected.push(value);
            }
            Step::Pop => assert_eq!(vector.pop(), expected.pop()),
            Step::Reserve(count) => vector.reserve(count),
            Step::Shrink => vector.shrink_to_fit(),
            Step::Truncate(len) => {
                vector.truncate(len);
                expected.truncate(len);
            }
            Step::Insert(key, value) => assert_eq!(map.insert(key, value), expected_map.insert(key, value)),
            Step::Remove(key) => assert_eq!(map.remove(&key), expected_map.remove(&key)),
        }
        assert_eq!(vector.as_slice(), expected.as_slice());
    }
    assert_eq!(map.len(), expected_map.len());
    assert!(expected_map.iter().all(|(key, value)| map.get(key) == Some(value)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn collections_agree_with_those_of_std(steps in proptest::collection::vec(step(), 1..400)) {
        let alloc = on_base_pages(512);
        let arena = alloc.arena().clone();
        agree(alloc, &steps);
        prop_assert_eq!(arena.stats().claimed, 0);
        on_the_heap(|| agree(HugeAlloc::new(), &steps));
    }

    /// Blocks never overlap, and keep what is in them, whatever comes and goes around them.
    #[test]
    fn blocks_keep_their_bytes(
        steps in proptest::collection::vec((0usize..4, any::<usize>(), 1usize..30_000, 0u32..13), 1..200),
    ) {
        let alloc = on_base_pages(256);
        let arena = alloc.arena().clone();
        let mut live: Vec<(std::ptr::NonNull<[u8]>, Layout, u8)> = Vec::new();
        for (index, (what, at, size, log2)) in steps.into_iter().enumerate() {
            let fill = index as u8;
            let layout = Layout::from_size_align(size, 1 << log2).unwrap();
            if what < 2 || live.is_empty() {
                if let Ok(mut block) = alloc.allocate(layout) {
                    // SAFETY: a new block of that length.
                    unsafe { block.as_mut().fill(fill) };
                    live.push((block, layout, fill));
                }
                continue;
            }
            let (block, old, was) = live.swap_remove(at % live.len());
            // SAFETY: allocated with that layout; every byte is initialized; used here alone.
            unsafe {
                prop_assert!(support::is_filled(block.as_ref(), was));
                if what == 2 {
                    alloc.deallocate(block.cast(), old);
                    continue;
                }
                let moved = match size >= old.size() {
                    true => alloc.grow(block.cast(), old, layout),
                    false => alloc.shrink(block.cast(), old, layout),
                };
                match moved {
                    Err(_) => live.push((block, old, was)),
                    Ok(mut moved) => {
                        prop_assert!(support::is_filled(&moved.as_ref()[..size.min(old.size())], was));
                        prop_assert!(moved.cast::<u8>().addr().get().is_multiple_of(layout.align()));
                        moved.as_mut().fill(fill);
                        live.push((moved, layout, fill));
                    }
                }
            }
        }
        for (block, layout, fill) in live {
            // SAFETY: as above.
            unsafe {
                prop_assert!(support::is_filled(block.as_ref(), fill));
                alloc.deallocate(block.cast(), layout);
            }
        }
        prop_assert!(arena.stats().claimed <= 1, "{:?}", arena.stats());
        drop(alloc);
        prop_assert_eq!(arena.stats().claimed, 0);
    }
}
