//! Many producers, many consumers, in several processes, any of which may die at any instruction.
//!
//! Each side of the ring is one word: a position, and who is moving it (0: nobody). To enqueue is to write one's number
//! into the producers' word (compare-exchange), copy, and store the new position without a number. So:
//!
//! | state of a side | word | who may touch slots |
//! |---|---|---|
//! | at rest | position, 0 | nobody on this side |
//! | busy | position, n | the holder n: slots from the position on, as far as the other side has come |
//!
//! Nothing is published before it is complete, so what a dead holder was doing is undone by taking its number out: there
//! is no second position that could be ahead of the first. Rings that let producers reserve and copy side by side, and
//! publish in order, cannot take a dead reservation back, and their successful enqueues behind it are never seen.
//! What is lost is copying by two producers at once: 256 bytes, a few nanoseconds.

#![allow(unsafe_code)]

use std::fmt;
use std::num::NonZeroU8;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use bytemuck::Pod;

use super::block::Block;
use super::memory::{Memory, Words};
use super::sync::spin_loop;
use super::{Kind, damaged};
use crate::error::Result;

/// Bits of a word that name its holder.
const HOLDER_BITS: u32 = 8;
const HOLDER: u64 = (1 << HOLDER_BITS) - 1;
/// Positions go round after 2^56 elements, two years at a thousand million a second; all arithmetic is modulo that.
const POSITION: u64 = u64::MAX >> HOLDER_BITS;

/// Looks at a word that does not change, before its holder counts as stalled: some microseconds, a hundred times what a
/// burst takes.
#[cfg(not(loom))]
const PATIENCE: u32 = 200;
#[cfg(loom)]
const PATIENCE: u32 = 2;

/// Looks in all, whatever happens meanwhile: nobody waits without end for its turn in a crowd, or for a peer that
/// writes the word again and again.
const TURNS: u32 = 16 * PATIENCE;

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// Another peer is at this side of the ring and does not end: it is dead, stopped, or off its CPU; or there is such
    /// a crowd that our turn did not come, and this is who was seen last. No proof of death. Try again later, or see
    /// [`Mpmc::expel`].
    Stalled {
        /// The number that it [attached](Mpmc::attach) with.
        by: NonZeroU8,
    },
    /// Somebody took us out while we were at it: we were [expelled](Mpmc::expel) alive. What we were enqueuing is not
    /// there, what we were dequeuing comes again.
    Expelled,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Stalled { by } => write!(f, "peer {by} has not finished what it began in the ring"),
            Refused::Expelled => f.write_str("this peer was expelled from the ring while it was at it"),
        }
    }
}

impl std::error::Error for Refused {}

/// A ring with any number of producers and consumers. A handle: shared by threads, cloned if `K` is.
///
/// `K` keeps the memory, as for [`Producer`](super::Producer).
#[derive(Clone)]
pub struct Mpmc<T, K = Arc<Block>> {
    memory: Memory<T>,
    me: NonZeroU8,
    /// Last: dropped when nothing uses the memory any more.
    keep: K,
}

// SAFETY: operations on a side exclude each other by its word; plain data crosses threads as it crosses processes.
unsafe impl<T: Send, K: Send> Send for Mpmc<T, K> {}
// SAFETY: as above: everything takes `&self`.
unsafe impl<T: Send, K: Sync> Sync for Mpmc<T, K> {}

/// How many elements, of at most so many.
#[derive(Clone, Copy)]
enum Count {
    All(usize),
    Some(usize),
}

impl Count {
    fn most(self) -> usize {
        let (Count::All(count) | Count::Some(count)) = self;
        count
    }

    /// What to do when so many can be had.
    fn of(self, can: u64) -> usize {
        match self {
            Count::All(count) if can < count as u64 => 0,
            Count::All(count) => count,
            Count::Some(count) => can.min(count as u64) as usize,
        }
    }
}

