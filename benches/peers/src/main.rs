//! `HugeAlloc` beside the allocators that people pick instead: small blocks, in one process, in turns.
//!
//! ```text
//! cargo run --release --manifest-path benches/peers/Cargo.toml [-- ROUNDS]
//! ```
//!
//! Each allocator is called as a `GlobalAlloc` value, so that all are inlined as far as their language allows. A cell is
//! the median over the rounds, in nanoseconds a pair of `alloc` and `dealloc`. Peers run with their defaults: mimalloc
//! asks for transparent huge pages by itself.

mod workloads;

use std::alloc::{GlobalAlloc, System};
use std::time::Instant;

use hugearena::HugeAlloc;
use workloads::{batch, cross, pair, wide};

static HUGE: HugeAlloc = HugeAlloc::new();

/// Pairs in one measurement.
const PAIRS: usize = 1_000_000;
const ROUNDS: usize = 9;

/// What an allocator is asked to do.
#[derive(Clone, Copy)]
enum Workload {
    Pair(usize),
    Batch(usize),
    Wide,
    Cross,
}

const WORKLOADS: [(&str, Workload); 11] = [
    ("pair 16 B", Workload::Pair(16)),
    ("pair 128 B", Workload::Pair(128)),
    ("batch 16 B", Workload::Batch(16)),
    ("batch 64 B", Workload::Batch(64)),
    ("batch 256 B", Workload::Batch(256)),
    ("batch 1 KiB", Workload::Batch(1 << 10)),
    ("batch 8 KiB", Workload::Batch(8 << 10)),
    ("batch 64 KiB", Workload::Batch(64 << 10)),
    ("wide 16 B..2 KiB", Workload::Wide),
    ("cross-thread 64 B", Workload::Cross),
    ("pair 16 B again", Workload::Pair(16)),
];

const NAMES: [&str; 5] = ["HugeAlloc", "libc", "mimalloc", "jemalloc", "rusty_alloc"];

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    println!("{}", HUGE.stats());
    print!("\nns a pair, medians of {rounds} rounds\n{:20}", "");
    for name in NAMES {
        print!("{name:>13}");
    }
    println!("{:>16}", "of best peer");
    for (name, workload) in WORKLOADS {
        let cells = measure(workload, rounds);
        let best = cells[1..].iter().copied().fold(f64::INFINITY, f64::min);
        print!("{name:20}");
        for cell in cells {
            print!("{cell:13.2}");
        }
        println!("{:15.2}x", cells[0] / best);
    }
    println!("\n{}", HUGE.stats());
}

/// The median of each allocator, all in turns, so that a machine that slows down slows all of them.
fn measure(workload: Workload, rounds: usize) -> [f64; NAMES.len()] {
    let mut times: [Vec<f64>; NAMES.len()] = Default::default();
    for round in 0..=rounds {
        let row = [
            time(workload, &HUGE),
            time(workload, &System),
            time(workload, &mimalloc::MiMalloc),
            time(workload, &tikv_jemallocator::Jemalloc),
            time(workload, &rusty_alloc_api::RustyAlloc),
        ];
        // The first round warms up.
        if round > 0 {
            times.iter_mut().zip(row).for_each(|(times, time)| times.push(time));
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

fn time(workload: Workload, allocator: &(impl GlobalAlloc + Sync)) -> f64 {
    let start = Instant::now();
    match workload {
        Workload::Pair(size) => pair(allocator, PAIRS, size),
        Workload::Batch(size) => batch(allocator, PAIRS, size),
        Workload::Wide => wide(allocator, PAIRS),
        Workload::Cross => cross(allocator, PAIRS, 64),
    }
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}
