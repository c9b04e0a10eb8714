//! An arena passed to another process by descriptor, over a Unix socket.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use super::view::View;
use super::{Arena, record};
use crate::backing::{Backing, lock};
use crate::error::{Error, Operation, Result};
use crate::mapping::attach::AttachOptions;
use crate::page_size::PageSize;
use crate::sys::{EMSGSIZE, fd, file};

/// A message: `HUGESHAR`, version, mapping flags, page size and length in bytes, all little-endian.
const LEN: usize = 32;
const MAGIC: &[u8; 8] = b"HUGESHAR";
const VERSION: u32 = 1;

impl Arena {
    /// Sends this arena over a connected Unix socket; the peer [receives](View::receive) a view that it can read and
    /// write ([read only](crate::ArenaBuilder::read_only_peers), if the arena was opened so). What is in it is told by offset and length, in messages of your own.
    ///
    /// The peer does not share the ownership of a named arena: it can have another owner while the peer lives. It gets
    /// a descriptor of its own opening of the file; one that takes flock(2) on it keeps the next owner out until it
    /// ends, as every process that can open the file may.
    ///
    /// # Errors
    ///
    /// [`Operation::Share`]: the arena is on anonymous memory, which no descriptor stands for, or the socket failed;
    /// a non-blocking one may then have taken a part of the message.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::arena::View;
    /// use hugearena::{Arena, PageSize};
    /// use std::os::unix::net::UnixStream;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
    /// let (ours, theirs) = UnixStream::pair()?;
    /// arena.share_read_only(&ours)?;
    /// let view = View::receive(&theirs)?; // in another process
    /// assert_eq!(view.len(), 1 << 20);
    /// assert!(view.get(4096, 100).is_some() && view.get(1 << 20, 1).is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Sources
    ///
    /// unix(7), `SCM_RIGHTS`; cmsg(3).
    pub fn share(&self, socket: &UnixStream) -> Result<()> {
        self.send(socket, self.descriptor()?)
    }

    /// As [`share`](Self::share), by a descriptor that the peer can only read through.
    ///
    /// It is made by opening `/proc/self/fd` once more: a peer of the same user can do that too and get write access;
    /// this protects from mistakes, and from peers of other users.
    ///
    /// # Errors
    ///
    /// As for [`share`](Self::share); also when `/proc` is not there.
    pub fn share_read_only(&self, socket: &UnixStream) -> Result<()> {
        let read_only = fd::reopen_read_only(self.descriptor()?).map_err(|errno| failed("").os(errno))?;
        self.send(socket, read_only.as_fd())
    }

    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.inner.mapping.backing().fd().ok_or_else(|| failed(": anonymous memory has no descriptor"))
    }

    fn send(&self, mut socket: &UnixStream, fd: BorrowedFd<'_>) -> Result<()> {
        let backing = self.inner.mapping.backing();
        let mut message = [0; LEN];
        message[..8].copy_from_slice(MAGIC);
        message[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let mapping = &self.inner.mapping;
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(mapping.is_dumped(), record::DUMP) | flag(mapping.is_resizable(), record::RESIZABLE);
        message[12..16].copy_from_slice(&flags.to_le_bytes());
        message[16..24].copy_from_slice(&(backing.page_size().bytes() as u64).to_le_bytes());
        message[24..].copy_from_slice(&(backing.len_bytes() as u64).to_le_bytes());
        let sent = fd::send_with_fd(socket.as_fd(), &message, fd).map_err(|errno| failed("").os(errno))?;
        // A stream may take a part; the descriptor went with the first byte.
        socket.write_all(&message[sent..]).map_err(|error| failed("").os(error))
    }
}

impl View {
    /// Receives an arena that a peer [shares](Arena::share) over this socket, and maps it: writable if the descriptor
    /// is and no seal forbids it. Waits for it, unless the socket does not block.
    ///
    /// Nothing that the peer says is believed: page size and length are the file's own, as the kernel tells them. A
    /// memfd has to be sealed against shrinking, so that its pages cannot be truncated away under the view. Files on
    /// hugetlbfs cannot be sealed: they are taken if they belong to root or this user and nobody else may write to them.
    ///
    /// # Errors
    ///
    /// [`Operation::Share`]: the socket failed or ended, the message is none of ours or newer, no descriptor or several
    /// came with it, or the file is not what the message says or is not sealed. [`Operation::Map`] and
    /// [`Operation::Populate`], with the limit that bound.
    pub fn receive(socket: &UnixStream) -> Result<View> {
        View::receive_at_most(socket, usize::MAX)
    }

