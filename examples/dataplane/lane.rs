//! The data plane itself: two poll loops, and what lies between them. This is the part to copy.

use std::time::{Duration, Instant};

use hugearena::backing::BackingKind;
use hugearena::pool::{self, Pool, PoolBox, PoolCache, Receiver, Sender};
use hugearena::{Arena, PageSize};

use crate::gaps::Gaps;
use crate::packet;

/// Packets handled at once. Large enough to pay for what is done once a burst, small enough to stay in the level-1 cache.
pub const BURST: usize = 32;
/// What lies between the loops: 8 bursts. Longer rings only make more packets wait, and fall out of the cache.
const RING: usize = 256;
/// Objects that a loop has at hand.
const CACHE: usize = 256;
/// Both caches, the ring, and what both loops have in hand.
const BUFFERS: usize = 2 * CACHE + RING + 2 * BURST;
/// A packet of an Ethernet frame's length, and room in front for a tunnel's headers.
const BUFFER_BYTES: usize = 1536;
const HEADROOM: usize = 128;

/// What the loop that receives has to do with its buffers.
pub trait Front: Send {
    type Buffer;
    /// Gets up to `count` free buffers.
    fn get(&mut self, count: usize, into: &mut Vec<Self::Buffer>);
    /// The buffer's bytes.
    fn bytes(buffer: &mut Self::Buffer) -> &mut [u8];
    /// Passes on what the ring has room for; the rest stays.
    fn send(&mut self, burst: &mut Vec<Self::Buffer>) -> usize;
}

/// What the loop that works has to do with its buffers.
pub trait Back: Send {
    type Buffer;
    /// Takes up to `count` buffers that were sent.
    fn receive(&mut self, count: usize, into: &mut Vec<Self::Buffer>);
    /// The buffer's bytes.
    fn bytes(buffer: &Self::Buffer) -> &[u8];
    /// Gives the buffers back.
    fn put(&mut self, burst: &mut Vec<Self::Buffer>);
}

pub struct PoolFront {
    cache: PoolCache,
    sender: Sender,
}

pub struct PoolBack {
    cache: PoolCache,
    receiver: Receiver,
}

/// Both ends on a pool in an arena of private memory, so that packets are plain slices. An arena that a device or a
/// process shares gives pointers instead.
pub fn pool(page_size: PageSize) -> hugearena::Result<(Pool, PoolFront, PoolBack)> {
    let options = Pool::builder().object_size(BUFFER_BYTES).headroom(HEADROOM).count(BUFFERS);
    let arena = Arena::builder().page_size(page_size).backing(BackingKind::Anonymous);
    let pool = options.build(&arena.capacity(options.bytes_needed()?).open()?)?;
    let (sender, receiver) = pool::channel(RING)?;
    let front = PoolFront { cache: pool.cache(CACHE), sender };
    let back = PoolBack { cache: pool.cache(CACHE), receiver };
    Ok((pool, front, back))
}

impl Front for PoolFront {
    type Buffer = PoolBox;

    fn get(&mut self, count: usize, into: &mut Vec<PoolBox>) {
        self.cache.get_burst(count, into);
    }

    fn bytes(buffer: &mut PoolBox) -> &mut [u8] {
        buffer.as_mut_slice().expect("private memory")
    }

    fn send(&mut self, burst: &mut Vec<PoolBox>) -> usize {
        self.sender.send_burst(burst)
    }
}

impl Back for PoolBack {
    type Buffer = PoolBox;

    fn receive(&mut self, count: usize, into: &mut Vec<PoolBox>) {
        self.receiver.receive_burst(count, into);
    }

    fn bytes(buffer: &PoolBox) -> &[u8] {
        buffer.as_slice().expect("private memory")
    }

    fn put(&mut self, burst: &mut Vec<PoolBox>) {
        self.cache.put_all(burst.drain(..));
    }
}

/// What else a loop does, a little in each turn.
pub trait Background: Send {
    /// `started` is when this turn of the loop began.
    fn turn(&mut self, started: Instant);
    /// Whether the gaps of this moment count.
    fn is_measured(&self) -> bool;
    /// Whether the loop may end.
    fn is_done(&self) -> bool;
}

/// Receives packets and passes them on, until the background is done; says how many, and what the gaps between two
/// polls were.
pub fn receive<F: Front>(mut front: F, background: &mut impl Background) -> (u64, Gaps) {
    let mut burst: Vec<F::Buffer> = Vec::with_capacity(BURST);
    let (mut received, mut sent) = (0, 0);
    let mut gaps = Gaps::new();
    let mut polled = Instant::now();
    while !background.is_done() || sent < received {
        let now = Instant::now();
        if background.is_measured() {
            gaps.record(now - polled);
        }
        polled = now;
        if !background.is_done() {
            let waiting = burst.len();
            front.get(BURST - waiting, &mut burst);
            // The network card: it fills the buffers that it was given.
            for buffer in &mut burst[waiting..] {
                packet::write(F::bytes(buffer), received);
                received += 1;
            }
        }
        sent += front.send(&mut burst) as u64;
        background.turn(polled);
    }
    (received, gaps)
}

/// Works on packets until `count()` says how many there were, and all have come; says how many of them were damaged or
/// not in order.
pub fn work<B: Back>(mut back: B, count: impl Fn() -> Option<u64>) -> u64 {
    let mut burst: Vec<B::Buffer> = Vec::with_capacity(BURST);
    let (mut seen, mut bad) = (0, 0);
    loop {
        back.receive(BURST, &mut burst);
        if burst.is_empty() {
            if count() == Some(seen) {
                return bad;
            }
            std::hint::spin_loop();
            continue;
        }
        for buffer in &burst {
            bad += u64::from(!packet::is_good(B::bytes(buffer), seen));
            seen += 1;
        }
        back.put(&mut burst);
    }
}

/// How long a loop that measures throughput runs.
pub struct For {
    until: Instant,
    is_done: bool,
}

impl For {
    pub fn new(time: Duration) -> For {
        For { until: Instant::now() + time, is_done: false }
    }
}

impl Background for For {
    fn turn(&mut self, started: Instant) {
        self.is_done = started >= self.until;
    }

    fn is_measured(&self) -> bool {
        true
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}
