//! The heap against a list of intervals: bytes become allocations, resizes, frees and trims; every live block is
//! aligned, overlaps no other, keeps the bytes written to it, and is zero where zeroes were asked for.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;

use hugearena::{FirstTouch, HugeAlloc, PageSize};

/// Small, so that a run reaches the end of its memory as well.
const LIMIT: u64 = 192 << 20;

static HEAP: HugeAlloc = HugeAlloc::new().page_sizes(&[PageSize::HUGE_2M]).limit(LIMIT);

/// Live blocks at a time.
const BLOCKS_MAX: usize = 4_000;
/// Blocks above this are written to at their ends and in steps.
const DENSE_MAX: usize = 64 << 10;
const STEP: usize = 4093;

#[derive(Clone, Copy)]
struct Block {
    layout: Layout,
    fill: u8,
}

#[derive(Default)]
struct Oracle {
    /// By address.
    live: BTreeMap<usize, Block>,
    fill: u8,
}

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) | usize::from(self.byte()?) << 8)
    }

    /// A size around a border of classes, units or chunks, or anything up to a power of two.
    fn size(&mut self) -> Option<usize> {
        let (shape, number) = (self.byte()?, self.number()?);
        let log2 = u32::from(shape) % 26;
        let size =
            if shape >= 128 { (1 << log2) + number % 5 - 2 * usize::from(log2 > 1) } else { number % (1 << log2) };
        Some(size.max(1))
    }

    fn align(&mut self) -> Option<usize> {
        let shape = self.byte()?;
        Some(1 << if shape < 200 { shape % 7 } else { shape % 23 })
    }
}

/// Runs one input to its end; panics, or lets the heap abort, if anything is wrong.
pub fn run(data: &[u8]) {
    let mut oracle = Oracle::default();
    let mut input = Input(data);
    while oracle.step(&mut input).is_some() {}
    while let Some((&start, _)) = oracle.live.first_key_value() {
        oracle.free(start);
    }
}

impl Oracle {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? {
            0..100 => {
                let layout = Layout::from_size_align(input.size()?, input.align()?).ok()?;
                // SAFETY: the size is not 0.
                self.own(unsafe { HEAP.alloc(layout) }, layout, false);
            }
            100..140 => {
                let layout = Layout::from_size_align(input.size()?, input.align()?).ok()?;
                let touch = FirstTouch::at(input.number()? << 4, input.number()?);
                // SAFETY: the size is not 0.
                self.own(unsafe { HEAP.alloc_zeroed_hint(layout, touch) }, layout, true);
            }
            140..200 => {
                let start = self.pick(input.number()?)?;
                self.free(start);
            }
            200..250 => {
                let (start, size) = (self.pick(input.number()?)?, input.size()?);
                self.resize(start, size);
            }
            _ => {
                HEAP.trim();
            }
        }
        Some(())
    }

    /// One of the live blocks; where there is none, one is made.
    fn pick(&mut self, number: usize) -> Option<usize> {
        if self.live.is_empty() {
            let layout = Layout::from_size_align(100, 8).ok()?;
            // SAFETY: the size is not 0.
            self.own(unsafe { HEAP.alloc(layout) }, layout, false);
        }
        let above = self.live.range(self.anywhere(number)..).next();
        above.or(self.live.first_key_value()).map(|(start, _)| *start)
    }

    /// An address between the lowest and the highest live block.
    fn anywhere(&self, number: usize) -> usize {
        let lowest = self.live.first_key_value().map_or(0, |(start, _)| *start);
        let highest = self.live.last_key_value().map_or(0, |(start, _)| *start);
        lowest + (highest - lowest) / (1 << 16) * number
    }

    fn own(&mut self, block: *mut u8, layout: Layout, zeroed: bool) {
        if block.is_null() {
            assert!(self.is_full_enough(layout), "{layout:?} is null\n{}", HEAP.stats());
            return;
        }
        let start = block.expose_provenance();
        assert_eq!(start % layout.align(), 0, "{layout:?}");
        if let Some((other, held)) = self.live.range(..start + layout.size()).next_back() {
            assert!(other + held.layout.size() <= start, "{layout:?} at {start:x} overlaps {other:x}");
        }
        let mut block = Block { layout, fill: 0 };
        if zeroed {
            check(start, block, layout.size());
        }
        self.fill = self.fill.wrapping_add(1);
        block.fill = self.fill;
        write(start, block);
        self.live.insert(start, block);
        if self.live.len() > BLOCKS_MAX {
            self.free(start);
        }
    }

    /// Whether a heap with these blocks may have no room for `layout`: a good part of its limit is in use, or what is
    /// free lies in pieces, which trim gives back for memory in one.
    fn is_full_enough(&self, layout: Layout) -> bool {
        let held: usize = self.live.values().map(|block| block.layout.size()).sum();
        let wanted = layout.size() + 2 * layout.align();
        if (held + wanted) as u64 > LIMIT / 4 {
            return true;
        }
        HEAP.trim();
        // SAFETY: the size is not 0; the block is freed with its layout.
        unsafe {
            let block = HEAP.alloc(layout);
            if !block.is_null() {
                HEAP.dealloc(block, layout);
            }
            !block.is_null()
        }
    }

    fn free(&mut self, start: usize) {
        if let Some(block) = self.live.remove(&start) {
            check(start, block, block.layout.size());
            // SAFETY: a live block, no longer in the list.
            unsafe { HEAP.dealloc(std::ptr::with_exposed_provenance_mut(start), block.layout) };
        }
    }

    fn resize(&mut self, start: usize, size: usize) {
        let Some(block) = self.live.remove(&start) else {
            return;
        };
        check(start, block, block.layout.size());
        let Ok(layout) = Layout::from_size_align(size, block.layout.align()) else {
            return;
        };
        // SAFETY: a live block; the size is not 0 and far from overflow.
        let moved = unsafe { HEAP.realloc(std::ptr::with_exposed_provenance_mut(start), block.layout, size) };
        if moved.is_null() {
            check(start, block, block.layout.size());
            self.live.insert(start, block);
            return;
        }
        // What is beyond the steps of the old size was written by its end.
        let kept = block.layout.size().min(size);
        if kept <= DENSE_MAX {
            check(moved.expose_provenance(), block, kept.min(DENSE_MAX));
        }
        self.own(moved, layout, false);
    }
}

/// The offsets at which a block of `size` bytes is looked at.
fn places(size: usize) -> impl Iterator<Item = usize> {
    let step = if size <= DENSE_MAX { 1 } else { STEP };
    (0..size).step_by(step).chain(std::iter::once(size - 1))
}

fn write(start: usize, block: Block) {
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    for place in places(block.layout.size()) {
        // SAFETY: inside a live block.
        unsafe { at.add(place).write(block.fill) };
    }
}

fn check(start: usize, block: Block, bytes: usize) {
    let at: *const u8 = std::ptr::with_exposed_provenance(start);
    for place in places(bytes).filter(|_| bytes == block.layout.size() || block.layout.size() <= DENSE_MAX) {
        // SAFETY: inside a live block.
        let found = unsafe { at.add(place).read() };
        assert_eq!(found, block.fill, "byte {place} of {:?} at {start:x}", block.layout);
    }
}
