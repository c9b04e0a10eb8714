//! Which order and which kernels: the default choice, and why.

use super::kernel::{Kernel, caches};
use super::order::{FirstTouch, Order};

/// Which order, and which kernels. The fields may be set to any combination.
///
/// # Examples
///
/// ```
/// use hugearena::memops::{Kernel, Method, Order};
///
/// let cold = Method::choose(1 << 30, false);
/// assert_eq!((cold.far, cold.near), (Kernel::non_caching(), Kernel::cached()));
/// let small = Method::choose(4096, false);
/// assert_eq!((small.far, small.near), (Kernel::cached(), Kernel::cached()));
/// let butterfly = Method { order: Order::Butterfly, ..cold };
/// assert_eq!(butterfly.near, cold.near);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The sequence of the batches.
    pub order: Order,
    /// Writes the batches outside the window.
    pub far: Kernel,
    /// Writes the batches of the window.
    pub near: Kernel,
    /// The longest window, in bytes from its first byte; what a hint names beyond counts as far.
    pub near_bytes: usize,
}

impl Method {
    /// The default for copying a region of `len` bytes with that hint, to memory that is cold. As
    /// [`choose`](Self::choose); but cached throughout when the caller is about to use most of it, or has not said
    /// ([`FirstTouch::unknown`]): what goes around the cache has to be fetched again to be written again, and a copy,
    /// unlike a clearing, leaves no memory bandwidth over for that (two processes that clone and then write: 0.80 of
    /// `memcpy`'s speed around the cache, 1.02 through it).
    #[must_use]
    pub fn choose_to_copy(len: usize, touch: FirstTouch) -> Method {
        let uses_most = touch == FirstTouch::unknown() || touch.window(len).len() > len / 2;
        let method = Method::choose(len, false);
        if uses_most && len <= caches().level_3 / 2 { Method { far: method.near, ..method } } else { method }
    }

    /// The default for a region of `len` bytes, which are in cache already if `hot`. Never allocates, locks or
    /// panics.
    ///
    /// - Order: ranges. Butterfly breaks the streams of the non-caching kernels (2 MiB: 36 against 26 us).
    /// - Regions up to the level-2 cache: cached throughout. If they are hot, non-caching stores take four times
    ///   as long; if not, a caller that uses everything would lose up to 8 % by them.
    /// - Hot regions up to the level-3 cache: cached throughout (2 MiB: 21 against 54 us).
    /// - Others: non-caching, and a cached window of at most an eighth of the level-2 cache. A caller that uses more
    ///   gains nothing by more of it: what is cached early is paid for at memory's speed while clearing instead of
    ///   while using, and of a long window the first part is pushed out before it is used.
    ///
    /// Measured on Zen 4 (level 2: 1 MiB), 2 MiB of cold memory, clear + use in us, by how much is then used, and how
    /// much of it was the cached window:
    ///
    /// | | 512 KiB, read | all, read | all, written |
    /// |---|---|---|---|
    /// | memset | 72 + 12 = 83 | 75 + 31 = 108 | 78 + 32 = 112 |
    /// | 64 KiB | 26 + 16 = 42 | 26 + 71 = 97 | 27 + 80 = 108 |
    /// | 128 KiB | 27 + 15 = 42 | 27 + 68 = 95 | 28 + 77 = 106 |
    /// | 512 KiB | 38 + 5 = 43 | 41 + 60 = 102 | 39 + 72 = 113 |
    #[must_use]
    pub fn choose(len: usize, hot: bool) -> Method {
        let caches = caches();
        let stays_cached = len <= caches.level_2 || (hot && len <= caches.level_3);
        let near = Kernel::cached();
        let far = if stays_cached { near } else { Kernel::non_caching() };
        Method { order: Order::Ranges, far, near, near_bytes: caches.level_2 / 8 }
    }
}
