//! `HugeAlloc` called directly, against a shadow model: every byte of every live block belongs to that block
//! alone, keeps what was written, and is zero when it was asked for zeroed.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};

use hugearena::{FirstTouch, HugeAlloc};
use proptest::prelude::*;

static HEAP: HugeAlloc = HugeAlloc::new();

/// There is one heap. Whoever looks at how much it holds, or where its blocks come to lie, has it alone; the others share
/// it.
static ALONE: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

fn with_others() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A live block: its layout and the byte it is filled with.
#[derive(Clone, Copy)]
struct Block {
    layout: Layout,
    fill: u8,
}

/// The live blocks by address.
#[derive(Default)]
struct Shadow {
    live: BTreeMap<usize, Block>,
    next_fill: u8,
}

impl Shadow {
    fn alloc(&mut self, layout: Layout, zeroed: Option<FirstTouch>) {
        // SAFETY: the layout's size is not 0.
        let block = unsafe {
            match zeroed {
                Some(touch) => HEAP.alloc_zeroed_hint(layout, touch),
                None => HEAP.alloc(layout),
            }
        };
        assert!(!block.is_null(), "{layout:?}");
        if zeroed.is_some() {
            // SAFETY: a live block of that size.
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            assert_eq!(bytes.iter().position(|byte| *byte != 0), None, "{layout:?} at {block:p}");
        }
        self.own(block, layout);
    }

    /// Checks that the block is aligned and overlaps no live one, fills it, and remembers it.
    fn own(&mut self, block: *mut u8, layout: Layout) {
        let start = block.addr();
        assert_eq!(start % layout.align(), 0, "{layout:?}");
        if let Some((other, held)) = self.live.range(..start + layout.size()).next_back() {
            assert!(other + held.layout.size() <= start, "{layout:?} at {start:x} overlaps {other:x}");
        }
        self.next_fill = self.next_fill.wrapping_add(1).max(1);
        // SAFETY: a live block of that size.
        unsafe { block.write_bytes(self.next_fill, layout.size()) };
        self.live.insert(start, Block { layout, fill: self.next_fill });
    }

    fn disown(&mut self, at: usize) -> Option<(*mut u8, Block)> {
        let start = *self.live.keys().nth(at % self.live.len().max(1))?;
        let block = self.live.remove(&start)?;
        let pointer = std::ptr::with_exposed_provenance_mut(start);
        check(pointer, block, block.layout.size());
        Some((pointer, block))
    }

    fn free(&mut self, at: usize) {
        if let Some((pointer, block)) = self.disown(at) {
            // SAFETY: a live block, no longer in the shadow.
            unsafe { HEAP.dealloc(pointer, block.layout) };
        }
    }

    fn realloc(&mut self, at: usize, new_size: usize) {
        let Some((pointer, block)) = self.disown(at) else {
            return;
        };
        // SAFETY: a live block; the size is not 0 and far from overflow.
        let moved = unsafe { HEAP.realloc(pointer, block.layout, new_size) };
        assert!(!moved.is_null());
        check(moved, block, block.layout.size().min(new_size));
        self.own(moved, Layout::from_size_align(new_size, block.layout.align()).unwrap());
    }

    fn free_all(&mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
    }
}

fn check(pointer: *mut u8, block: Block, bytes: usize) {
    pointer.expose_provenance();
    // SAFETY: a live block of at least that size.
    let bytes = unsafe { std::slice::from_raw_parts(pointer, bytes) };
    assert_eq!(bytes.iter().position(|byte| *byte != block.fill), None, "{:?} lost a byte", block.layout);
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Sizes around every border: classes, small to large, units, chunks.
fn any_size() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 1usize..600,
        3 => 600usize..40_000,
        2 => 40_000usize..600_000,
        1 => 600_000usize..9_000_000,
        2 => (3u32..23, -2isize..3).prop_map(|(log2, off)| (1usize << log2).saturating_add_signed(off).max(1)),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: usize, align_log2: u32 },
    Zeroed { size: usize, align_log2: u32, offset: usize, len: usize },
    Free(usize),
    Realloc { at: usize, size: usize },
    Trim,
}

