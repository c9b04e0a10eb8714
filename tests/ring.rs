//! Rings between threads and between processes: nothing lost, nothing twice, in order; and what a peer's death leaves.

#![allow(unsafe_code)]

mod support;

use std::num::NonZeroU8;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use hugearena::arena::View;
use hugearena::ring::{self, Consumer, Kind, Mpmc, Producer, Refused};
use hugearena::{Arena, Chunk, PageSize};

use support::child::{SECONDS, fork, wait_for};
use support::without_system_calls;

/// Bursts of changing length, so that they wrap at every place.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=40).cycle()
}

#[test]
fn threads_get_everything_in_order() {
    const COUNT: u32 = 300_000;
    let (mut producer, mut consumer) = ring::spsc::<u32>(64).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let items: Vec<u32> = (0..COUNT).collect();
            let mut done = 0;
            for (turn, length) in lengths().enumerate() {
                let burst = &items[done..(done + length).min(items.len())];
                done += if length % 2 == 0 {
                    producer.enqueue_burst(burst)
                } else {
                    usize::from(producer.enqueue_bulk(burst)) * burst.len()
                };
                if done == items.len() {
                    break;
                }
                pause(turn);
            }
        });
        let mut next = 0;
        let mut into = [0; 40];
        for (turn, length) in lengths().enumerate() {
            let count = consumer.dequeue_burst(&mut into[..length]);
            for item in &into[..count] {
                assert_eq!(*item, next);
                next += 1;
            }
            if next == COUNT {
                break;
            }
            pause(turn);
        }
        assert!(consumer.is_empty());
    });
}

#[test]
fn many_threads_lose_nothing_and_get_nothing_twice() {
    const PRODUCERS: u64 = 3;
    const COUNT: u64 = 40_000;
    let ring = ring::mpmc::<u64>(64).unwrap();
    let left = AtomicU64::new(PRODUCERS * COUNT);
    let seen: Vec<Vec<u64>> = thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let ring = &ring;
            scope.spawn(move || {
                let items: Vec<u64> = (0..COUNT).map(|number| producer << 32 | number).collect();
                let mut done = 0;
                for (turn, length) in lengths().enumerate() {
                    let burst = &items[done..(done + length).min(items.len())];
                    // Stalled: the holder is off its CPU. Nothing was put in.
                    done += ring.enqueue_burst(burst).unwrap_or(0);
                    if done == items.len() {
                        break;
                    }
                    pause(turn);
                }
            });
        }
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Vec::new();
                    let mut into = [0; 40];
                    for (turn, length) in lengths().enumerate() {
                        let count = ring.dequeue_burst(&mut into[..length]).unwrap_or(0);
                        seen.extend_from_slice(&into[..count]);
                        if left.fetch_sub(count as u64, Relaxed) == count as u64 || left.load(Relaxed) == 0 {
                            break;
                        }
                        pause(turn);
                    }
                    seen
                })
            })
            .collect();
        consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
    });
    // Each consumer sees each producer's in order; together they see all of them once.
    let mut all = Vec::new();
    for seen in seen {
        for producer in 0..PRODUCERS {
            let own: Vec<_> = seen.iter().filter(|item| **item >> 32 == producer).collect();
            assert!(own.is_sorted());
        }
        all.extend(seen);
    }
    all.sort_unstable();
    let expected: Vec<u64> =
        (0..PRODUCERS).flat_map(|producer| (0..COUNT).map(move |number| producer << 32 | number)).collect();
    assert!(all == expected, "{} of {} elements", all.len(), expected.len());
}

/// An arena that another process can have, and a chunk of it for a ring.
fn shared() -> (Arena, Arc<Chunk>) {
    let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open().unwrap();
    let chunk = Arc::new(arena.claim(16).unwrap());
    (arena, chunk)
}

fn memory(chunk: &Chunk) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(chunk.as_ptr(), chunk.len())
}

