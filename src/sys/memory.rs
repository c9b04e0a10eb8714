//! Memory calls: mmap and its relatives, madvise, memfd. Every length given here is already whole pages.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use super::file::uncancelled;
use super::{EINTR, EINVAL, check, last_errno};
use crate::error::Errno;
use crate::page_size::PageSize;

impl PageSize {
    /// The base page of this machine: 4 KiB, or 16 or 64 KiB on some AArch64 kernels.
    #[must_use]
    pub fn base() -> PageSize {
        // SAFETY: sysconf has no preconditions.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        // A kernel whose base page is not a power of two in range does not exist.
        PageSize::from_bytes(bytes as u64).unwrap_or(PageSize::SMALLEST)
    }
}

/// Bytes of ordinary memory in this machine, from sysinfo(2); 0 where that is denied.
pub fn total_memory_bytes() -> u64 {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: sysinfo fills the struct it is given; where it is denied, zeroes are valid numbers.
    let info = unsafe {
        libc::sysinfo(info.as_mut_ptr());
        info.assume_init()
    };
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// How a new mapping is made.
#[derive(Clone, Copy, Debug)]
pub enum Anonymous {
    /// Inaccessible addresses, no memory: `PROT_NONE`, `MAP_NORESERVE`.
    Reserved,
    /// Base pages, touched on demand.
    Base,
    /// Huge pages of this size, reserved now and populated as far as the kernel can (`MAP_POPULATE`).
    Huge(PageSize),
    /// Huge pages of this size, reserved now, populated later.
    HugeLazy(PageSize),
}

/// mmap(2): a new private anonymous mapping of `len` bytes at an address of the kernel's choice.
///
/// Success with `Huge` does not mean that the pages are there: follow with [`populate_write`].
pub fn map_anonymous(len: usize, kind: Anonymous) -> Result<NonNull<u8>, Errno> {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let (prot, flags) = match kind {
        Anonymous::Reserved => (libc::PROT_NONE, private | libc::MAP_NORESERVE),
        Anonymous::Base => (rw, private),
        Anonymous::HugeLazy(size) => (rw, private | huge_flags(size)),
        Anonymous::Huge(size) => (rw, private | huge_flags(size) | libc::MAP_POPULATE),
    };
    // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    mapped(at)
}

/// mmap(2) of a file: `MAP_SHARED`, readable and writable, from offset 0, at an address of the kernel's choice.
pub fn map_shared(file: BorrowedFd<'_>, len: usize, populate: bool) -> Result<NonNull<u8>, Errno> {
    let flags = libc::MAP_SHARED | if populate { libc::MAP_POPULATE } else { 0 };
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, rw, flags, file.as_raw_fd(), 0) };
    mapped(at)
}

/// mmap(2) with `MAP_FIXED`: makes `len` bytes at `at` inaccessible and memory-less again, whatever was there.
///
/// # Safety
///
/// `at..at + len` is whole pages of the caller's own reservation and nothing in it is in use.
pub unsafe fn reserve_over(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller owns the range and gives up what it holds.
    let got = unsafe { libc::mmap(at.as_ptr().cast(), len, libc::PROT_NONE, flags, -1, 0) };
    mapped(got).map(|_| ())
}

/// mmap(2) with `MAP_FIXED`: huge pages of `size` over a reservation, reserved now and populated as far as the kernel
/// can. On failure the kernel may have unmapped what was there.
///
/// # Safety
///
/// As for [`reserve_over`].
pub unsafe fn map_huge_over(at: NonNull<u8>, len: usize, size: PageSize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_POPULATE | huge_flags(size);
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller owns the range and gives up what it holds.
    let got = unsafe { libc::mmap(at.as_ptr().cast(), len, rw, flags, -1, 0) };
    mapped(got).map(|_| ())
}

/// munmap(2).
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's and nothing in it is in use.
pub unsafe fn unmap(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller owns the range and gives it up.
    check(unsafe { libc::munmap(at.as_ptr().cast(), len) })
}

/// mprotect(2) to readable and writable.
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's.
pub unsafe fn make_writable(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: more access to memory of the caller's own breaks nobody's expectations.
    check(unsafe { libc::mprotect(at.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE) })
}

/// mremap(2) with `MREMAP_FIXED`: moves the pages of `from..from + len` to `to`, replacing what is there.
///
/// On failure the old mapping stays where it was, but the kernel may already have unmapped the target.
///
/// # Safety
///
/// Both ranges are whole pages of mappings of the caller's, disjoint; nothing in the target is in use; nobody
/// uses the source by its old address afterwards.
pub unsafe fn move_mapping(from: NonNull<u8>, len: usize, to: NonNull<u8>) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: as above.
    let at = unsafe { libc::mremap(from.as_ptr().cast(), len, len, flags, to.as_ptr()) };
    mapped(at).map(|_| ())
}

