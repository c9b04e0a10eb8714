//! Objects that one thread, or one loop, keeps to itself.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::Pool;
use super::object::PoolBox;
use super::store::Cached;

/// Objects at hand, for one thread or loop: it gets and puts without locks or atomics, and goes to the pool for half a
/// cache full of them when it has none, or too many. May move to another thread; what is in it goes home when it is
/// dropped.
///
/// A value, not a thread-local variable: a loop owns its cache as it owns its queues, and two loops of one thread, or an
/// executor that moves tasks about, have no surprises.
///
/// # Examples
///
/// ```
/// use hugearena::pool::Pool;
/// use hugearena::{Arena, PageSize};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(4 << 20).open()?;
/// let pool = Pool::builder().object_size(1500).count(1024).build(&arena)?;
/// let mut cache = pool.cache(256);
/// let mut burst = Vec::with_capacity(32);
/// assert!(cache.get_bulk(32, &mut burst)); // all 32, or none
/// assert_eq!(pool.stats().in_use, 32);
/// cache.put_all(burst.drain(..));
/// assert_eq!(pool.stats().in_use, 0);
/// # Ok(())
/// # }
/// ```
pub struct PoolCache {
    /// The first `len` are objects.
    objects: Box<[NonNull<u8>]>,
    len: usize,
    /// `len`, for others to read.
    cached: Arc<Cached>,
    pool: Pool,
}

// SAFETY: the objects belong to the cache, and are not tied to a thread.
unsafe impl Send for PoolCache {}
// SAFETY: through a shared reference only numbers come out.
unsafe impl Sync for PoolCache {}

impl PoolCache {
    pub(super) fn new(pool: Pool, capacity: usize) -> PoolCache {
        let capacity = capacity.max(1);
        assert!(u32::try_from(capacity).is_ok(), "a cache of {capacity} objects");
        let cached = Arc::new(Cached(AtomicU32::new(0)));
        pool.store.register(&cached);
        PoolCache { objects: vec![NonNull::dangling(); capacity].into(), len: 0, cached, pool }
    }

