//! Inputs from a generator, for so many seconds: what there is without libFuzzer. The seed is the number of the input,
//! so that a failure can be run again: `random 0 SEED`.

use std::time::{Duration, Instant};

/// xorshift64*, as bytes: long stretches that repeat a few steps, as programs do, and stretches that do not.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    };
    let mut bytes = Vec::new();
    while bytes.len() < 6_000 {
        let part: Vec<u8> = (0..7 * (1 + next() % 8)).map(|_| next() as u8).collect();
        let times = if next() % 4 == 0 { 1 + next() % 40 } else { 1 };
        (0..times).for_each(|_| bytes.extend_from_slice(&part));
    }
    bytes
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let seconds = arguments.next().unwrap_or(10);
    let first = arguments.next().unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = first;
    loop {
        // Before, so that the last line of a run that aborts says which it was.
        if seed % 256 == first % 256 {
            println!("inputs from {seed} on");
        }
        std::panic::catch_unwind(|| oracle::run(&bytes(seed))).unwrap_or_else(|_| {
            println!("input {seed} failed: random 0 {seed}");
            std::process::exit(1);
        });
        seed += 1;
        if Instant::now() >= end {
            break;
        }
    }
    println!("{} inputs ok", seed - first);
}
