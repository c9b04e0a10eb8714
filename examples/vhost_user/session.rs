//! The front end's side of the vhost-user protocol: what the back end is told before packets flow, and after.
//!
//! Source: QEMU, `docs/interop/vhost-user.rst`.

#![allow(unsafe_code)]

use std::fmt;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use hugearena::arena::FileRegion;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::memory::{Memory, index};
use crate::queue::{self, Direction};

/// The queues: packets in, packets out.
pub const BOTH: [Direction; 2] = [Direction::FromDevice, Direction::ToDevice];
/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
/// A back end that answers nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The back end says that it used a buffer.
    Call,
    /// The back end closed the socket, or is dead.
    Gone,
    /// Neither, for the time given.
    Timeout,
}

/// A back end that knows our memory and our queues. Its socket closes when dropped: the back end then forgets both, at
/// some time. [`stop`](Self::stop) waits until it has.
pub struct Session {
    frontend: Frontend,
    /// The socket of the frontend, to shut it down by.
    stream: UnixStream,
    /// We tell it that buffers are available.
    kicks: [EventFd; 2],
    /// It tells us that buffers are used.
    calls: [EventFd; 2],
}

/// A step of the protocol that failed, and why.
#[derive(Debug)]
pub struct Failed {
    step: &'static str,
    why: String,
    /// The back end had closed the socket, or was not there: another one may come.
    pub is_gone: bool,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vhost-user, {}: {}", self.step, self.why)
    }
}

impl Session {
    /// Connects, agrees on features, and hands over the memory and the queues, which have to be empty.
    pub fn open(socket: &Path, memory: &Memory) -> Result<Session, Failed> {
        let stream = UnixStream::connect(socket).map_err(failed("connect"));
        let stream = stream.map_err(|failed| Failed { is_gone: true, ..failed })?;
        let ours = stream.try_clone().map_err(failed("connect"))?;
        Session::on(stream, memory).map_err(|failed| failed.on(&ours))
    }

    fn on(stream: UnixStream, memory: &Memory) -> Result<Session, Failed> {
        let _deadline = Deadline::new(&stream).map_err(failed("connect"))?;
        let mut frontend = Frontend::from_stream(stream.try_clone().map_err(failed("connect"))?, 2);
        negotiate(&mut frontend)?;
        let table: Vec<_> = memory.regions().iter().map(describe).collect();
        frontend.set_mem_table(&table).map_err(failed("SET_MEM_TABLE"))?;
        let kicks = event_fds().map_err(failed("eventfd"))?;
        let calls = event_fds().map_err(failed("eventfd"))?;
        let mut session = Session { frontend, stream, kicks, calls };
        for direction in BOTH {
            session.hand_over(direction, memory)?;
        }
        Ok(session)
    }

    fn hand_over(&mut self, direction: Direction, memory: &Memory) -> Result<(), Failed> {
        let (queue, frontend) = (index(direction), &mut self.frontend);
        // Rings are told by addresses of this process; the back end finds the region that each is in.
        let start = memory.ring(direction).addr().get() as u64;
        let config = VringConfigData {
            queue_max_size: queue::SIZE,
            queue_size: queue::SIZE,
            flags: 0,
            desc_table_addr: start,
            avail_ring_addr: start + queue::AVAILABLE as u64,
            used_ring_addr: start + queue::USED as u64,
            log_addr: None,
        };
        frontend.set_vring_num(queue, queue::SIZE).map_err(failed("SET_VRING_NUM"))?;
        frontend.set_vring_base(queue, 0).map_err(failed("SET_VRING_BASE"))?;
        frontend.set_vring_addr(queue, &config).map_err(failed("SET_VRING_ADDR"))?;
        frontend.set_vring_call(queue, &self.calls[queue]).map_err(failed("SET_VRING_CALL"))?;
        frontend.set_vring_kick(queue, &self.kicks[queue]).map_err(failed("SET_VRING_KICK"))?;
        frontend.set_vring_enable(queue, true).map_err(failed("SET_VRING_ENABLE"))
    }

    /// Tells the back end that a queue has buffers.
    pub fn kick(&self, direction: Direction) {
        // An event that is still unread says the same.
        let _ = self.kicks[index(direction)].write(1);
    }

    /// Waits until a packet came in or the back end is gone.
    pub fn wait(&self, at_most: Duration) -> Woken {
        let call = &self.calls[index(Direction::FromDevice)];
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [entry(self.frontend.as_raw_fd()), entry(call.as_raw_fd())];
        // SAFETY: two entries, as said.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, at_most.as_millis() as i32) };
        let _ = call.read();
        // Between requests a back end says nothing: whatever it is, it is the end.
        match fds.map(|fd| fd.revents != 0) {
            [true, _] => Woken::Gone,
            [_, true] => Woken::Call,
            _ => Woken::Timeout,
        }
    }

    /// Stops both queues. When this returns without an error, the back end does not touch the memory any more.
    pub fn stop(self) -> Result<(), Failed> {
        let _deadline = Deadline::new(&self.stream).map_err(failed("GET_VRING_BASE"))?;
        for direction in BOTH {
            let base = self.frontend.get_vring_base(index(direction)).map_err(failed("GET_VRING_BASE"));
            base.map_err(|failed| failed.on(&self.stream))?;
        }
        Ok(())
    }
}

fn negotiate(frontend: &mut Frontend) -> Result<(), Failed> {
    let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    let offered = frontend.get_features().map_err(failed("GET_FEATURES"))?;
    let wanted = VERSION_1 | protocol;
    if offered & wanted != wanted {
        let why = format!("{offered:#x} offered, {wanted:#x} needed");
        return Err(Failed { step: "GET_FEATURES", why, is_gone: false });
    }
    frontend.set_owner().map_err(failed("SET_OWNER"))?;
    let offered = frontend.get_protocol_features().map_err(failed("GET_PROTOCOL_FEATURES"))?;
    // With it a back end answers whether it could map the memory.
    let acked = offered & VhostUserProtocolFeatures::REPLY_ACK;
    frontend.set_protocol_features(acked).map_err(failed("SET_PROTOCOL_FEATURES"))?;
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend.set_features(wanted).map_err(failed("SET_FEATURES"))
}

/// A region, as the table of them has it. Guest addresses, which descriptors use, are offsets in the arena.
fn describe(region: &FileRegion<'_>) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: region.offset() as u64,
        memory_size: region.len() as u64,
        userspace_addr: region.as_ptr().addr().get() as u64,
        mmap_offset: region.offset() as u64,
        mmap_handle: region.fd().as_raw_fd(),
    }
}

fn event_fds() -> std::io::Result<[EventFd; 2]> {
    Ok([EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?])
}

fn failed<E: fmt::Display>(step: &'static str) -> impl FnOnce(E) -> Failed {
    move |error| Failed { step, why: error.to_string(), is_gone: false }
}

impl Failed {
    /// Looks whether the back end has closed the socket. It may also be the end that `vhost` saw and took away.
    fn on(self, stream: &UnixStream) -> Failed {
        let mut end = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one entry, as said.
        let is_gone = unsafe { libc::poll(&raw mut end, 1, 0) } > 0;
        Failed { is_gone, ..self }
    }
}

/// Shuts a socket down after [`PATIENCE`], unless dropped before: `vhost` waits for answers without end, and takes the
/// timeout of a socket for a reason to try again.
struct Deadline(#[expect(dead_code, reason = "dropping it is the message")] mpsc::Sender<()>);

impl Deadline {
    fn new(stream: &UnixStream) -> std::io::Result<Deadline> {
        let stream = stream.try_clone()?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
        Ok(Deadline(sender))
    }
}
