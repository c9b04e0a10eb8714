//! Large blocks: runs of units, of any length and alignment. Tails are shared: a block costs its size rounded
//! up to a unit, not to a huge page.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::{self, null_mut};
use std::sync::atomic::Ordering::Relaxed;

use super::space::{CHUNK_BYTES, Kind, Space, UNIT_BYTES};
use super::{HEAP, HugeAlloc};
use crate::memops::{self, DirtyRegions, FirstTouch};
use crate::sys::{keeping_errno, process};

/// Blocks from this size on get room behind them when they have to move to grow.
const ROOM_FROM_BYTES: usize = 8 << 20;

/// Units that hold `bytes`, or `None` when no space does.
fn units_for(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.max(1).div_ceil(UNIT_BYTES)).ok().filter(|units| *units < u32::MAX / 2)
}

/// A block for `layout`, contents unknown; null when the heap is exhausted.
#[cold]
#[inline(never)]
pub(crate) fn alloc(config: &HugeAlloc, layout: Layout) -> *mut u8 {
    let Some((space, start, units)) = take(config, layout) else {
        return null_mut();
    };
    space.mark_dirty(start, units);
    space.address(start)
}

/// A zeroed block for `layout`. Only units that were handed out before are cleared, with no lock held, those
/// of the first touch last.
#[cold]
#[inline(never)]
pub(crate) fn alloc_zeroed(config: &HugeAlloc, layout: Layout, touch: FirstTouch) -> *mut u8 {
    let Some((space, start, units)) = take(config, layout) else {
        return null_mut();
    };
    let block = space.address(start);
    let is_dirty = |unit| space.is_dirty(start + unit as u32);
    // SAFETY: the run is ours alone and not yet handed out, and at least as long as the layout.
    unsafe { memops::clear_dirty(block, DirtyRegions::new(layout.size(), UNIT_BYTES, touch), is_dirty) };
    space.mark_dirty(start, units);
    block
}

fn take(config: &HugeAlloc, layout: Layout) -> Option<(&'static Space, u32, u32)> {
    let units = units_for(layout.size())?;
    let align = units_for(layout.align())?;
    keeping_errno(|| {
        if !HEAP.start(config) {
            return None;
        }
        let space = HEAP.space().filter(|space| layout.align() <= space.largest_align())?;
        let take = || HEAP.take_unmarked_run(units, align);
        let start = take().or_else(|| if HEAP.gather_more() { take() } else { None })?;
        Some((space, start, units))
    })
}

/// Frees a large block.
#[cold]
#[inline(never)]
pub(crate) fn dealloc(block: *mut u8) {
    if let Some(space) = HEAP.space() {
        keeping_errno(|| HEAP.give_run(run_of(space, block)));
    }
}

/// The run that `block` is; aborts when it is none.
pub(crate) fn run_of(space: &Space, block: *mut u8) -> u32 {
    let start = space.unit_of(block);
    if space.unit(start).kind() != Kind::Run || !ptr::eq(space.address(start), block) {
        process::abort_with("hugearena: double free, or a pointer that is not a block\n");
    }
    start
}

/// Resizes a large block to `new_size`, also large, where it is. Returns whether it could.
pub(crate) fn resize_in_place(block: *mut u8, new_size: usize) -> bool {
    let (Some(space), Some(units)) = (HEAP.space(), units_for(new_size)) else {
        return false;
    };
    let start = run_of(space, block);
    let held = space.unit(start).len.load(Relaxed);
    if units <= held {
        if units < held {
            keeping_errno(|| {
                HEAP.runs.lock().shrink(space, start, held, units);
                HEAP.release_room(space, start + held);
            });
        }
        return true;
    }
    let new_held = keeping_errno(|| {
        let extended = HEAP.runs.lock().extend(space, start, held, units - held);
        if extended { Some(units) } else { grow_in_place(space, start, held, units) }
    });
    if let Some(new_held) = new_held {
        space.mark_dirty(start + held, new_held - held);
    }
    new_held.is_some()
}

/// As [`resize_in_place`], when there is no other block to be had: what is free in pieces elsewhere may be had again behind
/// this one.
pub(crate) fn resize_at_last(block: *mut u8, new_size: usize) -> bool {
    let (Some(space), Some(units)) = (HEAP.space(), units_for(new_size)) else {
        return false;
    };
    let held = space.unit(run_of(space, block)).len.load(Relaxed);
    keeping_errno(|| HEAP.give_back_for(space, units.saturating_sub(held))) && resize_in_place(block, new_size)
}

fn grow_in_place(space: &Space, start: u32, held: u32, units: u32) -> Option<u32> {
    // Small blocks are cheaper to move than to ask the system for.
    if (held as usize) * UNIT_BYTES < ROOM_FROM_BYTES / 2 {
        return None;
    }
    HEAP.grow_in_place(space, start, held, units - held)
}

/// A block for a large block that has to move to grow to `layout`: where it can go on growing, unless free
/// memory is plenty.
pub(crate) fn alloc_to_grow(config: &HugeAlloc, layout: Layout) -> *mut u8 {
    let roomy = || {
        let space = HEAP.space()?;
        let units = units_for(layout.size()).filter(|_| layout.align() <= CHUNK_BYTES)?;
        if layout.size() < ROOM_FROM_BYTES || HEAP.is_mostly_free() {
            return None;
        }
        let start = HEAP.grow_with_room(space, units)?;
        space.mark_dirty(start, space.unit(start).len.load(Relaxed));
        Some(space.address(start))
    };
    keeping_errno(roomy).unwrap_or_else(|| alloc(config, layout))
}
