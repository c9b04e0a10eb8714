//! In which order the batches of a region are written, so that the first-touch window is written last.
//!
//! What was written last is what the cache still holds when the caller arrives. Everything here is arithmetic
//! on offsets: no pointer, no length and no hint can make it panic, skip a byte or write one twice.

use std::iter::FusedIterator;
use std::ops::Range;

/// Batches are multiples of this many bytes, so that none but the last of a range splits a cache line.
const LINE: usize = 64;

/// Where the caller will touch a region first, and how much of it: offset and length in bytes.
///
/// A hint, never a promise: it may lie outside the region and nothing but speed depends on it.
///
/// # Examples
///
/// ```
/// use hugearena::memops::FirstTouch;
///
/// // A header of 100 bytes in the third page: the window is that page.
/// assert_eq!(FirstTouch::at(8200, 100).window(2 << 20), 8192..12288);
/// // Past the end means the last page.
/// assert_eq!(FirstTouch::at(usize::MAX, 0).window(16384), 12288..16384);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTouch {
    /// Bytes from the start of the region.
    pub offset: usize,
    /// Bytes touched soon after the first; 0 counts as 1.
    pub len: usize,
}

impl FirstTouch {
    /// Windows are rounded outwards to multiples of this many bytes.
    ///
    /// A caller that reads a 64-byte header goes on behind it. Caching the rest of its 4 KiB costs under 0.2 us,
    /// and hardware prefetchers stop at this boundary.
    pub const GRANULE: usize = 4096;

    /// The window of [`unknown`](Self::unknown): 64 KiB, less a byte, which makes the same window and tells it from one
    /// that a caller names.
    pub const UNKNOWN_LEN: usize = (64 << 10) - 1;

    /// The caller touches `len` bytes at `offset` first.
    #[must_use]
    pub const fn at(offset: usize, len: usize) -> FirstTouch {
        FirstTouch { offset, len }
    }

    /// Nothing is known: the first 64 KiB, because most users of a block start at its start. A copy is made through the
    /// cache then, as `memcpy` makes it, because most users of a copy go on to use it all.
    #[must_use]
    pub const fn unknown() -> FirstTouch {
        FirstTouch::at(0, Self::UNKNOWN_LEN)
    }

    /// The caller is about to use all of the region.
    #[must_use]
    pub const fn whole() -> FirstTouch {
        FirstTouch::at(0, usize::MAX)
    }

    /// The same first byte, with at most `bytes` of window.
    #[must_use]
    pub fn at_most(self, bytes: usize) -> FirstTouch {
        FirstTouch { len: self.len.min(bytes), ..self }
    }

    /// The window in a region of `len` bytes: half-open, rounded outwards to [`GRANULE`](Self::GRANULE), then
    /// cut to the region. It is empty only if the region is; a hint past the end means the region's last byte.
    #[must_use]
    pub fn window(self, len: usize) -> Range<usize> {
        let Some(last) = len.checked_sub(1) else { return 0..0 };
        let first = self.offset.min(last);
        let end = first.saturating_add(self.len.max(1));
        let rounded_end = end.checked_next_multiple_of(Self::GRANULE).unwrap_or(usize::MAX);
        first - first % Self::GRANULE..rounded_end.min(len)
    }
}

impl Default for FirstTouch {
    fn default() -> FirstTouch {
        FirstTouch::unknown()
    }
}

/// The sequence in which a region's batches are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// Start to end, wherever the window lies. For comparison, and for regions in cache.
    Ascending,
    /// Farthest from the window first, from both sides alternately: Linux 4.14 to 6.19.
    Butterfly,
    /// All to the right of the window, all to the left, then the window, each ascending: Linux 7.0. The
    /// hardware sees three streams instead of jumps.
    Ranges,
}

impl Order {
    /// The batches of a region of `len` bytes with the window of `touch`, none longer than `batch_bytes`.
    ///
    /// The region is cut at both edges of the window; each of the three parts is then cut from its start, so
    /// only the last batch of a part is shorter. `batch_bytes` is rounded down to a multiple of 64, at least 64.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::memops::{FirstTouch, Order};
    ///
    /// let offsets = |order: Order| -> Vec<usize> {
    ///     order.batches(5 * 4096, FirstTouch::at(4096, 1), 4096).map(|batch| batch.offset / 4096).collect()
    /// };
    /// assert_eq!(offsets(Order::Ranges), [2, 3, 4, 0, 1]);
    /// assert_eq!(offsets(Order::Butterfly), [4, 3, 2, 0, 1]);
    /// ```
    ///
    /// # Sources
    ///
    /// Linux `mm/memory.c`: `process_huge_page()` for [`Butterfly`](Self::Butterfly), `folio_zero_user()` of
    /// 7.0 for [`Ranges`](Self::Ranges).
    #[must_use]
    pub fn batches(self, len: usize, touch: FirstTouch, batch_bytes: usize) -> Batches {
        let window = touch.window(len);
        Batches {
            order: self,
            left: Extent { start: 0, end: window.start },
            right: Extent { start: window.end, end: len },
            window: Extent { start: window.start, end: window.end },
            batch_bytes: (batch_bytes - batch_bytes % LINE).max(LINE),
        }
    }
}

