//! Growth: the only place where the heap asks the system for memory.
//!
//! A step is what is needed or an eighth of what is live, whichever is more, so that the number of mappings
//! (hugetlb mappings never merge) and of system calls grows with the logarithm of the heap. What a step takes
//! beyond the need is never more than half of the free huge pages: other processes live here too.
//!
//! On which pages a step lies is for [`commit`](super::commit) to find out.

use std::sync::atomic::Ordering::Relaxed;

use super::Heap;
use super::commit::Pages;
use super::options::Options;
use super::runs::{self, mark_used};
use super::space::{Backing, CHUNK_BYTES, CHUNK_UNITS, EAGER_CHUNKS, Kind, Space};

/// The most that a step takes beyond the need: bounds the stall of the thread that pays for the step.
const EXTRA_CHUNKS_MAX: u32 = EAGER_CHUNKS;
/// Address space kept behind a block that has to move to grow, as a multiple of the block.
const ROOM_FACTOR: u32 = 15;
/// The most chunks kept as room for one block: 16 GiB. A longer block grows by less than its double anyway.
const ROOM_CHUNKS_MAX: u32 = 8192;

/// What growth remembers between steps.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Chunks below this have been given out as addresses; all above are vacant.
    top: u32,
    /// No chunk below this is vacant.
    holes_from: u32,
    /// Chunks committed, by [`Backing`].
    chunks: [u32; Backing::RAW_END],
    /// Which kinds of pages to ask for, and what came of it.
    pub(crate) pages: Pages,
}

impl Growth {
    pub(crate) const fn new() -> Growth {
        Growth { top: 0, holes_from: 0, chunks: [0; Backing::RAW_END], pages: Pages::new() }
    }

    pub(crate) fn set_options(&mut self, options: Options) {
        self.pages.set_options(options);
    }

    /// The first chunk above everything given out.
    pub(crate) fn top(&self) -> u32 {
        self.top
    }

    /// Chunks committed on `backing`.
    pub(crate) fn chunks_on(&self, backing: Backing) -> u32 {
        self.chunks[usize::from(backing.to_raw())]
    }

    /// Chunks committed.
    pub(crate) fn committed(&self) -> u32 {
        self.chunks.iter().sum()
    }

    /// Chunks that may still be committed.
    pub(crate) fn allowed_chunks(&self) -> u64 {
        (self.pages.options().limit_bytes / CHUNK_BYTES as u64).saturating_sub(u64::from(self.committed()))
    }

    /// A plan with no more extra than the limit allows, if it allows the need.
    pub(crate) fn within_limit(&self, plan: Plan) -> Option<Plan> {
        let beyond = self.allowed_chunks().checked_sub(u64::from(plan.need))?;
        Some(Plan { extra: plan.extra.min(beyond.min(u64::from(u32::MAX)) as u32), ..plan })
    }

    /// Counts what was committed in vacant chunks, or in room.
    pub(crate) fn count_committed(&mut self, first: u32, count: u32, backing: Backing) {
        self.chunks[usize::from(backing.to_raw())] += count;
        if first > self.top {
            self.holes_from = self.holes_from.min(self.top);
        }
        self.top = self.top.max(first + count);
    }

    /// Addresses at the top for `count` chunks, the first a multiple of `align`.
    pub(crate) fn at_top(&self, space: &Space, count: u32, align: u32) -> Option<Plan> {
        let first = self.top.checked_next_multiple_of(align)?;
        (first.checked_add(count)? <= space.chunk_count()).then(|| Plan::of_chunks(first, count))
    }

    /// The same where chunks below the top were given back, lowest first.
    fn find_hole(&mut self, space: &Space, count: u32, align: u32) -> Option<Plan> {
        let is_vacant = |chunk: &u32| space.backing(*chunk) == Backing::Vacant;
        self.holes_from = (self.holes_from..self.top).find(is_vacant).unwrap_or(self.top);
        let mut hole = self.holes_from;
        while hole < self.top {
            // A hole that reaches the top goes on above it.
            let end = (hole..self.top).find(|chunk| !is_vacant(chunk)).unwrap_or(space.chunk_count());
            let first = hole.next_multiple_of(align);
            if first.checked_add(count)? <= end {
                return Some(Plan::of_chunks(first, count));
            }
            hole = (end..self.top).find(is_vacant).unwrap_or(self.top);
        }
        None
    }

