//! Arenas passed by descriptor over a Unix socket: between processes, either of which may die, and from peers that
//! cannot be trusted.

#![allow(unsafe_code)]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;

use hugearena::arena::{self, View};
use hugearena::backing::BackingKind;
use hugearena::error::Operation;
use hugearena::{Arena, PageSize, Populate};

use support::machine::{Mounted, TempDir};
use support::pool::PoolLock;
use support::{Child, PoolUnchanged, descriptors, for_each_page_size, fork, is_filled, vm_flags};

fn open(size: PageSize, pages: usize) -> Arena {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).strict().open().unwrap()
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

/// Reads one offset and one length from the socket: what processes tell each other about an arena.
fn receive_range(mut socket: &UnixStream) -> (usize, usize) {
    let mut bytes = [0; 16];
    socket.read_exact(&mut bytes).unwrap();
    let number = |at: usize| usize::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (number(0), number(8))
}

fn send_range(mut socket: &UnixStream, offset: usize, len: usize) {
    socket.write_all(&[offset.to_le_bytes(), len.to_le_bytes()].concat()).unwrap();
}

/// Experiments: 63, 69.
#[test]
fn a_peer_reads_and_writes_at_an_address_of_its_own() {
    for_each_page_size(3, |size, pages| {
        let arena = open(size, pages);
        let mut chunk = arena.claim(1).unwrap();
        // SAFETY: no peer yet.
        unsafe { chunk.slice_mut()[..4096].fill(0x11) };
        let (ours, theirs) = pair();
        let status = std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                fork(|| {
                    let _elsewhere = open(PageSize::base(), 100);
                    let view = View::receive(&theirs).unwrap();
                    assert_eq!((view.len(), view.page_size(), view.is_writable()), (pages * size.bytes(), size, true));
                    let flags = vm_flags(view.get(0, 1).unwrap().cast::<u8>().addr().get());
                    assert!(["dc", "dd"].iter().all(|flag| flags.iter().any(|has| has == flag)), "{flags:?}");
                    let (offset, len) = receive_range(&theirs);
                    let bytes = view.get(offset, len).unwrap();
                    // SAFETY: the owner waits for us.
                    unsafe {
                        assert!(is_filled(&bytes.as_ref()[..4096], 0x11));
                        bytes.cast::<u8>().write(0x22);
                    }
                    send_range(&theirs, 0, 0);
                    0
                })
            });
            arena.share(&ours).unwrap();
            send_range(&ours, chunk.offset(), chunk.len());
            receive_range(&ours);
            peer.join().unwrap()
        });
        assert!(status.success());
        // SAFETY: the peer is gone.
        assert_eq!(unsafe { chunk.as_ptr().read() }, 0x22);
    });
}

/// A GiB and more: what one page table maps comes by one fault, from a memfd as from a named arena.
#[test]
fn peers_of_a_large_memfd_share_its_page_tables() {
    const PAGES: usize = 520;
    const SIZE: PageSize = PageSize::HUGE_2M;
    Child::new().needs_pages(SIZE, PAGES).run(|| {
        for share_tables in [true, false] {
            let builder = Arena::builder().capacity(PAGES * SIZE.bytes()).share_tables(share_tables).strict();
            let arena = builder.open().unwrap();
            let mut chunk = arena.claim(PAGES).unwrap();
            // SAFETY: no peer yet.
            unsafe { chunk.slice_mut()[511 * SIZE.bytes()] = 7 };
            let (ours, theirs) = pair();
            arena.share(&ours).unwrap();
            let status = fork(|| {
                let view = View::receive(&theirs).unwrap();
                let attached = *view.attachment();
                eprintln!("{attached}");
                if share_tables {
                    assert_eq!((attached.tables, attached.shared_tables, attached.not_shared), (1, 1, None));
                    assert!(attached.page_faults <= 1 + 8 + 8, "one, eight of the tail, and some of ours: {attached}");
                }
                let at = |page: usize| view.get(page * SIZE.bytes(), 1).unwrap().cast::<u8>();
                // SAFETY: mapped; the owner waits.
                unsafe {
                    assert_eq!(at(511).read(), 7);
                    (0..PAGES).for_each(|page| at(page).write(page as u8));
                }
                0
            });
            assert!(status.success());
            // SAFETY: the peer is gone.
            let bytes = unsafe { chunk.slice_mut() };
            assert!((0..PAGES).all(|page| bytes[page * SIZE.bytes()] == page as u8));
        }
    });
}

