//! Checks of every free: a block is freed once, by its own address, with the layout that it was allocated with.
//!
//! On in debug builds, and in others with the feature `hardened`; elsewhere all of this compiles to nothing. A bit for
//! every 8 bytes of the range, apart from the blocks, says where a block in use starts, so a wrong free is noticed
//! before anything has changed, and with one line on standard error the process aborts. What is freed is filled with
//! [`FREED`], so that a use afterwards shows.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt::{self, Write};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::HEAP;
use super::size_class::{self, CLASS, CLASSES, SMALL_MAX};
use super::space::{CHUNK_BYTES, CHUNK_UNITS, Kind, Space, UNIT_BYTES};
use crate::error::Errno;
use crate::mapping::reservation::Reservation;
use crate::page_size::PageSize;
use crate::sys::process;

/// Whether frees are checked in this build.
pub(crate) const CHECKED: bool = cfg!(any(debug_assertions, feature = "hardened"));

/// What freed memory is filled with.
pub(crate) const FREED: u8 = 0xDE;
/// The most that is filled: what a long block has not touched yet must not be populated to fill it.
const FILL_MAX: usize = SMALL_MAX;

/// Every block starts at a multiple of this.
const GRAIN: usize = 8;
const BYTES_A_WORD: usize = GRAIN * u64::BITS as usize;
const BYTES_A_BYTE: usize = GRAIN * u8::BITS as usize;

/// Where blocks in use start: a bit for each 8 bytes of the range. Nothing in builds that do not check.
///
/// There for committed chunks only: mlockall(2) would fill it all, a quarter of the machine's memory.
#[derive(Debug)]
pub(crate) struct LiveBits(Option<Reservation>);

impl LiveBits {
    /// For a range of `bytes`, whole chunks.
    pub(crate) fn new(bytes: usize) -> Result<LiveBits, Errno> {
        if !CHECKED {
            return Ok(LiveBits(None));
        }
        let len = (bytes / BYTES_A_BYTE).next_multiple_of(PageSize::base().bytes());
        Reservation::new(len, PageSize::base().bytes()).map(|bits| LiveBits(Some(bits)))
    }

    /// Makes the bits of `len` bytes from `offset` on accessible, in ordinary memory for what is looked at. They are zero, or
    /// as their last blocks left them, which is the same.
    ///
    /// # Safety
    ///
    /// `offset..offset + len` is whole chunks of the range.
    pub(crate) unsafe fn commit(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let Some(bits) = &self.0 else {
            return Ok(());
        };
        // Where base pages are larger than a chunk's bits, neighbours share one.
        let page = PageSize::base().bytes();
        let start = offset / BYTES_A_BYTE / page * page;
        let end = ((offset + len) / BYTES_A_BYTE).next_multiple_of(page);
        // SAFETY: whole base pages of the table; making them writable keeps what they hold.
        unsafe { bits.commit_ordinary(start, end - start) }
    }

    /// The word and the bit of the block that starts `offset` bytes into the range, a multiple of the grain, in a chunk that
    /// is committed, or the word faults.
    fn bit(&self, offset: usize) -> Option<(&AtomicU64, u64)> {
        let words = self.0.as_ref()?.base().cast::<AtomicU64>();
        // SAFETY: the table has a bit for every grain of the range, is zeroed memory, which is valid atomics, and is
        // never unmapped; `offset` is within the range at every caller (`Space::offset_of`).
        let word = unsafe { words.add(offset / BYTES_A_WORD).as_ref() };
        Some((word, 1 << (offset / GRAIN % u64::BITS as usize)))
    }
}

/// Notes that `block`, unless null, is in use.
#[inline(always)]
pub(crate) fn note_alloc(block: *mut u8) -> *mut u8 {
    if CHECKED {
        set_live(block);
    }
    block
}

/// Aborts unless `block` is in use with `layout`; from now on it is not, and filled.
///
/// # Safety
///
/// The caller of `dealloc` gave `block` up.
#[inline(always)]
pub(crate) unsafe fn check_free(block: *mut u8, layout: Layout) {
    if CHECKED {
        // SAFETY: the caller's contract; a block in use with this layout is at least that long.
        unsafe { end_live(block, Some(layout), || layout.size()) };
    }
}

/// Aborts unless a block in use starts at `block`, a pointer into the heap's range; from now on it is not in use, and
/// filled, as far as the `usable` bytes that it has.
///
/// # Safety
///
/// As for [`check_free`].
#[inline(always)]
pub(crate) unsafe fn check_free_unsized(block: *mut u8, usable: impl FnOnce() -> usize) {
    if CHECKED {
        // SAFETY: the caller's contract; a block in use has what it can use.
        unsafe { end_live(block, None, usable) };
    }
}

