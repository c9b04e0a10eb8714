//! The one word that a thread has of its own: which cache is its.
//!
//! A `const` thread-local without a destructor is a plain word: no test whether it is there, and nothing that ends
//! before the thread does. In a program it is one instruction to read.
//!
//! In a shared object it is not: stable Rust asks for such a word with a call of `__tls_get_addr`, which may call
//! `malloc`. For an object that *is* malloc (feature `preload`) the word is therefore declared in assembly, in the
//! initial-exec model: its offset from the thread pointer is fixed when the object is loaded, and reading it is two
//! instructions that call nobody. What that costs is 8 bytes of the space that the loader keeps for such words.
//!
//! Source: Drepper, "ELF Handling For Thread-Local Storage", 2013, 4.3.

#![cfg_attr(feature = "preload", allow(unsafe_code))]

use super::thread::Bins;

pub(crate) use word::{get, set};

#[cfg(not(all(feature = "preload", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod word {
    use std::cell::Cell;

    use super::Bins;
    use crate::heap::thread::EMPTY;

    thread_local! {
        static CURRENT: Cell<*mut Bins> = const { Cell::new((&raw const EMPTY).cast_mut()) };
    }

    /// This thread's cache.
    #[inline(always)]
    pub(crate) fn get() -> *mut Bins {
        CURRENT.with(Cell::get)
    }

    /// Makes `bins` this thread's cache.
    pub(crate) fn set(bins: *mut Bins) {
        CURRENT.set(bins);
    }
}

#[cfg(all(feature = "preload", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod word {
    use std::arch::{asm, global_asm};

    use super::Bins;
    use crate::heap::thread::EMPTY;

    // Hidden: one object's word is not another's, even if both have this crate in them.
    global_asm!(
        ".pushsection .tdata.hugearena_current, \"awT\", %progbits",
        ".globl hugearena_current",
        ".hidden hugearena_current",
        ".type hugearena_current, %object",
        ".size hugearena_current, 8",
        ".p2align 3",
        "hugearena_current:",
        ".quad {empty}",
        ".popsection",
        empty = sym EMPTY,
    );

    /// This thread's cache.
    #[inline(always)]
    pub(crate) fn get() -> *mut Bins {
        let bins;
        // SAFETY: loads the offset that the loader filled in, and the word of this thread at that offset, which
        // was initialized with the thread and is written by `set` only.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "mov {bins}, qword ptr [rip + hugearena_current@GOTTPOFF]",
                "mov {bins}, qword ptr fs:[{bins}]",
                bins = out(reg) bins,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "adrp {offset}, :gottprel:hugearena_current",
                "ldr {offset}, [{offset}, :gottprel_lo12:hugearena_current]",
                "mrs {bins}, tpidr_el0",
                "ldr {bins}, [{bins}, {offset}]",
                offset = out(reg) _,
                bins = out(reg) bins,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        bins
    }

    /// Makes `bins` this thread's cache.
    pub(crate) fn set(bins: *mut Bins) {
        // SAFETY: as in `get`; the word is this thread's alone, and no reference to it exists.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + hugearena_current@GOTTPOFF]",
                "mov qword ptr fs:[{offset}], {bins}",
                offset = out(reg) _,
                bins = in(reg) bins,
                options(nostack, preserves_flags),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "adrp {offset}, :gottprel:hugearena_current",
                "ldr {offset}, [{offset}, :gottprel_lo12:hugearena_current]",
                "mrs {thread}, tpidr_el0",
                "str {bins}, [{thread}, {offset}]",
                offset = out(reg) _,
                thread = out(reg) _,
                bins = in(reg) bins,
                options(nostack, preserves_flags),
            );
        }
    }
}