fn any_step() -> impl Strategy<Value = Step> {
    let align = || prop_oneof![8 => 0u32..5, 2 => 5u32..15, 1 => 15u32..24];
    prop_oneof![
        8 => (any_size(), align()).prop_map(|(size, align_log2)| Step::Alloc { size, align_log2 }),
        4 => (any_size(), align(), 0usize..10_000_000, 0usize..200_000)
            .prop_map(|(size, align_log2, offset, len)| Step::Zeroed { size, align_log2, offset, len }),
        8 => any::<usize>().prop_map(Step::Free),
        4 => (any::<usize>(), any_size()).prop_map(|(at, size)| Step::Realloc { at, size }),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn blocks_never_overlap_and_keep_their_bytes(steps in proptest::collection::vec(any_step(), 1..150)) {
        let _heap = with_others();
        let mut shadow = Shadow::default();
        for step in steps {
            match step {
                Step::Alloc { size, align_log2 } => shadow.alloc(layout(size, 1 << align_log2), None),
                Step::Zeroed { size, align_log2, offset, len } => {
                    shadow.alloc(layout(size, 1 << align_log2), Some(FirstTouch::at(offset, len)));
                }
                Step::Free(at) => shadow.free(at),
                Step::Realloc { at, size } => shadow.realloc(at, size),
                Step::Trim => {
                    HEAP.trim();
                }
            }
        }
        shadow.free_all();
    }
}

#[test]
fn every_small_size_at_every_alignment() {
    let _heap = with_others();
    let mut shadow = Shadow::default();
    for align_log2 in 0..=14 {
        for size in (1..300).chain((300..70_000).step_by(1009)) {
            shadow.alloc(layout(size, 1 << align_log2), None);
        }
        shadow.free_all();
    }
}

#[test]
fn alignments_up_to_a_gibibyte() {
    let _heap = with_others();
    let mut shadow = Shadow::default();
    for align_log2 in 13..=30 {
        for size in [1, 100, 8192, 300_000, 3 << 20] {
            shadow.alloc(layout(size, 1 << align_log2), None);
            shadow.alloc(layout(size, 1 << align_log2), Some(FirstTouch::unknown()));
        }
        shadow.free_all();
    }
    HEAP.trim();
}

#[test]
fn absurd_layouts_get_null() {
    let _heap = with_others();
    for align_log2 in 0..62 {
        let align = 1usize << align_log2;
        for back in [0, 1, 4095, 1 << 20, 1 << 40] {
            let size = (isize::MAX as usize - back) / align * align;
            let Ok(layout) = Layout::from_size_align(size, align) else {
                continue;
            };
            if size < 1 << 46 {
                continue;
            }
            // SAFETY: the size is not 0.
            unsafe {
                assert!(HEAP.alloc(layout).is_null(), "{layout:?}");
                assert!(HEAP.alloc_zeroed(layout).is_null(), "{layout:?}");
            }
        }
    }
    let small = layout(100, 8);
    // SAFETY: a live block survives a resize that cannot be served.
    unsafe {
        let block = HEAP.alloc(small);
        block.write_bytes(7, 100);
        assert!(HEAP.realloc(block, small, isize::MAX as usize - 7).is_null());
        check(block, Block { layout: small, fill: 7 }, 100);
        HEAP.dealloc(block, small);
    }
}

#[test]
fn realloc_across_every_border_keeps_the_bytes() {
    let _heap = with_others();
    let sizes: Vec<usize> = (3..25).flat_map(|log2| [(1 << log2) - 1, 1 << log2, (1 << log2) + 1]).collect();
    for align in [1, 16, 64, 4096, 65_536] {
        let mut shadow = Shadow::default();
        shadow.alloc(layout(1, align), None);
        for size in sizes.iter().chain(sizes.iter().rev()) {
            shadow.realloc(0, *size);
        }
        shadow.free_all();
    }
}

#[test]
fn a_growing_block_stays_where_it_is() {
    let _heap = alone();
    let mut moves = 0;
    let mut size = 64 << 10;
    // SAFETY: one live block, resized and freed with its layout of the moment.
    unsafe {
        let mut block = HEAP.alloc(layout(size, 8));
        let mut neighbours = Vec::new();
        while size < 256 << 20 {
            block.add(size - 1).write(5);
            neighbours.push(HEAP.alloc(layout(40_000, 8)));
            let grown = HEAP.realloc(block, layout(size, 8), size * 2);
            assert_eq!(grown.add(size - 1).read(), 5);
            moves += u32::from(grown != block && size >= 8 << 20);
            (block, size) = (grown, size * 2);
        }
        HEAP.dealloc(block, layout(size, 8));
        for neighbour in neighbours {
            HEAP.dealloc(neighbour, layout(40_000, 8));
        }
    }
    assert!(moves <= 2, "moved {moves} times above 8 MiB");
    HEAP.trim();
}

#[test]
fn shrinking_gives_the_tail_back() {
    let _heap = alone();
    // SAFETY: one live block, resized and freed with its layout of the moment.
    unsafe {
        let block = HEAP.alloc(layout(256 << 20, 8));
        block.write_bytes(3, 256 << 20);
        let before = HEAP.stats().live_bytes;
        let small = HEAP.realloc(block, layout(256 << 20, 8), 1 << 20);
        assert_eq!(small, block);
        assert!(HEAP.stats().live_bytes + (250 << 20) < before);
        HEAP.dealloc(small, layout(1 << 20, 8));
    }
    assert!(HEAP.trim() >= 250 << 20);
}

#[test]
fn memory_of_other_threads_comes_back() {
    let _heap = alone();
    // One side only allocates, the other only frees; neither may hoard.
    let (send, receive) = mpsc::sync_channel::<Vec<usize>>(4);
    let consumer = std::thread::spawn(move || {
        for batch in receive {
            for block in batch {
                let block: *mut u8 = std::ptr::with_exposed_provenance_mut(block);
                // SAFETY: allocated below with this layout, handed over once.
                unsafe {
                    assert_eq!(block.read(), 9);
                    HEAP.dealloc(block, layout(64, 8));
                }
            }
        }
    });
    let before = HEAP.stats().mapped_bytes;
    for _ in 0..2_000 {
        let batch = (0..1_000)
            .map(|_| {
                // SAFETY: the size is not 0, and the block is live.
                unsafe {
                    let block = HEAP.alloc(layout(64, 8));
                    block.write(9);
                    block.expose_provenance()
                }
            })
            .collect();
        send.send(batch).unwrap();
    }
    drop(send);
    consumer.join().unwrap();
    let grown = HEAP.stats().mapped_bytes.saturating_sub(before);
    // 128 MB went through, of which six batches were on their way at a time.
    assert!(grown <= 32 << 20, "grown by {grown} bytes");
}

#[test]
fn many_threads_share_blocks() {
    let _heap = with_others();
    const THREADS: usize = 4;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<(usize, usize, u8)>()).unzip();
    std::thread::scope(|scope| {
        for (index, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(index + 1) % THREADS].clone();
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(index as u64 + 1);
                for _ in 0..20_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let size = 1 + (random >> 20) as usize % (1 << (random % 18));
                    let fill = random as u8;
                    // SAFETY: the size is not 0; the block is handed to one other thread, which frees it.
                    unsafe {
                        let block = HEAP.alloc(layout(size, 8));
                        block.write_bytes(fill, size);
                        let _ = next.send((block.expose_provenance(), size, fill));
                    }
                    while let Ok((block, size, fill)) = receiver.try_recv() {
                        free_checked(block, size, fill);
                    }
                }
                drop(next);
                while let Ok((block, size, fill)) = receiver.recv_timeout(std::time::Duration::from_millis(200)) {
                    free_checked(block, size, fill);
                }
            });
        }
        drop(senders);
    });
}

