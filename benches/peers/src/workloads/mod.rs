//! The workloads. Each has a result that does not depend on the allocator; who runs them compares it.

mod collections;
mod large;
mod mixed;
mod small;
mod threads;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::time::{Duration, Instant};

/// Something that programs do with an allocator.
pub struct Workload {
    /// As on the command line.
    pub name: &'static str,
    /// In one line.
    pub what: &'static str,
    /// How many operations take a few hundred milliseconds.
    pub operations: usize,
    /// How many are enough to see that it works.
    pub quick: usize,
    /// Does it.
    pub run: fn(usize) -> Outcome,
}

/// What a workload took, and its result.
pub struct Outcome {
    /// The part that counts.
    pub elapsed: Duration,
    /// The same whatever the allocator.
    pub result: u64,
}

const fn new(
    name: &'static str,
    what: &'static str,
    [operations, quick]: [usize; 2],
    run: fn(usize) -> Outcome,
) -> Workload {
    Workload { name, what, operations, quick, run }
}

const THOUSAND: usize = 1000;
const MILLION: usize = 1_000_000;

/// All of them, in the order of the table.
pub const ALL: [Workload; 23] = [
    new("pair-16", "one block of 16 B, allocated and freed", [40 * MILLION, MILLION], small::pair::<16>),
    new("pair-128", "one block of 128 B, allocated and freed", [40 * MILLION, MILLION], small::pair::<128>),
    new("batch-16", "a thousand blocks of 16 B, freed last first", [30 * MILLION, MILLION], small::batch::<16>),
    new("batch-256", "a thousand blocks of 256 B, freed last first", [20 * MILLION, MILLION], small::batch::<256>),
    new("batch-1k", "a thousand blocks of 1 KiB, freed last first", [10 * MILLION, MILLION], small::batch::<1024>),
    new("batch-8k", "a thousand blocks of 8 KiB, freed last first", [400 * THOUSAND, 50_000], small::batch::<8192>),
    new("batch-64k", "a thousand blocks of 64 KiB, freed last first", [400 * THOUSAND, 50_000], small::batch::<65536>),
    new(
        "churn-small",
        "10,000 live blocks of 16 to 128 B, one at random replaced",
        [10 * MILLION, MILLION],
        mixed::small,
    ),
    new(
        "churn-wide",
        "10,000 live blocks of 16 B to 32 KiB, one at random replaced",
        [5 * MILLION, MILLION],
        mixed::wide,
    ),
    new(
        "larson",
        "two threads replace blocks and hand them on to new threads",
        [10 * MILLION, MILLION],
        threads::larson,
    ),
    new("cross", "one thread allocates 64 B, another frees, 1,000 at a time", [10 * MILLION, MILLION], threads::cross),
    new("storm", "threads that allocate, free what others left, and end", [4 * THOUSAND, 200], threads::storm),
    new("hash-map", "a map grows to two million entries, then look-ups", [2 * MILLION, 100_000], collections::hash_map),
    new("btree", "random keys into a tree, looked up, half removed", [MILLION, 50_000], collections::btree),
    new("chase", "a chain of 64 B boxes in random order, followed; 2 GiB", [1 << 25, 1 << 18], large::chase),
    new("vec-growth", "a vector of u64 grows to 512 MiB by push", [64 << 20, 4 << 20], large::vec_growth),
    new("zeroed", "zeroed buffers of 256 MiB, every 4 KiB touched", [6, 1], large::zeroed),
    new("packets", "a FIFO of 1,024 packets, bursts of 32, of 64 to 1,518 B", [10 * MILLION, MILLION], mixed::packets),
    new(
        "aligned",
        "4 KiB-aligned I/O buffers of 4 KiB to 1 MiB, 64 in flight",
        [100 * THOUSAND, 20_000],
        mixed::aligned,
    ),
    new("json", "a document of 2 MB parsed into a tree, and dropped", [12, 1], collections::json),
    new("strings", "lines split, changed, sorted and joined", [12, 1], collections::strings),
    new("realloc", "256 buffers grow by up to 1 KiB and shrink, to 1 MiB", [2 * MILLION, 100_000], mixed::realloc),
    new(
        "bleed",
        "blocks of rising sizes, every fourth kept: what is freed fits less and less",
        [200, 10],
        mixed::bleed,
    ),
];

/// The workload of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Workload> {
    static WORKLOADS: [Workload; ALL.len()] = ALL;
    WORKLOADS.iter().find(|workload| workload.name == name)
}

/// Does it, and looks at the clock before and after.
fn timed(work: impl FnOnce() -> u64) -> Outcome {
    let start = Instant::now();
    let result = work();
    Outcome { elapsed: start.elapsed(), result }
}

/// A block that is given back by [`Block::free`], and by nothing else.
#[derive(Clone, Copy)]
struct Block {
    address: *mut u8,
    layout: Layout,
}

// SAFETY: a block belongs to whoever has it.
unsafe impl Send for Block {}

impl Block {
    /// A block of which one byte in each 4 KiB is written: who asks for so much uses it.
    #[inline(always)]
    fn new(layout: Layout) -> Block {
        // SAFETY: no layout here has size 0, so a block is at least a byte long.
        unsafe {
            let address = alloc(layout);
            if address.is_null() {
                handle_alloc_error(layout);
            }
            for at in (0..layout.size()).step_by(4096) {
                address.add(at).write(layout.size() as u8);
            }
            Block { address, layout }
        }
    }

    /// `size` bytes, aligned as `malloc` does.
    #[inline(always)]
    fn of(size: usize) -> Block {
        Block::new(Layout::from_size_align(size, 8).expect("sizes here are small"))
    }

    /// Bytes.
    fn size(&self) -> usize {
        self.layout.size()
    }

    /// Checks the first byte and gives the block back. A block is freed once: every caller forgets it.
    #[inline(always)]
    fn free(self) {
        // SAFETY: the block is ours until now, and was allocated with this layout.
        unsafe {
            assert!(self.address.read() == self.layout.size() as u8, "somebody else wrote to a block");
            dealloc(self.address, self.layout);
        }
    }
}

/// Numbers that look random and are the same every time: xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    #[inline(always)]
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `bound`.
    #[inline(always)]
    fn below(&mut self, bound: usize) -> usize {
        (((self.next() >> 32) * bound as u64) >> 32) as usize
    }
}
