//! Memory stays bounded: what the heap holds is at most 1.3 times the most that was live plus a constant, whatever
//! threads do with their blocks. Each in a process of its own, because a process has one heap.

#![allow(unsafe_code)]

mod support;

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::mpsc;

use hugearena::HugeAlloc;

use support::{Child, is_filled};

#[global_allocator]
static GLOBAL: HugeAlloc = HugeAlloc::new();

const MIB: u64 = 1 << 20;
/// What a heap holds besides: steps of growth, depots, and the caches of the threads here.
const CONSTANT: u64 = 16 * MIB;

/// The heap holds at most 1.3 times `live` bytes, the most that was live, plus a constant.
fn assert_bounded(live: u64) {
    let stats = GLOBAL.stats();
    let bound = live + live * 3 / 10 + CONSTANT;
    assert!(stats.mapped_bytes <= bound, "{live} bytes are live, at most {bound} may be held\n{stats}");
}

/// Numbers that are the same in every run.
fn random(state: &mut u64, end: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize % end
}

#[test]
fn producers_and_a_consumer_that_never_allocates() {
    const PRODUCERS: usize = 8;
    const LIVE: usize = 64 << 20;
    Child::new().ignoring_pool().run(|| {
        // 64 MiB are live in all, in the channel; 1 GiB goes through.
        let (send, receive) = mpsc::sync_channel::<Vec<u8>>(LIVE / 4_000);
        let consumer = std::thread::spawn(move || {
            let mut most = 0;
            for (count, block) in receive.into_iter().enumerate() {
                assert!(is_filled(&block, 7));
                if count % 10_000 == 0 {
                    most = most.max(GLOBAL.stats().mapped_bytes);
                }
            }
            most
        });
        std::thread::scope(|scope| {
            for seed in 1..=PRODUCERS as u64 {
                let send = send.clone();
                scope.spawn(move || {
                    let mut state = seed;
                    for _ in 0..(1 << 30) / 4_000 / PRODUCERS {
                        send.send(vec![7; 1 + random(&mut state, 8_000)]).unwrap();
                    }
                });
            }
        });
        drop(send);
        let most = consumer.join().unwrap();
        assert!(most <= LIVE as u64 * 13 / 10 + CONSTANT, "{most} bytes at most\n{}", GLOBAL.stats());
        assert_bounded(LIVE as u64);
    });
}

#[test]
fn a_hundred_thousand_threads_of_one_allocation() {
    let count = if cfg!(debug_assertions) { 20_000 } else { 100_000 };
    Child::new().ignoring_pool().run(|| {
        for round in 0..count {
            std::thread::spawn(move || std::hint::black_box(Box::new([round; 4]))).join().unwrap();
        }
        assert_bounded(0);
    });
}

thread_local! {
    static LAST: RefCell<AtEnd> = const { RefCell::new(AtEnd) };
}

/// Allocates when its thread ends, and not before.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        std::hint::black_box(vec![1u8; 3_000]);
    }
}

extern "C" fn only_at_the_end(_: *mut libc::c_void) -> *mut libc::c_void {
    LAST.with_borrow(|_| std::ptr::null_mut())
}

/// Threads of pthread_create(3), so that std allocates nothing for them.
#[test]
fn threads_whose_only_allocation_is_in_a_destructor() {
    let count = if cfg!(debug_assertions) { 20_000 } else { 100_000 };
    Child::new().ignoring_pool().run(|| {
        for _ in 0..count {
            let mut thread = 0;
            // SAFETY: a new thread that runs a function of this program, and is joined.
            unsafe {
                assert_eq!(
                    libc::pthread_create(&mut thread, std::ptr::null(), only_at_the_end, std::ptr::null_mut()),
                    0
                );
                assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
            }
        }
        assert_bounded(0);
    });
}

#[test]
fn memory_that_other_threads_freed_serves_those_who_allocate() {
    const BYTES: usize = 128 << 20;
    Child::new().ignoring_pool().run(|| {
        // One fills, another frees all, in turns: what is free is found again, whoever freed it.
        let mut most = 0;
        for round in 0..6 {
            let sizes = [48, 700, 5_000, 60_000];
            let size = sizes[round % sizes.len()];
            let blocks: Vec<Vec<u8>> = (0..BYTES / size).map(|_| vec![3; size]).collect();
            most = most.max((BYTES + blocks.len() * size_of::<Vec<u8>>()) as u64);
            assert_bounded(most);
            std::thread::spawn(move || drop(blocks)).join().unwrap();
        }
        GLOBAL.trim();
        assert_bounded(0);
    });
}

