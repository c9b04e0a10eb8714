//! A UMEM in an arena, and an echo on it: every frame goes back to where it came from, from where it was received.

use std::error::Error;
use std::num::NonZeroU32;
use std::ptr::NonNull;

use hugearena::{Chunk, supply};
use xdpilone::xdp::{XdpDesc, XdpStatisticsV2};
use xdpilone::{DeviceQueue, IfInfo, RingRx, RingTx, Socket, SocketConfig, Umem, UmemConfig, User};

/// Room for one Ethernet frame of 1500 bytes behind 256 bytes that the kernel keeps for XDP programs.
const FRAME: u32 = 2048;
/// Entries of each ring; a power of two.
const RING: u32 = 1024;
/// Frames that are handled at once.
const BURST: u32 = 64;

/// An AF_XDP socket on queue 0 of an interface, in copy mode, whose frames are a chunk.
pub struct Echo {
    rx: RingRx,
    tx: RingTx,
    device: DeviceQueue,
    user: User,
    /// Frames that are neither in the fill ring nor on their way.
    free: Vec<u64>,
    /// Received and not yet on their way back.
    received: Vec<XdpDesc>,
    /// Frames that the kernel has for sending.
    sending: usize,
    /// After everything that has the socket: the memory has to outlive it. `None`: it is never given back.
    chunk: Option<Chunk>,
}

impl Echo {
    /// Binds to `interface` of this thread's namespace.
    pub fn bind(interface: &str, chunk: Chunk) -> Result<Echo, Box<dyn Error>> {
        let config = UmemConfig { fill_size: RING, complete_size: RING, frame_size: FRAME, headroom: 0, flags: 0 };
        let memory = NonNull::slice_from_raw_parts(chunk.as_ptr(), chunk.len());
        // SAFETY: one page-aligned range, which outlives the sockets: it is dropped after them, see `drop`.
        let umem = unsafe { Umem::new(config, memory) }.map_err(|error| refused(&chunk, error.get_raw()))?;
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
        let frames = chunk.len() as u64 / u64::from(FRAME);
        let free = (0..frames).map(|frame| frame * u64::from(FRAME)).collect();
        let received = Vec::with_capacity(BURST as usize);
        Ok(Echo { rx, tx, device, user, free, received, sending: 0, chunk: Some(chunk) })
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
        for index in 0..self.received.len() {
            let XdpDesc { addr, len, .. } = self.received[index];
            if let Some(frame) = self.frame(addr, len) {
                swap_addresses(frame);
            }
        }
    }

    /// What the ring does not take now, because it is full or looks so to the cached end of it, goes the next time.
    fn send(&mut self) -> usize {
        if self.received.is_empty() {
            return 0;
        }
        let mut writer = self.tx.transmit(self.received.len() as u32);
        let room = writer.capacity() as usize;
        writer.insert(self.received.drain(..room).map(|at| XdpDesc { options: 0, ..at }));
        writer.commit();
        self.sending += room;
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

    /// The bytes of a frame that the kernel has given us; `None` for what is not inside the chunk.
    fn frame(&mut self, addr: u64, len: u32) -> Option<&mut [u8]> {
        let chunk = self.chunk.as_ref()?;
        let (start, len) = (usize::try_from(addr).ok()?, len as usize);
        if start.checked_add(len)? > chunk.len() {
            return None;
        }
        // SAFETY: inside the chunk; the frame came out of the receive ring and is not in another one yet, so that
        // neither the kernel nor anybody else uses it.
        Some(unsafe { std::slice::from_raw_parts_mut(chunk.as_ptr().add(start).as_ptr(), len) })
    }

    /// Gives the kernel frames to receive into.
    fn refill(&mut self) {
        let mut writer = self.device.fill(self.free.len() as u32);
        let taken = writer.capacity() as usize;
        let keep = self.free.len() - taken.min(self.free.len());
        writer.insert(self.free.drain(keep..));
        writer.commit();
        drop(writer);
        if self.device.needs_wakeup() {
            self.device.wake();
        }
    }

    /// Has the kernel send what is in the ring, and takes the frames that it is done with.
    fn reap(&mut self) {
        // In copy mode the kernel sends while it is called, some 32 frames each time.
        if self.sending > 0 && (self.tx.pending() > 0 || self.tx.needs_wakeup()) {
            self.tx.wake();
        }
        let mut reader = self.device.complete(RING);
        let before = self.free.len();
        self.free.extend(reader.by_ref().map(frame_of));
        reader.release();
        self.sending -= self.free.len() - before;
    }
}

impl Drop for Echo {
    /// The kernel may read frames until it says that they are sent: wait for that, and if it never does, leave it the
    /// memory. What it may write to is over when the socket is closed.
    fn drop(&mut self) {
        for _ in 0..1000 {
            if self.sending == 0 {
                return;
            }
            self.reap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::mem::forget(self.chunk.take());
    }
}

/// The start of the frame that an address points into.
fn frame_of(addr: u64) -> u64 {
    addr & !u64::from(FRAME - 1)
}

fn swap_addresses(frame: &mut [u8]) {
    if let Some((to, rest)) = frame.split_first_chunk_mut::<6>()
        && let Some(from) = rest.first_chunk_mut::<6>()
    {
        std::mem::swap(to, from);
    }
}

/// The kernel says `ENOBUFS` when RLIMIT_MEMLOCK does not allow so much to be registered.
fn refused(chunk: &Chunk, errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno.abs());
    let limit = if errno.abs() == libc::ENOBUFS { supply::pin_limit(chunk.len() as u64) } else { None };
    let limit = limit.map_or(String::new(), |limit| format!("; {limit}"));
    format!("cannot register a UMEM of {} bytes: {error}{limit}", chunk.len())
}
