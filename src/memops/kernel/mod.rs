//! How one batch is written: tokens for the routines that this CPU has.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod lines;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

/// An architecture without kernels of its own.
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod arch {
    pub(super) static ROUTINES: [super::Routines; 0] = [];

    pub(super) fn fence() {}

    pub(super) fn fetch(_line: *const u8) {}

    /// # Safety
    ///
    /// None needed.
    pub(super) unsafe fn load_ticks(_lines: [*const u8; 2]) -> Option<u64> {
        None
    }

    pub(super) fn caches() -> super::Caches {
        super::Caches::default()
    }
}

use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use portable::PORTABLE;

/// A pair of routines that clear and copy memory, on a CPU that has the instructions for them.
///
/// Only [`available`](Self::available) and its companions make one, and only for instructions that they found:
/// to hold a `Kernel` is the proof that it may be called.
///
/// | name | stays in cache | needs |
/// |---|---|---|
/// | `portable` | yes | nothing: the fill and copy of the compiler and libc |
/// | `avx512`, `avx2` | yes | AVX-512F, AVX2 |
/// | `rep` | yes | ERMS (`rep stosb`, `rep movsb`) |
/// | `avx512-stream`, `avx2-stream`, `sse2-stream` | no | AVX-512F, AVX2, nothing: non-temporal stores |
/// | `clzero` | no | AMD's CLZERO, and AVX2, with whose stream it copies |
/// | `dc-zva` | no, as far as the core obeys | AArch64 with DC ZVA permitted; copies with STNP |
///
/// # Examples
///
/// ```
/// use hugearena::memops::Kernel;
///
/// let mut buffer = [0xA5u8; 1000];
/// for kernel in Kernel::available() {
///     buffer[7] = 1;
///     // SAFETY: the buffer is 1000 writable bytes.
///     unsafe { kernel.clear(buffer.as_mut_ptr(), buffer.len()) };
///     assert_eq!(buffer, [0; 1000], "{kernel:?}");
/// }
/// assert!(!Kernel::cached().is_non_caching());
/// ```
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Invariant: `is_available` was asked and said yes.
    routines: &'static Routines,
}

/// One row of an architecture's table.
struct Routines {
    name: &'static str,
    non_caching: bool,
    /// Asks the CPU; may cost microseconds.
    is_available: fn() -> bool,
    /// Contract of [`Kernel::clear_unfenced`], and only where `is_available`.
    clear: unsafe fn(*mut u8, usize),
    /// Contract of [`Kernel::copy_unfenced`], and only where `is_available`.
    copy: unsafe fn(*mut u8, *const u8, usize),
}

impl Kernel {
    /// Every kernel that this CPU has, `portable` last. Asks the CPU each time; allocates nothing.
    pub fn available() -> impl Iterator<Item = Kernel> {
        let rows = arch::ROUTINES.iter().chain([&PORTABLE]);
        rows.filter(|routines| (routines.is_available)()).map(|routines| Kernel { routines })
    }

    /// The kernel of that name, if this CPU has it.
    #[must_use]
    pub fn named(name: &str) -> Option<Kernel> {
        Kernel::available().find(|kernel| kernel.name() == name)
    }

    /// The best kernel whose bytes stay in cache. Decided once; never allocates, locks or panics.
    #[must_use]
    pub fn cached() -> Kernel {
        static CHOICE: Choice = Choice::new();
        CHOICE.get(|kernel| !kernel.is_non_caching())
    }

    /// The best kernel for bytes that nobody reads soon: it neither reads them from memory first nor keeps them
    /// in cache. Where the CPU has none it is the one of [`cached`](Self::cached). Decided once; never
    /// allocates, locks or panics.
    #[must_use]
    pub fn non_caching() -> Kernel {
        static CHOICE: Choice = Choice::new();
        CHOICE.get(Kernel::is_non_caching)
    }

