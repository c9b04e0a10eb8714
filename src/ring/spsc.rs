//! One producer, one consumer: each has its own position in its handle and publishes it.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use bytemuck::Pod;

use super::block::Block;
use super::memory::Memory;
use super::{Kind, damaged};
use crate::error::Result;

/// The end of a ring that elements go in at. Belongs to one thread at a time, may move to another.
///
/// `K` keeps the memory: a block of its own ([`spsc`](super::spsc)), or whatever the memory is taken from, an
/// `Arc<Chunk>` or an `Arc<View>`.
pub struct Producer<T, K = Arc<Block>> {
    memory: Memory<T>,
    position: u64,
    /// The consumer's position when it was last looked at: it is at least there.
    consumer_seen: u64,
    /// Last: dropped when nothing uses the memory any more.
    _keep: K,
}

/// The end of a ring that elements come out at. Belongs to one thread at a time, may move to another.
pub struct Consumer<T, K = Arc<Block>> {
    memory: Memory<T>,
    position: u64,
    /// The producer's position when it was last looked at: it is at least there.
    producer_seen: u64,
    /// Last, as above.
    _keep: K,
}

// SAFETY: the only producer of the ring, as `attach` demands; plain data crosses threads as it crosses processes.
unsafe impl<T: Send, K: Send> Send for Producer<T, K> {}
// SAFETY: through a shared reference only atomics are read.
unsafe impl<T: Send, K: Sync> Sync for Producer<T, K> {}
// SAFETY: the only consumer of the ring.
unsafe impl<T: Send, K: Send> Send for Consumer<T, K> {}
// SAFETY: as for the producer.
unsafe impl<T: Send, K: Sync> Sync for Consumer<T, K> {}

/// The positions of a ring that is not damaged.
fn positions<T: Pod>(memory: &Memory<T>) -> Result<(u64, u64)> {
    let (produced, consumed) = (memory.producers().word.load(Acquire), memory.consumers().word.load(Acquire));
    if produced.wrapping_sub(consumed) > memory.capacity() { Err(damaged()) } else { Ok((produced, consumed)) }
}

impl<T: Pod, K> Producer<T, K> {
    /// Becomes the producer of a ring that somebody has [made](super::init) in `memory`. It goes on where the last one
    /// ended: what that one had not published when it died was never there.
    ///
    /// # Errors
    ///
    /// [`Operation::Attach`](crate::error::Operation::Attach): there is no such ring of such elements, it is longer than
    /// the memory, of another version, or damaged.
    ///
    /// # Safety
    ///
    /// - `memory` is valid for reading and writing as long as `keep` lives, and nobody has or makes a reference to it.
    /// - The ring has no other producer, in this process or another.
    pub unsafe fn attach(memory: NonNull<[u8]>, keep: K) -> Result<Producer<T, K>> {
        // SAFETY: the caller's contract, as long as we have `keep`.
        let memory = unsafe { Memory::attach(memory, Kind::Spsc)? };
        let (position, consumer_seen) = positions(&memory)?;
        Ok(Producer { memory, position, consumer_seen, _keep: keep })
    }

    /// Puts in all of `items`, or none and says `false`: too few slots are free.
    #[inline]
    #[must_use]
    pub fn enqueue_bulk(&mut self, items: &[T]) -> bool {
        let fits = self.room(items.len()) >= items.len();
        if fits {
            self.push(items);
        }
        fits
    }

    /// Puts in as many of `items` as fit, from the first on, and says how many.
    #[inline]
    #[must_use]
    pub fn enqueue_burst(&mut self, items: &[T]) -> usize {
        let count = self.room(items.len()).min(items.len());
        self.push(&items[..count]);
        count
    }