#[test]
fn a_read_only_peer_can_only_read() {
    for_each_page_size(2, |size, pages| {
        let arena = open(size, pages);
        let (ours, theirs) = pair();
        arena.share_read_only(&ours).unwrap();
        let view = View::receive(&theirs).unwrap();
        assert!(!view.is_writable());
        let at = view.get(0, 1).unwrap().cast::<u8>();
        // SAFETY: both are this process's; the child writes where it must not, and ends.
        unsafe {
            arena.claim(1).unwrap().as_ptr().write(3);
            assert_eq!(at.read(), 3);
        }
        let (again, theirs) = pair();
        arena.share_read_only(&again).unwrap();
        let status = fork(|| {
            let view = View::receive(&theirs).unwrap();
            // SAFETY: as above.
            unsafe { view.get(0, 1).unwrap().cast::<u8>().write(1) };
            0
        });
        assert_eq!(status.signal(), Some(libc::SIGSEGV));
    });
}

#[test]
fn peers_of_a_sealed_arena_can_only_read_and_take_nothing_out() {
    for_each_page_size(2, |size, pages| {
        for populate in [Populate::Eager, Populate::Lazy] {
            let builder = Arena::builder().page_size(size).capacity(pages * size.bytes()).strict();
            let arena = builder.populate(populate).read_only_peers().open().unwrap();
            assert!(arena.obtained().read_only_peers && !arena.peers_can_write());
            let mut chunk = arena.claim(pages).unwrap();
            chunk.as_mut_slice().unwrap()[..4].copy_from_slice(b"ours");
            let (ours, theirs) = pair();
            arena.share(&ours).unwrap();
            let view = View::receive(&theirs).unwrap();
            assert!(!view.is_writable());
            // SAFETY: nobody writes while we read.
            assert_eq!(unsafe { &view.get(0, 4).unwrap().as_ref()[..4] }, b"ours");
            // By the descriptor, or by one that is opened anew.
            let fd = arena.file_regions().next().unwrap().fd().as_raw_fd();
            let again = File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"));
            for fd in [fd, again.as_ref().unwrap().as_raw_fd()] {
                let (len, rw) = (size.bytes(), libc::PROT_READ | libc::PROT_WRITE);
                // SAFETY: they change nothing if they fail, which they have to.
                unsafe {
                    let at = libc::mmap(std::ptr::null_mut(), len, rw, libc::MAP_SHARED, fd, 0);
                    assert_eq!(at, libc::MAP_FAILED);
                    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    assert_eq!(libc::fallocate(fd, punch, 0, len as libc::off_t), -1);
                    assert_eq!(libc::ftruncate(fd, 0), -1);
                }
            }
            assert_eq!(chunk.as_slice().unwrap()[..4], *b"ours");
            // A forked child has not the memory, and gets no slice of it.
            assert!(fork(|| i32::from(chunk.as_slice().is_some())).success());
        }
    });
    let hugetlbfs = BackingKind::Hugetlbfs { dir: None };
    let builder = Arena::builder().capacity(1).read_only_peers();
    for builder in [builder.clone().backing(hugetlbfs), builder.max_capacity(4 << 20)] {
        assert_eq!(builder.open().unwrap_err().operation(), Operation::Configure);
    }
}

/// SIGKILL for the process that calls this.
fn die() -> ! {
    // SAFETY: ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!()
}

