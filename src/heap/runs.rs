//! Free runs of units: two-level segregated fit with boundary tags, all in the unit table.
//!
//! A free run is on the list of its length's bin; its first and last unit say so, which is how a run that is
//! given back finds free neighbours and joins them at once. Taking searches the bins upwards for the first that
//! can only hold runs long enough: constant time, and the shortest such bin, so long runs stay long.
//!
//! Source: Masmano, Ripoll, Crespo, Real, "TLSF: a New Dynamic Memory Allocator for Real-Time Systems", 2004.

use std::sync::atomic::Ordering::Relaxed;

use super::space::{CHUNK_UNITS, Kind, NONE, Space};

/// Bins per power of two.
const FINE: u32 = 8;
const FINE_LOG2: u32 = FINE.trailing_zeros();
const COARSE: usize = 32;

/// Runs looked at in the bin of the very length before a longer bin is opened.
const EXACT_TRIES: u32 = 4;

/// The free runs of a space. The caller's lock makes it the only writer of the tables' run fields.
#[derive(Debug)]
pub(crate) struct Runs {
    coarse: u32,
    fine: [u8; COARSE],
    heads: [[u32; FINE as usize]; COARSE],
    /// Units in all free runs.
    free_units: u64,
}

impl Runs {
    pub(crate) const fn new() -> Runs {
        Runs { coarse: 0, fine: [0; COARSE], heads: [[NONE; FINE as usize]; COARSE], free_units: 0 }
    }

    /// Units in all free runs.
    pub(crate) fn free_units(&self) -> u64 {
        self.free_units
    }

    /// Adds a run that nobody uses, joined with free neighbours; returns the joined run, as start and length.
    pub(crate) fn insert(&mut self, space: &Space, start: u32, len: u32) -> (u32, u32) {
        let (mut start, mut len) = (start, len);
        // Joined with what is before, it is no start of anything: freed again, it has to show.
        space.unit(start).set_kind(Kind::Inside);
        if let Some(before) = free_before(space, start) {
            let joined = space.unit(before).len.load(Relaxed);
            self.unlink(space, before, joined);
            (start, len) = (before, len + joined);
        }
        if let Some(joined) = free_at(space, start + len) {
            self.unlink(space, start + len, joined);
            len += joined;
        }
        self.link(space, start, len);
        (start, len)
    }

    /// Takes a run of `len` units whose first is a multiple of `align`, a power of two, and marks it in use.
    pub(crate) fn take(&mut self, space: &Space, len: u32, align: u32) -> Option<u32> {
        let padded = len.checked_add(align - 1)?;
        let found = self.find(space, len, align).or_else(|| self.find(space, padded, 1))?;
        Some(self.take_first(space, found, len, align))
    }

    /// As [`take`](Self::take), looking at every free run that may do: before the system is asked for more.
    pub(crate) fn take_thoroughly(&mut self, space: &Space, len: u32, align: u32) -> Option<u32> {
        self.take(space, len, align).or_else(|| {
            let found = self.find_thoroughly(space, len, align)?;
            Some(self.take_first(space, found, len, align))
        })
    }

    /// Takes the first `len` units at `align` out of a free run that [`fits`] them.
    fn take_first(&mut self, space: &Space, free: (u32, u32), len: u32, align: u32) -> u32 {
        let start = free.0.next_multiple_of(align);
        self.take_part(space, free, start, len);
        start
    }

    /// Takes `len` units at `start` out of a free run that holds them, and marks them in use.
    pub(crate) fn take_part(&mut self, space: &Space, free: (u32, u32), start: u32, len: u32) {
        let (free_start, free_len) = free;
        let (end, free_end) = (start + len, free_start + free_len);
        debug_assert!(free_start <= start && end <= free_end);
        self.unlink(space, free_start, free_len);
        if start > free_start {
            self.link(space, free_start, start - free_start);
        }
        if free_end > end {
            self.link(space, end, free_end - end);
        }
        mark_used(space, start, len);
    }

    /// Lengthens the run in use `start..start + len` by `more` units if they are free and adjacent.
    pub(crate) fn extend(&mut self, space: &Space, start: u32, len: u32, more: u32) -> bool {
        let end = start + len;
        let Some(free) = free_at(space, end).filter(|free| *free >= more) else {
            return false;
        };
        self.take_part(space, (end, free), end, more);
        mark_used(space, start, len + more);
        true
    }

    /// Gives the end of the run in use at `start` back, down to `len` units.
    pub(crate) fn shrink(&mut self, space: &Space, start: u32, held: u32, len: u32) {
        mark_used(space, start, len);
        self.insert(space, start + len, held - len);
    }

    /// The first free run found, in bins of growing length, that holds `len` units at `align`.
    fn find_thoroughly(&self, space: &Space, len: u32, align: u32) -> Option<(u32, u32)> {
        self.find_map(space, len, |run, run_len| fits(run, run_len, len, align).then_some((run, run_len)))
    }

