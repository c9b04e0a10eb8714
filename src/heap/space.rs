//! The heap's one range of addresses, and what is known about each part of it.
//!
//! ```text
//!  range:   | chunk 0 | chunk 1 | chunk 2 | ...        2 MiB each; vacant until growth commits it
//!  chunk:   | unit | unit | ... 256 of them            8 KiB each; what runs and spans are made of
//!  tables:  Chunk per chunk, Unit per unit (64 bytes, its bitmap words included): out of line, so blocks are
//!           whole and aligned, and a block's entry is one cache line away
//! ```
//!
//! "Is this pointer ours" is one subtraction; unit and chunk are shifts of the difference. Every field is an
//! atomic so that readers without the lock (sized free, `usable_size`) are sound; who may write which, says
//! the field.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};

use super::checks::LiveBits;
pub(crate) use super::unit::{Kind, UNIT_WORDS, Unit};
use crate::error::Errno;
use crate::mapping::reservation::Reservation;
use crate::page_size::PageSize;
use crate::sys::memory::{self, Anonymous};
use crate::sys::process::{self, Resource};

/// Bytes in a unit, the grain of runs and spans.
pub(crate) const UNIT_BYTES: usize = 8 << 10;
/// Bytes in a chunk, the grain of growth: one 2 MiB page, or a part of a larger one.
pub(crate) const CHUNK_BYTES: usize = 2 << 20;
/// Units in a chunk.
pub(crate) const CHUNK_UNITS: u32 = (CHUNK_BYTES / UNIT_BYTES) as u32;
/// No unit.
pub(crate) const NONE: u32 = u32::MAX;

/// The longest step that is populated at once where pages are not hugetlb: 64 MiB, the most that a step takes beyond
/// the need.
pub(crate) const EAGER_CHUNKS: u32 = 32;

const CHUNK_ENTRIES: usize = CHUNK_UNITS as usize * size_of::<Unit>();
const DIRTY_WORDS: usize = CHUNK_UNITS as usize / 64;
const LARGEST_RANGE: u64 = 16 << 40;
const SMALLEST_RANGE: u64 = 8 << 20;
/// log2 of the page sizes that the heap takes: a chunk is a whole page, or a part of one.
pub(crate) const SMALLEST_PAGE_LOG2: u32 = CHUNK_BYTES.trailing_zeros();
pub(crate) const LARGEST_PAGE_LOG2: u32 = 30;
/// What a range of `bytes` starts at a multiple of: the largest page a chunk may be part of. Less for a short one, because
/// finding such a place takes so many addresses for a moment.
fn range_align(bytes: usize) -> usize {
    (1 << LARGEST_PAGE_LOG2).min((bytes / 4).max(1).next_power_of_two())
}

/// What backs a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Nothing: addresses only.
    Vacant,
    /// Nothing, and kept for the large block before it to grow into.
    Room,
    /// Ordinary memory for which transparent huge pages were asked.
    Transparent,
    /// Ordinary memory in base pages.
    Base,
    /// A part of, or all of, a hugetlb page of this size.
    Hugetlb(PageSize),
}

impl Backing {
    /// Numbers that [`to_raw`](Self::to_raw) stays below.
    pub(crate) const RAW_END: usize = LARGEST_PAGE_LOG2 as usize + 1;

    /// Memory from here on.
    const COMMITTED: u8 = 2;

    /// A number below [`RAW_END`](Self::RAW_END): for pages from the pool, log2 of their size.
    pub(crate) fn to_raw(self) -> u8 {
        match self {
            Backing::Vacant => 0,
            Backing::Room => 1,
            Backing::Transparent => Backing::COMMITTED,
            Backing::Base => 3,
            Backing::Hugetlb(size) => size.log2() as u8,
        }
    }

    fn from_raw(raw: u8) -> Backing {
        match raw {
            0 => Backing::Vacant,
            1 => Backing::Room,
            Backing::COMMITTED => Backing::Transparent,
            3 => Backing::Base,
            log2 => PageSize::from_bytes(1 << log2).map_or(Backing::Vacant, Backing::Hugetlb),
        }
    }

    /// Chunks that come and go together.
    pub(crate) fn page_chunks(self) -> u32 {
        match self {
            Backing::Hugetlb(size) => chunks_in(size),
            _ => 1,
        }
    }
}

/// Chunks in a page of `size`, which is one that the heap takes.
pub(crate) fn chunks_in(size: PageSize) -> u32 {
    (size.bytes() / CHUNK_BYTES) as u32
}

/// A chunk. Shared.
#[derive(Debug)]
#[repr(align(64))]
struct Chunk {
    /// A [`Backing`]. Written under the growth lock; to or from a committed state also under the runs lock.
    backing: AtomicU8,
    /// A bit per unit: set when it has been handed out since it was zeroed. Written by the unit's owner.
    dirty: [AtomicU64; DIRTY_WORDS],
}

