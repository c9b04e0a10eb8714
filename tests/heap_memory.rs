//! What the heap holds beyond what is live. One test in one process: `live_bytes` is the whole heap's.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::collections::VecDeque;

use hugearena::HugeAlloc;

static HEAP: HugeAlloc = HugeAlloc::new();

/// Blocks of one size after the other, of which every fourth stays for a while: its span stays with it. What caches and
/// depots hold of sizes that the program has done with must not keep more spans than that.
#[test]
fn classes_that_are_no_longer_used_keep_no_spans() {
    const KEPT_ROUNDS: usize = 16;
    const ROUND_BYTES: usize = 4 << 20;
    let mut kept: VecDeque<(Layout, Vec<*mut u8>)> = VecDeque::new();
    let mut most = 0;
    for round in 0..200 {
        let size = (0..round % 64).fold(32, |size, _| size + size / 8);
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the size is not 0.
        let blocks: Vec<_> = (0..ROUND_BYTES / size).map(|_| unsafe { HEAP.alloc(layout) }).collect();
        let (stay, go): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
        go.into_iter().for_each(|(_, block)| free(block, layout));
        kept.push_back((layout, stay.into_iter().map(|(_, block)| block).collect()));
        if kept.len() > KEPT_ROUNDS {
            let (layout, blocks) = kept.pop_front().unwrap();
            blocks.into_iter().for_each(|block| free(block, layout));
        }
        most = most.max(HEAP.stats().live_bytes);
    }
    let spans = (KEPT_ROUNDS + 1) * ROUND_BYTES;
    assert!(most <= spans as u64 * 13 / 10, "{} MiB for spans of {} MiB", most >> 20, spans >> 20);
}

fn free(block: *mut u8, layout: Layout) {
    assert!(!block.is_null());
    // SAFETY: each block is freed once, with its layout.
    unsafe { HEAP.dealloc(block, layout) };
}
