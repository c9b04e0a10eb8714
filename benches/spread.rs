//! Work that needs a live set, a second thread, or a gigabyte.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::prng::{Prng, scramble};
use crate::workloads::{BATCH, stamped, unstamped, words};

/// Blocks of 8 bytes to 32 KiB, small ones far more often, replaced in random order.
pub struct Mixed<'a, A: GlobalAlloc> {
    allocator: &'a A,
    live: Vec<(*mut u64, Layout)>,
    prng: Prng,
}

impl<'a, A: GlobalAlloc> Mixed<'a, A> {
    pub fn new(allocator: &'a A, live: usize) -> Mixed<'a, A> {
        let mut mixed = Mixed { allocator, live: Vec::with_capacity(live), prng: Prng::new(3) };
        for slot in 0..live as u64 {
            let layout = mixed.random_layout();
            mixed.live.push((stamped(allocator, layout, slot), layout));
        }
        mixed
    }

    /// Each power of two is half as likely as the one before it.
    fn random_layout(&mut self) -> Layout {
        let log2 = 3 + self.prng.next().trailing_zeros().min(11);
        words((1 << log2) + self.prng.below(1 << log2))
    }

    /// Frees a random block and allocates another in its place, `count` times.
    pub fn replace(&mut self, count: usize) {
        for _ in 0..count {
            let slot = self.prng.below(self.live.len());
            let (block, layout) = self.live[slot];
            assert_eq!(unstamped(self.allocator, layout, block), slot as u64);
            let layout = self.random_layout();
            self.live[slot] = (stamped(self.allocator, layout, slot as u64), layout);
        }
    }
}

impl<A: GlobalAlloc> Drop for Mixed<'_, A> {
    fn drop(&mut self) {
        for (slot, (block, layout)) in self.live.iter().enumerate() {
            assert_eq!(unstamped(self.allocator, *layout, *block), slot as u64);
        }
    }
}

/// One thread allocates blocks of `size` bytes in batches, another frees them; at most eight batches are on the way.
pub fn cross_thread(allocator: &(impl GlobalAlloc + Sync), size: usize, batches: u64) {
    let layout = words(size);
    let (sender, receiver) = sync_channel::<Vec<usize>>(8);
    thread::scope(|scope| {
        scope.spawn(move || {
            for batch in 0..batches {
                // As addresses, because a pointer may not change threads.
                let blocks = (0..BATCH).map(|_| stamped(allocator, layout, batch).expose_provenance()).collect();
                sender.send(blocks).expect("the consumer lives as long as the producer");
            }
        });
        for (batch, blocks) in receiver.into_iter().enumerate() {
            for block in blocks {
                let stamp = unstamped(allocator, layout, ptr::with_exposed_provenance_mut(block));
                assert_eq!(stamp, batch as u64);
            }
        }
    });
}

/// A cache line that says where to go next.
struct Node {
    next: *const Node,
    /// How many hops from the first node.
    rank: u64,
    _rest: [u64; 6],
}

/// Boxes of 64 bytes linked into one ring in random order, so that each hop misses the caches and the TLB.
pub struct Chase<'a, A: GlobalAlloc> {
    allocator: &'a A,
    at: *const Node,
    count: u64,
}

impl<'a, A: GlobalAlloc> Chase<'a, A> {
    pub fn new(allocator: &'a A, bytes: usize) -> Chase<'a, A> {
        let count = bytes / size_of::<Node>();
        let nodes: Vec<*mut Node> = (0..count).map(|_| stamped(allocator, Layout::new::<Node>(), 0).cast()).collect();
        let mut order: Vec<u32> = (0..count as u32).collect();
        let mut prng = Prng::new(5);
        for last in (1..count).rev() {
            order.swap(last, prng.below(last + 1));
        }
        for rank in 0..count {
            let next = nodes[order[(rank + 1) % count] as usize];
            let node = Node { next, rank: rank as u64, _rest: [scramble(rank as u64); 6] };
            // SAFETY: a block of a node's layout that nobody else knows.
            unsafe { nodes[order[rank] as usize].write(node) };
        }
        Chase { allocator, at: nodes[order[0] as usize], count: count as u64 }
    }

    /// Follows `hops` links, and checks that they led where they should.
    pub fn hop(&mut self, hops: u64) {
        // SAFETY: `at` and every `next` point to nodes that live until `self` is dropped.
        unsafe {
            let wanted = ((*self.at).rank + hops) % self.count;
            for _ in 0..hops {
                self.at = (*self.at).next;
            }
            assert_eq!((*self.at).rank, wanted);
        }
    }
}

impl<A: GlobalAlloc> Drop for Chase<'_, A> {
    fn drop(&mut self) {
        for _ in 0..self.count {
            let node = self.at.cast_mut();
            // SAFETY: the ring holds `count` nodes and each is visited once; `next` is read before its node is freed.
            unsafe {
                self.at = (*node).next;
                self.allocator.dealloc(node.cast(), Layout::new::<Node>());
            }
        }
    }
}