    /// The pool that the objects are of.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Objects in the cache.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is in the cache.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most that the cache keeps.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.objects.len()
    }

    /// An object; `None` when neither this cache nor the pool has one.
    #[inline]
    #[must_use]
    pub fn get(&mut self) -> Option<PoolBox> {
        let mut object = [NonNull::dangling()];
        // SAFETY: just taken out: away, and ours alone.
        self.get_raw_bulk(&mut object).then(|| unsafe { PoolBox::new(object[0], self.pool.store.as_non_null()) })
    }

    /// Adds `count` objects to `into`, or none and says `false`: there are not so many in this cache and the pool.
    #[inline]
    #[must_use]
    pub fn get_bulk(&mut self, count: usize, into: &mut impl Extend<PoolBox>) -> bool {
        if count > self.capacity() {
            let mut objects = vec![NonNull::dangling(); count];
            let got = self.get_raw_bulk(&mut objects);
            // SAFETY: just taken out: away, and ours alone.
            into.extend(objects[..count * usize::from(got)].iter().map(|at| unsafe { self.boxed(*at) }));
            return got;
        }
        let can = self.can(count);
        if can {
            self.hand_out(count, into);
        }
        can
    }

    /// Adds up to `count` objects to `into`, as many as this cache and the pool have, and says how many.
    #[inline]
    pub fn get_burst(&mut self, count: usize, into: &mut impl Extend<PoolBox>) -> usize {
        let mut got = 0;
        while got < count {
            let piece = (count - got).min(self.capacity());
            let piece = self.available(piece);
            if piece == 0 {
                return self.got(got);
            }
            self.hand_out(piece, into);
            got += piece;
        }
        got
    }

    /// Fills all of `into` with the [starts](PoolBox::start) of objects, or nothing and says `false`. Whoever has them
    /// gives each back once: [`put_raw`](Self::put_raw), [`Pool::from_raw`].
    #[inline]
    #[must_use]
    pub fn get_raw_bulk(&mut self, into: &mut [NonNull<u8>]) -> bool {
        if into.len() > self.capacity() {
            return self.get_raw_large(into);
        }
        let can = self.can(into.len());
        if can {
            self.pop(into);
        }
        can
    }

    /// Fills the start of `into`, as far as this cache and the pool have objects, and says how many they are.
    #[inline]
    pub fn get_raw_burst(&mut self, into: &mut [NonNull<u8>]) -> usize {
        let mut got = 0;
        while got < into.len() {
            let piece = (into.len() - got).min(self.capacity());
            let piece = self.available(piece);
            if piece == 0 {
                return self.got(got);
            }
            self.pop(&mut into[got..got + piece]);
            got += piece;
        }
        got
    }

    /// Takes an object back. One of another pool goes home to that.
    #[inline]
    pub fn put(&mut self, object: PoolBox) {
        if object.is_of(self.pool.store.as_non_null()) {
            // SAFETY: an object of this pool, which we alone have.
            unsafe { self.put_raw(&[object.into_raw()]) };
        }
    }

    /// Takes objects back.
    #[inline]
    pub fn put_all(&mut self, objects: impl IntoIterator<Item = PoolBox>) {
        objects.into_iter().for_each(|object| self.put(object));
    }

    /// Takes objects back of which one has the [starts](PoolBox::start).
    ///
    /// # Panics
    ///
    /// With debug assertions, when one is no object of this pool, or not away, or lent.
    ///
    /// # Safety
    ///
    /// They are objects of this pool, came out of it as raw pointers, and nobody else has or uses them.
    #[inline]
    pub unsafe fn put_raw(&mut self, objects: &[NonNull<u8>]) {
        self.pool.store.note_home(objects);
        match self.objects[self.len..].get_mut(..objects.len()) {
            Some(free) => {
                free.copy_from_slice(objects);
                self.set_len(self.len + objects.len());
            }
            // SAFETY: the caller's contract.
            None => unsafe { self.overflow(objects) },
        }
    }

    /// Gives everything in the cache back to the pool: before a long time without work.
    pub fn flush(&mut self) {
        // SAFETY: objects of the pool, which the cache alone has, and no more after this.
        unsafe { self.pool.store.give(&self.objects[..self.len]) };
        self.set_len(0);
    }

    /// Whether `count` objects, at most the capacity, are in the cache, or have now been fetched from home. Fetches
    /// nothing if there are not so many.
    #[inline]
    fn can(&mut self, count: usize) -> bool {
        let can = self.pool.store.is_here() && (self.len >= count || self.fetch(count, count));
        if !can {
            self.pool.store.count_exhausted();
        }
        can
    }

    /// How many of up to `count` objects, at most the capacity, the cache has or has now fetched. None in a forked child
    /// without the memory, whatever is in its copy of the cache.
    #[inline]
    fn available(&mut self, count: usize) -> usize {
        if !self.pool.store.is_here() {
            return 0;
        }
        if self.len < count {
            self.fetch(count, 0);
        }
        count.min(self.len)
    }

    /// What a burst got before there was nothing more.
    #[cold]
    fn got(&self, count: usize) -> usize {
        if count == 0 {
            self.pool.store.count_exhausted();
        }
        count
    }

    /// Half a cache more than is wanted, so that puts and gets in turns stay in the cache.
    #[cold]
    fn fetch(&mut self, count: usize, least: usize) -> bool {
        let most = count - self.len + self.capacity() / 2;
        let least = least.saturating_sub(self.len);
        let got = self.pool.store.take(least, most, &mut self.objects[self.len..]);
        self.set_len(self.len + got);
        self.len >= count
    }

    /// More than the cache can hold: what is in it, and the rest from home.
    #[cold]
    fn get_raw_large(&mut self, into: &mut [NonNull<u8>]) -> bool {
        let rest = into.len() - self.len;
        let store = &self.pool.store;
        if !store.is_here() || store.take(rest, rest, &mut into[..rest]) < rest {
            store.count_exhausted();
            return false;
        }
        store.note_out(&into[..rest]);
        self.pop(&mut into[rest..]);
        true
    }

    /// The cache has as many.
    #[inline]
    fn pop(&mut self, into: &mut [NonNull<u8>]) {
        let rest = self.len - into.len();
        into.copy_from_slice(&self.objects[rest..self.len]);
        self.pool.store.note_out(into);
        self.set_len(rest);
    }

    /// The cache has as many.
    #[inline]
    fn hand_out(&mut self, count: usize, into: &mut impl Extend<PoolBox>) {
        let rest = self.len - count;
        self.pool.store.note_out(&self.objects[rest..self.len]);
        let end = std::mem::replace(&mut self.len, rest);
        self.set_len(rest);
        // What `extend` leaves or loses by a panic stays away for ever: it is in nobody's hands twice.
        // SAFETY: out of the cache: away, and each boxed once.
        into.extend(self.objects[rest..end].iter().map(|at| unsafe { self.boxed(*at) }));
    }

    /// # Safety
    ///
    /// As for [`PoolBox::new`].
    #[inline]
    unsafe fn boxed(&self, start: NonNull<u8>) -> PoolBox {
        // SAFETY: the caller's contract.
        unsafe { PoolBox::new(start, self.pool.store.as_non_null()) }
    }

    /// Keeps half a cache: what came last. The rest goes home, oldest first.
    ///
    /// # Safety
    ///
    /// As for [`put_raw`](Self::put_raw).
    #[cold]
    unsafe fn overflow(&mut self, objects: &[NonNull<u8>]) {
        let leaving = (self.len + objects.len()).saturating_sub(self.capacity() / 2).min(self.len);
        // SAFETY: the oldest of the cache, which leave it here.
        unsafe { self.pool.store.give(&self.objects[..leaving]) };
        self.objects.copy_within(leaving..self.len, 0);
        let kept = self.len - leaving;
        if objects.len() > self.capacity() - kept {
            // SAFETY: the caller's contract.
            unsafe { self.pool.store.give(objects) };
            return self.set_len(kept);
        }
        self.objects[kept..kept + objects.len()].copy_from_slice(objects);
        self.set_len(kept + objects.len());
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        self.len = len;
        // The capacity fits into 32 bits.
        self.cached.0.store(len as u32, Relaxed);
    }
}

impl Drop for PoolCache {
    fn drop(&mut self) {
        self.flush();
        self.pool.store.unregister(&self.cached);
    }
}

impl fmt::Debug for PoolCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolCache").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}
