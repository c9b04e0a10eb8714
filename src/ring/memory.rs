//! What a ring is in memory: a description, two words that move, and slots. The same for both kinds.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use bytemuck::Pod;

use super::Kind;
use super::sync::{AtomicU64, Slot};
use crate::error::{Error, Operation, Result};

/// `HUGERING` in memory.
const MAGIC: u64 = u64::from_le_bytes(*b"HUGERING");
const VERSION: u32 = 1;

/// A ring holds at most this many elements.
pub const MAX_CAPACITY: usize = 1 << 31;

/// What is written once, and only believed after [`Description::check`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Description {
    magic: u64,
    version: u32,
    kind: u32,
    element_bytes: u32,
    element_align: u32,
    capacity: u64,
}

/// Where one side is. Two lines of 64 bytes, because CPUs fetch lines in pairs.
///
/// | kind | `word` | `peer_seen` |
/// |---|---|---|
/// | SPSC | position | unused: the handle has it |
/// | MPMC | position << 8, who is at it | the other side's position, as last seen by whoever was at it |
#[repr(C, align(128))]
pub(super) struct Side {
    /// Everything before this position is done: written, or read.
    pub(super) word: AtomicU64,
    pub(super) peer_seen: AtomicU64,
}

impl Side {
    fn new() -> Side {
        Side { word: AtomicU64::new(0), peer_seen: AtomicU64::new(0) }
    }
}

/// The atomics of a [`Side`]. Never a reference to the header or a whole side: their other bytes are no atomics, and a
/// peer that writes there would make such a reference invalid.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    pub(super) word: &'a AtomicU64,
    pub(super) peer_seen: &'a AtomicU64,
}

#[repr(C, align(128))]
pub(super) struct Header {
    description: Description,
    pub(super) producers: Side,
    pub(super) consumers: Side,
}

/// The memory of a ring that has been checked: from here on nothing that a peer writes decides where we read or write.
pub(super) struct Memory<T> {
    header: NonNull<Header>,
    slots: NonNull<Slot<T>>,
    /// Capacity - 1.
    mask: u64,
    elements: PhantomData<T>,
}

impl<T> Clone for Memory<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Memory<T> {}

/// Bytes and alignment of the memory that a ring of `capacity` elements needs; the same for both kinds.
///
/// # Errors
///
/// [`Operation::Configure`]: the capacity is no power of two from 1 to [`MAX_CAPACITY`], or the element has no bytes, or
/// an alignment of more than 128.
///
/// # Examples
///
/// ```
/// let layout = hugearena::ring::layout::<u64>(1024)?;
/// assert_eq!((layout.size(), layout.align()), (384 + 8 * 1024, 128));
/// # Ok::<(), hugearena::Error>(())
/// ```
pub fn layout<T: Pod>(capacity: usize) -> Result<Layout> {
    let refused = |why: &str| Err(Error::new(Operation::Configure, format!("a ring of {capacity} elements: {why}")));
    if !capacity.is_power_of_two() || capacity > MAX_CAPACITY {
        return refused("wanted a power of two up to 2147483648");
    }
    if size_of::<T>() == 0 || align_of::<T>() > align_of::<Header>() {
        return refused("an element needs bytes, and an alignment up to 128");
    }
    let slots = Layout::array::<Slot<T>>(capacity);
    let both = slots.and_then(|slots| Layout::new::<Header>().extend(slots));
    both.map_or_else(|_| refused("more bytes than addresses"), |(layout, _)| Ok(layout))
}

/// Makes an empty ring of `capacity` elements in `memory`, which may hold anything; once, before anybody attaches.
///
/// # Errors
///
/// As for [`layout`]; also when `memory` is too short or not aligned.
///
/// # Safety
///
/// `memory` is valid for reading and writing, and nobody else uses it meanwhile.
pub unsafe fn init<T: Pod>(memory: NonNull<[u8]>, kind: Kind, capacity: usize) -> Result<()> {
    check_place::<T>(memory, capacity, Operation::Configure)?;
    let description = Description::of::<T>(kind, capacity);
    let header = Header { description, producers: Side::new(), consumers: Side::new() };
    // SAFETY: long enough and aligned, as checked; the caller vouches for the rest.
    unsafe { memory.cast::<Header>().write(header) };
    #[cfg(loom)]
    for index in 0..capacity {
        // SAFETY: as above; loom's cells are no plain memory, so each is made.
        unsafe { slots::<T>(memory.cast()).add(index).write(Slot::new(bytemuck::Zeroable::zeroed())) };
    }
    Ok(())
}

impl Description {
    fn of<T: Pod>(kind: Kind, capacity: usize) -> Description {
        Description {
            magic: MAGIC,
            version: VERSION,
            kind: kind as u32,
            element_bytes: size_of::<T>() as u32,
            element_align: align_of::<T>() as u32,
            capacity: capacity as u64,
        }
    }

    /// Says what is wrong with what was found in shared memory, for somebody who wants such a ring.
    fn check<T: Pod>(&self, kind: Kind) -> std::result::Result<usize, String> {
        if self.magic != MAGIC {
            return Err("there is none".into());
        }
        if self.version != VERSION {
            return Err(format!("it has version {}, and this build knows {VERSION}", self.version));
        }
        let capacity = usize::try_from(self.capacity).unwrap_or(usize::MAX);
        let wanted = Description::of::<T>(kind, capacity);
        if self.kind != wanted.kind {
            return Err(format!("it is not {kind:?}"));
        }
        if (self.element_bytes, self.element_align) != (wanted.element_bytes, wanted.element_align) {
            let (bytes, align) = (wanted.element_bytes, wanted.element_align);
            return Err(format!(
                "its elements are of {} bytes, not of {bytes} (aligned to {align})",
                self.element_bytes
            ));
        }
        Ok(capacity)
    }
}

