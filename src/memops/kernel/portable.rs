//! The kernels that every machine has: what the compiler and libc make of a fill and a copy.

use super::Routines;

/// `memset` and `memcpy`. Cached on every libc we know for lengths of a batch, though glibc 2.41 and later may
/// switch to non-temporal stores for lengths near the cache size.
pub(super) static PORTABLE: Routines =
    Routines { name: "portable", non_caching: false, is_available: || true, clear, copy };

/// # Safety
///
/// As [`Kernel::clear`](super::Kernel::clear).
unsafe fn clear(dst: *mut u8, len: usize) {
    // SAFETY: the caller promises `len` writable bytes at `dst`; bytes have no alignment.
    unsafe { dst.write_bytes(0, len) }
}

/// # Safety
///
/// As [`Kernel::copy`](super::Kernel::copy).
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller promises `len` readable bytes at `src`, writable ones at `dst`, and no overlap.
    unsafe { dst.copy_from_nonoverlapping(src, len) }
}
