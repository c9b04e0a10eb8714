//! Objects handed from one thread to another, in bursts.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::object::PoolBox;
use super::store::Store;
use crate::error::Result;
use crate::ring::{self, Block, Consumer, Kind, Producer};

/// An object on its way: the addresses of its start and of its store.
type Parcel = [usize; 2];

/// Parcels that are copied to or from the ring at once.
const BURST: usize = 32;

/// The ring between both ends. Whoever is last takes out what is left in it.
struct Shared(Block);

/// The end of a [`channel`] that objects go in at.
pub struct Sender {
    producer: Producer<Parcel, Arc<Shared>>,
}

/// The end of a [`channel`] that objects come out at.
pub struct Receiver {
    consumer: Consumer<Parcel, Arc<Shared>>,
}

/// A [ring](crate::ring::spsc) that passes [`PoolBox`]es, of whatever pools, from one thread to another: no copy, no lock,
/// no atomic but the ring's own two a burst. What is in it when both ends are gone goes home.
///
/// # Errors
///
/// [`Operation::Configure`](crate::error::Operation::Configure): `capacity` is no power of two up to
/// [`MAX_CAPACITY`](crate::ring::MAX_CAPACITY).
///
/// # Examples
///
/// ```
/// use hugearena::pool::{self, Pool};
/// use hugearena::{Arena, PageSize};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// let pool = Pool::builder().object_size(1500).count(256).build(&arena)?;
/// let (mut sender, mut receiver) = pool::channel(1024)?;
///
/// let mut burst = Vec::with_capacity(32);
/// assert!(pool.cache(64).get_bulk(32, &mut burst));
/// assert_eq!(sender.send_burst(&mut burst), 32); // what does not fit stays in the burst
/// std::thread::spawn(move || receiver.receive_burst(32, &mut burst)).join().unwrap();
/// assert_eq!(pool.stats().free, 256);
/// # Ok(())
/// # }
/// ```
pub fn channel(capacity: usize) -> Result<(Sender, Receiver)> {
    let block = Block::new(ring::layout::<Parcel>(capacity)?);
    let memory = block.memory();
    // SAFETY: nobody else has the block yet.
    unsafe { ring::init::<Parcel>(memory, Kind::Spsc, capacity)? };
    let shared = Arc::new(Shared(block));
    // SAFETY: the block lives as long as `shared`; these are the only ends.
    unsafe {
        let producer = Producer::attach(memory, shared.clone())?;
        Ok((Sender { producer }, Receiver { consumer: Consumer::attach(memory, shared)? }))
    }
}

impl Sender {
    /// Sends as many of `objects` as there is room for, from the first on, takes them out of it, and says how many.
    pub fn send_burst(&mut self, objects: &mut Vec<PoolBox>) -> usize {
        let mut sent = 0;
        while sent < objects.len() {
            let mut parcels: [Parcel; BURST] = [[0; 2]; BURST];
            let count = (objects.len() - sent).min(BURST);
            for (parcel, object) in parcels.iter_mut().zip(&objects[sent..]) {
                *parcel = pack(object);
            }
            let taken = self.producer.enqueue_burst(&parcels[..count]);
            sent += taken;
            if taken < count {
                break;
            }
        }
        // They are in the ring, or with the receiver: not ours to drop.
        objects.drain(..sent).for_each(std::mem::forget);
        sent
    }

    /// Objects on their way.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "what a sender wants to know is whether it is full")]
    pub fn len(&self) -> usize {
        self.producer.len()
    }

    /// Objects that may be on their way at once.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.producer.capacity()
    }
}

impl Receiver {
    /// Adds up to `count` objects to `into`, as many as have been sent, and says how many.
    pub fn receive_burst(&mut self, count: usize, into: &mut impl Extend<PoolBox>) -> usize {
        receive(&mut self.consumer, count, into)
    }

    /// Objects on their way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.consumer.len()
    }

    /// Whether none is on its way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }
}

fn receive<K>(consumer: &mut Consumer<Parcel, K>, count: usize, into: &mut impl Extend<PoolBox>) -> usize {
    let mut received = 0;
    while received < count {
        let mut parcels: [Parcel; BURST] = [[0; 2]; BURST];
        let wanted = (count - received).min(BURST);
        let taken = consumer.dequeue_burst(&mut parcels[..wanted]);
        // SAFETY: a sender put them in, and forgot them; out of the ring they are nobody's but ours. If `extend` panics,
        // those that it has not taken stay away for ever.
        into.extend(parcels[..taken].iter().map(|parcel| unsafe { unpack(*parcel) }));
        received += taken;
        if taken < wanted {
            break;
        }
    }
    received
}

fn pack(object: &PoolBox) -> Parcel {
    [object.start().as_ptr().expose_provenance(), object.store_ptr().as_ptr().expose_provenance()]
}

/// # Safety
///
/// The parcel was packed from an object that was forgotten since, and is unpacked once.
unsafe fn unpack([start, store]: Parcel) -> PoolBox {
    // SAFETY: both were pointers that are not null; the object is away, and nobody else's.
    unsafe {
        let start = NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(start));
        let store: NonNull<Store> = NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(store));
        PoolBox::new(start, store)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the block lives until the end of this function, and both ends are gone: this is the only consumer.
        let left = unsafe { Consumer::<Parcel, ()>::attach(self.0.memory(), ()) };
        let mut left = left.expect("made by `channel`, and nobody else's");
        while receive(&mut left, BURST, &mut Vec::with_capacity(BURST)) > 0 {}
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("len", &self.len()).field("capacity", &self.capacity()).finish()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("len", &self.len()).finish()
    }
}
