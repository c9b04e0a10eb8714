//! Clearing only what is dirty, the part that is touched first last.

#![allow(unsafe_code)]

use std::ops::{ControlFlow, Range};

use super::{FirstTouch, Method, Nothing, Pace, Progress, clear_with};

/// A dirty part of a block: neighbouring dirty grains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Bytes from the start of the block.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// Where the region is touched first, from its own start.
    pub(crate) touch: FirstTouch,
}

/// The dirty regions of a block, in ascending order, but for the one of the first touch, which comes last.
#[derive(Debug)]
pub(crate) struct DirtyRegions {
    block_len: usize,
    grain_bytes: usize,
    touch: FirstTouch,
    /// The next grain to be looked at.
    at: usize,
    /// The region of the first touch, when it has been passed.
    last: Option<Range<usize>>,
}

impl DirtyRegions {
    /// For a block of `block_len` bytes, of which what is dirty is known per `grain_bytes`.
    pub(crate) fn new(block_len: usize, grain_bytes: usize, touch: FirstTouch) -> DirtyRegions {
        DirtyRegions { block_len, grain_bytes, touch, at: 0, last: None }
    }

    /// The next region. `is_dirty` is asked once for each grain over all calls, in ascending order, before
    /// anything at or behind it is to be cleared.
    pub(crate) fn next(&mut self, mut is_dirty: impl FnMut(usize) -> bool) -> Option<Region> {
        let grains = self.block_len.div_ceil(self.grain_bytes);
        let target = (self.touch.offset / self.grain_bytes).min(grains.saturating_sub(1));
        while self.at < grains {
            let mut run = self.at..self.at;
            while self.at < grains {
                let dirty = is_dirty(self.at);
                self.at += 1;
                if !dirty {
                    break;
                }
                run.end = self.at;
            }
            if run.contains(&target) {
                self.last = Some(run);
            } else if !run.is_empty() {
                return Some(self.region(&run, FirstTouch::at(0, 1)));
            }
        }
        let run = self.last.take()?;
        let here = FirstTouch::at(self.touch.offset.saturating_sub(run.start * self.grain_bytes), self.touch.len);
        Some(self.region(&run, here))
    }

    /// Bytes not yet looked at, and bytes that were but are still to come.
    pub(crate) fn remaining_bytes(&self) -> usize {
        let unseen = self.block_len.saturating_sub(self.at * self.grain_bytes);
        unseen + self.last.as_ref().map_or(0, |run| self.region(run, self.touch).len)
    }

    fn region(&self, run: &Range<usize>, touch: FirstTouch) -> Region {
        let offset = run.start * self.grain_bytes;
        Region { offset, len: (run.end * self.grain_bytes).min(self.block_len) - offset, touch }
    }
}

/// Zeroes the dirty parts of a block by the methods that suit them; returns how many bytes were cleared. Never
/// allocates, locks or panics, unless `is_dirty` does.
///
/// # Safety
///
/// As for [`clear`](super::clear): the block is valid for writing all its bytes, and nobody else uses them.
pub(crate) unsafe fn clear_dirty(block: *mut u8, regions: DirtyRegions, is_dirty: impl FnMut(usize) -> bool) -> usize {
    let mut pace = Nothing.in_batches_of(usize::MAX);
    // SAFETY: the caller's contract, for each region.
    let method =
        |region: &Region| unsafe { Method::choose_to_clear(block.add(region.offset), region.len, region.touch) };
    // SAFETY: the caller's contract. That pace never stops.
    let (ControlFlow::Continue(cleared) | ControlFlow::Break(cleared)) =
        unsafe { clear_dirty_with(block, regions, is_dirty, method, &mut pace) };
    cleared
}

/// Zeroes the dirty parts of a block at `pace`; returns how many bytes were cleared, as `Break` if the pace
/// stopped it.
///
/// # Safety
///
/// As for [`clear_dirty`]; the pace does not use the block either.
pub(crate) unsafe fn clear_dirty_with(
    block: *mut u8,
    mut regions: DirtyRegions,
    mut is_dirty: impl FnMut(usize) -> bool,
    mut method: impl FnMut(&Region) -> Method,
    pace: &mut impl Pace,
) -> ControlFlow<usize, usize> {
    let mut cleared = 0;
    while let Some(region) = regions.next(&mut is_dirty) {
        let total_bytes = regions.block_len;
        let before = total_bytes - regions.remaining_bytes() - region.len;
        let mut pace = Within { pace, before, total_bytes };
        let method = method(&region);
        // SAFETY: the region is part of the block; the rest is the caller's contract.
        let outcome = unsafe { clear_with(block.add(region.offset), region.len, region.touch, &method, &mut pace) };
        if outcome.is_break() {
            return ControlFlow::Break(cleared);
        }
        cleared += region.len;
        let progress = Progress { done_bytes: before + region.len, total_bytes };
        if !progress.is_done() && pace.pace.between(progress).is_break() {
            return ControlFlow::Break(cleared);
        }
    }
    ControlFlow::Continue(cleared)
}

/// A pace that sees the whole block while one region of it is cleared.
struct Within<'a, P> {
    pace: &'a mut P,
    before: usize,
    total_bytes: usize,
}

impl<P: Pace> Pace for Within<'_, P> {
    fn batch_bytes(&self) -> usize {
        self.pace.batch_bytes()
    }

    fn between(&mut self, progress: Progress) -> ControlFlow<()> {
        let done_bytes = self.before + progress.done_bytes;
        self.pace.between(Progress { done_bytes, total_bytes: self.total_bytes })
    }
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
            let regions = DirtyRegions::new(len, GRAIN, FirstTouch::at(offset, 100));
            // SAFETY: the vector owns its bytes.
            let cleared = unsafe { clear_dirty(block.as_mut_ptr(), regions, ask) };
            prop_assert_eq!(asked, dirty.len());
            for (at, byte) in block.iter().enumerate() {
                prop_assert_eq!(*byte, if dirty[at / GRAIN] && at < len { 0 } else { 7 }, "at {}", at);
            }
            prop_assert_eq!(cleared, block.iter().filter(|byte| **byte == 0).count());
        }

        #[test]
        fn the_touched_region_comes_last_and_progress_only_rises(
            dirty in proptest::collection::vec(any::<bool>(), 1..40),
            target in 0usize..40,
        ) {
            let target = target % dirty.len();
            let mut regions = DirtyRegions::new(dirty.len() * 10, 10, FirstTouch::at(target * 10 + 3, 4));
            let mut before = regions.remaining_bytes();
            prop_assert_eq!(before, dirty.len() * 10);
            let mut seen = Vec::new();
            while let Some(region) = regions.next(|grain| dirty[grain]) {
                prop_assert!(regions.remaining_bytes() < before);
                before = regions.remaining_bytes();
                seen.push(region);
            }
            prop_assert_eq!(regions.remaining_bytes(), 0);
            let holds = |region: &Region| (region.offset..region.offset + region.len).contains(&(target * 10));
            let last = seen.iter().position(holds);
            prop_assert_eq!(last, if dirty[target] { Some(seen.len() - 1) } else { None });
            if let Some(last) = last {
                prop_assert_eq!(seen[last].touch.offset + seen[last].offset, target * 10 + 3);
            }
        }
    }
}