    /// Records that chunks are vacant again.
    fn vacate(&mut self, space: &Space, first: u32, count: u32) {
        space.set_backing(first, count, Backing::Vacant);
        self.holes_from = self.holes_from.min(first);
    }

    /// Takes vacant chunks at the top off what has been given out.
    fn lower_top(&mut self, space: &Space) {
        while self.top > 0 && space.backing(self.top - 1) == Backing::Vacant {
            self.top -= 1;
        }
        self.holes_from = self.holes_from.min(self.top);
    }

    /// Makes room vacant: all of it, or only what no block in use can grow into any more.
    fn release_rooms(&mut self, space: &Space, all: bool) {
        let mut is_kept = false;
        for chunk in 0..self.top {
            if space.backing(chunk) != Backing::Room {
                is_kept = space.is_committed(chunk) && space.unit((chunk + 1) * CHUNK_UNITS - 1).kind() == Kind::Run;
            } else if all || !is_kept {
                self.vacate(space, chunk, 1);
            }
        }
        self.lower_top(space);
    }

    /// Whether `count` chunks from `first` on are room, or lie above everything given out.
    fn may_grow_into(&self, space: &Space, first: u32, count: u32) -> bool {
        let Some(end) = first.checked_add(count).filter(|end| *end <= space.chunk_count()) else {
            return false;
        };
        (first..end.min(self.top)).all(|chunk| space.backing(chunk) == Backing::Room)
    }
}

/// Where a step goes, in whole pages of the size it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// First unit of the run asked for: in `first`, or in the free tail just before it.
    pub(crate) start: u32,
    /// First chunk to commit.
    pub(crate) first: u32,
    /// Chunks that the run needs.
    pub(crate) need: u32,
    /// Chunks to commit beyond the need, if they can be had.
    pub(crate) extra: u32,
}

impl Plan {
    fn of_chunks(first: u32, need: u32) -> Plan {
        Plan { start: first * CHUNK_UNITS, first, need, extra: 0 }
    }
}

impl Heap {
    /// Commits memory for a run of `units` whose first is a multiple of `align` units, and takes that run. No lock
    /// that claims or frees need is held while the system works: only other growers wait, for memory they lack.
    pub(crate) fn grow(&self, space: &Space, units: u32, align: u32) -> Option<u32> {
        let mut growth = self.growth.lock();
        // Others have freed and grown while this thread waited.
        if let Some(start) = self.runs.lock().take_thoroughly(space, units, align) {
            return Some(start);
        }
        self.growths.fetch_add(1, Relaxed);
        self.scavenge_all();
        let mut was_trimmed = false;
        loop {
            if let Some(start) = self.runs.lock().take_thoroughly(space, units, align) {
                return Some(start);
            }
            let place = |growth: &mut Growth, in_page| self.plan(space, growth, (units, align), in_page);
            let Some((plan, count, backing)) = self.commit_best(space, &mut growth, place) else {
                // What is free in pieces can be had again in one.
                if was_trimmed || !self.has_free_for(&growth, units) || self.give_back(space, &mut growth) == 0 {
                    return None;
                }
                was_trimmed = true;
                continue;
            };
            let mut runs = self.runs.lock();
            space.set_backing(plan.first, count, backing);
            let free = runs.insert(space, plan.first * CHUNK_UNITS, count * CHUNK_UNITS);
            // The tail was free when the step was planned; another thread may have taken it since.
            if free.0 <= plan.start {
                runs.take_part(space, free, plan.start, units);
                return Some(plan.start);
            }
        }
    }

    /// Commits memory at the top for a block of `units` that has moved because it grew, and keeps room behind
    /// it: address space is cheap, and the next time it grows where it is. The block gets whole chunks. Not where
    /// the best pages are much longer than the block: that shares one with others.
    pub(crate) fn grow_with_room(&self, space: &Space, units: u32) -> Option<u32> {
        let mut growth = self.growth.lock();
        let chunks = units.div_ceil(CHUNK_UNITS);
        // At most an eighth of what is left for one block.
        let room = |first: u32, need: u32| {
            let room = need.checked_mul(ROOM_FACTOR)?.min(ROOM_CHUNKS_MAX);
            let end = first.checked_add(need)?.checked_add(room)?;
            (end <= space.chunk_count() && room <= (space.chunk_count() - first) / 8).then_some(room)
        };
        let mut is_long_enough = true;
        let place = |growth: &mut Growth, in_page| {
            let need = chunks.checked_next_multiple_of(in_page)?;
            is_long_enough &= (need - chunks) <= chunks / 8;
            let plan = growth.at_top(space, need, in_page).filter(|_| is_long_enough)?;
            room(plan.first, need).map(|_| plan)
        };
        let (plan, need, backing) = self.commit_best(space, &mut growth, place)?;
        let (first, end) = (plan.first, plan.first + need);
        let room = room(first, need).unwrap_or(0);
        space.set_backing(end, room, Backing::Room);
        growth.top = growth.top.max(end + room);
        let mut runs = self.runs.lock();
        space.set_backing(first, need, backing);
        mark_used(space, first * CHUNK_UNITS, need * CHUNK_UNITS);
        if need > chunks {
            runs.shrink(space, first * CHUNK_UNITS, need * CHUNK_UNITS, chunks * CHUNK_UNITS);
        }
        Some(first * CHUNK_UNITS)
    }

