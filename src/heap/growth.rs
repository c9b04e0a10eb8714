//! Growth: the only place where the heap asks the system for memory.
//!
//! A step is what is needed or an eighth of what is live, whichever is more, so that the number of mappings
//! (hugetlb mappings never merge) and of system calls grows with the logarithm of the heap. What a step takes
//! beyond the need is never more than half of the free huge pages: other processes live here too.
//!
//! Page sizes are tried in a stated order: 2 MiB hugetlb, transparent huge pages, base pages. Falling is
//! counted and shown by [`HeapStats`](super::HeapStats); a pool that was found empty is not asked again for the
//! next few steps.

use super::Heap;
use super::runs::{self, mark_used};
use super::space::{Backing, CHUNK_BYTES, CHUNK_UNITS, EAGER_CHUNKS, Kind, Space};
use crate::error::Errno;
use crate::page_size::PageSize;
use crate::supply;
use crate::sys::{EFAULT, memory};

/// Steps that do not ask for hugetlb pages after a step that got none.
const HUGE_SKIPS: u32 = 8;
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
    chunks: [u32; 5],
    /// Steps still to go without asking for hugetlb pages.
    huge_skips: u32,
    /// Whether the kernel has transparent huge pages on; unknown before the first fall.
    transparent: Option<bool>,
    /// Steps that did not get the best page size.
    fallbacks: u64,
    /// Why the last one did not.
    last_failure: Option<Errno>,
}

impl Growth {
    pub(crate) const fn new() -> Growth {
        Growth {
            top: 0,
            holes_from: 0,
            chunks: [0; 5],
            huge_skips: 0,
            transparent: None,
            fallbacks: 0,
            last_failure: None,
        }
    }

    /// The first chunk above everything given out.
    pub(crate) fn top(&self) -> u32 {
        self.top
    }

    /// Chunks committed on `backing`.
    pub(crate) fn chunks_on(&self, backing: Backing) -> u32 {
        self.chunks[backing as usize]
    }

    /// Chunks committed.
    pub(crate) fn committed(&self) -> u32 {
        self.chunks.iter().sum()
    }

    /// Steps that fell to a smaller page size, and why the last one did.
    pub(crate) fn fallbacks(&self) -> (u64, Option<Errno>) {
        (self.fallbacks, self.last_failure)
    }

    /// Addresses at the top for `count` chunks, the first a multiple of `align`.
    fn at_top(&self, space: &Space, count: u32, align: u32) -> Option<u32> {
        let first = self.top.checked_next_multiple_of(align)?;
        (first.checked_add(count)? <= space.chunk_count()).then_some(first)
    }