    /// What `look` finds first in the free runs of at least `len` units, which it gets as start and length.
    pub(crate) fn find_map<T>(
        &self,
        space: &Space,
        len: u32,
        mut look: impl FnMut(u32, u32) -> Option<T>,
    ) -> Option<T> {
        for row in &self.heads[bin_of(len).0 as usize..] {
            for head in row {
                let mut run = *head;
                while run != NONE {
                    let unit = space.unit(run);
                    if let Some(found) = look(run, unit.len.load(Relaxed)) {
                        return Some(found);
                    }
                    run = unit.next.load(Relaxed);
                }
            }
        }
        None
    }

    /// A free run that can hold `len` units at `align`: a few of the exact bin, then the first longer bin.
    fn find(&self, space: &Space, len: u32, align: u32) -> Option<(u32, u32)> {
        let (coarse, fine) = bin_of(len);
        let mut run = self.heads[coarse as usize][fine as usize];
        for _ in 0..EXACT_TRIES {
            if run == NONE {
                break;
            }
            let unit = space.unit(run);
            let run_len = unit.len.load(Relaxed);
            if fits(run, run_len, len, align) {
                return Some((run, run_len));
            }
            run = unit.next.load(Relaxed);
        }
        let longer = self.first_bin_above(coarse, fine)?;
        let run_len = space.unit(longer).len.load(Relaxed);
        fits(longer, run_len, len, align).then_some((longer, run_len))
    }

    /// The first run of the first bin whose every run is longer than any of this bin.
    fn first_bin_above(&self, coarse: u32, fine: u32) -> Option<u32> {
        let here = u32::from(self.fine[coarse as usize]) & (u32::MAX << fine << 1);
        let (coarse, fine) = if here != 0 {
            (coarse, here.trailing_zeros())
        } else {
            let above = self.coarse & u32::MAX.checked_shl(coarse + 1).unwrap_or(0);
            if above == 0 {
                return None;
            }
            let coarse = above.trailing_zeros();
            (coarse, self.fine[coarse as usize].trailing_zeros())
        };
        Some(self.heads[coarse as usize][fine as usize])
    }

    fn link(&mut self, space: &Space, start: u32, len: u32) {
        let (coarse, fine) = bin_of(len);
        let (first, last) = (space.unit(start), space.unit(start + len - 1));
        last.set_kind(Kind::Free);
        last.head.store(start, Relaxed);
        first.set_kind(Kind::Free);
        first.len.store(len, Relaxed);
        space.push_front(&mut self.heads[coarse as usize][fine as usize], start);
        self.fine[coarse as usize] |= 1 << fine;
        self.coarse |= 1 << coarse;
        self.free_units += u64::from(len);
    }

    fn unlink(&mut self, space: &Space, start: u32, len: u32) {
        let (coarse, fine) = bin_of(len);
        let head = &mut self.heads[coarse as usize][fine as usize];
        space.remove(head, start);
        if *head == NONE {
            self.fine[coarse as usize] &= !(1 << fine);
            if self.fine[coarse as usize] == 0 {
                self.coarse &= !(1 << coarse);
            }
        }
        self.free_units -= u64::from(len);
    }
}

/// Whether a free run holds `len` units whose first is a multiple of `align`.
fn fits(run: u32, run_len: u32, len: u32, align: u32) -> bool {
    run.next_multiple_of(align) + len <= run + run_len
}

/// Marks both ends of a run as in use, so that neighbours do not join it.
pub(crate) fn mark_used(space: &Space, start: u32, len: u32) {
    space.unit(start + len - 1).set_kind(Kind::Run);
    let first = space.unit(start);
    first.set_kind(Kind::Run);
    first.len.store(len, Relaxed);
}

/// Start of the free run that ends just before `unit`.
pub(crate) fn free_before(space: &Space, unit: u32) -> Option<u32> {
    let last = unit.checked_sub(1)?;
    if !space.is_committed(last / CHUNK_UNITS) {
        return None;
    }
    let last = space.unit(last);
    (last.kind() == Kind::Free).then(|| last.head.load(Relaxed))
}

/// Length of the free run that starts at `unit`.
pub(crate) fn free_at(space: &Space, unit: u32) -> Option<u32> {
    if !space.is_committed(unit / CHUNK_UNITS) {
        return None;
    }
    let first = space.unit(unit);
    (first.kind() == Kind::Free).then(|| first.len.load(Relaxed))
}

/// The bin of runs of `len` units: power of two, and eighth of it.
const fn bin_of(len: u32) -> (u32, u32) {
    if len < FINE {
        return (0, len);
    }
    let log2 = 31 - len.leading_zeros();
    (log2 - FINE_LOG2 + 1, (len >> (log2 - FINE_LOG2)) & (FINE - 1))
}

