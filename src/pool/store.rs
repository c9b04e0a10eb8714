//! What a pool's handles share: the memory, the objects at home, and who keeps it alive.
//!
//! It lives as long as a handle (a [`Pool`](super::Pool) or a [`PoolCache`](super::PoolCache)) or an object that is not
//! at home. Objects do not count themselves, which would be an atomic on one line for each: all that are away have one
//! reference together, taken under the lock when the first one leaves and given back when the last one comes home.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::geometry::Geometry;
use crate::arena::Chunk;
use crate::sys::process::{forks, forks_counted};

/// What has become of an object. Without debug assertions only [`LENT`](State::LENT) is kept.
#[derive(Debug)]
struct State(AtomicU8);

impl State {
    const HOME: u8 = 0;
    const OUT: u8 = 1;
    const LENT: u8 = 2;
}

/// A cache's length, for whoever counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Cached(pub AtomicU32);

/// Under the lock.
#[derive(Debug)]
pub(super) struct Home {
    /// Last in, first out: what came home last is likeliest to be in cache.
    free: Vec<NonNull<u8>>,
    caches: Vec<Arc<Cached>>,
}

#[derive(Debug)]
pub(super) struct Store {
    /// Const.
    pub geometry: Geometry,
    pub headroom: usize,
    pub object_bytes: usize,
    pub chunk: Chunk,
    /// Copied by fork(2): private memory, but not on the largest pages.
    is_inherited: bool,
    /// No peer can write to it.
    is_ours_alone: bool,
    /// [`forks`] when the pool was made.
    forks: u64,
    /// Shared.
    states: Box<[State]>,
    exhausted: AtomicU64,
    home: Mutex<Home>,
}

// SAFETY: the pointers lead into the chunk, which is `Send`; they are handed out under the lock, each to one holder.
unsafe impl Send for Store {}
// SAFETY: as above; all else is atomics and constants.
unsafe impl Sync for Store {}

impl Store {
    /// Every object at home, the first on top.
    pub(super) fn all_at_home(geometry: Geometry, headroom: usize, object_bytes: usize, chunk: Chunk) -> Arc<Store> {
        let start = chunk.as_ptr();
        // SAFETY: the geometry fits into the chunk, as the builder saw to.
        let address = |index| unsafe { start.add(geometry.offset_of(index)) };
        let free = (0..geometry.count()).rev().map(address).collect();
        let states = (0..geometry.count()).map(|_| State(AtomicU8::new(State::HOME))).collect();
        let is_inherited = chunk.arena().is_inherited();
        let is_ours_alone = !chunk.arena().peers_can_write();
        let home = Mutex::new(Home { free, caches: Vec::new() });
        let exhausted = AtomicU64::new(0);
        let forks = forks();
        Arc::new(Store {
            geometry,
            headroom,
            object_bytes,
            chunk,
            is_inherited,
            is_ours_alone,
            forks,
            states,
            exhausted,
            home,
        })
    }

    /// The lock, which a thread holds for copying some pointers; no panic is possible under it. `None` in a child of
    /// fork(2): there, whoever held it at that moment does not exist.
    fn lock(&self) -> Option<MutexGuard<'_, Home>> {
        (forks_counted() == self.forks).then(|| self.home.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the objects are mapped: not so in a child of fork(2), unless it got a copy.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        forks_counted() == self.forks || self.is_inherited
    }

    /// Whether safe slices may be had.
    #[inline]
    pub(super) fn gives_slices(&self) -> bool {
        self.is_ours_alone && self.is_here()
    }

    /// Moves up to `most` objects from home to the start of `into`; none when there are not `least`.
    pub(super) fn take(self: &Arc<Store>, least: usize, most: usize, into: &mut [NonNull<u8>]) -> usize {
        let Some(mut home) = self.lock() else { return 0 };
        let at_home = home.free.len();
        let count = most.min(at_home).min(into.len());
        if count < least || count == 0 {
            return 0;
        }
        into[..count].copy_from_slice(&home.free[at_home - count..]);
        home.free.truncate(at_home - count);
        if at_home == self.states.len() {
            // SAFETY: made by `Arc::new`, and alive: the reference of those that are away.
            unsafe { Arc::increment_strong_count(Arc::as_ptr(self)) };
        }
        count
    }

