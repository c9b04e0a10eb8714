//! One size at a time, known when the program is compiled, as in `Box::new`.

use std::alloc::Layout;
use std::arch::asm;

use super::{Block, Outcome, timed};

/// Blocks in a batch.
const BATCH: usize = 1000;

const fn layout<const SIZE: usize>() -> Layout {
    match Layout::from_size_align(SIZE, 8) {
        Ok(layout) => layout,
        Err(_) => panic!("a size that no block has"),
    }
}

/// One block, allocated and freed, over and over.
pub fn pair<const SIZE: usize>(pairs: usize) -> Outcome {
    timed(|| {
        for _ in 0..pairs {
            let block = Block::new(layout::<SIZE>());
            // SAFETY: nothing is done. Because the compiler does not know that, it cannot leave the block out.
            unsafe { asm!("/* {} */", in(reg) block.address) };
            block.free();
        }
        pairs as u64
    })
}

/// A thousand blocks, used, then freed last first.
pub fn batch<const SIZE: usize>(blocks: usize) -> Outcome {
    let mut addresses = Vec::with_capacity(BATCH);
    timed(|| {
        for _ in 0..blocks / BATCH {
            addresses.extend((0..BATCH).map(|_| Block::new(layout::<SIZE>()).address));
            while let Some(address) = addresses.pop() {
                Block { address, layout: layout::<SIZE>() }.free();
            }
        }
        (blocks / BATCH) as u64
    })
}