/// Runs `peer` in a process that has the arena at another address, and nothing else.
fn peer_process(arena: &Arena, offset: usize, len: usize, peer: impl FnOnce(NonNull<[u8]>, Arc<View>)) -> libc::pid_t {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // SAFETY: the child runs `peer` and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: no preconditions. A peer whose other side has found something wrong would wait for ever.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(SECONDS);
        }
        let body = std::panic::AssertUnwindSafe(|| {
            let view = Arc::new(View::receive(&theirs).unwrap());
            peer(view.get(offset, len).unwrap(), view.clone());
        });
        let code = i32::from(std::panic::catch_unwind(body).is_err());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    arena.share(&ours).unwrap();
    child
}

const PATIENCE: Duration = Duration::from_secs(600);

/// Calls until it says yes; a peer that has died must not make a test hang.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    for turn in 0.. {
        if done() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        pause(turn);
    }
}

/// Between two turns. Who leaves the CPU after each of them waits that often for a busy machine to give it back.
fn pause(turn: usize) {
    if turn % 64 == 63 { thread::yield_now() } else { std::hint::spin_loop() }
}

#[test]
fn processes_get_everything_in_order() {
    const COUNT: u64 = 100_000;
    let (arena, chunk) = shared();
    // SAFETY: a chunk of ours; the peer produces, we consume.
    let mut consumer = unsafe {
        ring::init::<u64>(memory(&chunk), Kind::Spsc, 256).unwrap();
        Consumer::<u64, _>::attach(memory(&chunk), chunk.clone()).unwrap()
    };
    let child = peer_process(&arena, chunk.offset(), chunk.len(), |memory, view| {
        // SAFETY: valid as long as the view; the only producer.
        let mut producer = unsafe { Producer::<u64, _>::attach(memory, view).unwrap() };
        let items: Vec<u64> = (0..COUNT).collect();
        let mut done = 0;
        until("the consumer takes", || {
            done += producer.enqueue_burst(&items[done..(done + 37).min(items.len())]);
            done == items.len()
        });
    });
    let mut next = 0;
    until("the producer puts", || {
        let mut into = [0; 32];
        let count = consumer.dequeue_burst(&mut into);
        for item in &into[..count] {
            assert_eq!(*item, next);
            next += 1;
        }
        next == COUNT
    });
    assert!(wait_for(child).success());
}

/// SIGKILL at whatever instruction: the consumer sees whole bursts, and the next producer goes on.
#[test]
fn a_killed_producer_leaves_whole_bursts() {
    let (arena, chunk) = shared();
    // SAFETY: a chunk of ours; the peers produce one after the other, we consume.
    let mut consumer = unsafe {
        ring::init::<[u64; 4]>(memory(&chunk), Kind::Spsc, 256).unwrap();
        Consumer::<[u64; 4], _>::attach(memory(&chunk), chunk.clone()).unwrap()
    };
    let mut next = 0;
    for round in 0..20_usize {
        let child = peer_process(&arena, chunk.offset(), chunk.len(), move |memory, view| {
            // SAFETY: valid as long as the view; the only producer that lives.
            let mut producer = unsafe { Producer::<[u64; 4], _>::attach(memory, view).unwrap() };
            for number in next.. {
                // Bursts of one: the number says how far the dead ones came.
                until("the consumer takes", || producer.enqueue_bulk(&[[number; 4]]));
            }
        });
        let mut take = |into: &mut [[u64; 4]]| {
            let count = consumer.dequeue_burst(into);
            for item in &into[..count] {
                assert_eq!(*item, [next; 4], "whole, and in order");
                next += 1;
            }
            count
        };
        let mut rest = 500 + round * 37;
        until("the producer puts", || {
            rest = rest.saturating_sub(take(&mut [[0; 4]; 16]));
            rest == 0
        });
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(wait_for(child).signal(), Some(libc::SIGKILL));
        while take(&mut [[0; 4]; 16]) > 0 {}
    }
}

