//! Two network namespaces and a veth pair between them; they live as long as the threads that are in them.

use std::error::Error;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

/// The end of the pair in the namespace of the sender, and that in the namespace of the echo.
pub const NEAR: &str = "near0";
pub const FAR: &str = "far0";

/// Moves this thread into a network namespace of its own, which ends with it. Needs `CAP_SYS_ADMIN`.
pub fn enter_own_namespace() -> io::Result<()> {
    // SAFETY: changes only which network this thread sees.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kernel's name for this thread, by which another one can put an interface into its namespace.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// Makes the pair: [`NEAR`] here, [`FAR`] in the namespace of the thread `far`.
pub fn make_pair(far: libc::pid_t) -> Result<(), Box<dyn Error>> {
    let one_queue = "numtxqueues 1 numrxqueues 1";
    ip(&format!("link add {NEAR} {one_queue} type veth peer name {FAR} {one_queue} netns {far}"))?;
    bring_up(NEAR)
}

pub fn bring_up(interface: &str) -> Result<(), Box<dyn Error>> {
    // The kernel's own announcements on a new interface would be packets that nobody counts.
    let quiet = format!("/proc/thread-self/root/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let _ = fs::write(quiet, "1");
    ip(&format!("link set {interface} up"))
}

/// ip(8), of iproute2, in this thread's namespace: a child starts where the thread is that starts it.
fn ip(arguments: &str) -> Result<(), Box<dyn Error>> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip(8): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// Packets that the interface itself dropped, receiving and sending, by its own account.
pub fn dropped(interface: &str) -> io::Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let numbers: Vec<u64> = line.unwrap_or_default().split_whitespace().flat_map(str::parse).collect();
    // Received: bytes, packets, errors, drops, four more; then the same for sent.
    Ok(numbers.get(3).unwrap_or(&0) + numbers.get(11).unwrap_or(&0))
}

/// A packet socket: whole Ethernet frames of one type, through the kernel, for the side that has nothing of ours.
#[derive(Debug)]
pub struct PacketSocket(fs::File);

impl PacketSocket {
    /// Of frames of `ethertype` on `interface`; [`receive`](Self::receive) waits for 200 ms.
    pub fn open(interface: u32, ethertype: u16) -> io::Result<PacketSocket> {
        let protocol = ethertype.to_be();
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol)) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all bits zero are a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = interface as i32;
        let wait = libc::timeval { tv_sec: 0, tv_usec: 200_000 };
        // The default holds 90 frames.
        let buffer: libc::c_int = 4 << 20;
        let set = |name, value: *const libc::c_void, length: usize| {
            // SAFETY: called below with live variables and their lengths.
            unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, value, length as u32) }
        };
        // SAFETY: the kernel reads a live struct of the length given.
        let result = unsafe {
            set(libc::SO_RCVTIMEO, (&raw const wait).cast(), size_of_val(&wait))
                | set(libc::SO_RCVBUFFORCE, (&raw const buffer).cast(), size_of_val(&buffer))
                | libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
        };
        if result == 0 { Ok(PacketSocket(fd.into())) } else { Err(io::Error::last_os_error()) }
    }

    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            match (&self.0).write(frame) {
                Ok(sent) if sent == frame.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                // The queue of the interface is full; it empties by itself.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next frame, or `None` when none came in time.
    pub fn receive<'a>(&self, room: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match (&self.0).read(room) {
            Ok(len) => Ok(Some(&room[..len])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frames that found no room in the socket's buffer since the last call.
    pub fn dropped(&self) -> io::Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of_val(&statistics) as u32;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: the kernel writes a struct of that length.
        let result = unsafe {
            let to = (&raw mut statistics).cast();
            libc::getsockopt(self.0.as_raw_fd(), level, option, to, &raw mut length)
        };
        if result == 0 { Ok(u64::from(statistics.tp_drops)) } else { Err(io::Error::last_os_error()) }
    }
}

/// The number of an interface in this thread's namespace.
pub fn index_of(interface: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}
