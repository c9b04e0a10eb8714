//! The heap's lock, and what it hands over.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::explore;
use crate::lock::Lock;

loom::lazy_static! {
    static ref FUTEX: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// The kernel's side of every futex of a model.
pub fn with_futex(work: impl FnOnce(&Mutex<()>, &Condvar)) {
    work(&FUTEX.0, &FUTEX.1);
}

/// A value that loom watches: a read and a write at the same time are an error.
struct Watched(UnsafeCell<u32>);

impl Watched {
    fn new(value: u32) -> Watched {
        Watched(UnsafeCell::new(value))
    }

    fn add(&self, more: u32) {
        // SAFETY: loom panics if anybody else has access now.
        self.0.with_mut(|value| unsafe { *value += more });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }
}

// SAFETY: loom finds every access that is not ordered.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

/// A lock whose word is there before other threads know of it.
fn lock<T>(value: T) -> Lock<T> {
    let lock = Lock::new(value);
    drop(lock.try_lock());
    lock
}

pub fn explore_all() {
    explore("lock: one holder at a time, nobody sleeps for ever", 3, || {
        let shared = Arc::new(lock(Watched::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || (0..2).for_each(|_| shared.lock().add(1)))
            })
            .collect();
        shared.lock().add(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(shared.lock().get(), 5);
    });

    explore("lock: who does not wait gets it or not", 3, || {
        let shared = Arc::new(lock(Watched::new(0)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || match other.try_lock() {
            Some(value) => {
                value.add(1);
                1
            }
            None => 0,
        });
        shared.lock().add(1);
        let got = thread.join().unwrap();
        assert_eq!(shared.lock().get(), 1 + got);
    });

    explore("depot: a block's contents go with it from thread to thread", 3, depot);
    explore("fork: the child's copy is whole, and nobody waits for ever", 2, fork);
}

/// A depot as `heap/central.rs` has it, of two blocks: threads take one, write to it, and give it back; no block is
/// had twice, and what the last owner wrote is seen.
fn depot() {
    let blocks = Arc::new([Watched::new(0), Watched::new(0)]);
    let depot = Arc::new(lock(vec![0usize, 1]));
    let work = |turns: u32| {
        let (blocks, depot) = (Arc::clone(&blocks), Arc::clone(&depot));
        move || {
            let mut written = 0;
            for _ in 0..turns {
                let taken = depot.lock().pop();
                if let Some(block) = taken {
                    blocks[block].add(1);
                    written += 1;
                    depot.lock().push(block);
                }
            }
            written
        }
    };
    let threads = [thread::spawn(work(2)), thread::spawn(work(1))];
    let mut written = work(1)();
    for thread in threads {
        written += thread.join().unwrap();
    }
    assert_eq!(depot.lock().len(), 2);
    assert_eq!(blocks[0].get() + blocks[1].get(), written);
}

/// Locks in the heap's order: growth, class, runs. What a fork copies while it holds all of them is consistent: a
/// unit is free, or in a span of the class, never both and never neither.
fn fork() {
    struct Heap {
        growth: Lock<Watched>,
        class: Lock<Watched>,
        runs: Lock<Watched>,
    }
    let heap = Heap { growth: lock(Watched::new(0)), class: lock(Watched::new(0)), runs: lock(Watched::new(1)) };
    let heap = Arc::new(heap);
    let spawn = |work: fn(&Heap)| {
        let heap = Arc::clone(&heap);
        thread::spawn(move || work(&heap))
    };
    let grower = spawn(|heap| {
        let growth = heap.growth.lock();
        growth.add(1);
        heap.runs.lock().add(1);
    });
    let maker = spawn(|heap| {
        // A span is made: the unit goes from the runs to the class, under the class's lock throughout.
        let class = heap.class.lock();
        let runs = heap.runs.lock();
        runs.add(u32::MAX);
        drop(runs);
        class.add(1);
    });
    // The handlers of `heap/fork.rs`.
    heap.growth.acquire();
    heap.class.acquire();
    heap.runs.acquire();
    // SAFETY: taken above, by this thread.
    unsafe {
        heap.runs.release();
        heap.class.release();
        heap.growth.release();
    }
    let copy = {
        let growth = heap.growth.lock();
        let class = heap.class.lock();
        let runs = heap.runs.lock();
        (growth.get(), class.get(), runs.get())
    };
    assert_eq!(1 + copy.0, copy.1 + copy.2, "units are neither lost nor doubled in the copy");
    grower.join().unwrap();
    maker.join().unwrap();
}
