//! Pools on every kind of page: objects between threads and processes, without page faults or system calls.

#![allow(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::num::NonZeroU8;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::ptr::NonNull;
use std::thread;
use std::time::{Duration, Instant};

use hugearena::arena::View;
use hugearena::backing::BackingKind;
use hugearena::error::Operation;
use hugearena::pool::{self, Pool};
use hugearena::ring::{self, Kind, Mpmc};
use hugearena::{Arena, PageSize, PoolBox, Populate};

use support::child::{SECONDS, fork, wait_for};
use support::{Child, for_each_page_size, without_system_calls};

fn arena(kind: BackingKind) -> Arena {
    Arena::builder().page_size(PageSize::base()).capacity(1 << 20).backing(kind).open().unwrap()
}

#[test]
fn objects_are_inside_the_chunk_and_do_not_overlap() {
    for_each_page_size(2, |size, pages| {
        let arena = Arena::builder().page_size(size).capacity(pages * size.bytes()).strict().open().unwrap();
        for (bytes, headroom, align) in [(1, 0, 8), (1500, 128, 64), (2048, 0, 2048), (1000, 24, 512)] {
            let builder =
                Pool::builder().object_size(bytes).headroom(headroom).align(align).count(50).within_page(size);
            let Ok(pool) = builder.build(&arena) else {
                assert!(builder.bytes_needed().unwrap() > arena.capacity());
                continue;
            };
            let mut held = Vec::new();
            assert!(pool.cache(8).get_bulk(50, &mut held) && pool.get().is_none());
            for (number, object) in held.iter_mut().enumerate() {
                assert_eq!(object.start().addr().get() % align, 0);
                let first = object.start().addr().get() / size.bytes();
                assert_eq!((object.as_ptr().addr().get() + bytes - 1) / size.bytes(), first, "crosses a page");
                // SAFETY: the whole object, headroom included; nobody else has the arena.
                unsafe { object.start().write_bytes(number as u8, headroom + bytes) };
            }
            for (number, object) in held.iter().enumerate() {
                // SAFETY: as above; written before.
                let whole = unsafe { std::slice::from_raw_parts(object.start().as_ptr(), headroom + bytes) };
                assert!(whole.iter().all(|byte| *byte == number as u8));
            }
        }
        assert_eq!(arena.stats().claimed, 0);
    });
}

/// Pages that stand in for larger ones are not contiguous as those would be.
#[test]
fn stand_in_pages_are_no_bound_for_objects() {
    for_each_page_size(0, |size, _| {
        if !size.is_huge() {
            return;
        }
        let pages = support::too_many(size);
        let arena = Arena::builder().page_size(size).capacity(pages * size.bytes()).populate(Populate::Lazy);
        let arena = arena.open().unwrap();
        assert!(arena.obtained().is_fallback());
        let builder = Pool::builder().object_size(64).count(10);
        let error = builder.clone().within_page(size).build(&arena).unwrap_err();
        assert_eq!(error.operation(), Operation::Configure);
        assert!(error.to_string().contains("the arena is on pages of"), "{error}");
        assert_eq!(arena.stats().claimed, 0);
        builder.within_page(arena.obtained().page_size).build(&arena).unwrap();
    });
}