    /// Lengthens the run in use `start..start + len` by at least `more` units, into free units and into vacant
    /// chunks behind them. Returns its new length.
    pub(crate) fn grow_in_place(&self, space: &Space, start: u32, len: u32, more: u32) -> Option<u32> {
        let mut growth = self.growth.lock();
        let mut runs = self.runs.lock();
        if runs.extend(space, start, len, more) {
            return Some(len + more);
        }
        // Hold what is free behind the block while the system works on the rest.
        let free = runs::free_at(space, start + len).unwrap_or(0);
        let end = start + len + free;
        let first = end / CHUNK_UNITS;
        let need = (more - free).div_ceil(CHUNK_UNITS);
        if !end.is_multiple_of(CHUNK_UNITS) || !growth.may_grow_into(space, first, need) {
            return None;
        }
        let held = len + free;
        if free > 0 {
            runs.extend(space, start, len, free);
        }
        drop(runs);
        let place = |growth: &mut Growth, in_page| {
            let need = need.checked_next_multiple_of(in_page)?;
            let fits = first.is_multiple_of(in_page) && growth.may_grow_into(space, first, need);
            fits.then(|| Plan::of_chunks(first, need))
        };
        let committed = self.commit_best(space, &mut growth, place);
        let mut runs = self.runs.lock();
        let Some((_, got, backing)) = committed else {
            if free > 0 {
                runs.shrink(space, start, held, len);
            }
            return None;
        };
        space.set_backing(first, got, backing);
        let held = held + got * CHUNK_UNITS;
        mark_used(space, start, held);
        // Units behind the block would soon be somebody else's; a long block keeps them for its next step.
        let wanted = len + more;
        if held - wanted > wanted / 8 {
            runs.shrink(space, start, held, wanted);
            return Some(wanted);
        }
        Some(held)
    }

    /// Chunks kept as room behind a run that is being freed become vacant. Skipped while somebody grows: the
    /// next block there finds the room still kept.
    pub(crate) fn release_room(&self, space: &Space, end: u32) {
        let mut chunk = end.div_ceil(CHUNK_UNITS);
        if space.backing(chunk) != Backing::Room {
            return;
        }
        if let Some(mut growth) = self.growth.try_lock() {
            while space.backing(chunk) == Backing::Room {
                growth.vacate(space, chunk, 1);
                chunk += 1;
            }
            growth.lower_top(space);
        }
    }

    /// Whether what is free, with what the limit still allows if that is too little, makes up a run of `units`.
    fn has_free_for(&self, growth: &Growth, units: u32) -> bool {
        let allowed = growth.allowed_chunks().saturating_mul(u64::from(CHUNK_UNITS));
        let lacking = u64::from(units).checked_sub(allowed).unwrap_or(u64::from(units));
        self.runs.lock().free_units() >= lacking
    }

    /// Gives back what is free if a block that is to be `units` longer where it is may then have them; whether anything.
    pub(crate) fn give_back_for(&self, space: &Space, units: u32) -> bool {
        let mut growth = self.growth.lock();
        self.has_free_for(&growth, units) && self.give_back(space, &mut growth) > 0
    }

    /// Gives chunks that hold nothing back to the system; returns bytes.
    pub(crate) fn trim(&self, space: &Space) -> usize {
        self.give_back(space, &mut self.growth.lock())
    }

