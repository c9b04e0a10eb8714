//! AArch64: DC ZVA, which zeroes a block of the size in DCZID_EL0 without reading it, and STNP.
//!
//! Both are ordinary stores to the memory model: whatever publishes the region to another thread (a release
//! store) orders them too, so there is nothing to fence.
//!
//! # Sources
//!
//! Arm Architecture Reference Manual: DC ZVA, DCZID_EL0, STNP. DC ZVA is a hint to the cache, and some cores
//! keep the lines; it is called non-caching here because it avoids reading memory first.

use core::arch::asm;

use super::lines::{Line, clear_lines, copy_lines};
use super::{Caches, Routines};

/// All kernels of this architecture. The first available one of each kind is the one chosen.
pub(super) static ROUTINES: [Routines; 1] =
    [Routines { name: "dc-zva", non_caching: true, is_available: is_usable, clear, copy }];

/// # Safety
///
/// [`is_usable`], and the contract of [`Kernel::clear`](super::Kernel::clear).
unsafe fn clear(dst: *mut u8, len: usize) {
    // SAFETY: the contract is the same.
    unsafe { clear_lines::<Zva>(dst, len) }
}

/// # Safety
///
/// As for [`clear`].
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the contract is the same.
    unsafe { copy_lines::<Zva>(dst, src, len) }
}

/// The block of DC ZVA, at least [`PIECE`] bytes.
struct Zva;

/// What one step of a copy moves: two pairs of 16-byte registers.
const PIECE: usize = 64;

impl Line for Zva {
    #[inline(always)]
    fn bytes() -> usize {
        // Bits 0 to 3: log2 of the block in words of 4 bytes.
        4 << (dczid() & 15)
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        // SAFETY: the caller has this kernel, so DC ZVA is permitted, and gives a whole writable block;
        // registers, flags and stack are left alone.
        unsafe { asm!("dc zva, {}", in(reg) dst, options(nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        for offset in (0..Self::bytes()).step_by(PIECE) {
            // SAFETY: a block is a whole number of pieces, all of them readable and writable as promised by the
            // caller. The instructions move 64 bytes of any alignment through registers that are declared.
            unsafe {
                asm!(
                    "ldp {a:q}, {b:q}, [{src}]",
                    "ldp {c:q}, {d:q}, [{src}, #32]",
                    "stnp {a:q}, {b:q}, [{dst}]",
                    "stnp {c:q}, {d:q}, [{dst}, #32]",
                    src = in(reg) src.add(offset), dst = in(reg) dst.add(offset),
                    a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// Whether DCZID_EL0.DZP, bit 4, leaves DC ZVA permitted, with a block that a copy can be cut into.
fn is_usable() -> bool {
    dczid() & 1 << 4 == 0 && Zva::bytes() >= PIECE
}

#[inline(always)]
fn dczid() -> u64 {
    let value: u64;
    // SAFETY: DCZID_EL0 is readable in user mode and constant; reading it has no effect.
    unsafe { asm!("mrs {}, dczid_el0", out(reg) value, options(nomem, nostack, preserves_flags, pure)) };
    value
}

/// See the head of this file.
pub(super) fn fence() {}

/// The counter of user mode ticks too slowly, at 25 MHz to 1 GHz, to tell a cache from memory.
///
/// # Safety
///
/// None needed.
pub(super) unsafe fn load_ticks(_lines: [*const u8; 2]) -> Option<u64> {
    None
}

/// PRFM, for a store.
#[inline]
pub(super) fn fetch(line: *const u8) {
    // SAFETY: a hint; no address faults.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// User mode cannot read the cache sizes here (CCSIDR_EL1 is the kernel's): the defaults stand.
pub(super) fn caches() -> Caches {
    Caches::default()
}
