//! Objects that go home by themselves.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::store::Store;

/// An object of a [`Pool`](super::Pool), which goes back when it is dropped, in whatever thread. It outlives the handles
/// of its pool.
///
/// Dropping takes the pool's lock, some 20 ns; [`PoolCache::put`](super::PoolCache::put) does not. The contents are
/// what the last holder left, or zeroes.
///
/// Memory that peers may write is reached by pointer only. Safe slices are for pools on private arenas
/// ([`BackingKind::Anonymous`](crate::backing::BackingKind::Anonymous)), and on those whose
/// [peers can only read](crate::ArenaBuilder::read_only_peers).
#[must_use = "it goes back to its pool when it is dropped"]
pub struct PoolBox {
    start: NonNull<u8>,
    store: NonNull<Store>,
}

// SAFETY: the only holder of its object, which is not tied to a thread; the store is `Sync` and lives as long as an
// object is away.
unsafe impl Send for PoolBox {}
// SAFETY: through a shared reference only numbers and, for memory that only we can write, shared slices come out.
unsafe impl Sync for PoolBox {}

impl PoolBox {
    /// # Safety
    ///
    /// The object is one of the store's, is away, and nobody else has it.
    #[inline]
    pub(super) unsafe fn new(start: NonNull<u8>, store: NonNull<Store>) -> PoolBox {
        PoolBox { start, store }
    }

    #[inline]
    fn store(&self) -> &Store {
        // SAFETY: alive as long as an object is away, as this one is.
        unsafe { self.store.as_ref() }
    }

    #[inline]
    pub(super) fn store_ptr(&self) -> NonNull<Store> {
        self.store
    }

    #[inline]
    pub(super) fn is_of(&self, store: NonNull<Store>) -> bool {
        self.store == store
    }

    /// The first byte of the object, headroom included: valid for reads and writes of
    /// [`headroom`](Self::headroom) + [`len`](Self::len) bytes.
    #[inline]
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The first byte behind the headroom: valid for reads and writes of [`len`](Self::len) bytes, and of the headroom
    /// before it.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the headroom is part of the object.
        unsafe { self.start.add(self.store().headroom) }
    }

    /// Bytes behind the headroom, at least one.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an object is never empty")]
    pub fn len(&self) -> usize {
        self.store().object_bytes
    }

    /// Bytes before [`as_ptr`](Self::as_ptr), for headers that are put in front later.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.store().headroom
    }

    /// Number of the object in its pool, from 0 on: for tables of what belongs to objects.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.store().index_of(self.start).expect("an object of this pool")
    }

    /// Bytes from the start of the arena to [`as_ptr`](Self::as_ptr): what another process that maps the arena, or a
    /// UMEM or a registered buffer over it, uses for an address.
    #[must_use]
    pub fn offset(&self) -> usize {
        let chunk = &self.store().chunk;
        chunk.offset() + (self.as_ptr().addr().get() - chunk.as_ptr().addr().get())
    }

    /// The bytes behind the headroom, when no peer can write them.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        // SAFETY: memory that only we can write, and we are borrowed. Every byte of a mapping is initialized.
        self.store().gives_slices().then(|| unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len()) })
    }

    /// The bytes behind the headroom for writing, when no peer can.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: memory that only we can write, and we are borrowed mutably.
        self.store().gives_slices().then(|| unsafe { self.slice_mut() })
    }

    /// The bytes behind the headroom, of whatever class.
    ///
    /// # Safety
    ///
    /// No peer and no device writes them while the slice lives.
    #[must_use]
    pub unsafe fn slice(&self) -> &[u8] {
        // SAFETY: mapped and ours; the caller vouches for the others.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len()) }
    }

    /// The bytes behind the headroom for writing, of whatever class.
    ///
    /// # Safety
    ///
    /// No peer and no device reads or writes them while the slice lives.
    #[must_use]
    pub unsafe fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped and ours; the caller vouches for the others.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
    }

    /// Gives the object into the hands of somebody who is told its number: a peer, through a ring. It comes back through
    /// [`Pool::reclaim`](super::Pool::reclaim), which takes no number that was not lent, and each once.
    #[must_use]
    pub fn lend(self) -> u32 {
        let object = ManuallyDrop::new(self);
        let index = object.index();
        object.store().lend(index);
        index
    }

    /// The object as a bare pointer to its [`start`](Self::start), to be given back by
    /// [`Pool::from_raw`](super::Pool::from_raw) or [`PoolCache::put_raw`](super::PoolCache::put_raw).
    #[inline]
    #[must_use]
    pub fn into_raw(self) -> NonNull<u8> {
        ManuallyDrop::new(self).start
    }
}

impl Drop for PoolBox {
    fn drop(&mut self) {
        self.store().note_home(&[self.start]);
        // SAFETY: our object is away, so the store lives; the object is one of its own, which we alone had.
        unsafe { Store::referenced(self.store).give(&[self.start]) };
    }
}

impl fmt::Debug for PoolBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBox").field("index", &self.index()).field("len", &self.len()).finish()
    }
}
