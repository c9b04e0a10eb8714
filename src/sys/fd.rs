//! Descriptors: passed over Unix sockets, reopened, their seals and locks.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::{EINTR, EMSGSIZE, check, last_errno};
use crate::error::Errno;

/// Room for control messages, aligned like the header that they start with: some descriptors, behind the credentials, the
/// process and the security label of the sender, if the socket's owner wants those (`SO_PASSCRED`, `SO_PASSPIDFD`,
/// `SO_PASSSEC`). Of a peer that sends more, the kernel closes them.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 192;

/// The type of a control message with a descriptor of the sender's process (Linux 6.5).
const SCM_PIDFD: libc::c_int = 4;

/// sendmsg(2) on a stream socket: `bytes`, and the descriptor with the first of them. Returns how many bytes went.
pub fn send_with_fd(socket: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = empty_message(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the control buffer is aligned and longer than one descriptor needs, so the first header and its data
    // lie inside it; the kernel only reads what the message points to, all of which lives through the call.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        retry(|| libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL))
    }
}

/// What [`receive_with_fd`] got.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the buffer that were filled; 0 at the end of the stream.
    pub len: usize,
    /// The descriptor, close-on-exec, when exactly one came.
    pub fd: Option<OwnedFd>,
}

/// recvmsg(2): fills the start of `buffer`. Of several descriptors none is kept. `EMSGSIZE`: some of what came with the
/// bytes was lost, because there was no room for it or this process may have no more descriptors.
pub fn receive_with_fd(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = empty_message(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the kernel writes no more than the lengths given, into buffers that live through the call.
    let len = unsafe { retry(|| libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC))? };
    // SAFETY: the kernel has filled the control buffer that the message points to.
    let mut fds = unsafe { received_fds(&message, libc::SCM_RIGHTS) };
    // Whoever wants to know the sender's process has it with every message; here it is only closed.
    // SAFETY: as above; these are others.
    drop(unsafe { received_fds(&message, SCM_PIDFD) });
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(EMSGSIZE);
    }
    let fd = if fds.len() == 1 { fds.pop() } else { None };
    Ok(Received { len, fd })
}

/// The descriptors in control messages of that type.
///
/// # Safety
///
/// The message's control buffer is alive and was filled by recvmsg(2). Called once for each type, one of descriptors.
unsafe fn received_fds(message: &libc::msghdr, kind: libc::c_int) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the CMSG macros walk headers inside the control buffer that the kernel filled; the data of each is as
    // long as its header says; descriptors are new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == kind {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let len = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let count = len / size_of::<RawFd>();
                fds.extend((0..count).map(|index| OwnedFd::from_raw_fd(data.add(index).read_unaligned())));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn empty_message(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is one without name, parts and control message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = ptr::null_mut();
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

/// Calls again when a signal came first.
fn retry(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    loop {
        match usize::try_from(call()) {
            Ok(len) => return Ok(len),
            Err(_) if last_errno() == EINTR => {}
            Err(_) => return Err(last_errno()),
        }
    }
}

/// open(2) of `/proc/self/fd/N`: a read-only description of its own, of the same file.
pub fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| super::EINVAL)?;
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    check(fd)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// fcntl(`F_GET_SEALS`): whether the file can never lose pages to truncation. `EINVAL`: a file that has no seals.
pub fn is_sealed_against_shrinking(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: asks about an open descriptor.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    check(seals)?;
    Ok(seals & libc::F_SEAL_SHRINK != 0)
}

/// fcntl(`F_GETFL`, `F_GET_SEALS`): whether a new shared mapping of the descriptor can be written to: it is open for
/// that, and no seal forbids it.
pub fn is_writable(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: asks about an open descriptor.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    check(flags)?;
    // SAFETY: as above. -1, every bit, for a file that has no seals.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    let is_sealed = seals >= 0 && seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0;
    Ok(flags & libc::O_ACCMODE == libc::O_RDWR && !is_sealed)
}

/// fcntl(`F_OFD_SETLK`) of the whole file: for others to see, as long as this description of the file is open.
/// `EAGAIN`: another description has such a lock.
pub fn announce(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_record_lock(fd, libc::F_WRLCK)
}

/// Takes [`announce`] back, in whichever processes the description is open.
pub fn retract(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_record_lock(fd, libc::F_UNLCK)
}

fn set_record_lock(fd: BorrowedFd<'_>, kind: libc::c_int) -> Result<(), Errno> {
    let lock = whole_file(kind);
    // SAFETY: the call reads a live struct.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
}

/// fcntl(`F_OFD_GETLK`): whether another description of the file is [announced](announce). Takes nothing, so that
/// nobody who wants the lock at this moment is refused.
pub fn is_announced(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: the call reads and writes a live struct.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: a struct of numbers, for which zeroes mean from the start to the end, and no process.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    lock.l_type = kind as libc::c_short;
    lock
}
