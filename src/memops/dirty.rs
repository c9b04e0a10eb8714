//! Clearing only what is dirty, the part that is touched first last.

#![allow(unsafe_code)]

use std::ops::Range;

use super::{FirstTouch, clear};

/// Zeroes the dirty parts of a block of `len` bytes, of which what is dirty is known per `grain_bytes`; returns
/// how many bytes were cleared.
///
/// `is_dirty` is asked once for each grain, in ascending order, before anything at or behind it is cleared.
/// Neighbouring dirty grains are cleared as one region; the one that holds the first touch comes last.
///
/// # Safety
///
/// As for [`clear`](super::clear): the block is valid for writing `len` bytes, and nobody else uses them.
pub(crate) unsafe fn clear_dirty(
    block: *mut u8,
    len: usize,
    grain_bytes: usize,
    mut is_dirty: impl FnMut(usize) -> bool,
    touch: FirstTouch,
) -> usize {
    let grains = len.div_ceil(grain_bytes);
    let target = touch.offset / grain_bytes;
    let mut last = None;
    let mut cleared = 0;
    let mut run = 0..0;
    for grain in 0..=grains {
        if grain < grains && is_dirty(grain) {
            run = if run.is_empty() { grain..grain + 1 } else { run.start..grain + 1 };
        } else if run.contains(&target.min(grains.saturating_sub(1))) {
            last = Some(std::mem::take(&mut run));
        } else if !run.is_empty() {
            // SAFETY: the caller's contract; the region is part of the block.
            cleared +=
                unsafe { clear_region(block, len, grain_bytes, &std::mem::take(&mut run), FirstTouch::at(0, 1)) };
        }
    }
    if let Some(run) = last {
        let here = FirstTouch::at(touch.offset.saturating_sub(run.start * grain_bytes), touch.len);
        // SAFETY: as above.
        cleared += unsafe { clear_region(block, len, grain_bytes, &run, here) };
    }
    cleared
}

/// # Safety
///
/// As for [`clear_dirty`]; `run` lies inside the block.
unsafe fn clear_region(block: *mut u8, len: usize, grain_bytes: usize, run: &Range<usize>, touch: FirstTouch) -> usize {
    let start = run.start * grain_bytes;
    let bytes = (run.end * grain_bytes).min(len) - start;
    // SAFETY: the caller's contract.
    unsafe { clear(block.add(start), bytes, touch) };
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn dirty_grains_become_zero_and_others_stay(
            dirty in proptest::collection::vec(any::<bool>(), 1..40),
            cut in 0usize..1000,
            offset in 0usize..50_000,
        ) {
            const GRAIN: usize = 1000;
            let len = dirty.len() * GRAIN - cut;
            let mut block = vec![7u8; dirty.len() * GRAIN];
            let mut asked = 0;
            let ask = |grain| {
                assert_eq!(grain, asked);
                asked += 1;
                dirty[grain]
            };
            // SAFETY: the vector owns its bytes.
            let cleared = unsafe { clear_dirty(block.as_mut_ptr(), len, GRAIN, ask, FirstTouch::at(offset, 100)) };
            prop_assert_eq!(asked, dirty.len());
            for (at, byte) in block.iter().enumerate() {
                prop_assert_eq!(*byte, if dirty[at / GRAIN] && at < len { 0 } else { 7 }, "at {}", at);
            }
            prop_assert_eq!(cleared, block.iter().filter(|byte| **byte == 0).count());
        }
    }
}
