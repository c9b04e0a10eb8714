//! Who has which object: against a naive set, and to the last handle's end.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::backing::BackingKind;
use crate::{Arena, PageSize};

fn arena() -> Arena {
    let builder = Arena::builder().page_size(PageSize::base()).backing(BackingKind::Anonymous);
    builder.capacity(64 << 10).open().unwrap()
}

fn pool(count: usize) -> Pool {
    Pool::builder().object_size(48).count(count).build(&arena()).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    GetBulk(usize),
    GetBurst(usize),
    Get,
    GetHome,
    Put(usize),
    Drop(usize),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40_usize).prop_map(Step::GetBulk),
        (0..40_usize).prop_map(Step::GetBurst),
        Just(Step::Get),
        Just(Step::GetHome),
        (0..40_usize).prop_map(Step::Put),
        (0..40_usize).prop_map(Step::Drop),
        Just(Step::Flush),
    ]
}

proptest! {
    #[test]
    fn every_object_is_in_one_place(
        count in 1..100_usize, capacities in [0..40_usize, 0..40], steps in prop::collection::vec((0..2_usize, step()), 0..100),
    ) {
        let pool = pool(count);
        let mut caches = capacities.map(|capacity| pool.cache(capacity));
        let mut held: Vec<PoolBox> = Vec::new();
        for (which, step) in steps {
            let before = held.len();
            let can = pool.stats().free + caches[which].len();
            let cache = &mut caches[which];
            match step {
                Step::GetBulk(wanted) => prop_assert_eq!(cache.get_bulk(wanted, &mut held), wanted <= can),
                Step::GetBurst(wanted) => prop_assert_eq!(cache.get_burst(wanted, &mut held), wanted.min(can)),
                Step::Get => held.extend(cache.get()),
                Step::GetHome => held.extend(pool.get()),
                Step::Put(some) => cache.put_all(held.drain(before.saturating_sub(some)..)),
                Step::Drop(some) => held.truncate(before.saturating_sub(some)),
                Step::Flush => cache.flush(),
            }
            let stats = pool.stats();
            prop_assert_eq!(stats.in_use, held.len());
            prop_assert_eq!(stats.cached, caches.iter().map(PoolCache::len).sum::<usize>());
            prop_assert!(caches.iter().all(|cache| cache.len() <= cache.capacity()));
            let distinct: BTreeSet<u32> = held.iter().map(PoolBox::index).collect();
            prop_assert_eq!(distinct.len(), held.len());
        }
        drop((held, caches));
        prop_assert_eq!(pool.stats().free, count);
    }
}

#[test]
fn raw_objects_more_than_a_cache_holds() {
    let pool = pool(64);
    let mut cache = pool.cache(8);
    let mut raw = [NonNull::dangling(); 65];
    assert!(!cache.get_raw_bulk(&mut raw));
    assert_eq!((pool.stats().in_use, pool.stats().exhausted), (0, 1));
    assert!(cache.get_raw_bulk(&mut raw[..5]));
    assert_eq!(cache.get_raw_burst(&mut raw[5..]), 59);
    assert_eq!((pool.stats().in_use, pool.stats().exhausted), (64, 1), "a burst that got some");
    assert_eq!((cache.get_raw_burst(&mut raw[64..]), cache.get_burst(0, &mut Vec::new())), (0, 0));
    assert_eq!(pool.stats().exhausted, 2, "one that got none, and one that wanted none");
    let distinct: BTreeSet<_> = raw[..64].iter().map(|object| pool.index_of(*object).unwrap()).collect();
    assert_eq!(distinct.len(), 64);
    // SAFETY: got above, put once.
    unsafe { cache.put_raw(&raw[..64]) };
    assert!(cache.get_bulk(64, &mut Vec::new()), "and dropped at once");
    drop(cache);
    assert_eq!(pool.stats().free, 64);
}

#[test]
fn the_chunk_goes_with_the_last_of_handles_caches_and_objects() {
    for order in 0..6 {
        let arena = arena();
        let claimed = || arena.stats().claimed;
        let pool = Pool::builder().object_size(48).count(10).build(&arena).unwrap();
        let mut cache = pool.cache(4);
        let object = cache.get().unwrap();
        let mut parts: [Option<Box<dyn std::any::Any>>; 3] =
            [Some(Box::new(pool)), Some(Box::new(cache)), Some(Box::new(object))];
        let first = order % 3;
        let second = (first + 1 + order / 3) % 3;
        parts[first] = None;
        assert_eq!(claimed(), 1);
        parts[second] = None;
        assert_eq!(claimed(), 1);
        drop(parts);
        assert_eq!(claimed(), 0, "order {order}");
    }
}