/// Of blocks that are freed in any order, the last few are of nearly all spans: those of sizes that nobody uses any more
/// are taken out of the depots before the heap grows, whoever freed them.
#[test]
fn sizes_that_are_no_longer_used_keep_no_memory() {
    const BYTES: usize = 32 << 20;
    fn fill_and_free(size: usize) {
        let mut state = 1;
        let mut blocks: Vec<Box<[MaybeUninit<u8>]>> = (0..BYTES / size).map(|_| Box::new_uninit_slice(size)).collect();
        for at in 1..blocks.len() {
            blocks.swap(at, random(&mut state, at + 1));
        }
    }
    Child::new().ignoring_pool().run(|| {
        for size in [64, 96, 128, 200, 320, 500, 1_000] {
            std::thread::spawn(move || fill_and_free(size)).join().unwrap();
            assert_bounded((BYTES + BYTES / 64 * size_of::<Box<[u8]>>()) as u64);
        }
    });
}

/// The same where threads that stay free what another one allocates: they seldom come to the heap, and hold little each.
#[test]
fn threads_that_only_free_keep_little_of_what_is_no_longer_used() {
    const WORKERS: usize = 32;
    const BYTES: usize = 32 << 20;
    type Blocks = Vec<Box<[MaybeUninit<u8>]>>;
    Child::new().ignoring_pool().run(|| {
        let (done, freed) = mpsc::channel();
        let workers = [(); WORKERS].map(|()| {
            let (send, receive) = mpsc::channel::<Blocks>();
            let done = done.clone();
            std::thread::spawn(move || {
                for blocks in receive {
                    drop(blocks);
                    done.send(()).unwrap();
                }
            });
            send
        });
        let mut state = 1;
        for size in [160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536] {
            let mut blocks: Blocks = (0..BYTES / size).map(|_| Box::new_uninit_slice(size)).collect();
            for at in 1..blocks.len() {
                blocks.swap(at, random(&mut state, at + 1));
            }
            for worker in &workers {
                worker.send(blocks.split_off(blocks.len().saturating_sub(BYTES / size / WORKERS + 1))).unwrap();
            }
            (0..WORKERS).for_each(|_| freed.recv().unwrap());
        }
        // Few sizes back, and not all of them.
        let stats = GLOBAL.stats();
        assert!(stats.mapped_bytes <= 10 * BYTES as u64, "{stats}");
    });
}

#[test]
fn sizes_just_over_a_power_of_two() {
    Child::new().ignoring_pool().run(|| {
        for log2 in 5..22 {
            let size = (1usize << log2) + 1;
            let count = (64 << 20) / size;
            let blocks: Vec<Vec<u8>> = (0..count).map(|_| vec![1; size]).collect();
            assert_bounded((count * (size + size_of::<Vec<u8>>())) as u64);
            drop(blocks);
            GLOBAL.trim();
        }
    });
}

#[test]
fn sizes_just_over_huge_pages() {
    Child::new().ignoring_pool().run(|| {
        for pages in 1..5 {
            let size = (pages << 21) + 1;
            let blocks: Vec<Vec<u8>> = (0..100 / pages).map(|_| vec![1; size]).collect();
            assert_bounded((blocks.len() * size) as u64);
            drop(blocks);
            GLOBAL.trim();
        }
    });
}

#[test]
fn random_large_sizes_need_few_mappings() {
    Child::new().ignoring_pool().run(|| {
        let before = support::mappings().lines().count();
        let mut state = 11;
        let mut blocks: Vec<Vec<u8>> = (0..32).map(|_| Vec::new()).collect();
        let mut most = 0;
        for turn in 0..4_000 {
            let at = random(&mut state, blocks.len());
            let size = (256 << 10) + random(&mut state, 12 << 20);
            if random(&mut state, 3) == 0 {
                blocks[at].reserve(size / 4);
            } else {
                blocks[at] = Vec::with_capacity(size);
            }
            blocks[at].push(1);
            if turn % 200 == 0 {
                most = most.max(support::mappings().lines().count());
            }
        }
        let live: usize = blocks.iter().map(Vec::capacity).sum();
        assert!(most < before + 300, "{most} mappings, {before} at first\n{}", GLOBAL.stats());
        // The most that was live in any moment may be held: 32 blocks of up to 15 MiB.
        assert!(live > 100 << 20);
        assert_bounded(32 * 15 * MIB);
    });
}
