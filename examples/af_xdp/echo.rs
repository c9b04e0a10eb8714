//! An echo on AF_XDP: every frame goes back to where it came from, from where it was received.

use std::error::Error;
use std::num::NonZeroU32;

use hugearena::pool::Pool;
use hugearena::supply;
use xdpilone::xdp::{XdpDesc, XdpStatisticsV2};
use xdpilone::{DeviceQueue, IfInfo, RingRx, RingTx, Socket, SocketConfig, Umem, UmemConfig, User};

use crate::frames::{FRAME, Frames};

/// Entries of each ring; a power of two.
const RING: u32 = 1024;
/// Frames that are handled at once.
const BURST: u32 = 64;

/// An AF_XDP socket on queue 0 of an interface, in copy mode, whose frames are those of a pool.
pub struct Echo {
    rx: RingRx,
    tx: RingTx,
    device: DeviceQueue,
    user: User,
    /// Received and not yet on their way back.
    received: Vec<XdpDesc>,
    /// After everything that has the socket: the memory has to outlive it.
    frames: Frames,
}

impl Echo {
    /// Binds to `interface` of this thread's namespace. The objects of the pool are frames, see [`Frames`].
    pub fn bind(interface: &str, pool: Pool) -> Result<Echo, Box<dyn Error>> {
        let frames = Frames::new(pool);
        let config =
            UmemConfig { fill_size: RING, complete_size: RING, frame_size: FRAME as u32, headroom: 0, flags: 0 };
        let memory = frames.umem();
        // SAFETY: one page-aligned range, which outlives the sockets: the frames keep it, and are dropped after them.
        let umem = unsafe { Umem::new(config, memory) }.map_err(|error| refused(memory.len(), error.get_raw()))?;
        let failed = |what: &'static str| move |error: xdpilone::Errno| format!("AF_XDP, {what}: {error}");
        let mut info = IfInfo::invalid();
        info.from_name(&std::ffi::CString::new(interface)?).map_err(failed("the interface"))?;
        let socket = Socket::with_shared(&info, &umem).map_err(failed("the socket"))?;
        let device = umem.fq_cq(&socket).map_err(failed("the fill and completion rings"))?;
        let size = NonZeroU32::new(RING);
        let bind_flags = SocketConfig::XDP_BIND_COPY | SocketConfig::XDP_BIND_NEED_WAKEUP;
        let config = SocketConfig { rx_size: size, tx_size: size, bind_flags };
        let user = umem.rx_tx(&socket, &config).map_err(failed("the rings"))?;
        let (rx, tx) = (user.map_rx().map_err(failed("RX"))?, user.map_tx().map_err(failed("TX"))?);
        umem.bind(&user).map_err(failed("bind"))?;
        Ok(Echo { rx, tx, device, user, received: Vec::with_capacity(BURST as usize), frames })
    }

    /// For a program to redirect packets to.
    pub fn as_raw_fd(&self) -> i32 {
        self.user.as_raw_fd()
    }

    /// One turn of the poll loop: sends back what has come; returns how many frames. No allocation, no page fault.
    pub fn poll(&mut self) -> usize {
        self.refill();
        if self.received.is_empty() {
            self.receive();
        }
        let sent = self.send();
        self.reap();
        sent
    }

    fn receive(&mut self) {
        let mut reader = self.rx.receive(BURST);
        self.received.extend(reader.by_ref());
        reader.release();
        drop(reader);
        // What is not a frame of ours is not sent.
        self.received.retain(|at| match self.frames.received(at.addr, at.len) {
            Some(frame) => {
                swap_addresses(frame);
                true
            }
            None => false,
        });
    }

    /// What the ring does not take now, because it is full or looks so to the cached end of it, goes the next time.
    fn send(&mut self) -> usize {
        if self.received.is_empty() {
            return 0;
        }
        let mut writer = self.tx.transmit(self.received.len() as u32);
        let room = writer.capacity() as usize;
        writer.insert(self.received.drain(..room).map(|at| {
            self.frames.send(at.addr);
            XdpDesc { options: 0, ..at }
        }));
        writer.commit();
        room
    }

    /// Waits until something comes, 10 ms at most.
    pub fn wait(&mut self) {
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live struct.
        unsafe { libc::poll(&raw mut poll, 1, 10) };
    }

    /// What the socket itself says about frames that it dropped.
    pub fn statistics(&self) -> Result<XdpStatisticsV2, Box<dyn Error>> {
        self.user.statistics_v2().map_err(|error| format!("AF_XDP statistics: {error}").into())
    }

    /// Gives the kernel frames to receive into.
    fn refill(&mut self) {
        let mut writer = self.device.fill(BURST);
        let room = writer.capacity() as usize;
        writer.insert(self.frames.lend(room));
        writer.commit();
        drop(writer);
        if self.device.needs_wakeup() {
            self.device.wake();
        }
    }

    /// Has the kernel send what is in the ring, and takes the frames that it is done with.
    fn reap(&mut self) {
        // In copy mode the kernel sends while it is called, some 32 frames each time.
        if self.frames.sending() > 0 && (self.tx.pending() > 0 || self.tx.needs_wakeup()) {
            self.tx.wake();
        }
        let mut reader = self.device.complete(RING);
        reader.by_ref().for_each(|addr| self.frames.sent(addr));
        reader.release();
    }
}

impl Drop for Echo {
    /// The kernel may read frames until it says that they are sent: wait for that. If it never does, those frames are
    /// nobody's for good, and keep the pool's memory. What it may write to is over when the socket is closed.
    fn drop(&mut self) {
        for _ in 0..30_000 {
            if self.frames.sending() == 0 {
                return;
            }
            self.reap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn swap_addresses(frame: &mut [u8]) {
    if let Some((to, rest)) = frame.split_first_chunk_mut::<6>()
        && let Some(from) = rest.first_chunk_mut::<6>()
    {
        std::mem::swap(to, from);
    }
}

/// The kernel says `ENOBUFS` when RLIMIT_MEMLOCK does not allow so much to be registered.
fn refused(umem_bytes: usize, errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno.abs());
    let limit = if errno.abs() == libc::ENOBUFS { supply::pin_limit(umem_bytes as u64) } else { None };
    let limit = limit.map_or(String::new(), |limit| format!("; {limit}"));
    format!("cannot register a UMEM of {umem_bytes} bytes: {error}{limit}")
}
