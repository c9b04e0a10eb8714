//! Calls for memory that several processes map: at an address of our choice, read-only, and what is there already.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use super::memory::mapped;
use super::{EEXIST, EINTR, check};
use crate::error::Errno;

/// Which bytes of a file are mapped, and how.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub offset: usize,
    pub len: usize,
    pub writable: bool,
    /// Hugetlb pages that the file lacks are reserved. Without it (`MAP_NORESERVE`) touching one takes it from the
    /// pool, and is a SIGBUS where there is none: only what has been populated may be touched.
    pub reserve: bool,
}

/// mmap(2) of a file, `MAP_SHARED`; at `at` if that is given and free, else at an address of the kernel's choice.
/// Populates nothing.
///
/// Never replaces a mapping: `EEXIST` when there is one at `at` (`MAP_FIXED_NOREPLACE`, Linux 4.17; older kernels
/// take the address for a hint and may return another).
pub fn map(file: BorrowedFd<'_>, at: Option<NonNull<u8>>, part: Part) -> Result<NonNull<u8>, Errno> {
    let Part { offset, len, writable, reserve } = part;
    let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
    let flags = libc::MAP_SHARED | fixed | if reserve { 0 } else { libc::MAP_NORESERVE };
    let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let wanted = at.map_or(ptr::null_mut(), NonNull::as_ptr);
    // SAFETY: without MAP_FIXED, no existing memory is touched.
    let got = mapped(unsafe { libc::mmap(wanted.cast(), len, prot, flags, file.as_raw_fd(), offset as libc::off_t) })?;
    if at.is_some_and(|at| at != got) {
        // SAFETY: the mapping just made, whole pages, which nobody uses yet.
        unsafe { super::memory::unmap(got, len)? };
        return Err(EEXIST);
    }
    Ok(got)
}

/// madvise(`MADV_POPULATE_READ`), Linux 5.14: makes every page of the range present for reading.
///
/// Errors as for [`populate_write`](super::memory::populate_write).
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's.
pub unsafe fn populate_read(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: populating writes nothing.
        match check(unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_POPULATE_READ) }) {
            Err(EINTR) => {}
            done => return done,
        }
    }
}

/// mincore(2) of one base page: whether our page tables have it. That is what the call tells about hugetlb pages;
/// for others it tells whether the page cache has it.
///
/// # Safety
///
/// `at` is the start of a base page of a mapping of the caller's.
pub unsafe fn is_present(at: NonNull<u8>) -> bool {
    let mut state = 0u8;
    // SAFETY: one byte, which is one page of a mapping, is answered with one byte.
    unsafe { libc::mincore(at.as_ptr().cast(), 1, &mut state) == 0 && state & 1 != 0 }
}

/// fallocate(2): takes every page of these bytes that is not there yet; those that are keep their contents.
pub fn allocate(file: BorrowedFd<'_>, offset: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no byte that has a page.
    unsafe { fallocate(file, 0, offset, len) }
}

/// fallocate(2), `FALLOC_FL_PUNCH_HOLE`: gives whole pages back, from under every mapping of the file, which keeps its
/// length. Reservations of pages that are not there stay.
///
/// # Safety
///
/// Nobody uses these bytes.
pub unsafe fn punch(file: BorrowedFd<'_>, offset: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len) }
}

/// # Safety
///
/// Nobody uses bytes that the mode changes.
unsafe fn fallocate(file: BorrowedFd<'_>, mode: libc::c_int, offset: usize, len: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller's contract.
        match check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t) }) {
            Err(EINTR) => {}
            done => return done,
        }
    }
}