#[test]
fn either_side_may_die() {
    for_each_page_size(2, |size, pages| {
        // The owner.
        let (ours, theirs) = pair();
        let status = fork(|| {
            let arena = open(size, pages);
            let mut chunk = arena.claim(1).unwrap();
            // SAFETY: no peer yet.
            unsafe { chunk.slice_mut()[..100].fill(0x33) };
            arena.share(&theirs).unwrap();
            send_range(&theirs, chunk.offset(), chunk.len());
            die()
        });
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        let view = View::receive(&ours).unwrap();
        let (offset, len) = receive_range(&ours);
        // SAFETY: nobody else has it any more.
        assert!(is_filled(&unsafe { view.get(offset, len).unwrap().as_ref() }[..100], 0x33));
        drop(theirs);
        assert!(View::receive(&ours).unwrap_err().to_string().contains("closed"));
        drop(view);
        // The peer.
        let arena = open(size, pages);
        let (ours, theirs) = pair();
        arena.share(&ours).unwrap();
        let status = fork(|| {
            let view = View::receive(&theirs).unwrap();
            // SAFETY: the owner waits.
            unsafe { view.get(0, 1).unwrap().cast::<u8>().write(9) };
            die()
        });
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        // SAFETY: the peer is gone.
        assert_eq!(unsafe { arena.claim(pages).unwrap().as_ptr().read() }, 9);
    });
}

#[test]
fn a_peer_of_a_named_arena_does_not_own_it() {
    Child::new().needs_pages(PageSize::HUGE_2M, 3).in_mount_namespace().run(|| {
        let (mount, records) = (Mounted::hugetlbfs(PageSize::HUGE_2M, "", 0), TempDir::new());
        let kind = BackingKind::Hugetlbfs { dir: Some(mount.path().into()) };
        let open = || {
            let builder = Arena::builder().name("x").record_dir(records.path()).backing(kind.clone());
            builder.capacity(2 << 20).open()
        };
        let (ours, theirs) = pair();
        let status = fork(|| {
            let arena = open().unwrap();
            // SAFETY: no peer yet.
            unsafe { arena.claim(1).unwrap().slice_mut()[5] = 5 };
            arena.share(&theirs).unwrap();
            arena.share_read_only(&theirs).unwrap();
            die()
        });
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        let (both, only) = (View::receive(&ours).unwrap(), View::receive(&ours).unwrap());
        assert!(both.is_writable() && !only.is_writable());
        let next = open().unwrap();
        // SAFETY: nobody writes.
        assert_eq!(unsafe { only.get(5, 1).unwrap().cast::<u8>().read() }, 5);
        assert_eq!(next.stats().dirty, 1);
        drop((next, both, only));
        arena::remove_from(records.path(), "x").unwrap();
    });
}

#[test]
fn what_else_comes_with_a_message_is_closed() {
    let arena = open(PageSize::base(), 4);
    let (ours, theirs) = pair();
    let (yes, len) = (&1 as *const i32, size_of::<i32>() as libc::socklen_t);
    // 76: SO_PASSPIDFD, a descriptor of the sender's process with each message; older kernels do not know it.
    for option in [libc::SO_PASSCRED, libc::SO_PASSSEC, 76] {
        // SAFETY: the call reads a live integer.
        unsafe { libc::setsockopt(theirs.as_raw_fd(), libc::SOL_SOCKET, option, yes.cast(), len) };
    }
    let before = support::descriptors();
    for _ in 0..50 {
        arena.share(&ours).unwrap();
        drop(View::receive(&theirs).unwrap());
    }
    // Other tests open and close some meanwhile.
    assert!(support::descriptors() < before + 40, "{before} descriptors, and {} now", support::descriptors());
}

#[test]
fn anonymous_memory_and_closed_sockets_are_errors() {
    // A child that another test forks has copies of the sockets, which are not closed then.
    let _lock = PoolLock::take();
    let private = Arena::builder().page_size(PageSize::base()).capacity(4096).backing(BackingKind::Anonymous);
    let (ours, theirs) = pair();
    for result in [private.clone().open().unwrap().share(&ours), private.open().unwrap().share_read_only(&ours)] {
        let error = result.unwrap_err();
        assert!(error.operation() == Operation::Share && error.to_string().contains("anonymous"), "{error}");
    }
    ours.set_nonblocking(true).unwrap();
    assert!(View::receive(&ours).unwrap_err().os_error().is_some());
    drop(theirs);
    assert!(open(PageSize::base(), 1).share(&ours).unwrap_err().os_error().is_some(), "and no SIGPIPE");
}