fn position(word: u64) -> u64 {
    word >> HOLDER_BITS
}

fn holder(word: u64) -> Option<NonZeroU8> {
    NonZeroU8::new((word & HOLDER) as u8)
}

/// From `from` to `to`, going round.
fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & POSITION
}

impl<T: Pod, K> Mpmc<T, K> {
    /// Attaches to a ring that somebody has [made](super::init) in `memory`. `me` is what this peer is called in
    /// [`Refused::Stalled`]: a number for whatever lives and dies as one, a process as a rule. See [`expel`](Self::expel)
    /// for when a number may be used again.
    ///
    /// # Errors
    ///
    /// As for [`Producer::attach`](super::Producer::attach).
    ///
    /// # Safety
    ///
    /// `memory` is valid for reading and writing as long as `keep` and its clones live, and nobody has or makes a
    /// reference to it meanwhile: no `Chunk::as_slice`, not even through [`keep`](Self::keep).
    pub unsafe fn attach(memory: NonNull<[u8]>, me: NonZeroU8, keep: K) -> Result<Mpmc<T, K>> {
        // SAFETY: the caller's contract, as long as we have `keep`.
        let memory = unsafe { Memory::attach(memory, Kind::Mpmc)? };
        let ring = Mpmc { memory, me, keep };
        // The consumers' word first: what they have taken was there before.
        let consumed = position(ring.memory.consumers().word.load(Acquire));
        let produced = position(ring.memory.producers().word.load(Acquire));
        // Both move meanwhile, and only forward: the producers can be up to a lap ahead of what we read first.
        if distance(consumed, produced) > POSITION / 2 { Err(damaged()) } else { Ok(ring) }
    }

    /// Puts in all of `items`, or none and says `false`: too few slots are free.
    ///
    /// # Errors
    ///
    /// [`Refused`], and none were put in.
    #[inline]
    pub fn enqueue_bulk(&self, items: &[T]) -> std::result::Result<bool, Refused> {
        Ok(self.enqueue(items, Count::All(items.len()))? == items.len())
    }

    /// Puts in as many of `items` as fit, from the first on, and says how many.
    ///
    /// # Errors
    ///
    /// [`Refused`], and none were put in.
    #[inline]
    pub fn enqueue_burst(&self, items: &[T]) -> std::result::Result<usize, Refused> {
        self.enqueue(items, Count::Some(items.len()))
    }

    /// Fills all of `into`, or nothing and says `false`: too few elements are there.
    ///
    /// # Errors
    ///
    /// [`Refused`], and none were taken.
    #[inline]
    pub fn dequeue_bulk(&self, into: &mut [T]) -> std::result::Result<bool, Refused> {
        let count = Count::All(into.len());
        Ok(self.dequeue(into, count)? == into.len())
    }

    /// Takes as many elements as are there and fit, into the start of `into`, and says how many.
    ///
    /// # Errors
    ///
    /// [`Refused`], and none were taken.
    #[inline]
    pub fn dequeue_burst(&self, into: &mut [T]) -> std::result::Result<usize, Refused> {
        let count = Count::Some(into.len());
        self.dequeue(into, count)
    }

    /// Takes what `peer` was doing out of the ring, as if it had never begun, and says whether there was anything. What
    /// it was enqueuing is not there; what it was dequeuing comes again.
    ///
    /// # Safety
    ///
    /// - The peer is dead, or will do nothing more with this ring: waitpid(2) or a pidfd says so, a time that has passed
    ///   does not. One that was only stopped learns of it when it goes on ([`Refused::Expelled`]), but may have written
    ///   into slots that are others' by then.
    /// - Nobody is attached with the same number, and nobody attaches with it before every `expel` of it has returned, in
    ///   whatever process: at the same position, the newcomer would look like the dead one. Give a service that is
    ///   restarted another number, or let one process alone expel and restart.
    pub unsafe fn expel(&self, peer: NonZeroU8) -> bool {
        let (producers, consumers) = (self.memory.producers(), self.memory.consumers());
        let mut found = false;
        for (ours, theirs) in [(producers, consumers), (consumers, producers)] {
            let word = ours.word.load(Relaxed);
            // What the dead peer had seen of the other side, whoever enters next has seen through us.
            let _ = theirs.word.load(Acquire);
            let at_rest = word & !HOLDER;
            found |= holder(word) == Some(peer) && ours.word.compare_exchange(word, at_rest, Release, Relaxed).is_ok();
        }
        found
    }