/// Threads that get, pass on, and put, each by another way: at the end everything is at home.
#[test]
fn threads_lose_nothing() {
    const COUNT: usize = 500;
    const TURNS: usize = 3_000;
    let arena = arena(BackingKind::Anonymous);
    let pool = Pool::builder().object_size(64).count(COUNT).build(&arena).unwrap();
    let (mut sender, mut receiver) = pool::channel(128).unwrap();
    thread::scope(|scope| {
        let pool = &pool;
        scope.spawn(move || {
            let mut cache = pool.cache(64);
            let mut burst = Vec::new();
            for turn in 0..TURNS {
                cache.get_burst(turn % 32, &mut burst);
                for object in &mut burst {
                    let index = object.index();
                    object.as_mut_slice().unwrap()[..4].copy_from_slice(&index.to_le_bytes());
                }
                sender.send_burst(&mut burst);
                cache.put_all(burst.drain(..));
            }
        });
        scope.spawn(move || {
            let mut cache = pool.cache(16);
            let mut burst = Vec::new();
            for turn in 0..TURNS {
                receiver.receive_burst(32, &mut burst);
                for object in &burst {
                    assert_eq!(object.as_slice().unwrap()[..4], object.index().to_le_bytes(), "had by two at once");
                }
                if turn % 2 == 0 {
                    cache.put_all(burst.drain(..));
                } else {
                    burst.clear();
                }
                thread::yield_now();
            }
        });
        for _ in 0..2 {
            scope.spawn(move || {
                let mut cache = pool.cache(32);
                let mut raw = [NonNull::dangling(); 48];
                for turn in 0..TURNS {
                    let got = cache.get_raw_burst(&mut raw[..turn % 48]);
                    for object in &raw[..got] {
                        // SAFETY: ours, and 64 bytes long.
                        unsafe { object.write_bytes(turn as u8, 64) };
                    }
                    for object in &raw[..got] {
                        // SAFETY: as above.
                        let bytes: [u8; 64] = unsafe { object.cast().read() };
                        assert_eq!(bytes, [turn as u8; 64], "had by two at once");
                    }
                    // SAFETY: got above, put once.
                    unsafe { cache.put_raw(&raw[..got]) };
                    drop(pool.get());
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.free, stats.in_use, stats.cached), (COUNT, 0, 0), "{stats}");
}

/// The owner lends, a peer in another process works on the bytes and gives the numbers back, some of them false.
#[test]
fn objects_are_lent_to_another_process() {
    const TURNS: u32 = 2_000;
    let arena = arena(BackingKind::Memfd);
    let pool = Pool::builder().object_size(100).headroom(28).count(64).build(&arena).unwrap();
    let chunk = arena.claim(1).unwrap();
    let memory = NonNull::slice_from_raw_parts(chunk.as_ptr(), chunk.len());
    let name = |number| NonZeroU8::new(number).unwrap();
    let half = memory.len() / 2;
    // SAFETY: two halves of a chunk of ours, which lives to the end; nobody else has it yet.
    let [to, from] = [0, half].map(|at| unsafe {
        let part = NonNull::slice_from_raw_parts(chunk.as_ptr().add(at), half);
        ring::init::<[u64; 2]>(part, Kind::Mpmc, 64).unwrap();
        Mpmc::<[u64; 2], _>::attach(part, name(1), ()).unwrap()
    });
    let (ours, theirs) = UnixStream::pair().unwrap();
    let offset = chunk.offset();
    // SAFETY: the child does what follows and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no preconditions. Otherwise it would outlive a parent that has found something wrong, and keep the
        // lock of the pool's tests. The alarm is for a parent that was gone before.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(SECONDS);
        }
        let body = std::panic::AssertUnwindSafe(|| {
            let view = View::receive(&theirs).unwrap();
            // SAFETY: valid as long as the view, which lives to the end.
            let [to, from] = [offset, offset + half]
                .map(|at| unsafe { Mpmc::<[u64; 2], _>::attach(view.get(at, half).unwrap(), name(2), ()).unwrap() });
            loop {
                let mut into = [[0; 2]];
                if to.dequeue_burst(&mut into) != Ok(1) {
                    thread::yield_now();
                    continue;
                }
                let [index, offset] = into[0];
                let mut bytes = view.get(offset as usize, 100).unwrap();
                // SAFETY: lent to us; the owner does not touch it meanwhile.
                unsafe { bytes.as_mut().reverse() };
                // As it should be, and numbers that were never lent.
                for answer in [index, index + 1_000_000, u64::from(u32::MAX)] {
                    while from.enqueue_burst(&[[answer, 0]]) != Ok(1) {
                        thread::yield_now();
                    }
                }
            }
        });
        let _ = std::panic::catch_unwind(body);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(1) };
    }
    arena.share(&ours).unwrap();
    let start = Instant::now();
    let (mut lent, mut back, mut refused) = (0, 0, 0);
    while back < TURNS || refused < 2 * TURNS {
        assert!(start.elapsed() < Duration::from_secs(600), "{lent} lent, {back} back, {refused} refused");
        if lent < TURNS
            && let Some(mut object) = pool.get()
        {
            // SAFETY: not lent yet.
            let bytes = unsafe { object.slice_mut() };
            bytes.fill(0);
            bytes[..4].copy_from_slice(&lent.to_le_bytes());
            let offset = object.offset() as u64;
            let index = object.lend();
            lent += 1;
            while to.enqueue_burst(&[[u64::from(index), offset]]) != Ok(1) {
                thread::yield_now();
            }
        }
        let mut into = [[0; 2]; 8];
        let count = from.dequeue_burst(&mut into).unwrap_or(0);
        for [index, _] in &into[..count] {
            match pool.reclaim(*index as u32) {
                Some(object) => {
                    // SAFETY: back from the peer.
                    let bytes = unsafe { object.slice() };
                    assert!(u32::from_be_bytes(bytes[96..].try_into().unwrap()) < lent, "reversed by the peer");
                    back += 1;
                }
                None => refused += 1,
            }
        }
    }
    // SAFETY: our own child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(wait_for(child).signal(), Some(libc::SIGKILL));
    assert_eq!((back, refused, pool.stats().free), (TURNS, 2 * TURNS, 64));
}

/// Slices where nobody else can write, and only there.
#[test]
fn slices_are_for_memory_that_is_ours_alone() {
    let builder = || Arena::builder().page_size(PageSize::base()).capacity(1 << 20);
    for (builder, expected) in
        [(builder().backing(BackingKind::Anonymous), true), (builder(), false), (builder().read_only_peers(), true)]
    {
        let pool = Pool::builder().object_size(64).count(10).build(&builder.open().unwrap()).unwrap();
        let mut object = pool.get().unwrap();
        assert_eq!((object.as_slice().is_some(), object.as_mut_slice().is_some()), (expected, expected));
    }
}

/// Everything that a loop does.
fn work(
    pool: &Pool,
    cache: &mut hugearena::PoolCache,
    burst: &mut Vec<PoolBox>,
    channel: &mut (pool::Sender, pool::Receiver),
) {
    for turn in 0..200 {
        assert_eq!(cache.get_burst(32, burst), 32);
        for object in burst.iter_mut() {
            // SAFETY: ours; the arena is nobody else's.
            unsafe { object.slice_mut() }.fill(turn as u8);
        }
        assert_eq!(channel.0.send_burst(burst), 32);
        assert_eq!(channel.1.receive_burst(32, burst), 32);
        cache.put_all(burst.drain(..));
        drop(pool.get());
        let index = cache.get().unwrap().lend();
        drop(pool.reclaim(index));
        if turn % 10 == 0 {
            cache.flush();
        }
    }
}

fn made(kind: BackingKind) -> (Pool, hugearena::PoolCache, Vec<PoolBox>, (pool::Sender, pool::Receiver)) {
    let pool = Pool::builder().object_size(2048).count(256).build(&arena(kind)).unwrap();
    let cache = pool.cache(64);
    (pool, cache, Vec::with_capacity(64), pool::channel(64).unwrap())
}

#[test]
fn pools_make_no_system_call() {
    for kind in [BackingKind::Memfd, BackingKind::Anonymous] {
        without_system_calls(|| made(kind.clone()), |(pool, cache, burst, channel)| work(pool, cache, burst, channel));
    }
}

#[test]
fn pools_make_no_page_fault() {
    Child::new().run(|| {
        let (pool, mut cache, mut burst, mut channel) = made(BackingKind::Memfd);
        work(&pool, &mut cache, &mut burst, &mut channel);
        // The kernel may move or take away base pages, and the program's own, at any time; ours would fault each time.
        let faults: Vec<_> = (0..20)
            .map(|_| {
                let before = page_faults();
                work(&pool, &mut cache, &mut burst, &mut channel);
                page_faults() - before
            })
            .collect();
        assert!(faults.contains(&0), "{faults:?}");
    });
}

fn page_faults() -> i64 {
    // SAFETY: a plain struct, filled by the kernel.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage.ru_minflt + usage.ru_majflt
    }
}