    /// Moves objects home.
    ///
    /// # Safety
    ///
    /// They are objects of this pool, and nobody else has them.
    pub(super) unsafe fn give(self: &Arc<Store>, objects: &[NonNull<u8>]) {
        let Some(mut home) = self.lock() else { return };
        home.free.extend_from_slice(objects);
        let all_are_home = home.free.len() == self.states.len() && !objects.is_empty();
        drop(home);
        if all_are_home {
            // SAFETY: taken when the first one left; the caller's reference remains.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(self)) };
        }
    }

    /// A reference of one's own, for somebody who has an object.
    ///
    /// # Safety
    ///
    /// The store is one of `all_at_home`, and an object of it is away.
    pub(super) unsafe fn referenced(this: NonNull<Store>) -> Arc<Store> {
        // SAFETY: made by `Arc::new`; alive, because those that are away have a reference.
        unsafe {
            Arc::increment_strong_count(this.as_ptr());
            Arc::from_raw(this.as_ptr())
        }
    }

    /// For objects, which have no reference of their own.
    #[inline]
    pub(super) fn as_non_null(self: &Arc<Store>) -> NonNull<Store> {
        // An `Arc` is never null.
        // SAFETY: as said.
        unsafe { NonNull::new_unchecked(Arc::as_ptr(self).cast_mut()) }
    }

    /// Somebody did not get what was asked for.
    #[cold]
    pub(super) fn count_exhausted(&self) {
        self.exhausted.fetch_add(1, Relaxed);
    }

    pub(super) fn exhausted(&self) -> u64 {
        self.exhausted.load(Relaxed)
    }

    /// At home, and in caches.
    pub(super) fn counts(&self) -> (usize, usize) {
        let Some(home) = self.lock() else { return (0, 0) };
        let cached = home.caches.iter().map(|cached| cached.0.load(Relaxed) as usize).sum();
        (home.free.len(), cached)
    }

    pub(super) fn register(&self, cached: &Arc<Cached>) {
        if let Some(mut home) = self.lock() {
            home.caches.push(cached.clone());
        }
    }

    pub(super) fn unregister(&self, cached: &Arc<Cached>) {
        if let Some(mut home) = self.lock() {
            home.caches.retain(|other| !Arc::ptr_eq(other, cached));
        }
    }

    /// The number of the object that starts at this address.
    #[inline]
    pub(super) fn index_of(&self, object: NonNull<u8>) -> Option<u32> {
        let offset = object.addr().get().wrapping_sub(self.chunk.as_ptr().addr().get());
        self.geometry.object_at(offset).filter(|(_, inside)| *inside == 0).map(|(index, _)| index)
    }

    /// Where an object of this pool starts; the number is below the count.
    #[inline]
    pub(super) fn address_of(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.geometry.count());
        // SAFETY: the geometry fits into the chunk.
        unsafe { self.chunk.as_ptr().add(self.geometry.offset_of(index)) }
    }

    /// With debug assertions: an object leaves the pool's hands.
    #[inline]
    pub(super) fn note_out(&self, objects: &[NonNull<u8>]) {
        if cfg!(debug_assertions) {
            objects.iter().for_each(|object| self.change(*object, State::HOME, State::OUT));
        }
    }

    /// With debug assertions: an object comes back, and panics if it is none, or was back already.
    #[inline]
    pub(super) fn note_home(&self, objects: &[NonNull<u8>]) {
        if cfg!(debug_assertions) {
            objects.iter().for_each(|object| self.change(*object, State::OUT, State::HOME));
        }
    }

    fn change(&self, object: NonNull<u8>, from: u8, to: u8) {
        let index = self.index_of(object).unwrap_or_else(|| panic!("{object:?} is no object of this pool"));
        let found = self.states[index as usize].0.swap(to, Relaxed);
        assert!(found == from, "object {index} was put twice, or is lent");
    }

    /// The holder of an object lends it.
    pub(super) fn lend(&self, index: u32) {
        self.states[index as usize].0.store(State::LENT, Release);
    }

    /// Whether a lent object of this number was there to be taken back; once for each time that it was lent.
    pub(super) fn reclaim(&self, index: u32) -> bool {
        let state = self.states.get(index as usize);
        state.is_some_and(|state| state.0.compare_exchange(State::LENT, State::OUT, Acquire, Relaxed).is_ok())
    }
}