/// Aborts unless a block in use starts at `block`, a pointer into the heap's range.
#[inline(always)]
pub(crate) fn check_live_unsized(block: *mut u8) {
    if CHECKED {
        live_bit(block, None);
    }
}

/// Aborts unless `block` is in use with `layout`.
#[inline(always)]
pub(crate) fn check_live(block: *mut u8, layout: Layout) {
    if CHECKED {
        live_bit(block, Some(layout));
    }
}

/// # Safety
///
/// The caller gave `block` up; if it is in use, with `layout` if that is known, it is at least `bytes` long, which is
/// asked only then.
unsafe fn end_live(block: *mut u8, layout: Option<Layout>, bytes: impl FnOnce() -> usize) {
    let (word, bit) = live_bit(block, layout);
    let bytes = bytes();
    if word.fetch_and(!bit, Relaxed) & bit == 0 {
        abort("another thread freed it at the same time", block);
    }
    // SAFETY: the block was in use, and nobody else may use it.
    unsafe { block.write_bytes(FREED, bytes.min(FILL_MAX)) };
}

fn set_live(block: *mut u8) {
    if let Some(space) = HEAP.space()
        && let Some(offset) = space.offset_of(block)
        && let Some((word, bit)) = space.live().bit(offset)
    {
        // Relaxed: who frees the block got it from here by some way that orders all that came before.
        word.fetch_or(bit, Relaxed);
    }
}

/// The bit of a block that is in use, with `layout` if that is known; aborts when it is not.
fn live_bit(block: *mut u8, layout: Option<Layout>) -> (&'static AtomicU64, u64) {
    let found = HEAP.space().and_then(|space| Some((space, space.offset_of(block)?)));
    let Some((space, offset)) = found else {
        abort("it is not from this heap", block);
    };
    let is_place = offset.is_multiple_of(GRAIN) && space.is_committed((offset / CHUNK_BYTES) as u32);
    let bit = if is_place { space.live().bit(offset) } else { None };
    let Some((word, bit)) = bit.filter(|(word, bit)| word.load(Relaxed) & bit != 0) else {
        abort(why_not_live(space, offset), block);
    };
    if layout.is_some_and(|layout| !is_laid_out(space, offset, layout)) {
        abort("it was allocated with another layout", block);
    }
    (word, bit)
}

/// Whether the block in use at `offset` may have been allocated with `layout`.
fn is_laid_out(space: &Space, offset: usize, layout: Layout) -> bool {
    let unit = space.unit((offset / UNIT_BYTES) as u32);
    let (class, len) = (size_class::of(layout), unit.len.load(Relaxed));
    match unit.kind() {
        Kind::Span => unit.class() == class,
        Kind::Run if class >= CLASSES => {
            layout.size() <= len as usize * UNIT_BYTES && offset.is_multiple_of(layout.align().min(UNIT_BYTES))
        }
        _ => false,
    }
}

/// What is wrong with a pointer into the range at which no block in use starts.
fn why_not_live(space: &Space, offset: usize) -> &'static str {
    let index = (offset / UNIT_BYTES) as u32;
    if !space.is_committed(index / CHUNK_UNITS) {
        return "there is no block: double free, or never allocated";
    }
    let unit = space.unit(index);
    match unit.kind() {
        Kind::Span => {
            let head = unit.head.load(Relaxed);
            let is_start = CLASS.get(unit.class()).is_some_and(|class| {
                let first = head as usize * UNIT_BYTES + class.colour(head) as usize;
                offset.checked_sub(first).and_then(|offset| class.index_at(offset)).is_some()
            });
            if is_start { "double free" } else { "it points into the middle of a block" }
        }
        Kind::Run | Kind::Free if offset.is_multiple_of(UNIT_BYTES) => "double free",
        Kind::Run => "it points into the middle of a block",
        Kind::Free | Kind::Inside => "it points into the middle of a block, or of what is free",
    }
}

/// A line on the stack: what ends the process must not allocate.
struct Line {
    text: [u8; 160],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.text.get_mut(self.len..self.len + part.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.len += part.len();
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn abort(what: &str, block: *mut u8) -> ! {
    let mut line = Line { text: [0; 160], len: 0 };
    let written = writeln!(line, "hugearena: freed {block:p}: {what}");
    let text = std::str::from_utf8(&line.text[..line.len]).ok().filter(|_| written.is_ok());
    process::abort_with(text.unwrap_or("hugearena: freed what is no block\n"))
}
