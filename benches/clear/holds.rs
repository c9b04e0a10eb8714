//! Whether claims wait while another thread of the process works on 1 GiB of the same arena.

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Instant;

use hugearena::{Arena, Chunk, FirstTouch, PageSize, Populate};

use crate::context::Context;
use crate::gaps::quantile;
use crate::ring::{nanoseconds, open};
use crate::verdicts::Bound;

const GIB: usize = 1 << 30;
const PAGE: PageSize = PageSize::HUGE_2M;
const PAGES: usize = GIB / PAGE.bytes();
/// For the thread that claims while all others are held.
const SPARE: usize = 8;

pub fn run(context: &mut Context) -> Result<(), String> {
    let arena = open(PAGE, PAGES + SPARE, Populate::Eager)?;
    let outside = open(PAGE, PAGES, Populate::Eager)?;
    let outside = outside.claim(PAGES).ok_or("the arena is smaller than asked")?;
    let [mut memset, mut clear, mut copy] = [const { Vec::new() }; 3];
    for _ in 0..context.rounds(6) {
        memset.push(beside(&arena, || fill(&outside)));
        clear.push(beside(&arena, || drop(claimed(&arena))));
        copy.push(beside(&arena, || copied(&arena, &outside)));
    }
    drop((arena, outside));
    let populate = populating(context)?;
    let control = quantile(&memset, 0.5);
    for (name, all) in [("clearing", &clear), ("copying", &copy), ("populating", &populate)] {
        let ratio = quantile(all, 0.5) / control;
        context.verdicts.add("claim + release p99.9 beside / beside memset", Bound::AtMost(1.25), name, ratio);
    }
    context.verdicts.add("claim + release p99.9 beside memset, ns", Bound::Any, "", control);
    Ok(())
}

fn populating(context: &Context) -> Result<Vec<f64>, String> {
    let mut all = Vec::new();
    for _ in 0..context.rounds(4) {
        let arena = open(PAGE, PAGES + SPARE, Populate::Lazy)?;
        // The pages that are claimed meanwhile are there already.
        let spare = arena.claim(SPARE).ok_or("no pages")?;
        drop(spare);
        all.push(beside(&arena, || drop(claimed(&arena))));
    }
    Ok(all)
}

fn claimed(arena: &Arena) -> Chunk {
    let mut chunk = arena.claim_zeroed(PAGES, FirstTouch::unknown()).expect("all but a few pages are free");
    // SAFETY: ours alone. One byte, for the books of any arena.
    unsafe { chunk.slice_mut()[0] = 1 };
    chunk
}

fn fill(chunk: &Chunk) {
    // SAFETY: the chunk's own bytes.
    unsafe { black_box(chunk.as_ptr()).write_bytes(0, chunk.len()) };
}

fn copied(arena: &Arena, source: &Chunk) {
    drop(arena.claim_copy(source, FirstTouch::unknown()).expect("all but a few pages are free"));
}

/// Claims and releases a page over and over while another thread does `work`: the 99.9th percentile.
fn beside(arena: &Arena, work: impl FnOnce() + Send) -> f64 {
    let [started, ended] = [AtomicBool::new(false), AtomicBool::new(false)];
    let mut times = Vec::with_capacity(1 << 22);
    thread::scope(|scope| {
        scope.spawn(|| {
            started.store(true, Release);
            work();
            ended.store(true, Release);
        });
        while !started.load(Acquire) {
            std::hint::spin_loop();
        }
        while !ended.load(Acquire) && times.len() < times.capacity() {
            let start = Instant::now();
            drop(black_box(arena.claim(1).expect("a page is free")));
            times.push(nanoseconds(start));
        }
    });
    quantile(&times, 0.999)
}
