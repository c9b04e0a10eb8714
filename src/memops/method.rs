//! Which order and which kernels: the default choice, and why.

use super::kernel::{Kernel, caches};
use super::order::Order;

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
    /// The default for a region of `len` bytes, which are in cache already if `hot`. Never allocates, locks or
    /// panics.
    ///
    /// - Order: ranges. Butterfly breaks the streams of the non-caching kernels (2 MiB: 36 against 26 us).
    /// - Regions up to the level-2 cache: cached throughout. If they are hot, non-caching stores take four times
    ///   as long; if not, a caller that uses everything would lose up to 8 % by them.
    /// - Hot regions up to the level-3 cache: cached throughout (2 MiB: 21 against 54 us).
    /// - Others: non-caching, and a cached window of at most half the level-2 cache. More of it would be pushed
    ///   out before it is used, at twice the price.
    ///
    /// Measured on Zen 4 (level 2: 1 MiB), 2 MiB of cold memory, clear + use in us, by how much is then read:
    ///
    /// | | 64 KiB | 512 KiB | all | all, written |
    /// |---|---|---|---|---|
    /// | memset | 64 + 1.5 | 64 + 12 | 63 + 24 = 87 | 74 + 35 = 109 |
    /// | this, `unknown` (64 KiB) | 26 + 0.6 | 26 + 15 | 26 + 57 = 83 | 26 + 64 = 90 |
    /// | this, `whole` (512 KiB) | 35 + 0.6 | 35 + 5 | 35 + 49 = 85 | 38 + 59 = 97 |
    #[must_use]
    pub fn choose(len: usize, hot: bool) -> Method {
        let caches = caches();
        let stays_cached = len <= caches.level_2 || (hot && len <= caches.level_3);
        let near = Kernel::cached();
        let far = if stays_cached { near } else { Kernel::non_caching() };
        Method { order: Order::Ranges, far, near, near_bytes: caches.level_2 / 8 }
    }
}