/// The same with several producers: what a dead one began does not hold up the others once it is expelled, and what
/// any of them was told is in the ring comes out.
#[test]
fn a_killed_producer_is_expelled() {
    const NAMES: [u8; 2] = [1, 2];
    let name = |number| NonZeroU8::new(number).unwrap();
    let (arena, chunk) = shared();
    // SAFETY: a chunk of ours.
    let ours = unsafe {
        ring::init::<[u64; 8]>(memory(&chunk), Kind::Mpmc, 64).unwrap();
        Mpmc::<[u64; 8], _>::attach(memory(&chunk), name(9), chunk.clone()).unwrap()
    };
    for round in 0..30 {
        let children = NAMES.map(|number| {
            peer_process(&arena, chunk.offset(), chunk.len(), move |memory, view| {
                // SAFETY: valid as long as the view.
                let ring = unsafe { Mpmc::<[u64; 8], _>::attach(memory, name(number), view).unwrap() };
                let burst: Vec<[u64; 8]> = (0..32).map(|at| [at; 8]).collect();
                // For ever: it is killed.
                until("it is killed", || {
                    let _ = ring.enqueue_bulk(&burst);
                    false
                });
            })
        });
        let mut place = 0;
        let mut taken = 0;
        let mut take = || {
            let mut into = [[0; 8]; 32];
            let Ok(count) = ours.dequeue_burst(&mut into) else { return 0 };
            for item in &into[..count] {
                assert_eq!(*item, [place % 32; 8], "bulks stay whole and together");
                place += 1;
            }
            taken += count;
            count
        };
        let mut rest: usize = 2_000 + round * 61;
        until("the producers put", || {
            rest = rest.saturating_sub(take());
            rest == 0
        });
        for child in children {
            // SAFETY: our own children.
            unsafe { libc::kill(child, libc::SIGKILL) };
            assert_eq!(wait_for(child).signal(), Some(libc::SIGKILL));
        }
        // The consumers' side never waits for producers.
        while take() > 0 {}
        if let (Some(dead), None) = ours.holders() {
            assert_eq!(ours.enqueue_burst(&[[0; 8]]), Err(Refused::Stalled { by: dead }));
            // SAFETY: both are dead.
            assert!(unsafe { ours.expel(dead) });
        }
        let burst: Vec<[u64; 8]> = (0..32).map(|at| [at; 8]).collect();
        assert_eq!(ours.enqueue_bulk(&burst), Ok(true));
        assert_eq!(take(), 32);
        assert!(ours.is_empty());
    }
}

/// Elements of which only the first can be read: whoever copies them dies in the middle.
fn deadly() -> &'static [[u64; 8]] {
    let page = PageSize::base().bytes();
    // SAFETY: a new mapping, of which the second page is made inaccessible. The slice reaches into that: to read there is
    // the end of this process, which is what it is for.
    unsafe {
        let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        let start: *mut u8 = libc::mmap(std::ptr::null_mut(), 2 * page, access, kind, -1, 0).cast();
        assert_eq!(libc::mprotect(start.add(page).cast(), page, libc::PROT_NONE), 0);
        std::slice::from_raw_parts(start.add(page - 64).cast(), 8)
    }
}

/// The other side sees nothing of it, and the next producer goes on.
#[test]
fn death_in_mid_enqueue_leaves_spsc_unaffected() {
    let (arena, chunk) = shared();
    // SAFETY: a chunk of ours; the peer produces, then we do.
    let mut consumer = unsafe {
        ring::init::<[u64; 8]>(memory(&chunk), Kind::Spsc, 64).unwrap();
        Consumer::<[u64; 8], _>::attach(memory(&chunk), chunk.clone()).unwrap()
    };
    let status = wait_for(peer_process(&arena, chunk.offset(), chunk.len(), |memory, view| {
        // SAFETY: valid as long as the view; the only producer.
        let mut producer = unsafe { Producer::<[u64; 8], _>::attach(memory, view).unwrap() };
        assert!(producer.enqueue_bulk(&[[1; 8], [2; 8]]));
        let _ = producer.enqueue_bulk(deadly());
    }));
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    let mut into = [[0; 8]; 8];
    assert_eq!((consumer.dequeue_burst(&mut into), into[..2].as_flattened()), (2, [[1; 8], [2; 8]].as_flattened()));
    // SAFETY: the other producer is dead.
    let mut producer = unsafe { Producer::<[u64; 8], _>::attach(memory(&chunk), chunk.clone()).unwrap() };
    assert!(producer.enqueue_bulk(&[[3; 8]; 8]) && consumer.dequeue_bulk(&mut into));
    assert_eq!(into, [[3; 8]; 8]);
}

