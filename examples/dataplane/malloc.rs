//! The same ends on buffers of libc malloc: what the pool is compared with.

#![allow(unsafe_code)]

use hugearena::ring::{self, Consumer, Producer};

use crate::lane::{BURST, Back, Front};

const RING: usize = 256;
const BUFFER_BYTES: usize = 1536 + 128;

/// A block of libc malloc; leaked, not freed, when dropped.
pub struct Block(*mut u8);

// SAFETY: malloc's blocks may be used and freed by any thread.
unsafe impl Send for Block {}

pub struct MallocFront(Producer<usize>);
pub struct MallocBack(Consumer<usize>);

pub fn malloc() -> hugearena::Result<(MallocFront, MallocBack)> {
    let (producer, consumer) = ring::spsc(RING)?;
    Ok((MallocFront(producer), MallocBack(consumer)))
}

impl Front for MallocFront {
    type Buffer = Block;

    fn get(&mut self, count: usize, into: &mut Vec<Block>) {
        into.extend((0..count).map(|_| {
            // SAFETY: no preconditions.
            let block: *mut u8 = unsafe { libc::malloc(BUFFER_BYTES) }.cast();
            assert!(!block.is_null(), "out of memory");
            Block(block)
        }));
    }

    fn bytes(buffer: &mut Block) -> &mut [u8] {
        // SAFETY: the buffer is that long and ours; the packet's header is written before it is read.
        unsafe { std::slice::from_raw_parts_mut(buffer.0, BUFFER_BYTES) }
    }

    fn send(&mut self, burst: &mut Vec<Block>) -> usize {
        let mut addresses = [0; BURST];
        for (address, block) in addresses.iter_mut().zip(&*burst) {
            *address = block.0.expose_provenance();
        }
        let sent = self.0.enqueue_burst(&addresses[..burst.len()]);
        burst.drain(..sent);
        sent
    }
}

impl Back for MallocBack {
    type Buffer = Block;

    fn receive(&mut self, count: usize, into: &mut Vec<Block>) {
        let mut addresses = [0; BURST];
        let received = self.0.dequeue_burst(&mut addresses[..count]);
        into.extend(addresses[..received].iter().map(|address| Block(std::ptr::with_exposed_provenance_mut(*address))));
    }

    fn bytes(buffer: &Block) -> &[u8] {
        // SAFETY: as above; its header was written by the sender.
        unsafe { std::slice::from_raw_parts(buffer.0, BUFFER_BYTES) }
    }

    fn put(&mut self, burst: &mut Vec<Block>) {
        for block in burst.drain(..) {
            // SAFETY: a block of malloc, which nobody uses any more.
            unsafe { libc::free(block.0.cast()) };
        }
    }
}
