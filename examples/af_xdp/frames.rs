//! The frames of a UMEM: objects of a pool, of which the kernel has some.

use std::ptr::NonNull;

use hugearena::pool::{Pool, PoolCache};

/// Room for one Ethernet frame of 1500 bytes behind 256 bytes that the kernel keeps for XDP programs.
pub const FRAME: usize = 2048;

/// Who has a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// The pool, or somebody else who got it from there.
    Pool,
    /// The kernel, to receive into; or we, between what came and what goes.
    Receiver,
    /// The kernel, to send from.
    Sender,
}

/// Says who has which frame, so that what the kernel names is checked, and every frame goes home in the end: but those
/// that the kernel was to send and never said that it did, which nobody gets any more.
pub struct Frames {
    pool: Pool,
    cache: PoolCache,
    holders: Vec<Holder>,
    room: Vec<NonNull<u8>>,
    /// Frames that the kernel has for sending.
    sending: usize,
}

// SAFETY: the pointers are those of frames, which belong to no thread.
unsafe impl Send for Frames {}

impl Frames {
    /// All frames of a pool whose objects are [`FRAME`] bytes at multiples of that.
    pub fn new(pool: Pool) -> Frames {
        let cache = pool.cache(256);
        let (holders, room) = (vec![Holder::Pool; pool.count()], vec![NonNull::dangling(); pool.count()]);
        Frames { pool, cache, holders, room, sending: 0 }
    }

    /// One contiguous range, aligned to pages: what a UMEM is.
    pub fn umem(&self) -> NonNull<[u8]> {
        self.pool.memory()
    }

    /// Gives the kernel up to `count` frames to receive into, as addresses in the UMEM.
    pub fn lend(&mut self, count: usize) -> impl Iterator<Item = u64> {
        let Frames { pool, cache, holders, room, .. } = self;
        let count = cache.get_raw_burst(&mut room[..count]);
        let start = pool.memory().addr().get();
        room[..count].iter().map(move |frame| {
            let index = pool.index_of(*frame).expect("a frame of the pool");
            holders[index as usize] = Holder::Receiver;
            (frame.addr().get() - start) as u64
        })
    }

    /// The bytes that came into a frame; `None` for an address that is not in a frame which the kernel has for that.
    pub fn received(&mut self, addr: u64, len: u32) -> Option<&mut [u8]> {
        let (index, within) = self.find(addr, Holder::Receiver)?;
        let len = (len as usize).min(FRAME - within);
        // SAFETY: inside the frame; it came out of the receive ring and is in no other one yet, so that neither the
        // kernel nor anybody else uses it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pool.start_of(index)?.add(within).as_ptr(), len) })
    }

    /// Notes that a frame which came is on its way out again.
    pub fn send(&mut self, addr: u64) {
        if let Some((index, _)) = self.find(addr, Holder::Receiver) {
            self.holders[index as usize] = Holder::Sender;
            self.sending += 1;
        }
    }

    /// Takes a frame back that the kernel has sent.
    pub fn sent(&mut self, addr: u64) {
        if let Some((index, _)) = self.find(addr, Holder::Sender) {
            self.sending -= 1;
            self.take_home(index);
        }
    }

    pub fn sending(&self) -> usize {
        self.sending
    }

    fn find(&self, addr: u64, holder: Holder) -> Option<(u32, usize)> {
        let offset = usize::try_from(addr).ok()?.checked_add(self.pool.offset())?;
        self.pool.object_at(offset).filter(|(index, _)| self.holders[*index as usize] == holder)
    }

    fn take_home(&mut self, index: u32) {
        self.holders[index as usize] = Holder::Pool;
        let frame = self.pool.start_of(index).expect("a frame of the pool");
        // SAFETY: a frame that `lend` got as a raw pointer, and that the kernel is done with.
        unsafe { self.cache.put_raw(&[frame]) };
    }
}

impl Drop for Frames {
    /// After the socket: what the kernel had for receiving is nobody's then.
    fn drop(&mut self) {
        for index in 0..self.holders.len() {
            if self.holders[index] == Holder::Receiver {
                self.take_home(index as u32);
            }
        }
    }
}