    /// The same where chunks below the top were given back, lowest first.
    fn find_hole(&mut self, space: &Space, count: u32, align: u32) -> Option<u32> {
        let is_vacant = |chunk: &u32| space.backing(*chunk) == Backing::Vacant;
        self.holes_from = (self.holes_from..self.top).find(is_vacant).unwrap_or(self.top);
        let mut hole = self.holes_from;
        while hole < self.top {
            // A hole that reaches the top goes on above it.
            let end = (hole..self.top).find(|chunk| !is_vacant(chunk)).unwrap_or(space.chunk_count());
            let first = hole.next_multiple_of(align);
            if first.checked_add(count)? <= end {
                return Some(first);
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
                is_kept = space.backing(chunk).is_committed()
                    && space.unit((chunk + 1) * CHUNK_UNITS - 1).kind() == Kind::Run;
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

/// Where a step goes.
struct Plan {
    /// First unit of the run asked for: in `first`, or in the free tail just before it.
    start: u32,
    /// First chunk to commit.
    first: u32,
    /// Chunks that the run needs.
    need: u32,
    /// Chunks to commit beyond the need, if they can be had.
    extra: u32,
}

/// How many of `extra` chunks a step may take from the pool besides the `need`: at most half of what is free.
fn spare_chunks(need: u32, extra: u32) -> u32 {
    if extra == 0 {
        return 0;
    }
    let free = supply::available_pages_now(PageSize::HUGE_2M).unwrap_or(0);
    (free / 2).saturating_sub(u64::from(need)).min(u64::from(extra)) as u32
}

impl Heap {
    /// Commits memory for a run of `units` whose first is a multiple of `align` units, and takes that run. No lock
    /// that claims or frees need is held while the system works: only other growers wait, for memory they lack.
    pub(crate) fn grow(&self, space: &Space, units: u32, align: u32) -> Option<u32> {
        let mut growth = self.growth.lock();
        loop {
            // Others have freed and grown while this thread waited.
            if let Some(start) = self.runs.lock().take_thoroughly(space, units, align) {
                return Some(start);
            }
            let plan = self.plan(space, &mut growth, units, align)?;
            let (count, backing) = self.commit(space, &mut growth, plan.first, plan.need, plan.extra)?;
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
    /// it: address space is cheap, and the next time it grows where it is. The block gets whole chunks.
    pub(crate) fn grow_with_room(&self, space: &Space, units: u32) -> Option<u32> {
        let mut growth = self.growth.lock();
        let need = units.div_ceil(CHUNK_UNITS);
        let room = need.checked_mul(ROOM_FACTOR)?.min(ROOM_CHUNKS_MAX);
        let first = growth.top;
        let end = first.checked_add(need)?.checked_add(room)?;
        // At most an eighth of what is left for one block.
        if end > space.chunk_count() || room > (space.chunk_count() - first) / 8 {
            return None;
        }
        let (_, backing) = self.commit(space, &mut growth, first, need, 0)?;
        space.set_backing(first + need, room, Backing::Room);
        growth.top = end;
        let runs = self.runs.lock();
        space.set_backing(first, need, backing);
        mark_used(space, first * CHUNK_UNITS, need * CHUNK_UNITS);
        drop(runs);
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
        let committed = self.commit(space, &mut growth, first, need, 0);
        let mut runs = self.runs.lock();
        let Some((_, backing)) = committed else {
            if free > 0 {
                runs.shrink(space, start, held, len);
            }
            return None;
        };
        space.set_backing(first, need, backing);
        let held = held + need * CHUNK_UNITS;
        mark_used(space, start, held);
        // Units behind the block would soon be somebody else's; a long block keeps them for its next step.
        let wanted = len + more;
        if (held - wanted) * 8 > wanted {
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

    /// Gives chunks that hold nothing back to the system; returns bytes.
    #[expect(unsafe_code)]
    pub(crate) fn trim(&self, space: &Space) -> usize {
        let mut growth = self.growth.lock();
        let mut bytes = 0;
        loop {
            let mut runs = self.runs.lock();
            let Some(free) = runs.with_whole_chunk(space) else {
                drop(runs);
                growth.release_rooms(space, false);
                return bytes;
            };
            // One backing at a time: what is recorded per chunk must stay true if the call fails.
            let first = free.0.div_ceil(CHUNK_UNITS);
            let backing = space.backing(first);
            let whole = (free.0 + free.1) / CHUNK_UNITS;
            let count = (first..whole).take_while(|chunk| space.backing(*chunk) == backing).count() as u32;
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
            growth.chunks[backing as usize] -= count;
            bytes += count as usize * CHUNK_BYTES;
        }
    }

    /// Where the next step goes: into a hole, else to the top, there joined with the free units that end at it.
    fn plan(&self, space: &Space, growth: &mut Growth, units: u32, align: u32) -> Option<Plan> {
        let need = units.div_ceil(CHUNK_UNITS);
        let align_chunks = align.div_ceil(CHUNK_UNITS);
        if let Some(first) = growth.find_hole(space, need, align_chunks) {
            return Some(Plan { start: first * CHUNK_UNITS, first, need, extra: 0 });
        }
        let top = growth.top;
        let tail = if align == 1 { self.tail_units(space, top).min(units - 1) } else { 0 };
        let joined = (units - tail).div_ceil(CHUNK_UNITS);
        let (start, first, need) = if align == 1 && top.checked_add(joined)? <= space.chunk_count() {
            (top * CHUNK_UNITS - tail, top, joined)
        } else {
            let first = growth.at_top(space, need, align_chunks).or_else(|| {
                // Room is a favour; an allocation comes first.
                growth.release_rooms(space, true);
                growth.find_hole(space, need, align_chunks).or_else(|| growth.at_top(space, need, align_chunks))
            })?;
            (first * CHUNK_UNITS, first, need)
        };
        let live = u64::from(growth.committed()) * u64::from(CHUNK_UNITS) - self.runs.lock().free_units();
        let eighth = (live / 8 / u64::from(CHUNK_UNITS)) as u32;
        let beyond = if first + need >= growth.top { space.chunk_count() - (first + need) } else { 0 };
        let extra = eighth.saturating_sub(need).min(EXTRA_CHUNKS_MAX).min(beyond);
        Some(Plan { start, first, need, extra })
    }

    /// Free units that end at the top, and so join with what is committed there.
    fn tail_units(&self, space: &Space, top: u32) -> u32 {
        let _runs = self.runs.lock();
        runs::free_before(space, top * CHUNK_UNITS).map_or(0, |start| top * CHUNK_UNITS - start)
    }

    /// Commits `need` chunks from `first` on, and up to `extra` more, on the best pages to be had.
    fn commit(&self, space: &Space, growth: &mut Growth, first: u32, need: u32, extra: u32) -> Option<(u32, Backing)> {
        let allowed = (self.limit_bytes() / CHUNK_BYTES as u64).saturating_sub(u64::from(growth.committed()));
        if u64::from(need) > allowed {
            return None;
        }
        let extra = extra.min((allowed - u64::from(need)).min(u64::from(u32::MAX)) as u32);
        let got = self.commit_huge(space, growth, first, need, extra).map(|count| (count, Backing::Huge));
        let (count, backing) = match got {
            None if self.is_strict() => return None,
            None => commit_ordinary(space, growth, first, need, extra)?,
            Some(got) => got,
        };
        growth.chunks[backing as usize] += count;
        if first > growth.top {
            growth.holes_from = growth.holes_from.min(growth.top);
        }
        growth.top = growth.top.max(first + count);
        Some((count, backing))
    }

    #[expect(unsafe_code)]
    fn commit_huge(&self, space: &Space, growth: &mut Growth, first: u32, need: u32, extra: u32) -> Option<u32> {
        if growth.huge_skips > 0 && !self.is_strict() {
            growth.huge_skips -= 1;
            growth.fallbacks += 1;
            return None;
        }
        let mut count = need + spare_chunks(need, extra);
        loop {
            // SAFETY: the growth lock is held by our caller, and `first` on is vacant or room.
            match unsafe { space.commit(first, count, Backing::Huge) } {
                Ok(()) => return Some(count),
                Err(_) if count > need => count = need,
                Err(errno) => {
                    // A long block that does not fit says nothing about the pool. One page does; and where a
                    // cgroup refuses pages one by one, each try clears those that it does not refuse.
                    if need == 1 || errno == EFAULT {
                        growth.huge_skips = HUGE_SKIPS;
                    }
                    growth.fallbacks += 1;
                    growth.last_failure = Some(errno);
                    return None;
                }
            }
        }
    }
}

/// Commits memory that is not hugetlb: with the extra if it can be had, transparent huge pages if they are on.
#[expect(unsafe_code)]
fn commit_ordinary(space: &Space, growth: &mut Growth, first: u32, need: u32, extra: u32) -> Option<(u32, Backing)> {
    // What exceeds the machine would be granted, and then end in an OOM kill.
    let total = memory::total_memory_bytes();
    if total != 0 && u64::from(need) * CHUNK_BYTES as u64 > total {
        return None;
    }
    let transparent = *growth.transparent.get_or_insert_with(supply::transparent_huge_now);
    let backing = if transparent { Backing::Transparent } else { Backing::Base };
    let tries = [(need + extra, backing), (need, backing), (need, Backing::Base)];
    // SAFETY: as in `commit_huge`.
    tries.into_iter().find(|(count, backing)| unsafe { space.commit(first, *count, *backing) }.is_ok())
}
