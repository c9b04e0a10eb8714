//! Pools: objects of one size for packet and storage loops.
//!
//! A [`Pool`] is a chunk of an [`Arena`], cut into objects once. Each loop has a [`PoolCache`], from which
//! it gets and puts single objects and bursts without locks or atomics; caches exchange half their contents with the
//! pool when they run out or over. A [`PoolBox`] goes home by itself, from any thread, and to
//! another loop through a [`channel`]; a peer is told the number of an
//! object that is [lent](PoolBox::lend) to it. Exhaustion is a value, never an allocation: a pool does not grow, and after
//! it is made it makes no system call and no page fault.
//!
//! # How to choose sizes
//!
//! | | choose |
//! |---|---|
//! | object size | what the device or protocol may deliver: 1536 for Ethernet, 9216 for jumbo frames, the block size for storage |
//! | headroom | what is put in front later: 128 for tunnels, 256 where XDP programs push headers |
//! | alignment | 64 (default); the frame size for AF_XDP in aligned mode; 512 or 4096 for `O_DIRECT` |
//! | [`within_page`](PoolBuilder::within_page) | when a device takes physical addresses, or AF_XDP is to use it; else nothing |
//! | count | what can be away at once: all device rings' lengths + all software rings' lengths + bursts in work (32 a loop) + what applications hold, **plus the capacity of every cache**: what lies in one loop's cache the others cannot get |
//! | cache | 256 to 512; 8 bursts at least, so that the lock is taken once in four bursts or less. 1 if a loop hardly ever gets or puts |
//! | arena pages | 2 MiB up to some GiB; 1 GiB if the pool is larger than the 1,024 entries of a TLB can reach (2 GiB) |
//!
//! Example: two ports of 1,024 receive and 1,024 transmit descriptors, two software rings of 1,024, 4 loops with bursts
//! of 32 and caches of 256: 4,096 + 2,048 + 128 + 1,024 = 7,296; at a stride of 1,728 bytes (1,536 + 128, an odd number of
//! lines) that is 12.0 MiB: 7 pages of 2 MiB. [`PoolBuilder::bytes_needed`] computes it.
//!
//! A pool of each NUMA node, on an arena [placed](crate::ArenaBuilder::placement) there: loops take from their own
//! node's pool, and a `PoolBox` finds its way home by itself.
//!
//! # Several processes
//!
//! The owner of the arena is the owner of its pools: it alone gets and puts. Peers see the arena
//! ([`View`](crate::arena::View)), and are told offsets ([`PoolBox::offset`]) or numbers ([`PoolBox::lend`]) through
//! [rings](crate::ring). What comes back from them is not believed: [`Pool::reclaim`] takes a number once for each time
//! that it was lent. An object that a peer had when it died stays lent until the owner, who knows which those are,
//! reclaims it.
//!
//! After fork(2) the child's copy of a pool is of no use: it gets nothing new from home, puts nothing, and frees nothing.
//! Children of a raw clone(2) or of vfork(2) run no handlers of fork(2), are not recognized, and must not touch pools.
//!
//! # Examples
//!
//! ```
//! use hugearena::pool::Pool;
//! use hugearena::{Arena, PageSize, backing::BackingKind};
//!
//! # fn main() -> hugearena::Result<()> {
//! // Private memory, so that safe slices can be had.
//! let arena = Arena::builder().page_size(PageSize::base()).backing(BackingKind::Anonymous).capacity(4 << 20).open()?;
//! let pool = Pool::builder().object_size(1536).headroom(128).count(1024).build(&arena)?;
//! let mut cache = pool.cache(256);
//!
//! let mut packet = cache.get().expect("1024 are free");
//! packet.as_mut_slice().expect("private")[..4].copy_from_slice(b"ping");
//! // To another thread, which may simply drop it.
//! std::thread::spawn(move || assert!(packet.as_slice().unwrap().starts_with(b"ping"))).join().unwrap();
//!
//! drop(cache);
//! assert_eq!(pool.stats().free, 1024);
//! # Ok(())
//! # }
//! ```
//!
//! # Sources
//!
//! DPDK, programmer's guide, "Mempool Library"; Bonwick, "The Slab Allocator" (colours); `benches/dataplane.rs` measures
//! against `mempool_perf_autotest`.

#![allow(unsafe_code)]

mod builder;
#[cfg(feature = "bytes")]
mod bytes;
mod cache;
mod channel;
mod geometry;
mod object;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use builder::PoolBuilder;
pub use cache::PoolCache;
pub use channel::{Receiver, Sender, channel};
pub use object::PoolBox;

use crate::arena::{Arena, FileRegion};
use crate::error::Result;
use crate::iova::{IovaMap, IovaMode};
use store::Store;

/// Objects of one size in a chunk. A handle: clones share the pool. The chunk is released when the last handle, the last
/// cache and the last object that is away are gone.
///
/// The chunk itself is not to be had: its safe slices would be references to what holders of objects write.
///
/// ```compile_fail
/// # let arena = hugearena::Arena::builder().page_size(hugearena::PageSize::base()).capacity(1 << 20).open()?;
/// # let pool = hugearena::Pool::builder().object_size(64).count(1).build(&arena)?;
/// let all = pool.chunk().as_slice();
/// # Ok::<(), hugearena::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    store: Arc<Store>,
}

