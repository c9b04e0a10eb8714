//! A program under `HugeAlloc`: threads that come and go, destructors and exit handlers that allocate, processes
//! that are started and forked while other threads allocate, and memory that stays bounded.

#![allow(unsafe_code)]

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use hugearena::supply::Supply;
use hugearena::{HugeAlloc, PageSize};

use support::pool::PoolLock;
use support::{Child, is_filled, is_zero};

#[global_allocator]
static GLOBAL: HugeAlloc = HugeAlloc::new();

/// The tests look at how much the one heap of the process holds, so they run one at a time; and not while those of other
/// programs leave few pages in the pool, which children of fork need.
fn alone() -> PoolLock {
    PoolLock::take()
}

/// Runs `test` a first time, which may grow the heap, and then checks that it does not grow by more than
/// `bytes` when `test` runs again.
fn assert_grows_at_most(bytes: u64, mut test: impl FnMut()) {
    test();
    let before = GLOBAL.stats();
    test();
    let after = GLOBAL.stats();
    assert!(after.mapped_bytes <= before.mapped_bytes + bytes, "mapped before: {before}\nafter: {after}");
    assert!(after.live_bytes <= before.live_bytes + bytes, "live before: {before}\nafter: {after}");
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

/// Threads that allocate and free all the time, until dropped.
struct Busy {
    stop: &'static AtomicBool,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start(threads: usize) -> Busy {
        let stop: &AtomicBool = Box::leak(Box::default());
        let work = |seed| move || churn(&mut Random(seed), || stop.load(Relaxed));
        Busy { stop, threads: (1..=threads as u64).map(|seed| std::thread::spawn(work(seed))).collect() }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Replaces blocks of up to 64 KiB, now and then one of up to 2 MiB, checking what they held.
fn churn(random: &mut Random, done: impl Fn() -> bool) {
    let mut blocks: Vec<Vec<u8>> = (0..64).map(|_| Vec::new()).collect();
    while !done() {
        let at = random.below(blocks.len());
        assert!(is_filled(&blocks[at], at as u8));
        let size = match random.below(64) {
            0 => random.below(2 << 20),
            1..8 => random.below(64 << 10),
            _ => random.below(512),
        };
        blocks[at] = vec![at as u8; size];
    }
}

#[test]
fn threads_may_die_with_live_objects_that_others_free() {
    let _alone = alone();
    assert_grows_at_most(8 << 20, || {
        for round in 0..200 {
            let make = move || (0..500).map(|index| vec![index as u8; 1 + (round * index) % 900]).collect::<Vec<_>>();
            let blocks = std::thread::spawn(make).join().unwrap();
            assert!(blocks.iter().enumerate().all(|(index, block)| is_filled(block, index as u8)));
        }
    });
}

#[test]
fn short_threads_cost_nothing_that_stays() {
    let _alone = alone();
    assert_grows_at_most(4 << 20, || {
        for round in 0..5_000usize {
            std::thread::spawn(move || std::hint::black_box(vec![1u8; 1 + round % 3_000])).join().unwrap();
        }
    });
}

/// Allocates when it is dropped, and keeps something that is freed then.
struct AtExit(Vec<Box<[u8]>>);

impl Drop for AtExit {
    fn drop(&mut self) {
        assert!(self.0.iter().all(|block| is_filled(block, 5)));
        let more: Vec<String> = (0..20).map(|number| format!("{number:0100}")).collect();
        assert!(more.iter().all(|text| text.len() == 100));
        DESTROYED.fetch_add(1, Relaxed);
    }
}

static DESTROYED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static EARLY: RefCell<AtExit> = const { RefCell::new(AtExit(Vec::new())) };
    static LATE: RefCell<AtExit> = const { RefCell::new(AtExit(Vec::new())) };
}

fn keep(slot: &'static std::thread::LocalKey<RefCell<AtExit>>) {
    slot.with_borrow_mut(|kept| kept.0 = (1..20).map(|index| vec![5; 100 * index].into()).collect());
}

#[test]
fn thread_locals_may_allocate_in_their_destructors() {
    const THREADS: usize = 2_000;
    let _alone = alone();
    let before = DESTROYED.load(Relaxed);
    assert_grows_at_most(4 << 20, || {
        for round in 0..THREADS {
            // One thread has a cache before its first thread-local, the next gets its cache after.
            let work = move || {
                if round % 2 == 0 {
                    std::hint::black_box(vec![0u8; 100]);
                }
                keep(&EARLY);
                keep(&LATE);
            };
            std::thread::spawn(work).join().unwrap();
        }
    });
    assert_eq!(DESTROYED.load(Relaxed) - before, 4 * THREADS);
}

/// A key whose destructor runs after the heap's own hook: in rounds, as long as it stores itself again.
static KEY: AtomicUsize = AtomicUsize::new(usize::MAX);

unsafe extern "C" fn allocate_after_the_hook(value: *mut libc::c_void) {
    // SAFETY: the value is a box that was leaked under this key, or by this function.
    let rounds = unsafe { *Box::from_raw(value.cast::<u64>()) };
    let blocks: Vec<Vec<u8>> = (1..100).map(|index| vec![index as u8; index * 30]).collect();
    assert!(blocks.iter().enumerate().all(|(index, block)| is_filled(block, index as u8 + 1)));
    DESTROYED.fetch_add(1, Relaxed);
    if rounds > 1 {
        store_under_key(rounds - 1);
    }
}

fn store_under_key(rounds: u64) {
    // SAFETY: the key exists, and its destructor takes such a box.
    let stored = unsafe {
        libc::pthread_setspecific(KEY.load(Relaxed) as libc::pthread_key_t, Box::into_raw(Box::new(rounds)).cast())
    };
    assert_eq!(stored, 0);
}

#[test]
fn threads_may_allocate_after_their_cache_is_gone() {
    const THREADS: usize = 2_000;
    let _alone = alone();
    let mut key = 0;
    // SAFETY: the key is written to a live variable.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(allocate_after_the_hook)) }, 0);
    KEY.store(key as usize, Relaxed);
    let before = DESTROYED.load(Relaxed);
    assert_grows_at_most(4 << 20, || {
        (0..THREADS).for_each(|_| std::thread::spawn(|| store_under_key(3)).join().unwrap());
    });
    assert_eq!(DESTROYED.load(Relaxed) - before, 2 * 3 * THREADS);
}

#[test]
fn one_who_allocates_and_one_who_frees_do_not_hoard() {
    let _alone = alone();
    assert_grows_at_most(8 << 20, || {
        for size in [16, 64, 1_000, 30_000] {
            let (send, receive) = mpsc::sync_channel::<Vec<Vec<u8>>>(2);
            let consumer = std::thread::spawn(move || {
                receive.into_iter().flatten().for_each(|block| assert!(is_filled(&block, 3)));
            });
            for _ in 0..(16 << 20) / (100 * size) {
                send.send((0..100).map(|_| vec![3; size]).collect()).unwrap();
            }
            drop(send);
            consumer.join().unwrap();
        }
    });
}

#[test]
fn collections_keep_their_contents_under_churn() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for seed in 1..=3 {
            scope.spawn(move || {
                let mut random = Random(seed);
                let (mut hashed, mut sorted) = (HashMap::<usize, String>::new(), BTreeMap::<usize, String>::new());
                for _ in 0..60_000 {
                    let key = random.below(20_000);
                    let text = format!("{key}-").repeat(1 + key % 40);
                    if random.below(3) == 0 {
                        assert_eq!(hashed.remove(&key), sorted.remove(&key));
                    } else {
                        assert_eq!(hashed.insert(key, text.clone()), sorted.insert(key, text));
                    }
                }
                assert!(sorted.iter().all(|(key, text)| hashed[key] == *text && text.starts_with(&format!("{key}-"))));
            });
        }
    });
}