/// What a peer may send instead.
struct Forged {
    message: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Forged {
    /// As `Arena::share` says it.
    fn honest(size: u64, len: u64, fd: OwnedFd) -> Forged {
        let numbers = [size.to_le_bytes(), len.to_le_bytes()].concat();
        Forged { message: [&b"HUGESHAR\x01\0\0\0\0\0\0\0"[..], &numbers].concat(), fds: vec![fd] }
    }

    fn changed(mut self, at: usize, byte: u8) -> Forged {
        self.message[at] = byte;
        self
    }

    fn send(&self, socket: &UnixStream) {
        let mut control = [0u64; 32];
        let fds: Vec<RawFd> = self.fds.iter().map(AsRawFd::as_raw_fd).collect();
        let mut part = libc::iovec { iov_base: self.message.as_ptr().cast_mut().cast(), iov_len: self.message.len() };
        // SAFETY: buffers that live through the call; the control buffer is aligned and long enough for sixty.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
            if !fds.is_empty() {
                let bytes = size_of_val(&fds[..]) as u32;
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
                fds.as_ptr().copy_to_nonoverlapping(libc::CMSG_DATA(header).cast(), fds.len());
            }
            assert_eq!(libc::sendmsg(socket.as_raw_fd(), &message, 0), self.message.len() as isize);
        }
    }
}

/// A memfd of that length, sealed if wanted.
fn memfd(len: u64, sealed: bool) -> OwnedFd {
    // SAFETY: a C string; a fresh descriptor; seals of our own file.
    let file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        File::from_raw_fd(libc::memfd_create(c"forged".as_ptr(), flags))
    };
    file.set_len(len).unwrap();
    if sealed {
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    }
    file.into()
}

/// Seals that are set after the arena was mapped leave it writable there, and nowhere else.
#[test]
fn a_file_that_is_sealed_against_writing_is_received_for_reading() {
    for seal in [libc::F_SEAL_FUTURE_WRITE, libc::F_SEAL_WRITE] {
        let base = PageSize::base().bytes() as u64;
        let file = memfd(base, true);
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seal) }, 0);
        let (ours, theirs) = pair();
        Forged::honest(base, base, file).send(&theirs);
        let view = View::receive(&ours).unwrap();
        assert!(!view.is_writable() && view.get(0, 1).is_some());
    }
}

#[test]
fn nothing_that_a_peer_says_is_believed() {
    let _guard = PoolUnchanged::begin();
    let base = PageSize::base().bytes() as u64;
    let good = || Forged::honest(base, 4 * base, memfd(4 * base, true));
    let file = |path: &str| OwnedFd::from(File::open(path).unwrap());
    let pipe = || OwnedFd::from(pair().0);
    let short = || Forged { message: good().message[..20].to_vec(), fds: good().fds };
    let temp = std::env::temp_dir().join(format!("hugearena-share-{}", std::process::id()));
    std::fs::write(&temp, vec![0; 4096]).unwrap();
    let cases: Vec<(&str, Forged)> = vec![
        ("no arena", good().changed(0, b'X')),
        ("version 2", good().changed(8, 2)),
        ("no page size", good().changed(16, 1)),
        ("not on pages", Forged::honest(2 << 20, 2 << 20, memfd(2 << 20, true))),
        ("another length", Forged::honest(base, 8 * base, memfd(4 * base, true))),
        ("another length", Forged::honest(base, u64::MAX, memfd(4 * base, true))),
        ("no whole pages", Forged::honest(base, base + 1, memfd(base + 1, true))),
        ("not sealed", Forged::honest(base, base, memfd(base, false))),
        ("not exactly one", Forged { fds: vec![], ..good() }),
        ("not exactly one", Forged { fds: vec![memfd(base, true), memfd(base, true)], ..good() }),
        ("not exactly one", Forged { fds: (0..9).map(|_| memfd(base, true)).collect(), ..good() }),
        (
            "descriptors that came with it were lost",
            Forged { fds: (0..55).map(|_| memfd(base, true)).collect(), ..good() },
        ),
        ("0 pages", Forged::honest(base, 0, memfd(0, true))),
        ("", Forged::honest(base, base, file("/dev/zero"))),
        ("", Forged::honest(base, base, file("/proc/self/maps"))),
        ("", Forged::honest(base, base, file("/"))),
        ("", Forged::honest(base, base, pipe())),
        ("not sealed", Forged::honest(base, 4096, file(temp.to_str().unwrap()))),
        ("", short()),
    ];
    let before = descriptors();
    let count = cases.len();
    for (case, (reason, forged)) in cases.into_iter().enumerate() {
        let (ours, theirs) = pair();
        forged.send(&theirs);
        drop((theirs, forged));
        let error = View::receive(&ours).unwrap_err();
        assert!(error.to_string().contains(reason), "case {case} of {count}: {error}");
    }
    assert!(descriptors() < before, "every descriptor that came is closed");
    let (ours, theirs) = pair();
    good().send(&theirs);
    assert_eq!(View::receive(&ours).unwrap().len() as u64, 4 * base);
    good().send(&theirs);
    assert!(View::receive_at_most(&ours, 4 * base as usize - 1).unwrap_err().to_string().contains("more than"));
    std::fs::remove_file(temp).unwrap();
}

