//! A program under `HugeAlloc` that forks while eight threads allocate: the child allocates, resizes, and frees what
//! the parent's threads held. `HUGEARENA_FORKS=10000` runs it in full.

#![allow(unsafe_code)]

mod support;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

use hugearena::supply::Supply;
use hugearena::{HugeAlloc, PageSize};

use support::is_filled;
use support::pool::PoolLock;

#[global_allocator]
static GLOBAL: HugeAlloc = HugeAlloc::new();

const THREADS: usize = 8;
const SLOTS: usize = 256;
/// Forks between two looks at the pool.
const BATCH: u64 = 50;

/// Blocks that belong to whoever takes them out: a child takes those of all threads, without a lock that a thread
/// which does not exist there might hold.
static TABLE: [AtomicPtr<Vec<u8>>; SLOTS] = [const { AtomicPtr::new(null_mut()) }; SLOTS];

fn put(slot: usize, block: Vec<u8>) {
    drop_checked(TABLE[slot].swap(Box::into_raw(Box::new(block)), AcqRel), slot);
}

fn take(slot: usize) {
    drop_checked(TABLE[slot].swap(null_mut(), AcqRel), slot);
}

fn drop_checked(block: *mut Vec<u8>, slot: usize) {
    if !block.is_null() {
        // SAFETY: it came from `put`, and the swap made it ours alone.
        let block = unsafe { Box::from_raw(block) };
        assert!(is_filled(&block, slot as u8), "slot {slot} lost a byte");
    }
}

/// Small sizes for the caches, some for runs, a few for the large path.
fn size(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let number = (*random >> 11) as usize;
    match number % 64 {
        0 => 1 + number / 64 % (1 << 20),
        1..6 => 1 + number / 64 % (64 << 10),
        _ => 1 + number / 64 % 700,
    }
}

/// How often handlers of fork(2) have run, the child's own apart.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// As a C library registers its handlers, from a constructor: before the heap has any, so that they run while the heap
/// is locked.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = {
    extern "C" fn register() {
        // SAFETY: the handler may run around any fork.
        let status = unsafe { libc::pthread_atfork(Some(allocate), Some(allocate), Some(allocate)) };
        assert_eq!(status, 0);
    }
    register
};

/// More than caches hold, of every kind.
unsafe extern "C" fn allocate() {
    let size = |index: usize| if index == 0 { 1 << 20 } else { index * index * 8 };
    let blocks: Vec<_> = (0..128).map(|index| vec![index as u8; size(index)]).collect();
    assert!(blocks.iter().enumerate().all(|(index, block)| is_filled(block, index as u8)));
    HANDLED.fetch_add(1, Relaxed);
}

fn churn(seed: u64, done: impl Fn() -> bool) {
    let mut random = seed;
    while !done() {
        let size = size(&mut random);
        let slot = (random >> 40) as usize % SLOTS;
        put(slot, vec![slot as u8; size]);
        take((slot * 7 + 1) % SLOTS);
    }
}

/// What a child does with a heap whose other threads are gone.
fn live_as_a_child(round: u64) {
    (0..SLOTS).for_each(take);
    let mut random = round * 0x9e37_79b9 + 1;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for index in 0..100 {
        let mut block = vec![index as u8; size(&mut random)];
        block.resize(block.len() * 2 + 1, index as u8);
        assert!(is_filled(&block, index as u8));
        blocks.push(block);
    }
    blocks.iter_mut().for_each(Vec::shrink_to_fit);
}

/// Why the children cannot have pages of their own for all that they may write to.
fn shortage() -> Option<String> {
    let held = GLOBAL.stats().huge_2m_bytes / (2 << 20);
    let free = Supply::read().available_pages(PageSize::HUGE_2M);
    (held > 0 && free < 2 * held + 16).then(|| format!("children may need {held} pages of 2M, {free} are free"))
}

/// How a child failed, if it did.
fn fork_once(round: u64) -> Option<String> {
    let status = support::fork(|| {
        live_as_a_child(round);
        0
    });
    (!status.success()).then(|| format!("round {round}: {status}\n{}", GLOBAL.stats()))
}

#[test]
fn eight_threads_allocate_while_one_forks() {
    let forks: u64 = std::env::var("HUGEARENA_FORKS").ok().map_or(60, |text| text.parse().unwrap());
    static STOP: AtomicBool = AtomicBool::new(false);
    let turns = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=THREADS as u64 {
            let turns = &turns;
            scope.spawn(move || {
                churn(seed, || {
                    turns.fetch_add(1, Relaxed);
                    STOP.load(Relaxed)
                });
            });
        }
        // There is load before the first fork, however late the threads get to run.
        let under_load = support::is_so_within(Duration::from_secs(600), || turns.load(Relaxed) > 1_000);
        if !under_load {
            STOP.store(true, Relaxed);
        }
        assert!(under_load, "the threads made {} turns", turns.load(Relaxed));
        let done = (0..forks.div_ceil(BATCH)).find_map(|batch| {
            // Not at the same time as tests that leave few pages in the pool; and they get their turn.
            std::thread::sleep(Duration::from_millis(20));
            let _lock = PoolLock::take();
            if let Some(reason) = shortage() {
                return Some(Err(reason));
            }
            let rounds = batch * BATCH..forks.min((batch + 1) * BATCH);
            rounds.into_iter().find_map(fork_once).map(Ok)
        });
        STOP.store(true, Relaxed);
        match done {
            Some(Ok(failure)) => panic!("{failure}"),
            Some(Err(reason)) => support::skip("fork under load", &reason),
            None => assert!(HANDLED.load(Relaxed) as u64 >= 2 * forks, "handlers ran before and after"),
        }
    });
    (0..SLOTS).for_each(take);
}
