//! Against a naive queue, one operation after the other. What threads do to each other is in `tests/loom` and
//! `tests/ring.rs`.

use super::*;

mod oracle {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// What the tests ask of both kinds.
    trait Ring {
        fn put(&mut self, items: &[u32], all: bool) -> usize;
        fn take(&mut self, into: &mut [u32], all: bool) -> usize;
        fn len(&self) -> usize;
    }

    impl Ring for (Producer<u32>, Consumer<u32>) {
        fn put(&mut self, items: &[u32], all: bool) -> usize {
            if all { usize::from(self.0.enqueue_bulk(items)) * items.len() } else { self.0.enqueue_burst(items) }
        }

        fn take(&mut self, into: &mut [u32], all: bool) -> usize {
            if all { usize::from(self.1.dequeue_bulk(into)) * into.len() } else { self.1.dequeue_burst(into) }
        }

        fn len(&self) -> usize {
            assert_eq!(self.0.len(), self.1.len());
            self.0.len()
        }
    }

    impl Ring for Mpmc<u32> {
        fn put(&mut self, items: &[u32], all: bool) -> usize {
            if all {
                usize::from(self.enqueue_bulk(items).unwrap()) * items.len()
            } else {
                self.enqueue_burst(items).unwrap()
            }
        }

        fn take(&mut self, into: &mut [u32], all: bool) -> usize {
            if all {
                usize::from(self.dequeue_bulk(into).unwrap()) * into.len()
            } else {
                self.dequeue_burst(into).unwrap()
            }
        }

        fn len(&self) -> usize {
            Mpmc::len(self)
        }
    }

    /// Put or take, all or as many as can be, how many.
    type Step = (bool, bool, usize);

    fn follows_the_oracle(mut ring: impl Ring, capacity: usize, steps: &[Step]) {
        let mut oracle = VecDeque::new();
        let mut next = 0..;
        for (put, all, count) in steps.iter().copied() {
            let can = if put { capacity - oracle.len() } else { oracle.len() };
            let expected = if all && count > can { 0 } else { count.min(can) };
            if put {
                let items: Vec<u32> = next.by_ref().take(count).collect();
                assert_eq!(ring.put(&items, all), expected);
                oracle.extend(&items[..expected]);
            } else {
                let mut into = vec![u32::MAX; count];
                assert_eq!(ring.take(&mut into, all), expected);
                let taken: Vec<u32> = oracle.drain(..expected).collect();
                assert_eq!(into[..expected], taken);
                assert!(into[expected..].iter().all(|item| *item == u32::MAX));
            }
            assert_eq!(ring.len(), oracle.len());
        }
    }

    proptest! {
        #[test]
        fn rings_are_queues(
            log in 0..6_u32,
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0..80_usize), 0..200),
        ) {
            let capacity = 1 << log;
            follows_the_oracle(spsc::<u32>(capacity).unwrap(), capacity, &steps);
            follows_the_oracle(mpmc::<u32>(capacity).unwrap(), capacity, &steps);
        }
    }
}

