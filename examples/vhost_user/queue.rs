//! The driver's side of a split virtqueue in shared memory.
//!
//! The rings are written by two processes, so they are reached by atomics through pointers, never by references to
//! plain data; and nothing that the device wrote is believed: how many entries it used, which descriptors, how long.
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2, section 2.7.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};

/// Descriptors of a queue: a power of two, as the specification wants.
pub const SIZE: u16 = 1024;

/// `VIRTQ_DESC_F_WRITE`: the device writes to the buffer.
const DEVICE_WRITES: u16 = 2;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`: the driver polls.
const NO_CALLS: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`: the device polls.
const NO_KICKS: u16 = 1;

/// Where the parts of a queue are, in bytes from its start: descriptors of 16 bytes; flags, index and entries of two
/// bytes; flags, index and entries of eight. Each part has cache lines of its own.
pub const AVAILABLE: usize = 16 * SIZE as usize;
pub const USED: usize = (AVAILABLE + 4 + 2 * SIZE as usize).next_multiple_of(128);
/// Bytes of a queue.
pub const LEN: usize = (USED + 4 + 8 * SIZE as usize).next_multiple_of(4096);

/// Who uses a buffer how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device fills buffers: packets that come in.
    FromDevice,
    /// The device reads buffers: packets that go out.
    ToDevice,
}

/// A buffer, as the device addresses it.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub address: u64,
    pub len: u32,
}

/// A buffer that the device is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The descriptor that it was made available by.
    pub id: u16,
    /// Bytes that the device says it has written: at most as long as the buffer.
    pub len: u32,
}

/// The device wrote what no device may write. Its memory cannot be trusted any more, ours is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It claims to have used more buffers than it was given.
    Index { used: u16, available: u16 },
    /// No descriptor has that number, or the device was not given it.
    Id(u32),
    /// More bytes than the buffer has.
    Len { id: u16, len: u32 },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Index { used, available } => write!(f, "{used} buffers used, {available} were available"),
            Broken::Id(id) => write!(f, "descriptor {id} used, which was not available"),
            Broken::Len { id, len } => write!(f, "{len} bytes written to descriptor {id}, which has fewer"),
        }
    }
}

/// One queue. What the device must not change is kept here as well, out of its reach.
pub struct Queue {
    start: NonNull<u8>,
    direction: Direction,
    /// Buffers made available in all, modulo 2^16; published up to the index in the ring.
    next: u16,
    /// Used buffers taken in all, modulo 2^16.
    taken: u16,
    /// Length of the buffer that the device has by this descriptor; 0: it has none.
    lent: Box<[u32; SIZE as usize]>,
}

// SAFETY: the queue is the only user of its memory in this process, and that memory is not tied to a thread.
unsafe impl Send for Queue {}

impl Queue {
    /// An empty queue in [`LEN`] bytes at `start`, which are overwritten.
    ///
    /// # Safety
    ///
    /// The memory is at a multiple of 4096, mapped as long as the queue is used, and nothing else in this process uses
    /// it. Other processes may.
    pub unsafe fn new(start: NonNull<u8>, direction: Direction) -> Queue {
        let queue = Queue { start, direction, next: 0, taken: 0, lent: Box::new([0; SIZE as usize]) };
        (0..LEN).step_by(8).for_each(|at| queue.u64_at(at).store(0, Relaxed));
        queue
    }

    /// Gives the device a buffer by descriptor `id`; it sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    ///
    /// If the device has that descriptor, or the buffer has no bytes.
    pub fn lend(&mut self, id: u16, buffer: Buffer) {
        assert!(self.lent[usize::from(id)] == 0 && buffer.len > 0, "descriptor {id} is the device's, or no buffer");
        self.lent[usize::from(id)] = buffer.len;
        let flags = if self.direction == Direction::FromDevice { DEVICE_WRITES } else { 0 };
        let descriptor = 16 * usize::from(id);
        self.u64_at(descriptor).store(buffer.address.to_le(), Relaxed);
        self.u32_at(descriptor + 8).store(buffer.len.to_le(), Relaxed);
        self.u16_at(descriptor + 12).store(flags.to_le(), Relaxed);
        self.u16_at(descriptor + 14).store(0, Relaxed);
        self.u16_at(AVAILABLE + 4 + 2 * usize::from(self.next % SIZE)).store(id.to_le(), Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Lets the device see what it was lent, and returns whether it wants to be told (it does not while it polls).
    pub fn publish(&mut self) -> bool {
        // Release: the descriptors and what the buffers hold come before.
        self.u16_at(AVAILABLE + 2).store(self.next.to_le(), Release);
        // The index is stored before the flags are read; the device clears them before it reads the index. Without the
        // fence each could miss the other.
        fence(SeqCst);
        u16::from_le(self.u16_at(USED).load(Relaxed)) & NO_KICKS == 0
    }

    /// The next buffer that the device is done with.
    pub fn take(&mut self) -> Result<Option<Used>, Broken> {
        // Acquire: the entry, and what the device wrote to the buffer, come after.
        let used = u16::from_le(self.u16_at(USED + 2).load(Acquire));
        let (waiting, available) = (used.wrapping_sub(self.taken), self.next.wrapping_sub(self.taken));
        if waiting > available {
            return Err(Broken::Index { used: waiting, available });
        }
        if waiting == 0 {
            return Ok(None);
        }
        let entry = USED + 4 + 8 * usize::from(self.taken % SIZE);
        // Each is read once: the device may change it meanwhile.
        let id = u32::from_le(self.u32_at(entry).load(Relaxed));
        let len = u32::from_le(self.u32_at(entry + 4).load(Relaxed));
        let used = self.checked(id, len)?;
        self.lent[usize::from(used.id)] = 0;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(used))
    }

    fn checked(&self, id: u32, len: u32) -> Result<Used, Broken> {
        let known = u16::try_from(id).ok().filter(|id| *id < SIZE);
        let id = known.filter(|id| self.lent[usize::from(*id)] > 0).ok_or(Broken::Id(id))?;
        match self.direction {
            Direction::FromDevice if len > self.lent[usize::from(id)] => Err(Broken::Len { id, len }),
            Direction::FromDevice => Ok(Used { id, len }),
            // It wrote nothing; some devices say otherwise.
            Direction::ToDevice => Ok(Used { id, len: 0 }),
        }
    }

    /// Whether the device should tell when it has used a buffer. After saying so, look once more: what it used before
    /// it knew is not told.
    pub fn want_calls(&mut self, wanted: bool) {
        let flags = if wanted { 0 } else { NO_CALLS };
        self.u16_at(AVAILABLE).store(flags.to_le(), Relaxed);
        // As in `publish`, the other way round.
        fence(SeqCst);
    }

    /// Whether there is something to [`take`](Self::take).
    pub fn is_waiting(&self) -> bool {
        u16::from_le(self.u16_at(USED + 2).load(Acquire)) != self.taken
    }

    fn u16_at(&self, at: usize) -> &AtomicU16 {
        assert!(at + 2 <= LEN && at.is_multiple_of(2));
        // SAFETY: aligned, inside the memory that `new` was promised, and only ever accessed by atomics.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn u32_at(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= LEN && at.is_multiple_of(4));
        // SAFETY: as for `u16_at`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn u64_at(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= LEN && at.is_multiple_of(8));
        // SAFETY: as for `u16_at`.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }
}
