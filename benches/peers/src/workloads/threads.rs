//! Threads that hand blocks to each other, and threads that come and go.

use std::sync::mpsc;
use std::thread;

use super::{Block, Outcome, Random, timed};

const THREADS: usize = 2;

/// After Larson and Krishnan: threads replace blocks of others at random; after a while each hands its blocks to a
/// new thread and ends.
pub fn larson(steps: usize) -> Outcome {
    const LIVE: usize = 1000;
    const GENERATIONS: usize = 50;
    let mut random = Random::new(5);
    let mut hands: Vec<Vec<Block>> =
        (0..THREADS).map(|_| (0..LIVE).map(|_| Block::of(10 + random.below(991))).collect()).collect();
    timed(|| {
        for generation in 0..GENERATIONS {
            // What this thread had goes to one that the next thread's blocks did not come from.
            hands.rotate_left(1);
            thread::scope(|scope| {
                for (lane, hand) in hands.iter_mut().enumerate() {
                    let mut random = Random::new((generation * THREADS + lane) as u64 + 10);
                    scope.spawn(move || {
                        for _ in 0..steps / THREADS / GENERATIONS {
                            let at = random.below(LIVE);
                            hand[at].free();
                            hand[at] = Block::of(10 + random.below(991));
                        }
                    });
                }
            });
        }
        let bytes = hands.iter().flatten().map(|block| block.size() as u64).sum();
        hands.drain(..).flatten().for_each(Block::free);
        bytes
    })
}

/// One thread allocates, another frees, a thousand blocks handed over at a time.
pub fn cross(blocks: usize) -> Outcome {
    const BATCH: usize = 1000;
    const SIZE: usize = 64;
    let (send_full, full) = mpsc::sync_channel::<Vec<Block>>(4);
    let (send_empty, empty) = mpsc::sync_channel::<Vec<Block>>(8);
    for _ in 0..6 {
        send_empty.send(Vec::with_capacity(BATCH)).expect("the channel has room");
    }
    timed(|| {
        thread::scope(|scope| {
            let consumer = scope.spawn(move || {
                let mut freed = 0;
                for mut blocks in full {
                    freed += blocks.len() as u64;
                    blocks.drain(..).for_each(Block::free);
                    // At the end nobody takes them any more.
                    let _ = send_empty.try_send(blocks);
                }
                freed
            });
            for _ in 0..blocks / BATCH {
                let mut batch = empty.recv().expect("the other side lives as long as we send");
                batch.extend((0..BATCH).map(|_| Block::of(SIZE)));
                send_full.send(batch).expect("the other side lives as long as we send");
            }
            drop(send_full);
            consumer.join().expect("the consumer only frees")
        })
    })
}

/// Threads, a few at a time, each of which frees what one before it left and leaves half of what it allocates.
pub fn storm(threads: usize) -> Outcome {
    const AT_A_TIME: usize = 4;
    const BLOCKS: usize = 400;
    let mut left: Vec<Vec<Block>> = vec![Vec::new(); AT_A_TIME];
    timed(|| {
        let mut bytes = 0;
        for wave in 0..threads / AT_A_TIME {
            left.rotate_left(1);
            let work = |lane: usize, inherited: &mut Vec<Block>| {
                let freed: u64 = inherited.iter().map(|block| block.size() as u64).sum();
                inherited.drain(..).for_each(Block::free);
                let mut random = Random::new((wave * AT_A_TIME + lane) as u64 + 10);
                let mut blocks: Vec<_> = (0..BLOCKS).map(|_| Block::of(16 + random.below(1000))).collect();
                *inherited = blocks.split_off(BLOCKS / 2);
                blocks.into_iter().for_each(Block::free);
                freed
            };
            bytes += thread::scope(|scope| {
                let spawn = |(lane, inherited)| scope.spawn(move || work(lane, inherited));
                let workers: Vec<_> = left.iter_mut().enumerate().map(spawn).collect();
                workers.into_iter().map(|worker| worker.join().expect("workers do not panic")).sum::<u64>()
            });
        }
        left.drain(..).flatten().for_each(Block::free);
        bytes
    })
}