    /// Elements that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.capacity() as usize
    }

    /// Elements that are in it now; the consumer may be taking some.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "what the producer wants to know is what is free")]
    pub fn len(&self) -> usize {
        self.position.wrapping_sub(self.memory.consumers().word.load(Acquire)).min(self.memory.capacity()) as usize
    }

    /// Free slots, exact only below `wanted`.
    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        let room = self.room_seen();
        if room >= wanted as u64 {
            return room as usize;
        }
        self.consumer_seen = self.memory.consumers().word.load(Acquire);
        self.room_seen() as usize
    }

    #[inline]
    fn room_seen(&self) -> u64 {
        // A consumer that claims to be ahead of us, or further behind than can be, leaves no room.
        self.memory.capacity().saturating_sub(self.position.wrapping_sub(self.consumer_seen))
    }

    #[inline]
    fn push(&mut self, items: &[T]) {
        // SAFETY: no more than there is room, so at most the capacity; the consumer has left these slots, which the
        // acquiring load of its position showed, and we are the only producer.
        unsafe { self.memory.write(self.position, items) };
        self.position = self.position.wrapping_add(items.len() as u64);
        self.memory.producers().word.store(self.position, Release);
    }
}

impl<T: Pod, K> Consumer<T, K> {
    /// Becomes the consumer of a ring that somebody has [made](super::init) in `memory`. It goes on where the last one
    /// ended: what that one had not finished taking when it died comes again.
    ///
    /// # Errors
    ///
    /// As for [`Producer::attach`].
    ///
    /// # Safety
    ///
    /// - `memory` is valid for reading and writing as long as `keep` lives, and nobody has or makes a reference to it.
    /// - The ring has no other consumer, in this process or another.
    pub unsafe fn attach(memory: NonNull<[u8]>, keep: K) -> Result<Consumer<T, K>> {
        // SAFETY: the caller's contract, as long as we have `keep`.
        let memory = unsafe { Memory::attach(memory, Kind::Spsc)? };
        let (producer_seen, position) = positions(&memory)?;
        Ok(Consumer { memory, position, producer_seen, _keep: keep })
    }

    /// Fills all of `into`, or nothing and says `false`: too few elements are there.
    #[inline]
    #[must_use]
    pub fn dequeue_bulk(&mut self, into: &mut [T]) -> bool {
        let fits = self.available(into.len()) >= into.len();
        if fits {
            self.pop(into);
        }
        fits
    }

    /// Takes as many elements as are there and fit, into the start of `into`, and says how many.
    #[inline]
    #[must_use]
    pub fn dequeue_burst(&mut self, into: &mut [T]) -> usize {
        let count = self.available(into.len()).min(into.len());
        self.pop(&mut into[..count]);
        count
    }

    /// Elements that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.capacity() as usize
    }

    /// Elements that are in it now; the producer may be adding some.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.producers().word.load(Acquire).wrapping_sub(self.position).min(self.memory.capacity()) as usize
    }

    /// Whether nothing is in it now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements that are there, exact only below `wanted`.
    #[inline]
    fn available(&mut self, wanted: usize) -> usize {
        let available = self.available_seen();
        if available >= wanted as u64 {
            return available as usize;
        }
        self.producer_seen = self.memory.producers().word.load(Acquire);
        self.available_seen() as usize
    }

    #[inline]
    fn available_seen(&self) -> u64 {
        // A producer that claims more than fits gets what fits believed: the elements are of its choice anyway.
        self.producer_seen.wrapping_sub(self.position).min(self.memory.capacity())
    }

    #[inline]
    fn pop(&mut self, into: &mut [T]) {
        // SAFETY: no more than are available, so at most the capacity; the producer has left these slots, which the
        // acquiring load of its position showed, and we are the only consumer. One that writes them all the same gives us
        // bytes of any value, as a device would, and any bytes are an element.
        unsafe { self.memory.read(self.position, into) };
        self.position = self.position.wrapping_add(into.len() as u64);
        self.memory.consumers().word.store(self.position, Release);
    }
}

impl<T: Pod, K> fmt::Debug for Producer<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}

impl<T: Pod, K> fmt::Debug for Consumer<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}
