//! Sizes and lives as they come.

use std::alloc::Layout;
use std::collections::VecDeque;

use super::{Block, Outcome, Random, timed};

/// Blocks that live at the same time.
const LIVE: usize = 10_000;

/// 16 to 128 bytes.
pub fn small(steps: usize) -> Outcome {
    churn(steps, |random| 16 + random.below(113))
}

/// 16 bytes to 32 KiB, each doubling as likely as the next.
pub fn wide(steps: usize) -> Outcome {
    churn(steps, |random| {
        let least = 16 << random.below(11);
        least + random.below(least)
    })
}

/// Live blocks, one at random replaced at each step.
fn churn(steps: usize, size: impl Fn(&mut Random) -> usize) -> Outcome {
    let mut random = Random::new(1);
    let mut live: Vec<Block> = (0..LIVE).map(|_| Block::of(size(&mut random))).collect();
    let outcome = timed(|| {
        for _ in 0..steps {
            let at = random.below(LIVE);
            live[at].free();
            live[at] = Block::of(size(&mut random));
        }
        live.iter().map(|block| block.size() as u64).sum()
    });
    live.into_iter().for_each(Block::free);
    outcome
}

/// A queue of packets: a burst in, a burst out, each with its head room, cache line aligned.
pub fn packets(packets: usize) -> Outcome {
    const QUEUE: usize = 1024;
    const BURST: usize = 32;
    const HEAD_ROOM: usize = 128;
    // The usual mix: seven short, four medium, one long.
    const SIZES: [usize; 12] = [64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 64, 594];
    let mut random = Random::new(2);
    let mut queue = VecDeque::with_capacity(QUEUE + BURST);
    timed(|| {
        let mut bytes = 0;
        for _ in 0..packets / BURST {
            for _ in 0..BURST {
                let size = SIZES[random.below(SIZES.len())] + HEAD_ROOM;
                queue.push_back(Block::new(Layout::from_size_align(size, 64).expect("a packet")));
            }
            let done = queue.len().saturating_sub(QUEUE);
            for packet in queue.drain(..done) {
                bytes += packet.size() as u64;
                packet.free();
            }
        }
        queue.drain(..).for_each(Block::free);
        bytes
    })
}

/// Buffers for direct I/O: aligned to 4 KiB, every page touched, completed out of order.
pub fn aligned(buffers: usize) -> Outcome {
    const IN_FLIGHT: usize = 64;
    const SIZES: [usize; 8] = [4 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
    let mut random = Random::new(3);
    let submit = |random: &mut Random| {
        let size = SIZES[random.below(SIZES.len())];
        let buffer = Block::new(Layout::from_size_align(size, 4096).expect("a buffer"));
        assert!(buffer.address.addr().is_multiple_of(4096));
        buffer
    };
    timed(|| {
        let mut in_flight: Vec<Block> = (0..IN_FLIGHT).map(|_| submit(&mut random)).collect();
        let mut bytes = 0;
        for _ in 0..buffers {
            let at = random.below(IN_FLIGHT);
            bytes += in_flight[at].size() as u64;
            in_flight[at].free();
            in_flight[at] = submit(&mut random);
        }
        in_flight.into_iter().for_each(Block::free);
        bytes
    })
}

/// Buffers that grow by what arrives, and are cut when they are full.
pub fn realloc(steps: usize) -> Outcome {
    const BUFFERS: usize = 256;
    static ARRIVING: [u8; 1024] = [7; 1024];
    let mut random = Random::new(4);
    let mut buffers = vec![Vec::<u8>::new(); BUFFERS];
    timed(|| {
        let mut cut = 0;
        for _ in 0..steps {
            let at = random.below(BUFFERS);
            let buffer = &mut buffers[at];
            buffer.extend_from_slice(&ARRIVING[..1 + random.below(ARRIVING.len())]);
            // Some stay short, some reach a megabyte.
            if buffer.len() > 4096 << (at % 9) {
                assert!(buffer[0] == 7 && buffer[buffer.len() - 1] == 7);
                cut += buffer.len() as u64;
                buffer.truncate(100);
                buffer.shrink_to_fit();
            }
        }
        cut + buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>()
    })
}

/// Rounds of blocks of a size that rises by an eighth, of which every fourth stays for sixteen rounds.
pub fn bleed(rounds: usize) -> Outcome {
    const KEPT_ROUNDS: usize = 16;
    const ROUND_BYTES: usize = 4 << 20;
    let mut kept: VecDeque<Vec<Block>> = VecDeque::new();
    timed(|| {
        let mut bytes = 0;
        for round in 0..rounds {
            // From 32 B up in eighths, back to 32 B after 64 rounds: 57 KiB at the most.
            let size = (0..round % 64).fold(32, |size, _| size + size / 8);
            let blocks: Vec<Block> = (0..ROUND_BYTES / size).map(|_| Block::of(size)).collect();
            let (stay, go): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
            go.into_iter().for_each(|(_, block)| block.free());
            kept.push_back(stay.into_iter().map(|(_, block)| block).collect());
            if kept.len() > KEPT_ROUNDS {
                for block in kept.pop_front().into_iter().flatten() {
                    bytes += block.size() as u64;
                    block.free();
                }
            }
        }
        kept.drain(..).flatten().for_each(Block::free);
        bytes
    })
}
