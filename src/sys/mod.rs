//! System calls: the only module that names `libc`, and nothing but calls.
//!
//! Each function is one call (or one call with its retry), takes typed arguments and returns [`Errno`]. None
//! of them allocates but those in `fd`, so all others may be used while the heap serves a request.

#![allow(unsafe_code)]

pub mod fd;
pub mod file;
pub mod glibc;
pub mod memory;
pub mod numa;
pub mod process;
pub mod shared;

use crate::error::Errno;

/// Out of memory: also "not enough free huge pages to reserve".
pub const ENOMEM: Errno = Errno(libc::ENOMEM);
/// Bad address: from `MADV_POPULATE_*` it means "touching this page would raise SIGBUS".
pub const EFAULT: Errno = Errno(libc::EFAULT);
/// Try again: from mmap it means that RLIMIT_MEMLOCK is in the way (`mlockall`, `MAP_LOCKED`).
pub const EAGAIN: Errno = Errno(libc::EAGAIN);
/// Permission denied: by the mode of a file, or by a sysctl.
pub const EACCES: Errno = Errno(libc::EACCES);
/// Operation not permitted: a capability is missing, or seccomp denies the call.
pub const EPERM: Errno = Errno(libc::EPERM);
/// Read-only file system.
pub const EROFS: Errno = Errno(libc::EROFS);
/// No space left on device: from hugetlbfs also "no free huge page".
pub const ENOSPC: Errno = Errno(libc::ENOSPC);
/// No such device: from memfd_create, "the kernel has no pages of that size".
pub const ENODEV: Errno = Errno(libc::ENODEV);
/// Invalid argument: also "this kernel does not know this flag".
pub const EINVAL: Errno = Errno(libc::EINVAL);
/// Message too long: what came with it was lost.
pub const EMSGSIZE: Errno = Errno(libc::EMSGSIZE);
/// File exists: from mmap, "that address is taken".
pub const EEXIST: Errno = Errno(libc::EEXIST);
/// Interrupted by a signal.
pub const EINTR: Errno = Errno(libc::EINTR);
/// File too large.
pub const EFBIG: Errno = Errno(libc::EFBIG);
/// Cancelled: what the crate itself answers when a caller's callback stops an operation.
pub const ECANCELED: Errno = Errno(libc::ECANCELED);
/// Function not implemented, or denied by seccomp.
pub const ENOSYS: Errno = Errno(libc::ENOSYS);

/// The errno of the call that just failed on this thread.
pub fn last_errno() -> Errno {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's errno, always.
    Errno(unsafe { *libc::__errno_location() })
}

/// Runs `body` and leaves this thread's errno as it was: free(3) must not change it.
pub fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's errno, always.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let result = body();
        *errno = before;
        result
    }
}

/// `Ok` when a C call that answers -1 on failure did not.
fn check(result: libc::c_int) -> Result<(), Errno> {
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}