    /// What keeps the memory.
    #[must_use]
    pub fn keep(&self) -> &K {
        &self.keep
    }

    /// Who is enqueuing and who is dequeuing at this moment.
    #[must_use]
    pub fn holders(&self) -> (Option<NonZeroU8>, Option<NonZeroU8>) {
        (holder(self.memory.producers().word.load(Relaxed)), holder(self.memory.consumers().word.load(Relaxed)))
    }

    /// Elements that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.capacity() as usize
    }

    /// Elements that are in it, at some moment during the call; exact when nobody else is at it.
    #[must_use]
    pub fn len(&self) -> usize {
        let consumed = position(self.memory.consumers().word.load(Acquire));
        distance(consumed, position(self.memory.producers().word.load(Acquire))).min(self.memory.capacity()) as usize
    }

    /// Whether nothing is in it, as for [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn enqueue(&self, items: &[T], count: Count) -> std::result::Result<usize, Refused> {
        let capacity = self.memory.capacity();
        let (ours, theirs) = (self.memory.producers(), self.memory.consumers());
        // Consumers that claim to be ahead leave no room.
        let free = |at, consumed| capacity.saturating_sub(distance(consumed, at));
        if is_futile(ours, theirs, count, free) {
            return Ok(0);
        }
        let at = self.enter(ours)?;
        let count = count.of(look(ours, theirs, at, count, free));
        // SAFETY: no more than are free, so at most the capacity; consumers have left these slots, which the acquiring
        // load of their word showed to us or to an earlier holder, and the word keeps other producers out.
        unsafe { self.memory.write(at, &items[..count]) };
        self.leave(ours, at, count)
    }

    #[inline]
    fn dequeue(&self, into: &mut [T], count: Count) -> std::result::Result<usize, Refused> {
        let capacity = self.memory.capacity();
        let (ours, theirs) = (self.memory.consumers(), self.memory.producers());
        let there = |at, produced| distance(at, produced).min(capacity);
        if is_futile(ours, theirs, count, there) {
            return Ok(0);
        }
        let at = self.enter(ours)?;
        let count = count.of(look(ours, theirs, at, count, there));
        // SAFETY: no more than are there, so at most the capacity; producers have published these slots, which the
        // acquiring load of their word showed to us or to an earlier holder, and the word keeps other consumers out.
        // That is so among honest peers; one that writes meanwhile gives us bytes of any value, as a device would, and
        // any bytes are an element.
        unsafe { self.memory.read(at, &mut into[..count]) };
        self.leave(ours, at, count)
    }

    /// Becomes the holder of a side; says from which position on.
    #[inline]
    fn enter(&self, side: Words<'_>) -> std::result::Result<u64, Refused> {
        let word = side.word.load(Relaxed);
        let busy = word | u64::from(self.me.get());
        if word & HOLDER == 0 && side.word.compare_exchange(word, busy, Acquire, Relaxed).is_ok() {
            return Ok(position(word));
        }
        self.wait_and_enter(side)
    }

    #[cold]
    fn wait_and_enter(&self, side: Words<'_>) -> std::result::Result<u64, Refused> {
        let mut word = side.word.load(Relaxed);
        let (mut patience, mut by) = (PATIENCE, self.me);
        for _ in 0..TURNS {
            let before = word;
            match holder(word) {
                Some(other) => {
                    by = other;
                    if patience == 0 {
                        break;
                    }
                    spin_loop();
                    word = side.word.load(Relaxed);
                }
                None => match side.word.compare_exchange(word, word | u64::from(self.me.get()), Acquire, Relaxed) {
                    Ok(_) => return Ok(position(word)),
                    Err(now) => word = now,
                },
            }
            // As long as the side moves, it is worth waiting for, within reason.
            patience = if word == before { patience - 1 } else { PATIENCE };
        }
        Err(Refused::Stalled { by })
    }

    /// All of an enqueue of `items` but its end, and where from: what a peer that dies or stops there has done. `None`
    /// when there is no room or somebody is at it.
    #[cfg(any(test, loom))]
    pub fn begin_to_enqueue(&self, items: &[T]) -> Option<u64> {
        let (ours, theirs) = (self.memory.producers(), self.memory.consumers());
        let at = self.enter(ours).ok()?;
        let free = |at, consumed| self.memory.capacity() - distance(consumed, at);
        let count = Count::All(items.len()).of(look(ours, theirs, at, Count::All(items.len()), free));
        if count < items.len() {
            self.leave(ours, at, 0).ok()?;
            return None;
        }
        // SAFETY: as in `enqueue`.
        unsafe { self.memory.write(at, items) };
        Some(at)
    }

    /// The end of what [`begin_to_enqueue`](Self::begin_to_enqueue) began.
    #[cfg(test)]
    pub(super) fn end_enqueue(&self, at: u64, count: usize) -> std::result::Result<usize, Refused> {
        self.leave(self.memory.producers(), at, count)
    }

    /// Ends being the holder, `count` further: whoever acquires the word sees what was copied.
    #[inline]
    fn leave(&self, side: Words<'_>, at: u64, count: usize) -> std::result::Result<usize, Refused> {
        // Whoever was expelled alive, stopped for longer than somebody's patience, must not move the ring back. To look
        // is not to exchange: between the look and the store there is an instruction's time, and a locked instruction
        // more for each burst would be the price. The contract of `expel` is what excludes it, this limits the damage.
        if side.word.load(Relaxed) != (at << HOLDER_BITS) | u64::from(self.me.get()) {
            return Err(Refused::Expelled);
        }
        side.word.store(at.wrapping_add(count as u64) << HOLDER_BITS, Release);
        Ok(count)
    }
}