mod edges {
    use std::ptr::NonNull;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::ring::memory::{Header, Memory};

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        for capacity in [0, 3, 1000, MAX_CAPACITY * 2, usize::MAX] {
            assert_eq!(layout::<u8>(capacity).unwrap_err().operation(), Operation::Configure);
        }
        assert!(layout::<()>(1).is_err());
        assert!(layout::<[u64; 1 << 40]>(MAX_CAPACITY).is_err());
        assert_eq!(layout::<u8>(1).unwrap().size(), 384 + 1);
    }

    fn place<T: Pod>(capacity: usize) -> Arc<Block> {
        Arc::new(Block::new(layout::<T>(capacity).unwrap()))
    }

    #[test]
    fn what_is_found_in_memory_is_checked() {
        let block = place::<u64>(8);
        let attach = |memory| {
            // SAFETY: the block lives; no second consumer is used.
            unsafe { Consumer::<u64, _>::attach(memory, block.clone()) }.map(drop).unwrap_err().to_string()
        };
        assert!(attach(block.memory()).contains("there is none"));
        // SAFETY: nobody uses the block.
        unsafe { init::<u64>(block.memory(), Kind::Mpmc, 8).unwrap() };
        assert!(attach(block.memory()).contains("it is not Spsc"));
        // SAFETY: as above.
        unsafe { init::<u32>(block.memory(), Kind::Spsc, 8).unwrap() };
        assert!(attach(block.memory()).contains("its elements are of 4 bytes, not of 8"));
        // SAFETY: as above.
        unsafe { init::<u64>(block.memory(), Kind::Spsc, 8).unwrap() };
        let short = NonNull::slice_from_raw_parts(block.memory().cast(), block.memory().len() - 1);
        assert!(attach(short).contains("needs"));
        let unaligned = NonNull::slice_from_raw_parts(
            NonNull::new(block.memory().cast::<u8>().as_ptr().wrapping_add(8)).unwrap(),
            400,
        );
        assert!(attach(unaligned).contains("aligned to 128"));
        // The capacity, the sixth word, is a peer's to write.
        for capacity in [0, 7, 16, 1 << 40, u64::MAX] {
            // SAFETY: inside the block; nobody uses it.
            unsafe { block.memory().cast::<u64>().add(3).write(capacity) };
            attach(block.memory());
        }
    }

    #[test]
    fn positions_that_cannot_be_are_cut_or_refused() {
        let (mut producer, mut consumer) = spsc::<u8>(4).unwrap();
        assert!(producer.enqueue_bulk(&[1, 2, 3]));
        let block = place::<u8>(4);
        // SAFETY: nobody else uses the block.
        let (memory, header) = unsafe {
            init::<u8>(block.memory(), Kind::Spsc, 4).unwrap();
            (Memory::<u8>::attach(block.memory(), Kind::Spsc).unwrap(), block.memory().cast::<Header>().as_ref())
        };
        assert_eq!(memory.capacity(), 4);
        // SAFETY: one producer and one consumer, used by this thread.
        let (mut liar, mut victim) = unsafe {
            (
                Producer::<u8, _>::attach(block.memory(), block.clone()).unwrap(),
                Consumer::<u8, _>::attach(block.memory(), block.clone()).unwrap(),
            )
        };
        for lie in [u64::MAX, 1 << 40, 5] {
            header.producers.word.store(lie, Relaxed);
            let mut into = [0; 9];
            assert_eq!(victim.dequeue_burst(&mut into), 4, "what fits");
            header.consumers.word.store(lie, Relaxed);
            assert!(liar.enqueue_burst(&[0; 9]) <= 4);
        }
        // SAFETY: the other ends are not used any more.
        assert!(unsafe { Consumer::<u8, _>::attach(block.memory(), block.clone()) }.is_err());
        let mut into = [0; 3];
        assert!(consumer.dequeue_bulk(&mut into));
        assert_eq!(into, [1, 2, 3]);
    }

    /// A peer that began to enqueue or dequeue and died there.
    #[test]
    fn a_dead_peer_stalls_its_side_until_it_is_expelled() {
        let ring = mpmc::<u8>(4).unwrap();
        let header = {
            let memory: NonNull<[u8]> = ring.keep().memory();
            // SAFETY: the ring lives to the end of the test.
            unsafe { memory.cast::<Header>().as_ref() }
        };
        let dead = NonZeroU8::new(7).unwrap();
        assert_eq!(ring.enqueue_burst(&[1, 2]), Ok(2));
        header.producers.word.fetch_or(7, Relaxed);
        assert_eq!(ring.enqueue_burst(&[3]), Err(Refused::Stalled { by: dead }));
        assert_eq!(ring.enqueue_bulk(&[3]), Err(Refused::Stalled { by: dead }));
        assert_eq!(ring.holders(), (Some(dead), None));
        let mut into = [0; 4];
        assert_eq!(ring.dequeue_burst(&mut into), Ok(2), "what was published is there");
        assert_eq!(ring.dequeue_burst(&mut into), Ok(0), "and nothing else");
        header.consumers.word.fetch_or(7, Relaxed);
        // SAFETY: it never lived.
        unsafe {
            assert!(!ring.expel(NonZeroU8::new(6).unwrap()));
            assert!(ring.expel(dead));
            assert!(!ring.expel(dead));
        }
        assert_eq!(ring.enqueue_bulk(&[3, 4, 5, 6]), Ok(true));
        assert_eq!(ring.enqueue_burst(&[7]), Ok(0));
        assert_eq!(ring.dequeue_bulk(&mut into), Ok(true));
        assert_eq!(into, [3, 4, 5, 6]);
    }

    /// Stopped in the middle, taken for dead, and on again when others have gone on.
    #[test]
    fn who_is_expelled_alive_learns_it_and_does_not_move_the_ring_back() {
        let ring = mpmc::<u8>(4).unwrap();
        let at = ring.begin_to_enqueue(&[1, 2]).unwrap();
        // SAFETY: it is not: that is the test. What the stopped peer had to write is written.
        assert!(unsafe { ring.expel(NonZeroU8::MIN) });
        assert_eq!(ring.enqueue_burst(&[3, 4, 5]), Ok(3));
        let mut into = [0; 4];
        assert_eq!(ring.dequeue_burst(&mut into), Ok(3));
        assert_eq!(ring.end_enqueue(at, 2), Err(Refused::Expelled));
        assert_eq!((ring.len(), into), (0, [3, 4, 5, 0]));
        let at = ring.begin_to_enqueue(&[6]).unwrap();
        assert_eq!(ring.end_enqueue(at, 1), Ok(1));
    }

    #[test]
    fn nothing_takes_no_side() {
        let ring = mpmc::<u8>(4).unwrap();
        assert!(ring.begin_to_enqueue(&[1]).is_some());
        assert_eq!((ring.enqueue_burst(&[]), ring.enqueue_bulk(&[])), (Ok(0), Ok(true)));
        assert_eq!((ring.dequeue_burst(&mut []), ring.dequeue_bulk(&mut [])), (Ok(0), Ok(true)));
        assert_eq!(ring.enqueue_burst(&[2]), Err(Refused::Stalled { by: NonZeroU8::MIN }));
    }

    /// A peer that moves the word all the time and never leaves it.
    #[test]
    fn nobody_is_kept_waiting_for_ever() {
        use std::sync::atomic::AtomicBool;

        let ring = mpmc::<u8>(4).unwrap();
        // SAFETY: the ring lives to the end of the test.
        let header = unsafe { ring.keep().memory().cast::<Header>().as_ref() };
        header.producers.word.store(7, Relaxed);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for position in (0..2).cycle().take_while(|_| !done.load(Relaxed)) {
                    header.producers.word.store(position << 8 | 7, Relaxed);
                }
            });
            for _ in 0..20 {
                assert_eq!(ring.enqueue_burst(&[1]), Err(Refused::Stalled { by: NonZeroU8::new(7).unwrap() }));
            }
            done.store(true, Relaxed);
        });
    }

    #[test]
    fn positions_go_round() {
        let ring = mpmc::<u8>(4).unwrap();
        // SAFETY: the ring lives to the end of the test.
        let header = unsafe { ring.keep().memory().cast::<Header>().as_ref() };
        let last = u64::MAX << 8;
        for side in [&header.producers, &header.consumers] {
            side.word.store(last, Relaxed);
            side.peer_seen.store(last >> 8, Relaxed);
        }
        let mut into = [0; 4];
        for round in 0..10 {
            assert_eq!(ring.enqueue_bulk(&[round, round + 1, round + 2]), Ok(true));
            assert_eq!(ring.len(), 3);
            assert_eq!(ring.dequeue_burst(&mut into), Ok(3));
            assert_eq!(into[..3], [round, round + 1, round + 2]);
        }
        assert!(ring.is_empty());
    }
}