/// How many objects are where, at about one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// In all.
    pub objects: usize,
    /// With somebody: held, or lent.
    pub in_use: usize,
    /// In the caches of loops.
    pub cached: usize,
    /// At home.
    pub free: usize,
    /// How often somebody got nothing who asked for something: a single object, a bulk, or even one of a burst. Bursts that
    /// got some do not count: pollers ask for more than there is all the time.
    pub exhausted: u64,
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolStats { objects, in_use, cached, free, exhausted } = self;
        write!(f, "{objects} objects: {in_use} in use, {cached} cached, {free} free; exhausted {exhausted} times")
    }
}

impl Pool {
    /// Options for a new pool.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::new()
    }

    /// A cache of up to `capacity` objects, at least one, empty at first, for one loop.
    ///
    /// # Panics
    ///
    /// When the capacity does not fit into 32 bits.
    #[must_use]
    pub fn cache(&self, capacity: usize) -> PoolCache {
        PoolCache::new(self.clone(), capacity)
    }

    /// An object from home, under the pool's lock, for code that has no cache; `None` when none is there.
    #[must_use]
    pub fn get(&self) -> Option<PoolBox> {
        let mut object = [NonNull::dangling()];
        if self.store.take(1, 1, &mut object) == 0 {
            self.store.count_exhausted();
            return None;
        }
        self.store.note_out(&object);
        // SAFETY: just taken from home: away, and ours alone.
        Some(unsafe { PoolBox::new(object[0], self.store.as_non_null()) })
    }

    /// The object that was [lent](PoolBox::lend) under this number; `None` when none is: the number comes from another
    /// process and may be anything.
    #[must_use]
    pub fn reclaim(&self, index: u32) -> Option<PoolBox> {
        // SAFETY: it was lent, and so away, and only one thread could take it back.
        self.store
            .reclaim(index)
            .then(|| unsafe { PoolBox::new(self.store.address_of(index), self.store.as_non_null()) })
    }

    /// Takes a bare pointer into custody again.
    ///
    /// # Safety
    ///
    /// The pointer is the [start](PoolBox::start) of an object of this pool, came out of it as a raw pointer
    /// ([`PoolBox::into_raw`], [`PoolCache::get_raw_bulk`]), and nobody else has or uses it.
    pub unsafe fn from_raw(&self, start: NonNull<u8>) -> PoolBox {
        // SAFETY: the caller's contract.
        unsafe { PoolBox::new(start, self.store.as_non_null()) }
    }

    /// Number of the object that starts at this address; `None` when none does.
    #[must_use]
    pub fn index_of(&self, start: NonNull<u8>) -> Option<u32> {
        self.store.index_of(start)
    }

    /// Start of the object of this number, headroom included; `None` from the count on. Says nothing about who has it.
    #[must_use]
    pub fn start_of(&self, index: u32) -> Option<NonNull<u8>> {
        (index < self.store.geometry.count()).then(|| self.store.address_of(index))
    }

    /// Number of the object that has its byte at this offset in the arena, and how many bytes behind its
    /// [start](PoolBox::start) that is; `None` when it is in no object. For what devices and peers give back: AF_XDP's
    /// descriptors, for one.
    #[must_use]
    pub fn object_at(&self, offset: usize) -> Option<(u32, usize)> {
        self.store.geometry.object_at(offset.checked_sub(self.store.chunk.offset())?)
    }

    /// Objects in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.store.geometry.count() as usize
    }

    /// Bytes from one object to the next within a page: size and headroom, rounded up and spread.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.store.geometry.stride_bytes()
    }

    /// Bytes of an object behind its headroom.
    #[must_use]
    pub fn object_size(&self) -> usize {
        self.store.object_bytes
    }

    /// Bytes of an object before its data.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.store.headroom
    }

    /// Where all objects are, whole pages: to register them at once with a device, or an io_uring. Valid as long as the
    /// pool, an object or a cache of it is there. By pointer only, of whatever class: the objects in it are others'.
    #[must_use]
    pub fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.store.chunk.as_ptr(), self.store.chunk.len())
    }

    /// Bytes from the start of the arena to the [memory](Self::memory).
    #[must_use]
    pub fn offset(&self) -> usize {
        self.store.chunk.offset()
    }

    /// The arena that the memory is of.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        self.store.chunk.arena()
    }

    /// The memory as file, offset and length; see [`Chunk::file_region`](crate::arena::Chunk::file_region).
    #[must_use]
    pub fn file_region(&self) -> Option<FileRegion<'_>> {
        self.store.chunk.file_region()
    }

    /// What a device calls the memory.
    ///
    /// # Errors
    ///
    /// As for [`Chunk::iova`](crate::arena::Chunk::iova).
    pub fn iova(&self, mode: IovaMode) -> Result<IovaMap> {
        self.store.chunk.iova(mode)
    }

    /// Counts the objects by where they are. Takes the lock for a moment.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let (free, cached) = self.store.counts();
        let objects = self.count();
        let in_use = objects.saturating_sub(free + cached);
        PoolStats { objects, in_use, cached, free, exhausted: self.store.exhausted() }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("object_size", &self.object_size()).field("stats", &self.stats()).finish()
    }
}