fn check_place<T: Pod>(memory: NonNull<[u8]>, capacity: usize, operation: Operation) -> Result<()> {
    let layout = layout::<T>(capacity)?;
    let address = memory.cast::<u8>().addr().get();
    if memory.len() < layout.size() || !address.is_multiple_of(layout.align()) {
        let (bytes, align) = (layout.size(), layout.align());
        let problem = format!("a ring in {} bytes at {address:#x}: needs {bytes}, aligned to {align}", memory.len());
        return Err(Error::new(operation, problem));
    }
    Ok(())
}

/// Where the slots of a ring start.
fn slots<T>(header: NonNull<Header>) -> NonNull<Slot<T>> {
    // The header is a multiple of 128 long, which is enough for every element that `layout` accepts.
    // SAFETY: the header is followed by the slots.
    unsafe { header.add(1) }.cast()
}

impl<T: Pod> Memory<T> {
    /// Checks that there is a ring of that kind and element in `memory`.
    ///
    /// # Safety
    ///
    /// `memory` is valid for reading and writing as long as the result is used.
    pub(super) unsafe fn attach(memory: NonNull<[u8]>, kind: Kind) -> Result<Memory<T>> {
        let refused = |why: String| Error::new(Operation::Attach, format!("a ring: {why}"));
        check_place::<T>(memory, 1, Operation::Attach)?;
        let header = memory.cast::<Header>();
        // SAFETY: inside the memory and aligned, as just checked; any bytes are a description. Read once: what is
        // checked is what is used.
        let found = unsafe { header.cast::<Description>().read_volatile() };
        let capacity = found.check::<T>(kind).map_err(refused)?;
        check_place::<T>(memory, capacity, Operation::Attach)?;
        Ok(Memory { header, slots: slots(header), mask: capacity as u64 - 1, elements: PhantomData })
    }

    /// The producers' side.
    #[inline]
    pub(super) fn producers(&self) -> Words<'_> {
        // SAFETY: a field of the header: inside the memory, as `attach` has checked.
        unsafe { self.words(&raw const (*self.header.as_ptr()).producers) }
    }

    /// The consumers' side.
    #[inline]
    pub(super) fn consumers(&self) -> Words<'_> {
        // SAFETY: as above.
        unsafe { self.words(&raw const (*self.header.as_ptr()).consumers) }
    }

    /// # Safety
    ///
    /// `side` is in this memory.
    #[inline]
    unsafe fn words(&self, side: *const Side) -> Words<'_> {
        // SAFETY: aligned and valid as long as we are, as the caller of `attach` vouches. References to the atomics
        // alone: peers may write everything around them.
        unsafe { Words { word: &(*side).word, peer_seen: &(*side).peer_seen } }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Copies elements into the slots from `position` on.
    ///
    /// # Safety
    ///
    /// At most as many as the ring holds, and the positions are the caller's: nobody reads or writes them.
    #[inline]
    pub(super) unsafe fn write(&self, position: u64, items: &[T]) {
        let at = (position & self.mask) as usize;
        #[cfg(not(loom))]
        // SAFETY: `at` is inside the ring by its mask, and `before_end` elements are up to its end; what is left of at
        // most `capacity` elements fits before `at`. The slots are the caller's.
        unsafe {
            let before_end = items.len().min(self.mask as usize + 1 - at);
            let slots = self.slots.as_ptr().cast::<T>();
            slots.add(at).copy_from_nonoverlapping(items.as_ptr(), before_end);
            slots.copy_from_nonoverlapping(items.as_ptr().add(before_end), items.len() - before_end);
        }
        #[cfg(loom)]
        for (index, item) in items.iter().enumerate() {
            // SAFETY: inside the ring by its mask; loom checks that nobody else is at it.
            unsafe { self.slots.add((at + index) & self.mask as usize).as_ref().with_mut(|slot| *slot = *item) };
        }
    }

    /// Copies elements out of the slots from `position` on.
    ///
    /// # Safety
    ///
    /// At most as many as the ring holds, and the positions are the caller's: nobody writes them.
    #[inline]
    pub(super) unsafe fn read(&self, position: u64, into: &mut [T]) {
        let at = (position & self.mask) as usize;
        #[cfg(not(loom))]
        // SAFETY: as for `write`; any bytes are an element, those too that a dishonest peer writes at this moment.
        unsafe {
            let before_end = into.len().min(self.mask as usize + 1 - at);
            let slots = self.slots.as_ptr().cast::<T>();
            into.as_mut_ptr().copy_from_nonoverlapping(slots.add(at), before_end);
            into.as_mut_ptr().add(before_end).copy_from_nonoverlapping(slots, into.len() - before_end);
        }
        #[cfg(loom)]
        for (index, item) in into.iter_mut().enumerate() {
            // SAFETY: as for `write`.
            *item = unsafe { self.slots.add((at + index) & self.mask as usize).as_ref().with(|slot| *slot) };
        }
    }
}

impl<T> fmt::Debug for Memory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("header", &self.header).field("capacity", &(self.mask + 1)).finish()
    }
}