/// Whether there is nothing to do, seen without writing to the word: what pollers of an empty ring ask all the time.
/// `can` says how many elements there are to be had at our position when the other side is at theirs.
#[inline]
fn is_futile(ours: Words<'_>, theirs: Words<'_>, count: Count, can: impl Fn(u64, u64) -> u64) -> bool {
    // Who takes the side for nothing at all looks stalled to others: the word before and after is the same.
    if count.most() == 0 {
        return true;
    }
    let word = ours.word.load(Relaxed);
    let at = position(word);
    if can(at, ours.peer_seen.load(Relaxed)) >= count.most() as u64 {
        return false;
    }
    let now = position(theirs.word.load(Acquire));
    // Positions only grow: if ours is what it was, it was so when the other was read.
    count.of(can(at, now)) == 0 && ours.word.load(Relaxed) == word
}

/// How many elements there are to be had, exact only below the wanted number; for the holder of our side.
#[inline]
fn look(ours: Words<'_>, theirs: Words<'_>, at: u64, count: Count, can: impl Fn(u64, u64) -> u64) -> u64 {
    let seen = can(at, ours.peer_seen.load(Relaxed));
    if seen >= count.most() as u64 {
        return seen;
    }
    let now = position(theirs.word.load(Acquire));
    ours.peer_seen.store(now, Relaxed);
    can(at, now)
}

impl<T: Pod, K> fmt::Debug for Mpmc<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpmc")
            .field("capacity", &self.capacity())
            .field("len", &self.len())
            .field("me", &self.me)
            .finish()
    }
}
