//! Rings: what is put in comes out, in order and once, and no slot is touched by two at once.

use std::num::NonZeroU8;

use loom::thread;

use crate::ring::Mpmc;
use crate::{explore, ring};

/// Elements that were put in come out in order, once, and no slot is touched by both sides at once.
fn spsc() {
    explore("rings: one producer, one consumer", 4, || {
        let (mut producer, mut consumer) = ring::spsc::<u8>(2).unwrap();
        let other = thread::spawn(move || {
            let mut put = producer.enqueue_burst(&[1, 2]);
            put += producer.enqueue_burst(&[3, 4][..]);
            put
        });
        let mut seen = Vec::new();
        for _ in 0..3 {
            let mut into = [0; 2];
            let count = consumer.dequeue_burst(&mut into);
            seen.extend_from_slice(&into[..count]);
        }
        let put = other.join().unwrap();
        let mut into = [0; 4];
        let count = consumer.dequeue_burst(&mut into);
        seen.extend_from_slice(&into[..count]);
        assert_eq!(seen, [1, 2, 3, 4][..put]);
    });
}

/// Two producers and a consumer: nothing is lost, nothing comes twice, bulks stay together.
fn mpmc_producers() {
    explore("rings: two producers, one consumer", 3, || {
        let ring = ring::mpmc::<u8>(2).unwrap();
        let put = |items: [u8; 2]| {
            let ring = ring.clone();
            thread::spawn(move || ring.enqueue_bulk(&items) == Ok(true))
        };
        let (first, second) = (put([1, 2]), put([3, 4]));
        let mut seen = Vec::new();
        let take = |seen: &mut Vec<u8>| {
            let mut into = [0; 2];
            let count = ring.dequeue_burst(&mut into).unwrap_or(0);
            seen.extend_from_slice(&into[..count]);
        };
        take(&mut seen);
        let done = [first.join().unwrap(), second.join().unwrap()];
        take(&mut seen);
        take(&mut seen);
        match done {
            [true, true] => assert!(seen == [1, 2, 3, 4] || seen == [3, 4, 1, 2]),
            [true, false] => assert_eq!(seen, [1, 2]),
            [false, true] => assert_eq!(seen, [3, 4]),
            [false, false] => assert!(seen.is_empty()),
        }
    });
}

/// Two consumers: each element goes to one of them.
fn mpmc_consumers() {
    explore("rings: two consumers, one producer", 3, || {
        let ring = ring::mpmc::<u8>(2).unwrap();
        assert_eq!(ring.enqueue_burst(&[1, 2]), Ok(2));
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut into = [0];
                ring.dequeue_burst(&mut into).unwrap_or(0) * usize::from(into[0])
            })
        };
        let mut into = [0];
        let ours = ring.dequeue_burst(&mut into).unwrap_or(0) * usize::from(into[0]);
        let put = ring.enqueue_burst(&[4]).unwrap_or(0) * 4;
        let theirs = other.join().unwrap();
        let mut rest = [0; 2];
        let count = ring.dequeue_burst(&mut rest).unwrap();
        let rest: usize = rest[..count].iter().copied().map(usize::from).sum();
        assert_eq!(ours + theirs + rest, 3 + put);
    });
}

/// A consumer that finds more when it looks again than it did at first.
fn mpmc_looks_twice() {
    explore("rings: elements that come between two looks", 3, || {
        let ring = ring::mpmc::<u8>(2).unwrap();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                assert_eq!(ring.enqueue_burst(&[1]), Ok(1));
                assert_eq!(ring.enqueue_burst(&[2]), Ok(1));
            })
        };
        let mut into = [0; 2];
        let count = ring.dequeue_burst(&mut into).unwrap();
        assert_eq!(into[..count], [1, 2][..count]);
        other.join().unwrap();
    });
}

/// A producer that looks at how far the consumer is, notes it in the ring, writes, and dies; somebody who knows that it
/// is dead takes it out; another producer believes the note. What the dead one saw reaches it through the second.
fn mpmc_expels() {
    explore("rings: a dead producer, who expels it, another producer, a consumer", 3, || {
        let ring = ring::mpmc::<u8>(2).unwrap();
        assert_eq!(ring.enqueue_burst(&[1, 2]), Ok(2));
        let name = NonZeroU8::new(2).unwrap();
        // SAFETY: the ring's own memory, kept.
        let dying = unsafe { Mpmc::<u8>::attach(ring.keep().memory(), name, ring.keep().clone()).unwrap() };
        let consumer = {
            let ring = ring.clone();
            thread::spawn(move || assert_eq!(ring.dequeue_bulk(&mut [0; 2]), Ok(true)))
        };
        let dying = thread::spawn(move || dying.begin_to_enqueue(&[3]).is_some());
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.enqueue_burst(&[4]).unwrap_or(0))
        };
        if dying.join().unwrap() {
            // SAFETY: it is dead.
            assert!(unsafe { ring.expel(name) });
        }
        let put = other.join().unwrap();
        consumer.join().unwrap();
        if put == 0 {
            assert_eq!(ring.enqueue_burst(&[4]), Ok(1));
        }
        let mut into = [0; 2];
        assert_eq!((ring.dequeue_burst(&mut into), into[0]), (Ok(1), 4));
    });
}

pub fn explore_all() {
    spsc();
    mpmc_producers();
    mpmc_consumers();
    mpmc_looks_twice();
    mpmc_expels();
}