/// The range and its tables. One per process, never unmapped.
#[derive(Debug)]
pub(crate) struct Space {
    range: Reservation,
    units: Reservation,
    chunks: NonNull<Chunk>,
    chunk_count: u32,
    live: LiveBits,
}

// SAFETY: the tables hold atomics only, and `chunks` points to a table that lives as long as the process.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    /// Reserves the range: sixteen times this machine's memory, so that growing blocks find room; less where RLIMIT_AS
    /// or the kernel do not allow it.
    pub(crate) fn new() -> Result<Space, Errno> {
        let wanted = memory::total_memory_bytes().saturating_mul(16).next_power_of_two();
        // Half of a limited address space: the rest is the program's, its stacks', the tables', and that of pages on their
        // way in.
        let allowed = process::soft_limit(Resource::AddressSpace).map_or(u64::MAX, |limit| limit / 2);
        let mut bytes = wanted.clamp(SMALLEST_RANGE, LARGEST_RANGE).min(allowed);
        loop {
            // Tables of whole pages, whatever the page.
            bytes = (bytes / SMALLEST_RANGE).max(1) * SMALLEST_RANGE;
            match Space::with_range(bytes as usize) {
                Err(errno) if bytes <= SMALLEST_RANGE => return Err(errno),
                Err(_) => bytes = bytes / 4 * 3,
                space => return space,
            }
        }
    }

    /// Reserves a range of `bytes`, whole chunks.
    pub(crate) fn with_range(bytes: usize) -> Result<Space, Errno> {
        let chunk_count = (bytes / CHUNK_BYTES) as u32;
        let unit_count = bytes / UNIT_BYTES;
        let align = PageSize::base().bytes();
        let range = Reservation::new(bytes, range_align(bytes))?;
        let tables = || {
            let units = Reservation::new(unit_count * size_of::<Unit>(), align)?;
            let chunks = memory::map_anonymous(chunk_count as usize * size_of::<Chunk>(), Anonymous::Base);
            // SAFETY: nobody knows the table yet.
            let chunks = chunks.inspect_err(|_| unsafe { units.unmap() })?;
            // A process at its limit of address space tries again with half, and needs all of it.
            // SAFETY: as above, for both; whole base pages are unmapped.
            let live = LiveBits::new(bytes).inspect_err(|_| unsafe {
                units.unmap();
                let _ = memory::unmap(chunks, chunk_count as usize * size_of::<Chunk>());
            })?;
            Ok((units, chunks.cast(), live))
        };
        match tables() {
            Ok((units, chunks, live)) => Ok(Space { range, units, chunks, chunk_count, live }),
            Err(errno) => {
                // SAFETY: nobody knows the range yet.
                unsafe { range.unmap() };
                Err(errno)
            }
        }
    }

    /// The largest alignment of a run, in bytes: that of the range.
    pub(crate) fn largest_align(&self) -> usize {
        range_align(self.range.len())
    }

    /// Whether the range starts at a multiple of `size`, as pages have to lie; a short one may not.
    pub(crate) fn has_place_for(&self, size: PageSize) -> bool {
        self.range.base().addr().get().is_multiple_of(size.bytes())
    }

    /// Where blocks in use start.
    pub(crate) fn live(&self) -> &LiveBits {
        &self.live
    }

    /// Chunks in the range.
    pub(crate) fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// The address of a unit.
    pub(crate) fn address(&self, unit: u32) -> *mut u8 {
        debug_assert!(unit < self.chunk_count * CHUNK_UNITS);
        self.range.base().as_ptr().wrapping_add(unit as usize * UNIT_BYTES)
    }

    /// Bytes from the start of the range to `block`, or `None` for a pointer that is not ours.
    #[inline]
    pub(crate) fn offset_of(&self, block: *mut u8) -> Option<usize> {
        let offset = block.addr().wrapping_sub(self.range.base().as_ptr().addr());
        (offset < self.range.len()).then_some(offset)
    }

    /// The unit that holds `block`; aborts for a pointer that is not ours.
    pub(crate) fn unit_of(&self, block: *mut u8) -> u32 {
        match self.offset_of(block) {
            Some(offset) => (offset / UNIT_BYTES) as u32,
            None => process::abort_with("hugearena: freed a pointer that is not from this heap\n"),
        }
    }

    /// The entry of the unit that holds `block`, or `None` for a pointer that is not ours. The block lies in a committed
    /// chunk, or the entry faults when it is looked at.
    #[inline]
    pub(crate) fn entry_of(&self, block: *mut u8) -> Option<&Unit> {
        let index = self.offset_of(block)? / UNIT_BYTES;
        // SAFETY: as in `unit`: the table has an entry for every unit of the range, which the offset is inside of.
        Some(unsafe { self.units.base().cast::<Unit>().add(index).as_ref() })
    }

    /// A unit of a committed chunk.
    #[inline]
    pub(crate) fn unit(&self, index: u32) -> &Unit {
        self.check(index / CHUNK_UNITS);
        // SAFETY: the table has an entry for every unit of the range. Entries of committed chunks are mapped,
        // zeroed memory, which is a valid `Unit`; others fault, they are never other memory.
        unsafe { self.units.base().cast::<Unit>().add(index as usize).as_ref() }
    }

    /// Bitmap word `at` of the span whose bitmap lies in the blocks' memory, `offset` bytes behind unit `start`.
    pub(crate) fn word_in_span(&self, start: u32, offset: usize, at: usize) -> &AtomicU64 {
        self.check(start / CHUNK_UNITS);
        let word = self.address(start).wrapping_add(offset + at * 8).cast::<AtomicU64>();
        // SAFETY: inside a span, which is committed memory that only the heap uses there; aligned, because
        // offsets are multiples of 8.
        unsafe { &*word }
    }

    /// Puts a run or span at the front of a list, by its first unit.
    pub(crate) fn push_front(&self, head: &mut u32, index: u32) {
        let unit = self.unit(index);
        unit.prev.store(NONE, Relaxed);
        unit.next.store(*head, Relaxed);
        if *head != NONE {
            self.unit(*head).prev.store(index, Relaxed);
        }
        *head = index;
    }

    /// Takes a run or span out of the list that `head` is the front of.
    pub(crate) fn remove(&self, head: &mut u32, index: u32) {
        let unit = self.unit(index);
        let (prev, next) = (unit.prev.load(Relaxed), unit.next.load(Relaxed));
        if next != NONE {
            self.unit(next).prev.store(prev, Relaxed);
        }
        if prev != NONE {
            self.unit(prev).next.store(next, Relaxed);
        } else if *head == index {
            *head = next;
        } else {
            process::abort_with("hugearena: heap corrupted: run or span on no list\n");
        }
    }

    /// What backs a chunk; beyond the range, nothing does.
    pub(crate) fn backing(&self, chunk: u32) -> Backing {
        if chunk >= self.chunk_count {
            return Backing::Vacant;
        }
        // Acquire pairs with the release of `set_backing`: whoever sees a committed chunk sees its tables.
        Backing::from_raw(self.chunk(chunk).backing.load(Acquire))
    }

    /// Whether there is memory behind a chunk.
    pub(crate) fn is_committed(&self, chunk: u32) -> bool {
        // Acquire as in `backing`.
        chunk < self.chunk_count && self.chunk(chunk).backing.load(Acquire) >= Backing::COMMITTED
    }

    /// Records what backs `count` chunks from `first` on.
    pub(crate) fn set_backing(&self, first: u32, count: u32, backing: Backing) {
        for chunk in first..first + count {
            self.chunk(chunk).backing.store(backing.to_raw(), Release);
        }
    }

    /// Puts memory behind `count` vacant chunks from `first` on, zeroed, with entries to describe it. The caller
    /// records the backing when it publishes them.
    ///
    /// Up to [`EAGER_CHUNKS`] ordinary memory and entries are populated at once. Beyond that one block takes it
    /// all, needs two of the entries, and may be more than there is: it comes on first touch.
    ///
    /// # Safety
    ///
    /// The caller holds the growth lock, and the chunks are vacant or room; pages from the pool are whole, and lie at
    /// a multiple of their size.
    pub(crate) unsafe fn commit(&self, first: u32, count: u32, backing: Backing) -> Result<(), Errno> {
        self.check(first + count - 1);
        let (offset, len) = (first as usize * CHUNK_BYTES, count as usize * CHUNK_BYTES);
        let eager = count <= EAGER_CHUNKS;
        // SAFETY: whole chunks inside the range that nobody uses; the growth lock keeps other growers out.
        unsafe {
            match backing {
                Backing::Hugetlb(size) => self.range.commit_huge(offset, len / size.bytes(), size)?,
                Backing::Transparent => self.range.commit_transparent(offset, len, eager)?,
                _ => self.range.commit_ordinary(offset, len)?,
            }
            let tables = self.commit_entries(first as usize, count as usize, eager);
            if let Err(errno) = tables.and_then(|()| self.live.commit(offset, len)) {
                // Not `decommit`, which proves that what cannot be given back is there by populating it.
                self.range.abandon(offset, len);
                return Err(errno);
            }
        }
        for chunk in first..first + count {
            for word in &self.chunk(chunk).dirty {
                word.store(0, Relaxed);
            }
        }
        Ok(())
    }

    /// Gives the memory of `count` chunks back to the system.
    ///
    /// # Safety
    ///
    /// The caller holds the growth lock; the chunks are committed and whole pages, nothing in them is in use and no
    /// free run reaches into them.
    pub(crate) unsafe fn decommit(&self, first: u32, count: u32) -> Result<(), Errno> {
        self.check(first + count - 1);
        let page = PageSize::base().bytes();
        // SAFETY: whole chunks, unused by the caller's contract; entries of vacant chunks are not looked at.
        unsafe {
            self.range.decommit(first as usize * CHUNK_BYTES, count as usize * CHUNK_BYTES)?;
            if CHUNK_ENTRIES.is_multiple_of(page) {
                // A failure keeps entries that the next commit makes accessible again.
                let _ = self.units.decommit(first as usize * CHUNK_ENTRIES, count as usize * CHUNK_ENTRIES);
            }
        }
        Ok(())
    }

    /// Whether the page that a chunk lies in is there; in a child of fork(2) it may not be.
    pub(crate) fn is_present(&self, chunk: u32) -> bool {
        self.range.is_present(chunk as usize * CHUNK_BYTES)
    }

    /// Whether a unit has been handed out since it was zeroed.
    pub(crate) fn is_dirty(&self, unit: u32) -> bool {
        let (chunk, bit) = (unit / CHUNK_UNITS, unit % CHUNK_UNITS);
        self.chunk(chunk).dirty[bit as usize / 64].load(Relaxed) & (1 << (bit % 64)) != 0
    }

    /// Records that the units of a run, which the caller owns, have been handed out.
    pub(crate) fn mark_dirty(&self, first: u32, len: u32) {
        let (mut unit, end) = (first, first + len);
        while unit < end {
            let word_end = (unit / 64 + 1) * 64;
            let upto = word_end.min(end);
            let mask = (u64::MAX >> (64 - (upto - unit))) << (unit % 64);
            // Other owners set other bits of the same word.
            let word = &self.chunk(unit / CHUNK_UNITS).dirty[(unit % CHUNK_UNITS) as usize / 64];
            if word.load(Relaxed) & mask != mask {
                word.fetch_or(mask, Relaxed);
            }
            unit = upto;
        }
    }

    /// Makes the unit entries of some chunks accessible, and present if `eager`.
    ///
    /// # Safety
    ///
    /// The growth lock is held.
    unsafe fn commit_entries(&self, first: usize, count: usize, eager: bool) -> Result<(), Errno> {
        // Where base pages are larger than a chunk's entries, neighbours share a page: making it writable
        // again changes nothing.
        let page = PageSize::base().bytes();
        let start = first * CHUNK_ENTRIES / page * page;
        let end = ((first + count) * CHUNK_ENTRIES).next_multiple_of(page).min(self.units.len());
        // SAFETY: whole base pages of the table; making pages writable and present keeps what they hold.
        unsafe {
            self.units.commit_ordinary(start, end - start)?;
            if eager {
                self.units.populate_ordinary(start, end - start);
            }
        }
        Ok(())
    }

    fn chunk(&self, index: u32) -> &Chunk {
        self.check(index);
        // SAFETY: the table has an entry for every chunk, mapped and zeroed, which is a valid `Chunk`.
        unsafe { self.chunks.add(index as usize).as_ref() }
    }

    #[inline]
    fn check(&self, chunk: u32) {
        if chunk >= self.chunk_count {
            process::abort_with("hugearena: heap corrupted: chunk out of range\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_bits_cover_exactly_the_run() {
        let space = Space::with_range(64 << 20).unwrap();
        for (first, len) in [(0, 1), (63, 2), (100, 1), (255, 2), (300, 200), (512, 256), (1000, 513)] {
            let before: Vec<bool> = (0..2048).map(|unit| space.is_dirty(unit)).collect();
            space.mark_dirty(first, len);
            for unit in 0..2048 {
                let inside = (first..first + len).contains(&unit);
                assert_eq!(space.is_dirty(unit), inside || before[unit as usize], "{unit} after {first}+{len}");
            }
        }
    }

    #[test]
    fn pointers_outside_are_not_ours() {
        let space = Space::with_range(64 << 20).unwrap();
        let start = space.address(0);
        assert_eq!(space.offset_of(start), Some(0));
        assert_eq!(space.offset_of(start.wrapping_add((64 << 20) - 1)), Some((64 << 20) - 1));
        assert_eq!(space.offset_of(start.wrapping_add(64 << 20)), None);
        assert_eq!(space.offset_of(start.wrapping_sub(1)), None);
        assert_eq!(space.offset_of(std::ptr::null_mut()), None);
    }
}