#[test]
fn a_region_is_the_same_memory_for_whoever_maps_it() {
    for_each_page_size(3, |size, pages| {
        let arena = open(size, pages);
        let all: Vec<_> = arena.file_regions().collect();
        assert_eq!(all.len(), 1, "one file, however many pages");
        let (whole, bytes) = (all[0], size.bytes());
        assert_eq!((whole.offset(), whole.len(), whole.page_size()), (0, pages * bytes, size));
        let _first = arena.claim(1).unwrap();
        let mut chunk = arena.claim(1).unwrap();
        // SAFETY: no peer yet.
        unsafe { chunk.slice_mut()[bytes - 4096..].fill(0x33) };
        let region = chunk.file_region().unwrap();
        assert_eq!((region.offset(), region.len(), region.as_ptr()), (chunk.offset(), chunk.len(), chunk.as_ptr()));
        assert_eq!(region.offset() % bytes, 0);
        assert_ne!(region.offset(), 0);
        let (read_write, offset) = (libc::PROT_READ | libc::PROT_WRITE, region.offset() as libc::off_t);
        // SAFETY: a new mapping at an address of the kernel's choice, looked at by nobody else, unmapped at the end.
        unsafe {
            let fd = region.fd().as_raw_fd();
            let at = libc::mmap(std::ptr::null_mut(), region.len(), read_write, libc::MAP_SHARED, fd, offset);
            assert_ne!(at, libc::MAP_FAILED);
            let there = at.cast::<u8>();
            assert!(is_filled(std::slice::from_raw_parts(there.add(bytes - 4096), 4096), 0x33));
            there.write(0x44);
            assert_eq!(region.as_ptr().read(), 0x44);
            // It cannot be cut short.
            assert_eq!(libc::ftruncate(fd, 0), -1);
            assert_eq!(libc::munmap(at, region.len()), 0);
        }
    });
}

#[test]
fn anonymous_memory_has_no_regions() {
    let builder = Arena::builder().page_size(PageSize::base()).capacity(1 << 20);
    let arena = builder.backing(BackingKind::Anonymous).open().unwrap();
    assert_eq!(arena.file_regions().len(), 0);
    assert!(arena.claim(1).unwrap().file_region().is_none());
}

#[test]
fn regions_leave_out_pages_that_the_arena_has_not() {
    let page = PageSize::base().bytes();
    let arena = Arena::builder().page_size(PageSize::base()).capacity(4 * page).max_capacity(8 * page).open().unwrap();
    let regions = |arena: &Arena| -> Vec<_> {
        arena.file_regions().map(|region| (region.offset() / page, region.len() / page)).collect()
    };
    assert_eq!(regions(&arena), [(0, 4)]);
    let mut chunks: Vec<_> = (0..4).map(|_| arena.claim(1).unwrap()).collect();
    chunks.sort_by_key(|chunk| chunk.offset());
    drop(chunks.remove(1));
    assert_eq!(arena.trim().unwrap(), 1);
    assert_eq!(regions(&arena), [(0, 1), (2, 2)]);
    assert!(arena.file_regions().all(|region| chunks.iter().any(|chunk| chunk.as_ptr() == region.as_ptr())));
    drop(chunks);
    arena.trim().unwrap();
    assert_eq!(arena.file_regions().len(), 0);
}