#[cfg(test)]
mod tests {
    use super::super::space::Backing;
    use super::*;
    use proptest::prelude::*;

    const CHUNKS: u32 = 8;
    const UNITS: u32 = CHUNKS * CHUNK_UNITS;

    fn committed(chunks: u32) -> Space {
        let space = Space::with_range(64 << 20).unwrap();
        commit(&space, 0, chunks);
        space
    }

    #[expect(unsafe_code)]
    fn commit(space: &Space, first: u32, count: u32) {
        // SAFETY: nobody else knows this space.
        unsafe { space.commit(first, count, Backing::Base).unwrap() };
        space.set_backing(first, count, Backing::Base);
    }

    #[test]
    fn neighbours_join_whatever_the_order() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for order in orders {
            let space = committed(1);
            let mut runs = Runs::new();
            for part in order {
                runs.insert(&space, part * 10, 10);
            }
            assert_eq!(runs.take(&space, 30, 1), Some(0), "{order:?}");
            assert_eq!(runs.free_units(), 0);
        }
    }

    #[test]
    fn a_run_given_back_is_no_run_in_use_whatever_it_joins() {
        for first_to_go in [0, 1, 2] {
            let space = committed(1);
            let mut runs = Runs::new();
            runs.insert(&space, 0, 30);
            let starts = [(); 3].map(|()| runs.take(&space, 10, 1).unwrap());
            for at in 0..3 {
                let start = starts[(first_to_go + at) % 3];
                runs.insert(&space, start, 10);
                assert_ne!(space.unit(start).kind(), Kind::Run);
            }
        }
    }

    #[test]
    fn runs_do_not_join_across_vacant_chunks() {
        let space = committed(1);
        commit(&space, 2, 1);
        let mut runs = Runs::new();
        runs.insert(&space, 0, CHUNK_UNITS);
        runs.insert(&space, 2 * CHUNK_UNITS, CHUNK_UNITS);
        assert_eq!(runs.take(&space, CHUNK_UNITS + 1, 1), None);
        commit(&space, 1, 1);
        runs.insert(&space, CHUNK_UNITS, CHUNK_UNITS);
        assert_eq!(runs.take(&space, 3 * CHUNK_UNITS, 1), Some(0));
    }

    #[test]
    fn a_run_grows_only_into_free_units() {
        let space = committed(1);
        let mut runs = Runs::new();
        runs.insert(&space, 0, 100);
        let first = runs.take(&space, 10, 1).unwrap();
        assert!(runs.extend(&space, first, 10, 50));
        assert!(!runs.extend(&space, first, 60, 41));
        assert!(runs.extend(&space, first, 60, 40));
        assert_eq!(runs.free_units(), 0);
    }

    #[test]
    fn the_last_run_that_fits_is_found_behind_many_that_do_not() {
        let space = committed(4);
        let mut runs = Runs::new();
        runs.insert(&space, 0, 71);
        for start in 1..9 {
            runs.insert(&space, start * 80, 64);
        }
        assert_eq!(runs.take(&space, 70, 1), None, "a quick look finds only short ones of the bin");
        assert_eq!(runs.take_thoroughly(&space, 70, 1), Some(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against a naive oracle: one flag per unit.
        #[test]
        fn no_unit_is_handed_out_twice_or_lost(
            steps in proptest::collection::vec((0u8..4, 1u32..600, 0u32..6), 1..200),
        ) {
            let space = committed(CHUNKS);
            let mut runs = Runs::new();
            runs.insert(&space, 0, UNITS);
            let mut used = vec![false; UNITS as usize];
            let mut live: Vec<(u32, u32)> = Vec::new();
            for (what, len, align_log2) in steps {
                let align = 1 << align_log2;
                if what < 2 {
                    let Some(start) = runs.take(&space, len, align) else {
                        continue;
                    };
                    prop_assert_eq!(start % align, 0);
                    for unit in start..start + len {
                        prop_assert!(!std::mem::replace(&mut used[unit as usize], true));
                    }
                    live.push((start, len));
                } else if !live.is_empty() {
                    let at = len as usize % live.len();
                    let (start, mut held) = live[at];
                    if what == 2 && runs.extend(&space, start, held, len) {
                        for unit in start + held..start + held + len {
                            prop_assert!(!std::mem::replace(&mut used[unit as usize], true));
                        }
                        held += len;
                        live[at].1 = held;
                    } else {
                        live.swap_remove(at);
                        runs.insert(&space, start, held);
                        used[start as usize..(start + held) as usize].fill(false);
                    }
                }
                let free = used.iter().filter(|used| !**used).count();
                prop_assert_eq!(runs.free_units(), free as u64);
            }
            for (start, len) in live {
                runs.insert(&space, start, len);
            }
            prop_assert_eq!(runs.take(&space, UNITS, 1), Some(0), "everything joins again");
        }
    }
}
