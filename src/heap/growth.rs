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
use super::space::{Backing, CHUNK_BYTES, CHUNK_UNITS, Space};
use crate::error::Errno;
use crate::page_size::PageSize;
use crate::supply;

/// Steps that do not ask for hugetlb pages after a step that got none.
const HUGE_SKIPS: u32 = 8;
/// The most that a step takes beyond the need: bounds the stall of the thread that pays for the step.
const EXTRA_CHUNKS_MAX: u32 = 32;
/// Address space kept behind a block that has to move to grow, as a multiple of the block.
const ROOM_FACTOR: u32 = 15;

/// What growth remembers between steps.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Chunks below this have been given out as addresses; all above are vacant.
    top: u32,
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

/// How a try to grow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// The run asked for, marked in use.
    Run(u32),
    /// Somebody changed the free runs meanwhile: look there again.
    Retry,
    /// Neither the limit nor the system allow it.
    Exhausted,
}

impl Growth {
    pub(crate) const fn new() -> Growth {
        Growth { top: 0, chunks: [0; 5], huge_skips: 0, transparent: None, fallbacks: 0, last_failure: None }
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

    /// Addresses for `count` chunks, the first a multiple of `align`: above the top, else where chunks were
    /// given back.
    fn place(&self, space: &Space, count: u32, align: u32) -> Option<u32> {
        let first = self.top.checked_next_multiple_of(align)?;
        if first.checked_add(count)? <= space.chunk_count() {
            return Some(first);
        }
        let mut first = 0;
        let mut chunk = 0;
        while chunk < self.top.min(space.chunk_count()) {
            if space.backing(chunk) != Backing::Vacant {
                first = (chunk + 1).next_multiple_of(align);
                chunk = first;
                continue;
            }
            chunk += 1;
            if chunk - first >= count {
                return Some(first);
            }
        }
        None
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
    /// Commits memory for a run of `units` whose first is a multiple of `align` units, and takes that run.
    ///
    /// `seen` is the [growth count](Heap::growths) from before the caller found no free run. No lock that
    /// claims or frees need is held while the system works: only other growers wait, for memory they lack.
    pub(crate) fn grow(&self, space: &Space, units: u32, align: u32, seen: u64) -> Grown {
        let mut growth = self.growth.lock();
        if self.growths() != seen {
            return Grown::Retry;
        }
        let Some(plan) = self.plan(space, &growth, units, align) else {
            return Grown::Exhausted;
        };
        let Some((count, backing)) = self.commit(space, &mut growth, plan.first, plan.need, plan.extra) else {
            return Grown::Exhausted;
        };
        let mut runs = self.runs.lock();
        space.set_backing(plan.first, count, backing);
        let free = runs.insert(space, plan.first * CHUNK_UNITS, count * CHUNK_UNITS);
        self.count_growth();
        // The tail was free when the step was planned; another thread may have taken it since.
        if free.0 > plan.start {
            return Grown::Retry;
        }
        runs.take_part(space, free, plan.start, units);
        Grown::Run(plan.start)
    }

    /// Commits memory at the top for a block of `units` that has moved because it grew, and keeps room behind
    /// it: address space is cheap, and the next time it grows where it is. The block gets whole chunks.
    pub(crate) fn grow_with_room(&self, space: &Space, units: u32) -> Option<u32> {
        let mut growth = self.growth.lock();
        let need = units.div_ceil(CHUNK_UNITS);
        let room = need.checked_mul(ROOM_FACTOR)?;
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
        if let Some(_growth) = self.growth.try_lock() {
            while space.backing(chunk) == Backing::Room {
                space.set_backing(chunk, 1, Backing::Vacant);
                chunk += 1;
            }
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
                return bytes;
            };
            // One backing at a time: what is recorded per chunk must stay true if the call fails.
            let first = free.0.div_ceil(CHUNK_UNITS);
            let backing = space.backing(first);
            let whole = (free.0 + free.1) / CHUNK_UNITS;
            let count = (first..whole).take_while(|chunk| space.backing(*chunk) == backing).count() as u32;
            runs.take_part(space, free, first * CHUNK_UNITS, count * CHUNK_UNITS);
            space.set_backing(first, count, Backing::Vacant);
            drop(runs);
            // SAFETY: the growth lock is held, the chunks were a free run and are on no list any more.
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

    fn plan(&self, space: &Space, growth: &Growth, units: u32, align: u32) -> Option<Plan> {
        let top = growth.top;
        let tail = if align == 1 { self.tail_units(space, top).min(units - 1) } else { 0 };
        let need = (units - tail).div_ceil(CHUNK_UNITS);
        let (start, first, need) = if align == 1 && top.checked_add(need)? <= space.chunk_count() {
            (top * CHUNK_UNITS - tail, top, need)
        } else {
            let need = units.div_ceil(CHUNK_UNITS);
            let first = growth.place(space, need, align.div_ceil(CHUNK_UNITS))?;
            (first * CHUNK_UNITS, first, need)
        };
        let live = u64::from(growth.committed()) * u64::from(CHUNK_UNITS) - self.runs.lock().free_units();
        let eighth = (live / 8 / u64::from(CHUNK_UNITS)) as u32;
        let beyond = if first + need >= top { space.chunk_count() - (first + need) } else { 0 };
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
            None => self.commit_ordinary(space, growth, first, need + extra)?,
            Some(got) => got,
        };
        growth.chunks[backing as usize] += count;
        growth.top = growth.top.max(first + count);
        Some((count, backing))
    }

    #[expect(unsafe_code)]
    fn commit_huge(&self, space: &Space, growth: &mut Growth, first: u32, need: u32, extra: u32) -> Option<u32> {
        if growth.huge_skips > 0 {
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
                    growth.huge_skips = HUGE_SKIPS;
                    growth.fallbacks += 1;
                    growth.last_failure = Some(errno);
                    return None;
                }
            }
        }
    }

    #[expect(unsafe_code)]
    fn commit_ordinary(&self, space: &Space, growth: &mut Growth, first: u32, count: u32) -> Option<(u32, Backing)> {
        let transparent = *growth.transparent.get_or_insert_with(supply::transparent_huge_now);
        let backing = if transparent { Backing::Transparent } else { Backing::Base };
        // SAFETY: as in `commit_huge`.
        unsafe { space.commit(first, count, backing) }.ok()?;
        Some((count, backing))
    }
}