    /// As [`trim`](Self::trim), by a step of growth.
    #[expect(unsafe_code)]
    pub(crate) fn give_back(&self, space: &Space, growth: &mut Growth) -> usize {
        let mut bytes = 0;
        loop {
            let mut runs = self.runs.lock();
            let found = runs.find_map(space, CHUNK_UNITS, |start, len| {
                let (first, count) = whole_pages(space, start, len)?;
                Some(((start, len), first, count))
            });
            let Some((free, first, count)) = found else {
                drop(runs);
                growth.release_rooms(space, false);
                return bytes;
            };
            let backing = space.backing(first);
            runs.take_part(space, free, first * CHUNK_UNITS, count * CHUNK_UNITS);
            growth.vacate(space, first, count);
            drop(runs);
            // SAFETY: the growth lock is held, the chunks were a free run and are on no list any more. If the call
            // fails they are still whole, and become a free run again.
            if unsafe { space.decommit(first, count) }.is_err() {
                let mut runs = self.runs.lock();
                space.set_backing(first, count, backing);
                runs.insert(space, first * CHUNK_UNITS, count * CHUNK_UNITS);
                return bytes;
            }
            growth.chunks[usize::from(backing.to_raw())] -= count;
            if let Backing::Hugetlb(size) = backing {
                growth.pages.ask_again(size);
            }
            bytes += count as usize * CHUNK_BYTES;
        }
    }

    /// Where the next step goes, with pages of `in_page` chunks, for a run of so many units at that alignment: into
    /// a hole, else to the top, there joined with the free units that end at it.
    fn plan(&self, space: &Space, growth: &mut Growth, (units, align): (u32, u32), in_page: u32) -> Option<Plan> {
        let need = units.div_ceil(CHUNK_UNITS).checked_next_multiple_of(in_page)?;
        let align_chunks = align.div_ceil(CHUNK_UNITS).max(in_page);
        if let Some(plan) = growth.find_hole(space, need, align_chunks) {
            return Some(plan);
        }
        let top = growth.top;
        let joins = align == 1 && top.is_multiple_of(in_page);
        let tail = if joins { self.tail_units(space, top).min(units - 1) } else { 0 };
        let joined = (units - tail).div_ceil(CHUNK_UNITS).checked_next_multiple_of(in_page)?;
        let plan = if joins && top.checked_add(joined)? <= space.chunk_count() {
            Plan { start: top * CHUNK_UNITS - tail, ..Plan::of_chunks(top, joined) }
        } else {
            growth.at_top(space, need, align_chunks).or_else(|| {
                // Room is a favour; an allocation comes first.
                growth.release_rooms(space, true);
                growth.find_hole(space, need, align_chunks).or_else(|| growth.at_top(space, need, align_chunks))
            })?
        };
        let extra = if in_page == 1 { self.extra_chunks(space, growth, &plan) } else { 0 };
        Some(Plan { extra, ..plan })
    }

    /// Chunks that a step takes beyond its need: to an eighth of what is live.
    fn extra_chunks(&self, space: &Space, growth: &Growth, plan: &Plan) -> u32 {
        let live = u64::from(growth.committed()) * u64::from(CHUNK_UNITS) - self.runs.lock().free_units();
        let eighth = (live / 8 / u64::from(CHUNK_UNITS)) as u32;
        let end = plan.first + plan.need;
        let beyond = if end >= growth.top { space.chunk_count() - end } else { 0 };
        eighth.saturating_sub(plan.need).min(EXTRA_CHUNKS_MAX).min(beyond)
    }

    /// Free units that end at the top, and so join with what is committed there.
    fn tail_units(&self, space: &Space, top: u32) -> u32 {
        let _runs = self.runs.lock();
        runs::free_before(space, top * CHUNK_UNITS).map_or(0, |start| top * CHUNK_UNITS - start)
    }
}

/// The first whole pages in a free run, as first chunk and count: of one backing, because what is recorded for each
/// chunk has to stay true if giving them back fails.
fn whole_pages(space: &Space, start: u32, len: u32) -> Option<(u32, u32)> {
    let end = (start + len) / CHUNK_UNITS;
    let mut first = start.div_ceil(CHUNK_UNITS);
    while first < end {
        let backing = space.backing(first);
        let in_page = backing.page_chunks();
        let aligned = first.next_multiple_of(in_page);
        if aligned == first {
            let same = (first..end).take_while(|chunk| space.backing(*chunk) == backing).count() as u32;
            let count = same / in_page * in_page;
            if count > 0 {
                return Some((first, count));
            }
            first += same;
        } else {
            first = aligned;
        }
    }
    None
}