fn free_checked(block: usize, size: usize, fill: u8) {
    let pointer = std::ptr::with_exposed_provenance_mut(block);
    let layout = layout(size, 8);
    check(pointer, Block { layout, fill }, size);
    // SAFETY: handed over by the thread that allocated it.
    unsafe { HEAP.dealloc(pointer, layout) };
}

#[test]
fn alignments_beyond_a_gibibyte_are_right_or_null() {
    let _heap = with_others();
    for align_log2 in 31..=36 {
        let layout = layout(1, 1 << align_log2);
        // SAFETY: the size is not 0.
        let block = unsafe { HEAP.alloc(layout) };
        if !block.is_null() {
            assert_eq!(block.addr() % layout.align(), 0, "{layout:?}");
            // SAFETY: a live block.
            unsafe { HEAP.dealloc(block, layout) };
        }
    }
}

#[test]
fn a_block_larger_than_the_machine_is_null_and_costs_nothing() {
    let _heap = alone();
    let huge = layout(1 << 44, 8);
    let before = resident_bytes();
    // SAFETY: the size is not 0; the second block is live until freed.
    unsafe {
        assert!(HEAP.alloc(huge).is_null());
        let small = layout(300_000, 8);
        let block = HEAP.alloc(small);
        assert!(!block.is_null());
        HEAP.dealloc(block, small);
    }
    // Not gigabytes of tables.
    assert!(resident_bytes() < before + (1 << 30));
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
