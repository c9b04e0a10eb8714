//! The loops of `ring_perf_autotest`, on our rings and on crossbeam's `ArrayQueue`: cycles an object, for enqueuing and
//! dequeuing it.

use std::hint::{black_box, spin_loop};

use crossbeam::queue::ArrayQueue;
use hugearena::ring;

use crate::timing::{alone, both, cycles};

const CAPACITY: usize = 4096;
const BURST: usize = 32;
/// Bursts of a measurement.
const ALONE: usize = 1 << 18;
/// As many as the test has; the median of several, because they are over before the scheduler has looked twice.
const TOGETHER: usize = 1 << 15;
const TIMES: usize = 9;

/// What both sides of a queue do.
pub trait Ends {
    fn put(&mut self, items: &[u64]) -> usize;
    fn take(&mut self, into: &mut [u64]) -> usize;
}

struct Spsc(Option<ring::Producer<u64>>, Option<ring::Consumer<u64>>);

impl Ends for Spsc {
    #[inline]
    fn put(&mut self, items: &[u64]) -> usize {
        self.0.as_mut().map_or(0, |producer| producer.enqueue_burst(items))
    }

    #[inline]
    fn take(&mut self, into: &mut [u64]) -> usize {
        self.1.as_mut().map_or(0, |consumer| consumer.dequeue_burst(into))
    }
}

impl Ends for ring::Mpmc<u64> {
    #[inline]
    fn put(&mut self, items: &[u64]) -> usize {
        self.enqueue_burst(items).unwrap_or(0)
    }

    #[inline]
    fn take(&mut self, into: &mut [u64]) -> usize {
        self.dequeue_burst(into).unwrap_or(0)
    }
}

impl Ends for &ArrayQueue<u64> {
    #[inline]
    fn put(&mut self, items: &[u64]) -> usize {
        items.iter().take_while(|item| self.push(**item).is_ok()).count()
    }

    #[inline]
    fn take(&mut self, into: &mut [u64]) -> usize {
        into.iter_mut().map_while(|item| self.pop().map(|value| *item = value)).count()
    }
}

/// One core: a burst in, a burst out.
fn one_core(mut ends: impl Ends + Send) -> f64 {
    alone(|| {
        let (items, mut into) = ([7; BURST], [0; BURST]);
        let start = cycles();
        for _ in 0..ALONE {
            assert_eq!(ends.put(&items[..black_box(BURST)]), BURST);
            assert_eq!(ends.take(&mut into[..black_box(BURST)]), BURST);
        }
        (cycles() - start) as f64 / (ALONE * BURST) as f64
    })
}

/// Two cores: one puts in bulks of 32, one takes them.
fn two_cores<E: Ends + Send>(ends: impl Fn() -> (E, E)) -> f64 {
    let mut times: Vec<f64> = (0..TIMES).map(|_| two_cores_once(ends())).collect();
    times.sort_by(f64::total_cmp);
    times[TIMES / 2]
}

fn two_cores_once<E: Ends + Send>((mut front, mut back): (E, E)) -> f64 {
    let each = |start| (cycles() - start) as f64 / (TOGETHER * BURST) as f64;
    let put = move || {
        let items = [7; BURST];
        let start = cycles();
        for _ in 0..TOGETHER {
            let mut done = 0;
            while done < BURST {
                done += front.put(&items[done..black_box(BURST)]);
                if done < BURST {
                    spin_loop();
                }
            }
        }
        each(start)
    };
    let take = move || {
        let mut into = [0; BURST];
        let start = cycles();
        for _ in 0..TOGETHER {
            let mut done = 0;
            while done < BURST {
                done += back.take(&mut into[done..black_box(BURST)]);
                if done < BURST {
                    spin_loop();
                }
            }
        }
        each(start)
    };
    let (first, second) = both(put, take);
    first + second
}

/// One core and two.
pub fn spsc() -> [f64; 2] {
    let alone = ring::spsc(CAPACITY).map(|(producer, consumer)| one_core(Spsc(Some(producer), Some(consumer))));
    let ends = || {
        let (producer, consumer) = ring::spsc(CAPACITY).expect("a valid capacity");
        (Spsc(Some(producer), None), Spsc(None, Some(consumer)))
    };
    [alone.expect("a valid capacity"), two_cores(ends)]
}

/// One core and two.
pub fn mpmc() -> [f64; 2] {
    let ring = || ring::mpmc::<u64>(CAPACITY).expect("a valid capacity");
    let ends = || {
        let ring = ring();
        (ring.clone(), ring)
    };
    [one_core(ring()), two_cores(ends)]
}

/// One core and two.
pub fn array_queue() -> [f64; 2] {
    let queue = ArrayQueue::new(CAPACITY);
    [one_core(&queue), two_cores(|| (&queue, &queue))]
}