/// A child has no shared memory, and whoever held the lock at the fork is not there: it gets nothing, hangs nowhere, and
/// changes nothing for its parent.
#[test]
fn a_child_of_fork_gets_and_breaks_nothing() {
    for kind in [BackingKind::Memfd, BackingKind::Anonymous] {
        let is_private = kind == BackingKind::Anonymous;
        let arena = arena(kind);
        let pool = Pool::builder().object_size(64).count(100).build(&arena).unwrap();
        let mut cache = pool.cache(16);
        let held = cache.get().unwrap();
        // The parent drops what it moves into the closure as well, after the child was made.
        let ours = pool.clone();
        let status = fork(move || {
            assert!(pool.get().is_none(), "home is the parent's");
            let (mut burst, mut raw) = (Vec::new(), [NonNull::dangling(); 3]);
            assert_eq!(cache.get_burst(1, &mut burst), usize::from(is_private), "no more than asked for");
            assert_eq!(cache.get_raw_burst(&mut raw[..1]), usize::from(is_private));
            assert_eq!(cache.get_bulk(1, &mut burst), is_private);
            assert_eq!(cache.get_raw_bulk(&mut raw), is_private);
            let cached: BTreeSet<_> = std::iter::from_fn(|| cache.get()).map(PoolBox::into_raw).collect();
            assert_eq!(cached.is_empty(), !is_private, "a copy, or nothing");
            drop((held, cache, pool.clone(), pool.cache(4), pool));
            drop(arena);
            0
        });
        assert!(status.success());
        assert_eq!((ours.stats().free, ours.stats().objects), (100, 100));
        assert!(ours.get().is_some());
    }
}

/// Private memory on the largest pages is kept from children, and its pools know that.
#[test]
fn a_child_of_fork_has_no_objects_on_pages_of_a_gibibyte() {
    Child::new().needs_pages(PageSize::HUGE_1G, 1).run(|| {
        let arena = Arena::builder().page_size(PageSize::HUGE_1G).backing(BackingKind::Anonymous);
        let arena = arena.capacity(1 << 30).populate(Populate::Lazy).strict().open().unwrap();
        let pool = Pool::builder().object_size(64).count(100).build(&arena).unwrap();
        let mut cache = pool.cache(16);
        let mut held = cache.get().unwrap();
        assert!(held.as_mut_slice().is_some());
        let status = fork(move || {
            assert!(held.as_slice().is_none() && held.as_mut_slice().is_none());
            assert!(cache.get().is_none() && pool.get().is_none());
            assert_eq!(cache.get_burst(1, &mut Vec::new()), 0);
            drop((held, cache, pool));
            0
        });
        assert!(status.success());
    });
}
