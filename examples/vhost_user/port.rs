//! A network port on two virtqueues: send a frame, receive a frame.

#![allow(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use crate::memory::{Memory, SLOT};
use crate::packet::LEN_MAX;
use crate::queue::{Broken, Direction, Queue, SIZE};
use crate::session::{Failed, Session, Woken};

/// `struct virtio_net_hdr_v1`: no checksum to fill in, no segmentation, one buffer.
const HEADER: [u8; 12] = [0; 12];
const _: () = assert!(HEADER.len() + LEN_MAX <= SLOT);

/// A connected port. Every buffer of the receive queue is the back end's, except while a frame is taken out of it.
pub struct Port<'a> {
    memory: &'a mut Memory,
    session: Session,
    receive: Queue,
    send: Queue,
    /// Buffers for sending that the back end does not have.
    free: Vec<u16>,
    /// What was sent since the last flush.
    unpublished: bool,
}

impl<'a> Port<'a> {
    /// Connects to a back end, with new queues: what the last one left in them is gone.
    pub fn connect(socket: &Path, memory: &'a mut Memory) -> Result<Port<'a>, Failed> {
        let (receive, send) = (queue(memory, Direction::FromDevice), queue(memory, Direction::ToDevice));
        let session = Session::open(socket, memory)?;
        let free = (0..SIZE).rev().collect();
        let mut port = Port { memory, session, receive, send, free, unpublished: false };
        port.receive.want_calls(false);
        port.send.want_calls(false);
        (0..SIZE).for_each(|id| port.lend_receive_buffer(id));
        port.publish_receive_buffers();
        Ok(port)
    }

    fn lend_receive_buffer(&mut self, id: u16) {
        self.receive.lend(id, self.memory.buffer(Direction::FromDevice, id));
    }

    fn publish_receive_buffers(&mut self) {
        if self.receive.publish() {
            self.session.kick(Direction::FromDevice);
        }
    }

    /// Hands at most `burst` frames to `each`, and their buffers back to the back end. Returns how many there were.
    pub fn receive(&mut self, burst: usize, mut each: impl FnMut(&[u8])) -> Result<usize, Broken> {
        let mut frame = [0; LEN_MAX];
        let mut count = 0;
        while count < burst {
            let Some(used) = self.receive.take()? else { break };
            // A length shorter than the header, or longer than any frame, is the back end's mistake: no frame at all.
            let len = (used.len as usize).saturating_sub(HEADER.len()).min(LEN_MAX);
            self.memory.read(Direction::FromDevice, used.id, HEADER.len(), &mut frame[..len]);
            each(&frame[..len]);
            self.lend_receive_buffer(used.id);
            count += 1;
        }
        if count > 0 {
            self.publish_receive_buffers();
        }
        Ok(count)
    }

    /// How many frames can be sent now.
    pub fn room(&mut self) -> Result<usize, Broken> {
        while let Some(used) = self.send.take()? {
            self.free.push(used.id);
        }
        Ok(self.free.len())
    }

    /// Queues a frame; false if there is no [room](Self::room). The back end sees it after [`flush`](Self::flush).
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let Some(id) = self.free.pop() else { return false };
        self.memory.write(Direction::ToDevice, id, 0, &HEADER);
        self.memory.write(Direction::ToDevice, id, HEADER.len(), frame);
        let buffer = self.memory.buffer(Direction::ToDevice, id);
        self.send.lend(id, crate::queue::Buffer { len: (HEADER.len() + frame.len()) as u32, ..buffer });
        self.unpublished = true;
        true
    }

    /// Lets the back end see what was sent.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unpublished) && self.send.publish() {
            self.session.kick(Direction::ToDevice);
        }
    }

    /// Sleeps until a frame came in or the back end is gone: for when there is nothing else to do.
    pub fn wait(&mut self, at_most: Duration) -> Woken {
        self.receive.want_calls(true);
        // What came in before the back end knew is not told, and waiting for the next would be a mistake.
        let woken = if self.receive.is_waiting() { Woken::Call } else { self.session.wait(at_most) };
        self.receive.want_calls(false);
        woken
    }

    /// An orderly end: see [`Session::stop`].
    pub fn stop(self) -> Result<(), Failed> {
        self.session.stop()
    }
}

fn queue(memory: &mut Memory, direction: Direction) -> Queue {
    // SAFETY: page-aligned memory of a chunk that outlives the port, which is the only one: it has the memory mutably.
    unsafe { Queue::new(memory.ring(direction), direction) }
}