/// One piece of a region, to be written by one call of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// Bytes from the start of the region.
    pub offset: usize,
    /// Bytes, never 0.
    pub len: usize,
    /// Whether it belongs to the first-touch window, and so should end in cache.
    pub near: bool,
}

/// The batches of one region in some [`Order`]: every byte in exactly one of them. See [`Order::batches`].
#[derive(Clone, Debug)]
pub struct Batches {
    order: Order,
    left: Extent,
    window: Extent,
    right: Extent,
    batch_bytes: usize,
}

impl Batches {
    /// Bytes in the batches that are still to come.
    #[must_use]
    pub fn remaining_bytes(&self) -> usize {
        self.left.len() + self.window.len() + self.right.len()
    }

    fn next_ascending(&mut self) -> Option<Batch> {
        let bytes = self.batch_bytes;
        let far = self.left.take_first(bytes).map(Extent::far);
        let near = || self.window.take_first(bytes).map(Extent::near);
        far.or_else(near).or_else(|| self.right.take_first(bytes).map(Extent::far))
    }

    /// Takes from the side that reaches farther; at equal distance from the right, as Linux did.
    fn next_butterfly(&mut self) -> Option<Batch> {
        let bytes = self.batch_bytes;
        let far =
            if self.left.len() > self.right.len() { self.left.take_first(bytes) } else { self.right.take_last(bytes) };
        far.map(Extent::far).or_else(|| self.window.take_first(bytes).map(Extent::near))
    }

    fn next_ranges(&mut self) -> Option<Batch> {
        let bytes = self.batch_bytes;
        let far = self.right.take_first(bytes).or_else(|| self.left.take_first(bytes));
        far.map(Extent::far).or_else(|| self.window.take_first(bytes).map(Extent::near))
    }
}

impl Iterator for Batches {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        match self.order {
            Order::Ascending => self.next_ascending(),
            Order::Butterfly => self.next_butterfly(),
            Order::Ranges => self.next_ranges(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = |part: Extent| part.len().div_ceil(self.batch_bytes);
        let batches = count(self.left) + count(self.window) + count(self.right);
        (batches, Some(batches))
    }
}

impl ExactSizeIterator for Batches {}
impl FusedIterator for Batches {}

/// What is left of one part of the region. Invariant: `start <= end`.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: usize,
    end: usize,
}

impl Extent {
    fn len(self) -> usize {
        self.end - self.start
    }

    fn take_first(&mut self, batch_bytes: usize) -> Option<Extent> {
        let taken = Extent { start: self.start, end: self.start + self.len().min(batch_bytes) };
        self.start = taken.end;
        (taken.len() > 0).then_some(taken)
    }

    /// Takes the last batch of the cut that [`take_first`](Self::take_first) makes, so the short one goes first.
    fn take_last(&mut self, batch_bytes: usize) -> Option<Extent> {
        let before_last = self.len().checked_sub(1)? / batch_bytes * batch_bytes;
        let taken = Extent { start: self.start + before_last, end: self.end };
        self.end = taken.start;
        Some(taken)
    }

    fn near(self) -> Batch {
        Batch { offset: self.start, len: self.len(), near: true }
    }

