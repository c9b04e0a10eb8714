//! The heap's start: a process forks while other threads of it make its first allocations. No test here may use the heap
//! outside a child, so that each child finds it as a new process does. `HUGEARENA_FORKS=2000` runs it in full.

#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

use hugearena::{Arena, HugeAlloc, PageSize};

use support::child::SECONDS;
use support::pool::PoolLock;

static HEAP: HugeAlloc = HugeAlloc::new();
/// Threads whose first allocation is still to begin, and those whose first allocation has not ended.
static WAITING: AtomicU32 = AtomicU32::new(0);
static STARTING: AtomicU32 = AtomicU32::new(0);
static GO: AtomicBool = AtomicBool::new(false);

const THREADS: u32 = 2;
/// What a child of a process in the middle of its start ends with, and what one before or after it does.
const IN_THE_MIDDLE: i32 = 10;
const APART: i32 = 11;

fn forks() -> u64 {
    std::env::var("HUGEARENA_FORKS").ok().map_or(100, |text| text.parse().unwrap())
}

fn allocate() {
    for size in [100, 1 << 20] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the size is not 0; the block is freed once, with its layout.
        unsafe {
            let block = HEAP.alloc(layout);
            assert!(!block.is_null());
            block.write_bytes(1, size);
            HEAP.dealloc(block, layout);
        }
    }
}

/// Opens an arena, which counts forks from the first on.
fn open() {
    Arena::builder().page_size(PageSize::base()).capacity(PageSize::base().bytes()).open().unwrap();
}

/// In a new process: `first` in threads while the main thread forks, `delay` later; then `first` in the child.
fn fork_while_starting(first: fn(), delay: Duration) -> i32 {
    WAITING.store(THREADS, Release);
    STARTING.store(THREADS, Release);
    let work = move || {
        WAITING.fetch_sub(1, Release);
        while !GO.load(Acquire) {
            std::thread::yield_now();
        }
        first();
        STARTING.fetch_sub(1, Release);
    };
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(work)).collect();
    while WAITING.load(Acquire) > 0 {
        std::thread::yield_now();
    }
    GO.store(true, Release);
    let start = Instant::now();
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
    let status = support::fork(|| {
        // SAFETY: no preconditions; ends a process that hangs: one that waits for a thread which it has not.
        unsafe { libc::alarm(SECONDS) };
        let was_starting = STARTING.load(Acquire) > 0;
        first();
        std::thread::spawn(first).join().unwrap();
        if was_starting { IN_THE_MIDDLE } else { APART }
    });
    assert!(status.code().is_some_and(|code| code == IN_THE_MIDDLE || code == APART), "after {delay:?}: {status}");
    first();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    status.code().unwrap()
}

/// Forks in new processes at moments that are spread over `most`.
fn fork_in_new_processes(first: fn(), most: Duration) {
    let _lock = PoolLock::take();
    if support::skips_short_pool("forks") {
        return;
    }
    let (mut in_the_middle, forks) = (0, forks());
    for round in 0..forks {
        // A step that has no common divisor with the number of steps: the first rounds are everywhere as well.
        let delay = most.mul_f64((round * 619 % 1000) as f64 / 1000.0);
        let status = support::fork(|| fork_while_starting(first, delay));
        in_the_middle += u64::from(status.code() == Some(IN_THE_MIDDLE));
        assert!(status.code() == Some(IN_THE_MIDDLE) || status.code() == Some(APART), "round {round}: {status}");
    }
    support::print_figure(&format!("{in_the_middle} of {forks} forks during the first calls"));
    assert!(in_the_middle > 0, "none of {forks} forks met a first call");
}

#[test]
fn a_child_that_is_forked_during_the_first_allocation_allocates() {
    fork_in_new_processes(allocate, Duration::from_micros(200));
}

#[test]
fn a_child_that_is_forked_while_the_first_arena_opens_opens_one() {
    fork_in_new_processes(open, Duration::from_micros(300));
}
