//! Copying 2 MiB that is in no cache, by `claim_copy` and by memcpy, and the first use of the copy.

use std::hint::black_box;
use std::time::Instant;

use hugearena::memops::FirstTouch;
use hugearena::{Chunk, PageSize, Populate};

use crate::context::Context;
use crate::matrix::WINDOWS;
use crate::measure::Summary;
use crate::ring::{COLD, nanoseconds, open};
use crate::sweep::{POSITIONS, touch_at};
use crate::verdicts::Bound;

const PAGE: PageSize = PageSize::HUGE_2M;

pub fn run(context: &mut Context) -> Result<(), String> {
    let sources = filled()?;
    let mut copies = filled()?;
    for window in WINDOWS {
        for position in POSITIONS {
            let touch = touch_at(position, window, PAGE.bytes());
            let mut totals = [Vec::new(), Vec::new()];
            for turn in 0..context.rounds(96) {
                let side = turn % 2;
                totals[side].push(once(&mut copies, &sources, turn % COLD, touch, side == 1));
            }
            let [libc, ours] = totals.map(|all| Summary::of(all).median);
            let name = format!("{} KiB {position}", window >> 10);
            let verdicts = &mut context.verdicts;
            if window == 64 << 10 {
                verdicts.add("cold copy, 64 KiB: memcpy / claim_copy, total", Bound::AtLeast(1.15), &name, libc / ours);
            }
            verdicts.add("cold copy: memcpy / claim_copy, total", Bound::AtLeast(0.97), &name, libc / ours);
        }
    }
    Ok(())
}

/// Chunks of an arena that has no others, each full of its own number.
fn filled() -> Result<Vec<Option<Chunk>>, String> {
    let arena = open(PAGE, COLD, Populate::Eager)?;
    let chunks: Option<Vec<Chunk>> = (0..COLD).map(|_| arena.claim(1)).collect();
    let chunks = chunks.ok_or("the arena is smaller than asked")?;
    for (number, chunk) in chunks.iter().enumerate() {
        // SAFETY: the chunk's own bytes.
        unsafe { chunk.as_ptr().write_bytes(number as u8 + 1, chunk.len()) };
    }
    Ok(chunks.into_iter().map(Some).collect())
}

/// Copies one chunk into the place of another, reads the window, and returns how long both took.
fn once(copies: &mut [Option<Chunk>], sources: &[Option<Chunk>], slot: usize, touch: FirstTouch, ours: bool) -> f64 {
    let source = sources[slot].as_ref().expect("sources are never given back");
    let arena = copies[slot].take().expect("every slot is filled between turns").arena().clone();
    let start = Instant::now();
    let copy = if ours { arena.claim_copy(source, touch) } else { arena.claim(1) }.expect("one was given back");
    if !ours {
        // SAFETY: two chunks of one length, the new one held by nobody else.
        unsafe { copy.as_ptr().copy_from_nonoverlapping(source.as_ptr(), source.len()) };
    }
    let sum = read(&copy, touch);
    let total = nanoseconds(start);
    assert_eq!(sum, u64::from_ne_bytes([slot as u8 + 1; 8]));
    assert!(bytes(&copy) == bytes(source), "a copy differs from its source");
    copies[slot] = Some(copy);
    total
}

/// All words of the window, joined.
fn read(chunk: &Chunk, touch: FirstTouch) -> u64 {
    let window = touch.window(chunk.len());
    // SAFETY: page-aligned and inside the chunk, which is initialized all over.
    let words = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr().cast::<u64>(), chunk.len() / 8) };
    black_box(&words[window.start / 8..window.end / 8]).iter().fold(0, |all, word| all | word)
}

fn bytes(chunk: &Chunk) -> &[u8] {
    // SAFETY: the chunk's own bytes, which nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.len()) }
}