/// Experiments: 74.
#[test]
fn zeroed_memory_is_zero_after_others_scribbled_on_it() {
    let _alone = alone();
    let sizes = (3..25).flat_map(|log2| [0, 1, 2, 3].map(|eighth| (1usize << log2) + (eighth << log2 >> 2)));
    for size in sizes {
        let count = ((1 << 20) / size).clamp(3, 500);
        let dirty: Vec<Vec<u8>> = (0..count).map(|_| vec![0xA5; size]).collect();
        std::hint::black_box(&dirty);
        drop(dirty);
        let clean: Vec<Vec<u8>> = (0..count).map(|_| vec![0; size]).collect();
        assert!(clean.iter().all(|block| is_zero(block)), "{size} bytes");
    }
}

/// Thread caches lie in the heap, and are memory that was written to once their thread is gone.
#[test]
fn zeroed_memory_is_zero_where_the_caches_of_threads_lay() {
    const THREADS: usize = 16;
    Child::new().ignoring_pool().run(|| {
        let before = GLOBAL.stats().mapped_bytes as usize;
        let barrier = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    std::hint::black_box(vec![1u8; 100]);
                    barrier.wait();
                });
            }
        });
        let blocks: Vec<Vec<u8>> = (0..before.max(16 << 20) / (300 << 10)).map(|_| vec![0; 300 << 10]).collect();
        let dirty = blocks.iter().filter(|block| !is_zero(block)).count();
        assert_eq!(dirty, 0, "of {} blocks", blocks.len());
    });
}

