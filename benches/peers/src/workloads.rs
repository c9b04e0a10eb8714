//! What is measured. Every block's first byte is written when it is allocated and checked when it is freed.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::mpsc;

/// Blocks in a batch.
const BATCH: usize = 1000;
/// Blocks that live at the same time in [`wide`].
const LIVE: usize = 10_000;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).expect("sizes here are small")
}

fn take(allocator: &impl GlobalAlloc, layout: Layout) -> *mut u8 {
    // SAFETY: no layout here has size 0; a block is at least a byte long.
    unsafe {
        let block = allocator.alloc(layout);
        assert!(!block.is_null());
        block.write(7);
        block
    }
}

fn give(allocator: &impl GlobalAlloc, block: *mut u8, layout: Layout) {
    // SAFETY: every caller gives a block once that `take` returned for this layout.
    unsafe {
        assert_eq!(block.read(), 7);
        allocator.dealloc(block, layout);
    }
}

/// One block, allocated and freed, `pairs` times.
#[inline(always)]
pub fn pair(allocator: &impl GlobalAlloc, pairs: usize, size: usize) {
    let layout = layout(size);
    for _ in 0..pairs {
        let block = black_box(take(allocator, layout));
        give(allocator, block, layout);
    }
}

/// A thousand blocks, then freed last first.
pub fn batch(allocator: &impl GlobalAlloc, pairs: usize, size: usize) {
    let layout = layout(size);
    let mut blocks = Vec::with_capacity(BATCH);
    for _ in 0..pairs / BATCH {
        blocks.extend((0..BATCH).map(|_| take(allocator, layout)));
        while let Some(block) = blocks.pop() {
            give(allocator, block, layout);
        }
    }
}

/// Ten thousand blocks of 16 to 2,015 bytes live, one at random replaced by another size at a time.
pub fn wide(allocator: &impl GlobalAlloc, pairs: usize) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut live: Vec<_> =
        (0..LIVE).map(|index| layout(16 + index * 37 % 2000)).map(|l| (take(allocator, l), l)).collect();
    for _ in 0..pairs {
        let random = next();
        let (block, old) = &mut live[random as usize % LIVE];
        give(allocator, *block, *old);
        *old = layout(16 + (random >> 33) as usize % 2000);
        *block = take(allocator, *old);
    }
    for (block, layout) in live {
        give(allocator, block, layout);
    }
}

/// One thread allocates, another frees, a thousand blocks handed over at a time.
pub fn cross(allocator: &(impl GlobalAlloc + Sync), pairs: usize, size: usize) {
    let layout = layout(size);
    let (send_full, full) = mpsc::sync_channel::<Vec<usize>>(4);
    let (send_empty, empty) = mpsc::sync_channel::<Vec<usize>>(8);
    for _ in 0..6 {
        send_empty.send(Vec::with_capacity(BATCH)).expect("the channel has room");
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for mut blocks in full {
                for block in blocks.drain(..) {
                    give(allocator, std::ptr::with_exposed_provenance_mut(block), layout);
                }
                // At the end nobody takes them any more.
                let _ = send_empty.try_send(blocks);
            }
        });
        for _ in 0..pairs / BATCH {
            let mut blocks = empty.recv().expect("the other side lives as long as we send");
            blocks.extend((0..BATCH).map(|_| take(allocator, layout).expose_provenance()));
            send_full.send(blocks).expect("the other side lives as long as we send");
        }
        drop(send_full);
    });
}