/// madvise(`MADV_POPULATE_WRITE`), Linux 5.14: makes every page of the range present and writable now.
///
/// `EFAULT` means that touching a page would raise SIGBUS; `EINVAL` that the kernel is too old. Interrupted
/// calls go on until they are done.
///
/// # Safety
///
/// `at..at + len` is whole pages of a writable mapping of the caller's.
pub unsafe fn populate_write(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: populating writes nothing that the caller could see.
        match unsafe { advise(at, len, libc::MADV_POPULATE_WRITE) } {
            Err(EINTR) => {}
            done => return done,
        }
    }
}

/// Makes every page present on kernels before 5.14: read(2) of one zero byte into each, which fails with
/// `EFAULT` where a touch would raise SIGBUS (the way of libhugetlbfs). Overwrites the first byte of each page.
///
/// # Safety
///
/// `at..at + len` is whole pages of `size` of a writable mapping of the caller's whose first bytes may be zeroed.
pub unsafe fn populate_by_read(at: NonNull<u8>, len: usize, size: PageSize) -> Result<(), Errno> {
    let zero = uncancelled::open(c"/dev/zero")?;
    let mut result = Ok(());
    for offset in (0..len).step_by(size.bytes()) {
        // SAFETY: the byte is inside the range; the kernel checks that it can be written.
        while result.is_ok() && unsafe { uncancelled::read(zero, at.as_ptr().add(offset), 1) } != Ok(1) {
            result = Err(last_errno()).or_else(|errno| if errno == EINTR { Ok(()) } else { Err(errno) });
        }
    }
    uncancelled::close(zero);
    result
}

/// mincore(2) of the base page at `at`, which starts one: whether a touch finds a page there. `true` where the call is
/// denied.
pub fn is_present(at: NonNull<u8>) -> bool {
    let mut present = 0u8;
    // SAFETY: the kernel checks the address, and writes one byte for one page.
    match check(unsafe { libc::mincore(at.as_ptr().cast(), 1, &mut present) }) {
        Ok(()) => present & 1 != 0,
        Err(errno) => errno != super::ENOMEM,
    }
}

/// msync(2), which does nothing here but look: whether all addresses of the range are mapped. `true` where the call is
/// denied.
pub fn is_mapped(at: NonNull<u8>, len: usize) -> bool {
    // `MS_ASYNC` has started no writing since Linux 2.6.19.
    uncancelled::look_at(at.as_ptr(), len) != Err(super::ENOMEM)
}

/// madvise(`MADV_HUGEPAGE`): asks for transparent huge pages. Success proves nothing about what is there.
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's.
pub unsafe fn want_transparent_huge(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: advice about page size changes no contents.
    unsafe { advise(at, len, libc::MADV_HUGEPAGE) }
}

/// madvise(`MADV_DONTFORK`): children of fork(2) do not get the range.
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's.
pub unsafe fn dont_fork(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: changes only what children inherit.
    unsafe { advise(at, len, libc::MADV_DONTFORK) }
}

/// madvise(`MADV_DONTDUMP`): core dumps leave the range out.
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's.
pub unsafe fn dont_dump(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: changes only what core dumps hold.
    unsafe { advise(at, len, libc::MADV_DONTDUMP) }
}

/// memfd_create(2), close-on-exec and sealable, on pages of `size` (hugetlb unless it is the base page).
///
/// Never executable where the kernel can promise that (Linux 6.3): a system with `vm.memfd_noexec=2` refuses
/// memfds that do not say so.
pub fn memfd(name: &std::ffi::CStr, size: PageSize) -> Result<OwnedFd, Errno> {
    let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    if size.is_huge() {
        flags |= libc::MFD_HUGETLB | (size.log2() << libc::MFD_HUGE_SHIFT);
    }
    match memfd_with(name, flags | libc::MFD_NOEXEC_SEAL) {
        Err(EINVAL) => memfd_with(name, flags),
        done => done,
    }
}

fn memfd_with(name: &std::ffi::CStr, flags: libc::c_uint) -> Result<OwnedFd, Errno> {
    // SAFETY: the name is a C string and the call has no other preconditions.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    check(fd)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// fcntl(`F_ADD_SEALS`, `F_SEAL_SHRINK`): the file can no longer lose pages to truncation.
pub fn seal_shrink(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the descriptor is open and the call changes only the file's seals.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) })
}

/// fcntl(`F_ADD_SEALS`, `F_SEAL_FUTURE_WRITE`), Linux 5.1: nobody can map the file for writing any more, write to it, or
/// punch holes into it. Mappings that are there go on.
pub fn seal_future_writes(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the descriptor is open and the call changes only the file's seals.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) })
}

/// madvise(2).
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's, and the advice keeps the contents.
unsafe fn advise(at: NonNull<u8>, len: usize, advice: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, advice) })
}

fn huge_flags(size: PageSize) -> libc::c_int {
    // 16 GiB pages set bit 31, so the shift is done unsigned.
    libc::MAP_HUGETLB | (size.log2() << libc::MAP_HUGE_SHIFT) as libc::c_int
}

pub(super) fn mapped(at: *mut libc::c_void) -> Result<NonNull<u8>, Errno> {
    if at == libc::MAP_FAILED {
        return Err(last_errno());
    }
    // The kernel maps page 0 only at a fixed address with privilege; treat it as a failure rather than as null.
    NonNull::new(at.cast()).ok_or(Errno(libc::ENOMEM))
}