#[test]
fn what_is_lent_comes_back_once() {
    let pool = pool(10);
    let object = pool.get().unwrap();
    let index = object.index();
    assert!(pool.reclaim(index).is_none(), "held, not lent");
    assert_eq!(object.lend(), index);
    for other in (0..10).filter(|other| *other != index).chain([10, u32::MAX]) {
        assert!(pool.reclaim(other).is_none());
    }
    assert_eq!(pool.stats().in_use, 1);
    let object = pool.reclaim(index).unwrap();
    assert_eq!(object.index(), index);
    assert!(pool.reclaim(index).is_none(), "twice");
    drop(object);
    assert!(pool.reclaim(index).is_none(), "at home");
    assert_eq!(pool.stats().free, 10);
}

#[test]
fn numbers_addresses_and_offsets_agree() {
    let arena = arena();
    let _before = arena.claim(3).unwrap();
    let pool = Pool::builder().object_size(100).headroom(28).count(50).build(&arena).unwrap();
    let object = pool.get().unwrap();
    let index = object.index();
    assert_eq!(pool.start_of(index), Some(object.start()));
    assert_eq!(pool.index_of(object.start()), Some(index));
    assert_eq!(pool.object_at(object.offset()), Some((index, 28)));
    assert_eq!(object.as_ptr().addr().get() - object.start().addr().get(), 28);
    assert_eq!((object.len(), object.headroom(), pool.stride()), (100, 28, 192));
    assert_eq!((pool.start_of(50), pool.object_at(0), pool.object_at(usize::MAX)), (None, None, None));
    assert_eq!(pool.index_of(object.as_ptr()), None, "not a start");
}

#[test]
fn handles_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<(Pool, PoolCache, PoolBox)>();
}

#[test]
fn what_is_left_in_a_channel_goes_home() {
    let pools = [pool(40), pool(40)];
    for sender_first in [true, false] {
        let (mut sender, mut receiver) = channel(32).unwrap();
        let mut burst: Vec<PoolBox> = pools.iter().flat_map(|pool| (0..20).map(|_| pool.get().unwrap())).collect();
        let order: Vec<_> = burst.iter().map(PoolBox::start).collect();
        assert_eq!((sender.send_burst(&mut burst), burst.len(), sender.len()), (32, 8, 32));
        let mut received = Vec::new();
        assert_eq!(receiver.receive_burst(3, &mut received), 3);
        assert_eq!(sender.send_burst(&mut burst), 3);
        assert_eq!(receiver.receive_burst(30, &mut received), 30);
        assert_eq!(received.iter().map(PoolBox::start).collect::<Vec<_>>(), order[..33]);
        drop((burst, received));
        assert_eq!(pools[0].stats().in_use + pools[1].stats().in_use, 2);
        if sender_first {
            drop(sender);
            drop(receiver);
        } else {
            drop(receiver);
            sender.send_burst(&mut vec![pools[0].get().unwrap()]);
            drop(sender);
        }
        assert!(pools.iter().all(|pool| pool.stats().free == 40));
    }
}

#[test]
fn objects_of_another_pool_go_home() {
    let (ours, theirs) = (pool(10), pool(10));
    let mut cache = ours.cache(4);
    cache.put(theirs.get().unwrap());
    assert_eq!((cache.len(), theirs.stats().free), (0, 10));
}

#[test]
fn what_does_not_fit_is_refused() {
    let arena = arena();
    let builder = Pool::builder().object_size(2048).count(1000);
    let error = builder.build(&arena).unwrap_err();
    assert_eq!(error.operation(), crate::error::Operation::Claim);
    assert!(error.to_string().contains("16 of 16 are free"), "{error}");
    let error = builder.build_in(arena.claim(1).unwrap()).unwrap_err();
    assert_eq!(error.operation(), crate::error::Operation::Configure);
    let error = Pool::builder().object_size(64).align(8192).count(1).build(&arena).unwrap_err();
    assert!(error.to_string().contains("larger than the arena's pages"), "{error}");
    assert_eq!(arena.stats().claimed, 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "was put twice")]
fn a_double_put_is_noticed() {
    let pool = pool(10);
    let mut cache = pool.cache(4);
    let object = cache.get().unwrap().into_raw();
    // SAFETY: it is not: that is the test. Nothing uses the object.
    unsafe { cache.put_raw(&[object, object]) };
}