    /// As [`receive`](Self::receive), but refuses more than `bytes`: a file may be longer than what its sender has paid
    /// for, and the pages that it lacks would be taken by this process.
    ///
    /// # Errors
    ///
    /// As for [`receive`](Self::receive); [`Operation::Share`] for an arena that is longer.
    pub fn receive_at_most(socket: &UnixStream, bytes: usize) -> Result<View> {
        let (message, fd) = receive(socket)?;
        let (page_size, flags) = check_message(&message).map_err(|problem| failed(&problem))?;
        let writable = fd::is_writable(fd.as_fd()).map_err(|errno| failed("").os(errno))?;
        let file = File::from(fd);
        check_file(&file, page_size).map_err(|problem| failed(&problem))?;
        let backing = Backing::from_file(file, None, page_size)?;
        if backing.len_bytes() as u64 != number(&message, 24) {
            return Err(failed(": the file has another length than the message says"));
        }
        if backing.len_bytes() > bytes {
            return Err(failed(&format!(": it has {} bytes, more than {bytes}", backing.len_bytes())));
        }
        View::new(
            backing,
            AttachOptions::of_peer(writable, flags & record::DUMP != 0, true, flags & record::RESIZABLE != 0),
        )
    }
}

fn receive(mut socket: &UnixStream) -> Result<([u8; LEN], OwnedFd)> {
    let mut message = [0; LEN];
    let lost = ": descriptors that came with it were lost: too many, or more than RLIMIT_NOFILE allows this process";
    let problem = |errno| if errno == EMSGSIZE { lost } else { "" };
    let received = fd::receive_with_fd(socket.as_fd(), &mut message);
    let received = received.map_err(|errno| failed(problem(errno)).os(errno))?;
    if received.len == 0 {
        return Err(failed(": the peer closed the socket").os(io::Error::from(io::ErrorKind::UnexpectedEof)));
    }
    socket.read_exact(&mut message[received.len..]).map_err(|error| failed("").os(error))?;
    let fd = received.fd.ok_or_else(|| failed(": not exactly one descriptor came with the message"))?;
    Ok((message, fd))
}

/// Page size and mapping flags.
fn check_message(message: &[u8; LEN]) -> std::result::Result<(PageSize, u32), String> {
    if !message.starts_with(MAGIC) {
        return Err(": that is no arena".into());
    }
    let half = |at: usize| (number(message, at) & u64::from(u32::MAX)) as u32;
    match half(8) {
        VERSION => {}
        other => return Err(format!(": the message has version {other}, and this build knows {VERSION}")),
    }
    let page_size = PageSize::from_bytes(number(message, 16)).ok_or(": the message names no page size")?;
    Ok((page_size, half(12)))
}

fn check_file(file: &File, page_size: PageSize) -> std::result::Result<(), String> {
    let system = file::file_system_of(file.as_fd()).map_err(|errno| format!(": {errno}"))?;
    let matches = if system.is_hugetlbfs {
        system.block_bytes == page_size.bytes() as u64
    } else {
        page_size == PageSize::base()
    };
    if !matches {
        return Err(format!(": the file is not on pages of {page_size}, as the message says"));
    }
    if fd::is_sealed_against_shrinking(file.as_fd()) == Ok(true) {
        return Ok(());
    }
    if !system.is_hugetlbfs {
        return Err(": the file is not sealed against shrinking".into());
    }
    let metadata = file.metadata().map_err(|error| format!(": {error}"))?;
    let by_root = metadata.uid() == 0 && metadata.is_file() && metadata.mode() & 0o022 == 0;
    if by_root { Ok(()) } else { lock::check_owner(&metadata).map_err(|error| format!(": {error}")) }
}

fn number(message: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| message[at + index]))
}

fn failed(problem: &str) -> Error {
    Error::new(Operation::Share, format!("an arena over a Unix socket{problem}"))
}