    /// What it is called in tables and in [`named`](Self::named).
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.routines.name
    }

    /// Whether the bytes it writes go around the cache.
    #[must_use]
    pub const fn is_non_caching(self) -> bool {
        self.routines.non_caching
    }

    /// Zeroes `len` bytes at `dst`, of any alignment and length. Ordered like ordinary stores when it returns:
    /// non-caching kernels fence.
    ///
    /// # Safety
    ///
    /// - `dst` is valid for writing `len` bytes.
    /// - Nothing else reads or writes them meanwhile.
    pub unsafe fn clear(self, dst: *mut u8, len: usize) {
        // SAFETY: the contract is the same, and the fence follows.
        unsafe { self.clear_unfenced(dst, len) };
        self.fence();
    }

    /// Copies `len` bytes from `src` to `dst`, of any alignment and length; otherwise like [`clear`](Self::clear).
    ///
    /// # Safety
    ///
    /// - `dst` is valid for writing and `src` for reading `len` bytes, and the two do not overlap.
    /// - Nothing else writes either, or reads `dst`, meanwhile.
    pub unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the contract is the same, and the fence follows.
        unsafe { self.copy_unfenced(dst, src, len) };
        self.fence();
    }

    /// [`clear`](Self::clear) without the fence.
    ///
    /// # Safety
    ///
    /// That of `clear`; and this thread calls [`fence`](Self::fence) before anyone may touch the bytes.
    #[inline]
    pub(super) unsafe fn clear_unfenced(self, dst: *mut u8, len: usize) {
        // SAFETY: the CPU has the routine (this type's invariant); its contract is ours.
        unsafe { (self.routines.clear)(dst, len) }
    }

    /// [`copy`](Self::copy) without the fence.
    ///
    /// # Safety
    ///
    /// That of `copy`; and this thread calls [`fence`](Self::fence) before anyone may touch the bytes.
    #[inline]
    pub(super) unsafe fn copy_unfenced(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: as in `clear_unfenced`.
        unsafe { (self.routines.copy)(dst, src, len) }
    }

    /// Makes what this thread wrote with this kernel as ordered, and so as visible, as ordinary stores.
    #[inline]
    pub(super) fn fence(self) {
        if self.is_non_caching() {
            arch::fence();
        }
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel decided on first use. Threads that race decide alike, so the last one to store it is right too.
struct Choice(AtomicPtr<Routines>);

impl Choice {
    const fn new() -> Choice {
        Choice(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The first available kernel that `is_wanted`, or the portable one.
    fn get(&self, is_wanted: fn(Kernel) -> bool) -> Kernel {
        // SAFETY: null, or what was stored below: a static row that is immutable and was found available.
        // Relaxed is enough because statics were initialised before the program started.
        if let Some(routines) = unsafe { self.0.load(Ordering::Relaxed).as_ref() } {
            return Kernel { routines };
        }
        let kernel = Kernel::available().find(|&kernel| is_wanted(kernel)).unwrap_or(Kernel { routines: &PORTABLE });
        self.0.store(std::ptr::from_ref(kernel.routines).cast_mut(), Ordering::Relaxed);
        kernel
    }
}

/// Asks for a line to be brought into cache. Any address will do: one that is not mapped is ignored.
#[inline]
pub(super) fn fetch(line: *const u8) {
    arch::fetch(line);
}

/// Ticks of the CPU's finest clock that two loads side by side take, or `None` where none is fine enough.
///
/// # Safety
///
/// Both are valid for reading a byte.
pub(super) unsafe fn load_ticks(lines: [*const u8; 2]) -> Option<u64> {
    // SAFETY: the caller's promise.
    unsafe { arch::load_ticks(lines) }
}

/// Sizes in bytes of the caches whose contents survive from clearing to first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caches {
    /// Of one core.
    pub level_2: usize,
    /// The last level, shared by several cores.
    pub level_3: usize,
}

impl Default for Caches {
    /// A small server core, for CPUs that do not tell.
    fn default() -> Caches {
        Caches { level_2: 512 << 10, level_3: 8 << 20 }
    }
}

/// The caches of this CPU. Asked once; never allocates, locks or panics.
pub(super) fn caches() -> Caches {
    static LEVEL_2: AtomicUsize = AtomicUsize::new(0);
    static LEVEL_3: AtomicUsize = AtomicUsize::new(0);
    let known = Caches { level_2: LEVEL_2.load(Ordering::Relaxed), level_3: LEVEL_3.load(Ordering::Relaxed) };
    // Each is stored whole, and every thread finds the same: a half-filled pair is only asked for again.
    if known.level_2 != 0 && known.level_3 != 0 {
        return known;
    }
    let found = arch::caches();
    LEVEL_2.store(found.level_2, Ordering::Relaxed);
    LEVEL_3.store(found.level_3, Ordering::Relaxed);
    found
}

#[cfg(test)]
mod tests;
