//! File calls that std does not have: statfs, unnamed files, small reads without allocation.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{check, last_errno};
use crate::error::Errno;

/// open(2) does not follow a symbolic link at the end of the path, and does not wait for the other end of a FIFO.
pub const NO_FOLLOW: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// What statfs(2) says about a file system.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    /// Whether it is a hugetlbfs.
    pub is_hugetlbfs: bool,
    /// Its block size: on hugetlbfs, the page size.
    pub block_bytes: u64,
    /// Blocks in all; 0 on a hugetlbfs without a `size=` limit.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
}

/// Major and minor number of a device, as procfs names it.
pub fn device_numbers(device: u64) -> (u32, u32) {
    (libc::major(device), libc::minor(device))
}

/// statfs(2).
pub fn file_system(path: &CStr) -> Result<FileSystem, Errno> {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path is a C string and statfs fills the struct on success.
    let stat = unsafe {
        check(libc::statfs(path.as_ptr(), stat.as_mut_ptr()))?;
        stat.assume_init()
    };
    Ok(describe(&stat))
}

/// fstatfs(2).
pub fn file_system_of(file: BorrowedFd<'_>) -> Result<FileSystem, Errno> {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and fstatfs fills the struct on success.
    let stat = unsafe {
        check(libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()))?;
        stat.assume_init()
    };
    Ok(describe(&stat))
}

fn describe(stat: &libc::statfs) -> FileSystem {
    FileSystem {
        is_hugetlbfs: stat.f_type == libc::HUGETLBFS_MAGIC,
        block_bytes: stat.f_bsize as u64,
        blocks: stat.f_blocks,
        blocks_free: stat.f_bavail,
    }
}

/// open(2) with `O_TMPFILE`: a read-write file of mode 0600 in `directory` that has no name.
pub fn unnamed_file(directory: &CStr) -> Result<OwnedFd, Errno> {
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(directory.as_ptr(), flags, 0o600 as libc::c_uint) };
    check(fd)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// faccessat(2) with `AT_EACCESS`: whether files may be made in a directory.
pub fn may_create_in(directory: &CStr) -> Result<(), Errno> {
    let (mode, flags) = (libc::W_OK | libc::X_OK, libc::AT_EACCESS);
    // SAFETY: the path is a C string.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, directory.as_ptr(), mode, flags) })
}

/// getxattr(2): an extended attribute of a file, if it has it and it fits.
pub fn attribute<'a>(path: &CStr, name: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: C strings, and a buffer that is writable for its length.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(len).ok().map(|len| &buffer[..len])
}

/// statvfs(3): whether the file is on a mount where programs gain nothing by who owns them.
pub fn is_nosuid(path: &CStr) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a C string, and a struct that the call fills; all zeroes are one as well.
    let found = unsafe {
        libc::statvfs(path.as_ptr(), found.as_mut_ptr());
        found.assume_init()
    };
    found.f_flag & libc::ST_NOSUID != 0
}

/// Reads the start of a small file (sysfs, procfs) into `buffer`, without allocating. Not a cancellation point.
pub fn read_small<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let fd = uncancelled::open(path)?;
    // SAFETY: the buffer is writable for its length.
    let got = unsafe { uncancelled::read(fd, buffer.as_mut_ptr(), buffer.len()) };
    uncancelled::close(fd);
    got.map(|len| &buffer[..len])
}

/// The calls that the heap makes of those whose functions in the C library are cancellation points: a thread that
/// pthread_cancel(3) has chosen would end inside of malloc(3), with descriptors open. By number they are not.
///
/// Programs may also bring functions of these names, which may allocate.
pub(super) mod uncancelled {
    use std::ffi::CStr;

    use super::last_errno;
    use crate::error::Errno;

    /// open(2) for reading, close-on-exec. The descriptor is for [`read`] and [`close`] here.
    pub fn open(path: &CStr) -> Result<libc::c_int, Errno> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
        answer(fd).map(|fd| fd as libc::c_int)
    }

    /// read(2).
    ///
    /// # Safety
    ///
    /// `len` bytes at `at` are the caller's, and may be written. The kernel checks that they can be.
    pub unsafe fn read(fd: libc::c_int, at: *mut u8, len: usize) -> Result<usize, Errno> {
        // SAFETY: the caller's contract.
        answer(unsafe { libc::syscall(libc::SYS_read, fd, at, len) })
    }

    /// write(2).
    pub fn write(fd: libc::c_int, bytes: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer is live.
        answer(unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) })
    }

    /// close(2) of a descriptor that [`open`] gave.
    pub fn close(fd: libc::c_int) {
        // SAFETY: the descriptor is the caller's, who does not use it any more.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }

    /// msync(2) with `MS_ASYNC`.
    pub fn look_at(at: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the kernel checks the addresses, and changes nothing.
        answer(unsafe { libc::syscall(libc::SYS_msync, at, len, libc::MS_ASYNC) }).map(|_| ())
    }

    fn answer(result: libc::c_long) -> Result<usize, Errno> {
        usize::try_from(result).map_err(|_| last_errno())
    }
}