/// The other producers are told who it was, do not wait, and go on when it is expelled; the consumers never notice.
#[test]
fn death_in_mid_enqueue_stalls_mpmc_until_it_is_expelled() {
    let (arena, chunk) = shared();
    let name = |number| NonZeroU8::new(number).unwrap();
    // SAFETY: a chunk of ours.
    let ours = unsafe {
        ring::init::<[u64; 8]>(memory(&chunk), Kind::Mpmc, 64).unwrap();
        Mpmc::<[u64; 8], _>::attach(memory(&chunk), name(1), chunk.clone()).unwrap()
    };
    let status = wait_for(peer_process(&arena, chunk.offset(), chunk.len(), move |memory, view| {
        // SAFETY: valid as long as the view.
        let ring = unsafe { Mpmc::<[u64; 8], _>::attach(memory, name(2), view).unwrap() };
        assert_eq!(ring.enqueue_bulk(&[[1; 8], [2; 8]]), Ok(true));
        let _ = ring.enqueue_bulk(deadly());
    }));
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    assert_eq!(ours.holders(), (Some(name(2)), None));
    for _ in 0..3 {
        assert_eq!(ours.enqueue_bulk(&[[9; 8]]), Err(Refused::Stalled { by: name(2) }));
    }
    let mut into = [[0; 8]; 8];
    assert_eq!((ours.dequeue_burst(&mut into), into[..2].as_flattened()), (Ok(2), [[1; 8], [2; 8]].as_flattened()));
    assert_eq!(ours.dequeue_burst(&mut into), Ok(0));
    // SAFETY: it is dead.
    assert!(unsafe { ours.expel(name(2)) });
    assert_eq!((ours.enqueue_bulk(&[[3; 8]; 8]), ours.dequeue_bulk(&mut into)), (Ok(true), Ok(true)));
    assert_eq!(into, [[3; 8]; 8]);
}

/// A consumer that dies gives back what it had not finished taking.
#[test]
fn what_a_killed_consumer_was_taking_comes_again() {
    let (arena, chunk) = shared();
    // SAFETY: a chunk of ours; the peer takes, then we do.
    let mut producer = unsafe {
        ring::init::<u64>(memory(&chunk), Kind::Spsc, 64).unwrap();
        Producer::<u64, _>::attach(memory(&chunk), chunk.clone()).unwrap()
    };
    assert!(producer.enqueue_bulk(&[1, 2, 3, 4]));
    let status = wait_for(peer_process(&arena, chunk.offset(), chunk.len(), |memory, view| {
        // SAFETY: valid as long as the view; the only consumer.
        let mut consumer = unsafe { Consumer::<u64, _>::attach(memory, view).unwrap() };
        let mut into = [0; 3];
        assert!(consumer.dequeue_bulk(&mut into));
        std::process::abort();
    }));
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    // SAFETY: the other consumer is dead.
    let mut consumer = unsafe { Consumer::<u64, _>::attach(memory(&chunk), chunk.clone()).unwrap() };
    let mut into = [0; 4];
    assert_eq!((consumer.dequeue_burst(&mut into), into[0]), (1, 4));
}

#[test]
fn rings_make_no_system_call() {
    let rings = || (ring::spsc::<u64>(256).unwrap(), ring::mpmc::<u64>(256).unwrap());
    without_system_calls(rings, |((producer, consumer), mpmc)| {
        let mut into = [0; 32];
        for _ in 0..10_000 {
            let done = producer.enqueue_bulk(&into) && consumer.dequeue_bulk(&mut into);
            let both = mpmc.enqueue_bulk(&into) == Ok(true) && mpmc.dequeue_bulk(&mut into) == Ok(true);
            assert!(done && both && !consumer.dequeue_bulk(&mut into) && mpmc.dequeue_burst(&mut into) == Ok(0));
        }
    });
}

/// A forked child has the memory of a ring that is not shared, as a copy of its own.
#[test]
fn a_child_of_fork_has_a_ring_of_its_own() {
    let (mut producer, mut consumer) = ring::spsc::<u8>(8).unwrap();
    assert!(producer.enqueue_bulk(&[1]));
    let status = fork(|| {
        let mut into = [0; 8];
        i32::from(consumer.dequeue_burst(&mut into) != 1 || !producer.enqueue_bulk(&[7; 8]))
    });
    assert!(status.success());
    assert_eq!(consumer.len(), 1);
}
