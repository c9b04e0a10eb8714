//! Claiming what was cleared ahead of time.

use std::time::Instant;

use hugearena::memops::Nothing;
use hugearena::{Chunk, FirstTouch, PageSize, Populate};

use crate::context::Context;
use crate::measure::Summary;
use crate::ring::{COLD, nanoseconds, open};
use crate::verdicts::Bound;

const PAGE: PageSize = PageSize::HUGE_2M;

pub fn run(context: &mut Context) -> Result<(), String> {
    let arena = open(PAGE, COLD, Populate::Eager)?;
    let (mut times, mut scrubs) = (Vec::new(), Vec::new());
    for _ in 0..context.rounds(10) {
        drop(arena.claim(COLD).ok_or("the arena is smaller than asked")?);
        let start = Instant::now();
        assert_eq!(arena.scrub(usize::MAX, &mut Nothing), COLD * PAGE.bytes());
        scrubs.push(nanoseconds(start) / COLD as f64);
        let mut held = Vec::with_capacity(COLD);
        for _ in 0..COLD {
            let start = Instant::now();
            let chunk = arena.claim_zeroed(1, FirstTouch::unknown()).expect("all pages are free");
            times.push(nanoseconds(start));
            held.push(chunk);
        }
        assert!(held.iter().all(is_zero), "a scrubbed chunk was not zero");
        held.iter().for_each(soil);
    }
    let verdicts = &mut context.verdicts;
    verdicts.add("claim_zeroed of a scrubbed chunk, ns", Bound::AtMost(200.0), "", Summary::of(times).median);
    verdicts.add("scrubbing 2 MiB, us", Bound::Any, "", Summary::of(scrubs).median / 1e3);
    Ok(())
}

fn soil(chunk: &Chunk) {
    // SAFETY: the chunk's own bytes.
    unsafe { chunk.as_ptr().write_bytes(0xA5, chunk.len()) };
}

fn is_zero(chunk: &Chunk) -> bool {
    // SAFETY: as above; nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.len()) }.iter().all(|byte| *byte == 0)
}
