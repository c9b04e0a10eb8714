//! The memory that both sides have: one page of rings and two of packet buffers, in one arena.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use hugearena::arena::FileRegion;
use hugearena::{Arena, Chunk, FirstTouch, PageSize};

use crate::queue::{self, Buffer, Direction};

/// Bytes of a packet buffer: the header of virtio-net and a frame of 1,514 bytes.
pub const SLOT: usize = 2048;

/// Claimed from an arena of the shared class and given back when dropped. Lives longer than any back end that uses it.
pub struct Memory {
    arena: Arena,
    rings: Chunk,
    buffers: Chunk,
}

impl Memory {
    /// On pages of 2 MiB, or what stands in for them.
    pub fn open() -> Result<Memory, String> {
        let page = PageSize::HUGE_2M.bytes();
        let pages = (2 * SLOT * usize::from(queue::SIZE)).div_ceil(page);
        let arena = Arena::builder().capacity((1 + pages) * page).open().map_err(|error| error.to_string())?;
        // Zeroed: a back end must not read what the last user of these pages left.
        let claim = |pages| arena.claim_zeroed(pages, FirstTouch::unknown()).ok_or("all pages are claimed");
        let (rings, buffers) = (claim(1)?, claim(pages)?);
        Ok(Memory { rings, buffers, arena })
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What the back end maps: two regions of one file.
    pub fn regions(&self) -> [FileRegion<'_>; 2] {
        let shared = "a memfd has a descriptor";
        [self.rings.file_region().expect(shared), self.buffers.file_region().expect(shared)]
    }

    /// The [`queue::LEN`] bytes of a queue.
    pub fn ring(&self, direction: Direction) -> NonNull<u8> {
        assert!(self.rings.len() >= 2 * queue::LEN);
        // SAFETY: as just checked, inside the chunk.
        unsafe { self.rings.as_ptr().add(index(direction) * queue::LEN) }
    }

    /// Buffer `id` of a queue, as the back end addresses it: by its offset in the arena, which is the same everywhere.
    pub fn buffer(&self, direction: Direction, id: u16) -> Buffer {
        Buffer { address: (self.buffers.offset() + position(direction, id)) as u64, len: SLOT as u32 }
    }

    /// Copies `bytes` into a buffer that no back end has, from byte `at`.
    pub fn write(&mut self, direction: Direction, id: u16, at: usize, bytes: &[u8]) {
        let to = self.bytes(direction, id, at, bytes.len());
        // SAFETY: `bytes` checked the range; the chunk is mapped, no reference to its bytes is ever made, and in this
        // process whoever has us mutably is the only one to touch them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Copies out of a buffer that the back end is done with. A copy, because a back end that misbehaves may write to
    /// it any time: what was checked has to be what is used.
    pub fn read(&self, direction: Direction, id: u16, at: usize, bytes: &mut [u8]) {
        let from = self.bytes(direction, id, at, bytes.len());
        // SAFETY: as in `write`. A back end that writes meanwhile spoils the copy, and the checksum tells.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }
    }

    fn bytes(&self, direction: Direction, id: u16, at: usize, len: usize) -> NonNull<u8> {
        let start = position(direction, id);
        assert!(at.checked_add(len).is_some_and(|end| end <= SLOT) && start + SLOT <= self.buffers.len());
        // SAFETY: as just checked, inside the chunk.
        unsafe { self.buffers.as_ptr().add(start + at) }
    }
}

/// virtio-net numbers its queues so.
pub fn index(direction: Direction) -> usize {
    match direction {
        Direction::FromDevice => 0,
        Direction::ToDevice => 1,
    }
}

fn position(direction: Direction, id: u16) -> usize {
    (index(direction) * usize::from(queue::SIZE) + usize::from(id)) * SLOT
}