    fn far(self) -> Batch {
        Batch { near: false, ..self.near() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = FirstTouch::GRANULE;
    const ORDERS: [Order; 3] = [Order::Ascending, Order::Butterfly, Order::Ranges];

    /// The oracle: cut with plain loops, then sort by what the order means.
    fn naive(order: Order, len: usize, window: Range<usize>, batch_bytes: usize) -> Vec<Batch> {
        let mut all = Vec::new();
        for (part, near) in [(0..window.start, false), (window.clone(), true), (window.end..len, false)] {
            let mut offset = part.start;
            while offset < part.end {
                let len = batch_bytes.min(part.end - offset);
                all.push(Batch { offset, len, near });
                offset += len;
            }
        }
        match order {
            Order::Ascending => {}
            Order::Butterfly => all.sort_by_key(|batch| match batch {
                Batch { near: true, offset, .. } => (1, *offset, 0),
                batch => (0, usize::MAX - reach(batch, &window), usize::from(batch.offset < window.start)),
            }),
            Order::Ranges => all.sort_by_key(|batch| match batch {
                Batch { near: true, offset, .. } => (2, *offset),
                batch if batch.offset >= window.end => (0, batch.offset),
                batch => (1, batch.offset),
            }),
        }
        all
    }

    /// How far from the window a far batch reaches, in bytes.
    fn reach(batch: &Batch, window: &Range<usize>) -> usize {
        if batch.offset < window.start { window.start - batch.offset } else { batch.offset + batch.len - window.end }
    }

    fn check(len: usize, touch: FirstTouch, batch_bytes: usize) {
        let window = touch.window(len);
        let granted = (batch_bytes / LINE * LINE).max(LINE);
        for order in ORDERS {
            let batches = order.batches(len, touch, batch_bytes);
            assert_eq!(batches.remaining_bytes(), len);
            assert_eq!(batches.len(), batches.clone().count(), "size_hint {order:?}");
            let got: Vec<Batch> = batches.collect();
            assert_eq!(got, naive(order, len, window.clone(), granted), "{order:?} {len} {touch:?} {batch_bytes}");
            check_claims(order, &got, len, &window, granted);
        }
    }

    /// What the documentation claims, said again without the oracle.
    fn check_claims(order: Order, batches: &[Batch], len: usize, window: &Range<usize>, batch_bytes: usize) {
        let mut sorted = batches.to_vec();
        sorted.sort_by_key(|batch| batch.offset);
        let mut next = 0;
        for batch in &sorted {
            assert_eq!(batch.offset, next, "a byte skipped or visited twice");
            assert!(0 < batch.len && batch.len <= batch_bytes);
            assert_eq!(batch.near, window.contains(&batch.offset));
            next += batch.len;
        }
        assert_eq!(next, len);
        if order == Order::Ascending {
            return;
        }
        let first_near = batches.iter().position(|batch| batch.near).unwrap_or(batches.len());
        let (far, near) = batches.split_at(first_near);
        assert!(near.iter().all(|batch| batch.near), "the window is last");
        assert!(near.is_sorted_by_key(|batch| batch.offset), "the window ascends");
        assert!(order != Order::Butterfly || far.is_sorted_by_key(|batch| usize::MAX - reach(batch, window)));
    }

    #[test]
    fn windows_are_rounded_and_clamped() {
        let two_mib = 2 << 20;
        for (touch, len, window) in [
            (FirstTouch::unknown(), two_mib, 0..65536),
            (FirstTouch::default(), 4096, 0..4096),
            (FirstTouch::whole(), two_mib, 0..two_mib),
            (FirstTouch::at(0, 0), two_mib, 0..PAGE),
            (FirstTouch::at(PAGE - 1, 2), two_mib, 0..2 * PAGE),
            (FirstTouch::at(two_mib - 1, 1), two_mib, two_mib - PAGE..two_mib),
            (FirstTouch::at(two_mib, 1), two_mib, two_mib - PAGE..two_mib),
            (FirstTouch::at(usize::MAX, usize::MAX), two_mib, two_mib - PAGE..two_mib),
            (FirstTouch::at(PAGE, usize::MAX), two_mib, PAGE..two_mib),
            (FirstTouch::at(5000, 1), 5001, 4096..5001),
            (FirstTouch::at(3, 3), 0, 0..0),
            (FirstTouch::whole(), usize::MAX, 0..usize::MAX),
            (FirstTouch::whole().at_most(5000), two_mib, 0..2 * PAGE),
        ] {
            assert_eq!(touch.window(len), window, "{touch:?} in {len}");
        }
    }

    #[test]
    fn the_edges_of_every_page_size() {
        for len in [PAGE, 2 * PAGE, 64 << 10, 2 << 20, 1 << 30] {
            let pages = len / PAGE;
            for page in [0, 1, pages / 2, pages.saturating_sub(2), pages - 1, pages] {
                for window_len in [0, 1, PAGE, 64 << 10, usize::MAX] {
                    // 1 GiB in page-sized batches is a quarter of a million: enough with one window.
                    let batches: &[usize] = if len > 2 << 20 { &[1 << 20] } else { &[PAGE, 32 << 10, usize::MAX] };
                    for &batch_bytes in batches {
                        check(len, FirstTouch::at(page * PAGE, window_len), batch_bytes);
                    }
                }
            }
        }
    }

    #[test]
    fn butterfly_by_pages_is_the_order_of_linux_4_14() {
        let order = |target: usize| -> Vec<usize> {
            let touch = FirstTouch::at(target * PAGE, 1);
            Order::Butterfly.batches(8 * PAGE, touch, PAGE).map(|batch| batch.offset / PAGE).collect()
        };
        assert_eq!(order(0), [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(order(2), [7, 6, 5, 4, 0, 3, 1, 2]);
        assert_eq!(order(5), [0, 1, 2, 7, 3, 6, 4, 5]);
        assert_eq!(order(7), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn an_empty_region_has_no_batch() {
        for order in ORDERS {
            assert_eq!(order.batches(0, FirstTouch::whole(), 0).next(), None);
        }
    }

    #[test]
    fn the_longest_region_does_not_overflow() {
        for order in ORDERS {
            let batches = order.batches(usize::MAX, FirstTouch::at(usize::MAX, usize::MAX), usize::MAX);
            assert_eq!(batches.map(|batch| batch.len).sum::<usize>(), usize::MAX);
        }
    }

    proptest! {
        #[test]
        fn batches_match_the_oracle(
            len in 0usize..300_000,
            offset in prop_oneof![0usize..400_000, Just(usize::MAX)],
            window_len in prop_oneof![0usize..400_000, Just(usize::MAX)],
            batch_bytes in prop_oneof![600usize..70_000, Just(0usize), Just(usize::MAX)],
        ) {
            check(len, FirstTouch::at(offset, window_len), batch_bytes);
        }
    }
}
