//! What glibc alone has. Found when the program is loaded, or absent: other C libraries, and versions without it, do
//! not have the symbol, and then nothing is known and nothing is locked.
//!
//! Sources: glibc, `posix/fork.c` and `include/sys/single_threaded.h`.

use std::arch::asm;

/// The address of a symbol, or null where nobody defines it.
macro_rules! address_of_weak {
    ($name:literal) => {{
        let address: *const ();
        // SAFETY: loads what the loader has put into the global offset table: an address, or 0 for a weak symbol
        // that is not defined.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("mov {address}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                address = out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("adrp {address}, :got:", $name),
                concat!("ldr {address}, [{address}, :got_lo12:", $name, "]"),
                address = out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            address = std::ptr::null();
        }
        address
    }};
}

/// Whether this thread is known to be the only one of its process, as fork(2) itself asks it.
pub fn is_single_threaded() -> bool {
    let flag = address_of_weak!("__libc_single_threaded").cast::<u8>();
    // SAFETY: null, or glibc's `char __libc_single_threaded`, which only this thread could change if it is not 0.
    !flag.is_null() && unsafe { flag.read_volatile() } != 0
}

/// Takes the lock of the list of all stdio streams, which its holder may take again: the one that fork(2) takes between
/// the handlers and the copy.
pub fn lock_streams() {
    call(address_of_weak!("_IO_list_lock"));
}

/// Gives back what [`lock_streams`] took, in the parent.
pub fn unlock_streams() {
    call(address_of_weak!("_IO_list_unlock"));
}

/// Makes that lock free in a child of fork(2), whose other threads are gone. fork(2) may have done so already.
pub fn reset_streams() {
    call(address_of_weak!("_IO_list_resetlock"));
}

fn call(function: *const ()) {
    if !function.is_null() {
        // SAFETY: the callers pass the addresses of functions of glibc that take nothing and return nothing. They only
        // touch the lock, which whoever calls the first has to pair with one of the others.
        unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn()>(function)() };
    }
}
