//! Bounded rings of plain data: bursts of elements handed from thread to thread, or from process to process.
//!
//! | | [`Producer`] and [`Consumer`] (SPSC) | [`Mpmc`] |
//! |---|---|---|
//! | who may use it | one thread on each side | any number |
//! | a peer dies in the middle | the other side sees only whole elements, and goes on | [`Stalled`](Refused::Stalled) for those on the same side, until the dead peer is [expelled](Mpmc::expel); the other side goes on |
//! | cost | one store a burst, and a look at the other side when what was last seen is used up | in addition one compare-exchange |
//!
//! *Bulk* operations are all or nothing, *burst* operations do as much as they can. Neither allocates or makes a system
//! call. SPSC never waits; MPMC waits for its turn on a side for 3,200 looks at most, then says [`Stalled`](Refused::Stalled); the
//! peers of a side get no turns by order.
//!
//! Inside a process [`spsc`] and [`mpmc`] bring their own memory. Anywhere else a ring is [made](init) in memory that the
//! caller has, of the [length](layout) that its capacity needs, and both ends attach to it: positions are in it, no
//! pointers, so each process may have it at another address.
//!
//! # What is believed of a peer
//!
//! Nothing that decides where memory is read or written. Capacity and element size are checked once, when a process
//! attaches, against its own and the length of the memory, and are never read again. Positions go through a mask, and
//! what lies between two positions is cut to the capacity: a peer that lies about its position makes us see elements
//! that nobody enqueued, which it can do anyway, or a full ring. What the elements mean is the caller's to check;
//! `View::get` (of arenas) and
//! `Pool::reclaim` do.
//!
//! # Why not a crate that exists
//!
//! `crossbeam`'s `ArrayQueue` (MPMC) and `heapless`' queues hand over one element at a time, `rtrb` and `ringbuf` (SPSC)
//! have bursts; all own their memory or keep pointers in it, none checks what it finds there, and in none can a dead
//! peer be told or taken out.
//!
//! # Examples
//!
//! ```
//! use hugearena::ring;
//!
//! # fn main() -> hugearena::Result<()> {
//! let (mut producer, mut consumer) = ring::spsc::<u32>(1024)?;
//! let worker = std::thread::spawn(move || {
//!     let mut burst = [0; 32];
//!     let mut sum = 0;
//!     while sum < 499_500 {
//!         let count = consumer.dequeue_burst(&mut burst);
//!         sum += burst[..count].iter().sum::<u32>();
//!     }
//!     sum
//! });
//! let numbers: Vec<u32> = (0..1000).collect();
//! assert!(producer.enqueue_bulk(&numbers)); // all or nothing
//! assert_eq!(worker.join().unwrap(), 499_500);
//! # Ok(())
//! # }
//! ```
//!
//! In an arena, where another process finds it by its offset:
//!
//! ```
//! use hugearena::arena::View;
//! use hugearena::ring::{self, Consumer, Kind, Producer};
//! use hugearena::{Arena, PageSize};
//! use std::os::unix::net::UnixStream;
//! use std::ptr::NonNull;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
//! let bytes = ring::layout::<u64>(1024)?.size();
//! let chunk = Arc::new(arena.claim(bytes.div_ceil(arena.page_size().bytes())).ok_or("all pages are free")?);
//! let memory = NonNull::slice_from_raw_parts(chunk.as_ptr(), chunk.len());
//! // SAFETY: a chunk of ours, which nobody else has yet; this is the only producer.
//! let mut producer = unsafe {
//!     ring::init::<u64>(memory, Kind::Spsc, 1024)?;
//!     Producer::<u64, _>::attach(memory, chunk.clone())?
//! };
//! assert_eq!(producer.enqueue_burst(&[1, 2, 3]), 3);
//!
//! let (ours, theirs) = UnixStream::pair()?;
//! arena.share(&ours)?;
//! // In the other process, which was told offset and length:
//! let view = Arc::new(View::receive(&theirs)?);
//! let memory = view.get(chunk.offset(), bytes).ok_or("not in the arena")?;
//! // SAFETY: valid as long as the view; this is the only consumer.
//! let mut consumer = unsafe { Consumer::<u64, _>::attach(memory, view.clone())? };
//! let mut burst = [0; 8];
//! assert_eq!(consumer.dequeue_burst(&mut burst), 3);
//! assert_eq!(burst[..3], [1, 2, 3]);
//! # Ok(())
//! # }
//! ```
//!
//! # Sources
//!
//! DPDK, programmer's guide, "Ring Library"; `ring_perf_autotest`, against which `benches/dataplane.rs` measures.

#![allow(unsafe_code)]

mod block;
mod memory;
mod mpmc;
mod spsc;
mod sync;
#[cfg(test)]
mod tests;

use std::num::NonZeroU8;
use std::sync::Arc;

pub use block::Block;
pub use bytemuck::Pod;
pub use memory::{MAX_CAPACITY, init, layout};
pub use mpmc::{Mpmc, Refused};
pub use spsc::{Consumer, Producer};

use crate::error::{Error, Operation, Result};

/// Who may use a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Kind {
    /// One producer and one consumer.
    Spsc = 1,
    /// Any number of both.
    Mpmc = 2,
}

/// A ring inside this process for one producer and one consumer.
///
/// # Errors
///
/// As for [`layout`].
pub fn spsc<T: Pod>(capacity: usize) -> Result<(Producer<T>, Consumer<T>)> {
    let block = new_block::<T>(Kind::Spsc, capacity)?;
    // SAFETY: the block is as long as the ring needs and lives as long as both ends, which are the only ones.
    unsafe { Ok((Producer::attach(block.memory(), block.clone())?, Consumer::attach(block.memory(), block)?)) }
}

/// A ring inside this process for any number of producers and consumers: clones of the handle.
///
/// # Errors
///
/// As for [`layout`].
///
/// # Examples
///
/// ```
/// use hugearena::ring;
///
/// let ring = ring::mpmc::<u32>(256)?;
/// let producer = ring.clone();
/// assert_eq!(producer.enqueue_burst(&[1, 2, 3]), Ok(3));
/// let mut burst = [0; 32];
/// assert_eq!(ring.dequeue_burst(&mut burst), Ok(3));
/// assert_eq!(ring.dequeue_bulk(&mut burst), Ok(false));
/// # Ok::<(), hugearena::Error>(())
/// ```
pub fn mpmc<T: Pod>(capacity: usize) -> Result<Mpmc<T>> {
    let block = new_block::<T>(Kind::Mpmc, capacity)?;
    // SAFETY: the block is as long as the ring needs and lives as long as the handle and its clones.
    unsafe { Mpmc::attach(block.memory(), NonZeroU8::MIN, block) }
}

fn new_block<T: Pod>(kind: Kind, capacity: usize) -> Result<Arc<Block>> {
    let block = Arc::new(Block::new(layout::<T>(capacity)?));
    // SAFETY: nobody else has the block yet.
    unsafe { init::<T>(block.memory(), kind, capacity)? };
    Ok(block)
}

fn damaged() -> Error {
    Error::new(Operation::Attach, "a ring: its positions are further apart than its capacity")
}
