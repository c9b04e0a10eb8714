//! Measures the heap against libc malloc in one process, and the parts it is made of.
//!
//! ```text
//! cargo bench --bench main                 # everything, under five minutes
//! cargo bench --bench main -- alloc/pair   # some of it
//! ```
//!
//! Criterion runs the two sides one after the other, so a change of the machine between them shows as a difference.
//! The figures that this project promises come from `benches/figures.rs`, which takes turns.
#![allow(unsafe_code)]

mod alloc;
mod arena;
mod clear;
mod environment;
#[path = "../examples/quickstart/prng.rs"]
mod prng;
mod spread;
mod workloads;

use std::time::Duration;

use criterion::Criterion;

fn main() {
    println!("{}\n", environment::describe());
    let short = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut criterion = short;
    alloc::group(&mut criterion);
    arena::group(&mut criterion);
    clear::group(&mut criterion);
    criterion.final_summary();
}
