//! Spans: runs of units cut into equal blocks. Which blocks are free is a bitmap apart from the blocks, so taking
//! a block never touches a cold one, and a double free shows at the latest when it reaches its span.
//!
//! Everything here happens under the lock of the span's class.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::size_class::{ALIGNED_MAX, CLASS, Class};
use super::space::{Kind, Space, UNIT_BYTES, UNIT_WORDS};
use crate::sys::process;

/// Makes the run at `start`, which the caller owns, a span of `class` with every block free.
pub(crate) fn create(space: &Space, start: u32, class_index: usize) {
    let class = &CLASS[class_index];
    let colour = class.colour(start);
    let mark = |index| {
        let unit = space.unit(index);
        unit.set_class(class_index);
        unit.head.store(start, Relaxed);
        unit.set_kind(Kind::Span);
    };
    if class.size as usize <= ALIGNED_MAX {
        (start..start + class.units).for_each(mark);
    } else {
        // Both ends, as of any run, and where blocks start: entries cost cache lines, and blocks are long.
        mark(start);
        mark(start + class.units - 1);
        (0..class.capacity).for_each(|index| mark(start + (colour + index * class.stride) / UNIT_BYTES as u32));
    }
    let first = space.unit(start);
    first.len.store(class.units, Relaxed);
    first.free.store(class.capacity, Relaxed);
    first.search.store(0, Relaxed);
    first.colour.store(colour, Relaxed);
    first.set_listed(false);
    for at in 0..class.words() {
        let blocks = (class.capacity as usize - at * 64).min(64);
        word(space, start, class, at).store(u64::MAX >> (64 - blocks), Relaxed);
    }
    // Blocks go out one by one; the units count as handed out from now on.
    space.mark_dirty(start, class.units);
}

/// Takes free blocks of the span at `start`, lowest addresses first, until `out` is full or the span is empty.
/// Returns how many.
pub(crate) fn take(space: &Space, start: u32, class: &Class, out: &mut [MaybeUninit<*mut u8>]) -> usize {
    let first = space.unit(start);
    let free = first.free.load(Relaxed);
    let wanted = out.len().min(free as usize);
    let base = first_block(space, start);
    let mut taken = 0;
    let mut at = first.search.load(Relaxed) as usize;
    while taken < wanted {
        if at >= class.words() {
            process::abort_with("hugearena: heap corrupted: span holds fewer blocks than it counts\n");
        }
        let word = word(space, start, class, at);
        let mut bits = word.load(Relaxed);
        while bits != 0 && taken < wanted {
            let index = at as u32 * 64 + bits.trailing_zeros();
            out[taken].write(base.wrapping_add((index * class.stride) as usize));
            taken += 1;
            bits &= bits - 1;
        }
        word.store(bits, Relaxed);
        if bits == 0 {
            at += 1;
        }
    }
    first.search.store(at as u32, Relaxed);
    first.free.store(free - taken as u32, Relaxed);
    taken
}

/// The span that holds `block`, by its first unit; aborts when there is none of this class.
pub(crate) fn holding(space: &Space, block: *mut u8, class_index: usize) -> u32 {
    let unit = space.unit(space.unit_of(block));
    if unit.kind() != Kind::Span || unit.class() != class_index {
        process::abort_with("hugearena: freed a pointer with a layout it was not allocated with\n");
    }
    unit.head.load(Relaxed)
}

/// Gives the leading `blocks` that belong to the span at `start` back to it; returns how many those are.
///
/// Blocks are freed in runs more often than not, so a span is looked up and counted once for all of them.
pub(crate) fn give(space: &Space, start: u32, class: &Class, blocks: &[*mut u8]) -> usize {
    let base = first_block(space, start).addr();
    let bytes = (class.capacity * class.stride) as usize;
    let mut lowest = u32::MAX;
    let mut given = 0;
    // Neighbours share a word: it is written when the next block is in another one.
    let (mut at, mut bits) = (u32::MAX, 0);
    let store = |at, bits| {
        if at != u32::MAX {
            word(space, start, class, at as usize).store(bits, Relaxed);
        }
    };
    for block in blocks {
        let offset = block.addr().wrapping_sub(base);
        if offset >= bytes {
            break;
        }
        let Some(index) = class.index_at(offset) else {
            process::abort_with("hugearena: freed a pointer into the middle of a block\n");
        };
        if index / 64 != at {
            store(at, bits);
            at = index / 64;
            bits = word(space, start, class, at as usize).load(Relaxed);
            lowest = lowest.min(at);
        }
        let bit = 1 << (index % 64);
        if bits & bit != 0 {
            process::abort_with("hugearena: double free\n");
        }
        bits |= bit;
        given += 1;
    }
    store(at, bits);
    if given == 0 {
        process::abort_with("hugearena: freed a pointer behind the last block of a span\n");
    }
    let first = space.unit(start);
    first.search.store(first.search.load(Relaxed).min(lowest), Relaxed);
    first.free.store(first.free.load(Relaxed) + given as u32, Relaxed);
    given
}

/// Where the first block of the span at `start` starts.
fn first_block(space: &Space, start: u32) -> *mut u8 {
    space.address(start).wrapping_add(space.unit(start).colour.load(Relaxed) as usize)
}

/// Word `at` of the bitmap of the span at `start`.
fn word<'a>(space: &'a Space, start: u32, class: &Class, at: usize) -> &'a AtomicU64 {
    if class.bitmap_offset != 0 {
        return space.word_in_span(start, class.bitmap_offset as usize, at);
    }
    &space.unit(start + (at / UNIT_WORDS) as u32).bitmap[at % UNIT_WORDS]
}