#[test]
fn large_blocks_of_any_size_need_few_mappings() {
    let _alone = alone();
    let before = support::mappings().lines().count();
    let mut random = Random(7);
    let mut blocks: Vec<Vec<u8>> = (0..24).map(|_| Vec::new()).collect();
    for _ in 0..600 {
        let at = random.below(blocks.len());
        let size = (256 << 10) + random.below(6 << 20);
        if random.below(2) == 0 {
            blocks[at] = Vec::with_capacity(size);
        } else {
            blocks[at].reserve(size);
        }
        blocks[at].push(1);
    }
    let grown = support::mappings().lines().count().saturating_sub(before);
    assert!(grown < 200, "{grown} more mappings\n{}", GLOBAL.stats());
    drop(blocks);
    GLOBAL.trim();
}

/// Whether the pool has a page for every huge page that the heap holds, should a forked child or its parent write to all of
/// them: where it is too short for that, the kernel kills the child, which no allocator can help. Other tests take no
/// pages while this one is [alone].
fn has_pages_for_children(test: &str) -> bool {
    GLOBAL.trim();
    let held = GLOBAL.stats().huge_2m_bytes / (2 << 20);
    let free = Supply::read().pool(PageSize::HUGE_2M).map_or(0, |pool| pool.available_pages());
    // Other threads go on, and the heap may double meanwhile.
    let has = held == 0 || free >= 2 * held + 32;
    if !has {
        support::skip(test, &format!("children may need {held} pages of 2M, {free} are free"));
    }
    has
}

/// Experiments: 59.
#[test]
fn children_of_fork_allocate_and_free_what_they_inherited() {
    let _alone = alone();
    let busy = Busy::start(3);
    if !has_pages_for_children("fork") {
        return;
    }
    for round in 0..300 {
        let inherited: Vec<Vec<u8>> = (0..200).map(|index| vec![index as u8; 1 + index * 50]).collect();
        let status = support::fork(move || {
            assert!(inherited.iter().enumerate().all(|(index, block)| is_filled(block, index as u8)));
            drop(inherited);
            let mut rounds = Random(round + 1);
            let left = std::cell::Cell::new(300);
            churn(&mut rounds, || left.replace(left.get() - 1) == 0);
            0
        });
        assert!(status.success(), "round {round}: {status}\n{}", GLOBAL.stats());
    }
    drop(busy);
}

