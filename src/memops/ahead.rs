//! Fetching the window into cache while the rest of the region is written around it.
//!
//! A store to a line that is in no cache waits until the line has been read. Non-caching stores leave the path from
//! memory idle, so the window's lines can come in meanwhile, a few at a time. 2 MiB with a window of 64 KiB, Zen 4:
//! 26.0 instead of 27.5 us; 128 KiB: 26.5 instead of 29.6; one loop over the whole without a window: 24.8.

use std::ops::Range;

/// Lines fetched in a row. More than the CPU can wait for at once stop the stores: with 32 a window of 256 KiB gains
/// nothing. Fewer cost more calls of the kernel.
const LINES: usize = 8;

/// A line of the window for this many outside it: such a trickle hardly slows the stores, and what is fetched long
/// before it is needed may be gone again.
const LEAD: usize = 32;

/// A window that is longer takes more bandwidth than it saves: 512 KiB 38.7 instead of 37.6 us.
const LONGEST: usize = 256 << 10;

const LINE: usize = 64;

/// What is fetched, and how far it has come.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Offsets in the region.
    window: Range<usize>,
    /// Bytes of the window that were fetched.
    fetched: usize,
    /// Bytes outside the window that are still to be written.
    far: usize,
    /// How many of them are left when fetching begins.
    lead: usize,
}

impl Ahead {
    /// For a region of `len` bytes with that window. `None` where fetching would not help.
    pub(super) fn new(window: Range<usize>, len: usize) -> Option<Ahead> {
        let far = len - window.len();
        let lead = far.min(window.len() * LEAD);
        (window.len() <= LONGEST && lead > 0).then_some(Ahead { window, fetched: 0, far, lead })
    }

    /// How many bytes to write outside the window between two rounds of fetching: a multiple of a line.
    pub(super) fn piece(&self) -> usize {
        LINES * LINE * (self.lead / self.window.len()).max(1)
    }

    /// The first bytes of the lines to fetch now, as offsets, when `bytes` more are about to be written outside.
    #[inline]
    pub(super) fn before(&mut self, bytes: usize) -> impl Iterator<Item = usize> + use<> {
        self.far = self.far.saturating_sub(bytes);
        let due = self.window.len() * self.lead.saturating_sub(self.far) / self.lead;
        let from = self.fetched;
        self.fetched = due.next_multiple_of(LINE).max(from);
        let start = self.window.start;
        (start + from..(start + self.fetched).min(self.window.end)).step_by(LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_line_of_the_window_is_fetched_once_and_in_time(
            start in 0usize..1000,
            window in 1usize..100_000,
            far in 1usize..10_000_000,
            piece in 1usize..10_000,
        ) {
            let window = start..start + window;
            let mut ahead = Ahead::new(window.clone(), window.len() + far).expect("short enough");
            let (mut left, mut fetched) = (far, Vec::new());
            while left > 0 {
                let bytes = piece.min(left);
                left -= bytes;
                let before = fetched.len();
                fetched.extend(ahead.before(bytes));
                prop_assert!(left <= window.len() * LEAD || fetched.len() == before, "too early");
            }
            prop_assert_eq!(fetched, window.step_by(LINE).collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_to_fetch_or_nothing_to_write_meanwhile() {
        assert!(Ahead::new(0..0, 4096).is_none());
        assert!(Ahead::new(0..4096, 4096).is_none());
        assert!(Ahead::new(0..LONGEST + 1, 1 << 30).is_none());
    }
}