#[test]
fn a_child_of_fork_may_start_threads_and_outlive_its_parents_blocks() {
    let _alone = alone();
    let busy = Busy::start(2);
    if !has_pages_for_children("fork") {
        return;
    }
    for round in 0..20 {
        let status = support::fork(|| {
            let work = |seed| {
                let left = std::cell::Cell::new(2_000);
                churn(&mut Random(seed), || left.replace(left.get() - 1) == 0);
            };
            let threads = [1, 2, 3].map(|seed| std::thread::spawn(move || work(seed)));
            i32::from(!threads.into_iter().all(|thread| thread.join().is_ok()))
        });
        assert!(status.success(), "round {round}: {status}");
    }
    drop(busy);
}

#[test]
fn processes_are_started_while_threads_allocate() {
    let _alone = alone();
    let busy = Busy::start(4);
    if !has_pages_for_children("std::process::Command") {
        return;
    }
    for round in 0..25 {
        let mut plain = Command::new("true");
        let mut with_path = Command::new("true");
        with_path.env("PATH", "/bin:/usr/bin").arg("x".repeat(1_000));
        let mut with_uid = Command::new("/bin/true");
        // SAFETY: no preconditions.
        with_uid.uid(unsafe { libc::geteuid() });
        let mut with_hook = Command::new("true");
        // SAFETY: allocation in a forked child is what is tested: the heap's locks are free there.
        unsafe { with_hook.pre_exec(allocate_in_child) };
        for command in [&mut plain, &mut with_path, &mut with_uid, &mut with_hook] {
            let output = command.output().unwrap_or_else(|error| panic!("round {round}: {command:?}: {error}"));
            assert!(output.status.success(), "round {round}: {command:?}: {}", output.status);
        }
    }
    drop(busy);
}

fn allocate_in_child() -> std::io::Result<()> {
    let blocks: Vec<Vec<u8>> = (1..50).map(|index| vec![index as u8; 1_000 * index]).collect();
    assert!(blocks.iter().enumerate().all(|(index, block)| is_filled(block, index as u8 + 1)));
    Ok(())
}

extern "C" fn allocate_at_exit() {
    let texts: Vec<String> = (0..1_000).map(|number| format!("{number}").repeat(50)).collect();
    let large = vec![0u8; 5 << 20];
    let fine = texts.iter().enumerate().all(|(number, text)| text.starts_with(&number.to_string())) && is_zero(&large);
    // SAFETY: ends the process: the code tells the parent that this was reached.
    unsafe { libc::_exit(if fine { 44 } else { 45 }) };
}

#[test]
fn exit_handlers_may_allocate() {
    let _alone = alone();
    if !has_pages_for_children("exit handlers") {
        return;
    }
    let status = support::fork(|| {
        // SAFETY: registers a function that lives as long as the process; exit(3) runs it.
        unsafe {
            assert_eq!(libc::atexit(allocate_at_exit), 0);
            libc::exit(1)
        }
    });
    assert_eq!(status.code(), Some(44), "{status}");
}

#[test]
fn the_main_thread_may_end_while_others_allocate() {
    Child::new().ignoring_pool().run(|| {
        let busy = Busy::start(3);
        let status = support::fork(|| {
            let others = Busy::start(3);
            std::hint::black_box(vec![1u8; 1 << 20]);
            std::mem::forget(others);
            // SAFETY: as any program ends, with exit handlers, while threads go on.
            unsafe { libc::exit(0) }
        });
        assert!(status.success(), "{status}");
        drop(busy);
    });
}

#[test]
fn the_heap_of_an_idle_process_is_small() {
    Child::new().ignoring_pool().run(|| {
        let stats = GLOBAL.stats();
        assert!(stats.mapped_bytes > 0 && stats.mapped_bytes <= 8 << 20, "{stats}");
    });
}
