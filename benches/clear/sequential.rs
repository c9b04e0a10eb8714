//! The kernel's own tests, in user space: processes that get fresh memory and write it from start to end.
//!
//! vm-scalability's anon-w-seq (each chunk is cleared, then written) and anon-cow-seq (each chunk is cloned, then
//! written). What counts is the time until all processes are done.

use std::time::Instant;

use hugearena::memops::FirstTouch;
use hugearena::{Arena, Chunk, PageSize, Populate};

use crate::context::Context;
use crate::crew::{self, Member};
use crate::measure::Summary;
use crate::ring::{can_open, nanoseconds, open};
use crate::verdicts::Bound;

const PAGE: PageSize = PageSize::HUGE_2M;

/// Chunks of one process; twice as many where they are cloned. More than any cache holds.
const CHUNKS: usize = 48;

/// How chunks come to be.
#[derive(Clone, Copy)]
enum Side {
    Libc,
    /// The hint says nothing, like a page fault at the start of a page.
    Unknown,
    /// The hint says what is going to happen.
    Whole,
}

const SIDES: [Side; 3] = [Side::Libc, Side::Unknown, Side::Whole];

impl Side {
    fn touch(self) -> FirstTouch {
        if let Side::Whole = self { FirstTouch::whole() } else { FirstTouch::unknown() }
    }
}

pub fn run(context: &mut Context) -> Result<(), String> {
    for (test, is_clone) in [("anon-w-seq", false), ("anon-cow-seq", true)] {
        for processes in crate::matrix::PROCESSES {
            let rounds = context.rounds(8);
            can_open(PAGE, processes * CHUNKS * if is_clone { 2 } else { 1 })?;
            let all = crew::run(processes, rounds * SIDES.len(), |member| work(member, is_clone, rounds))?;
            // The slowest process of each pass; they meet before and behind it.
            let slowest = |at: usize| all.iter().map(|numbers| numbers[at]).fold(0.0, f64::max);
            let [libc, unknown, whole] =
                [0, 1, 2].map(|side| Summary::of((0..rounds).map(|round| slowest(round * SIDES.len() + side))).median);
            for (hint, ours) in [("unknown", unknown), ("whole", whole)] {
                let name = format!("{test}: libc / ours, time");
                context.verdicts.add(
                    &name,
                    Bound::AtLeast(0.97),
                    &format!("{processes} processes, {hint}"),
                    libc / ours,
                );
            }
        }
    }
    Ok(())
}

/// The times of all passes over all chunks.
fn work(member: &Member, is_clone: bool, rounds: usize) -> Vec<f64> {
    let open = || open(PAGE, CHUNKS, Populate::Eager);
    let arena = open().unwrap_or_else(|error| panic!("{error}"));
    let mut held: Vec<Chunk> = (0..CHUNKS).map(|_| arena.claim(1).expect("as many as asked")).collect();
    let originals = is_clone.then(|| open().unwrap_or_else(|error| panic!("{error}")));
    let originals: Option<Vec<Chunk>> =
        originals.map(|arena| (0..CHUNKS).map(|_| arena.claim(1).expect("as many as asked")).collect());
    originals.iter().flatten().for_each(|chunk| fill(chunk, 0x5A));
    held.iter().for_each(|chunk| fill(chunk, 1));
    let mut times = Vec::new();
    for _ in 0..rounds {
        for side in SIDES {
            member.meet();
            let start = Instant::now();
            for slot in 0..CHUNKS {
                renew(&arena, &mut held, slot, originals.as_ref().map(|all| &all[slot]), side);
                fill(&held[slot], 1);
            }
            member.meet();
            times.push(nanoseconds(start));
        }
    }
    times
}

/// Gives the chunk of a slot back and puts a zeroed or copied one in its place.
fn renew(arena: &Arena, held: &mut Vec<Chunk>, slot: usize, original: Option<&Chunk>, side: Side) {
    let given_back = held.swap_remove(slot);
    drop(given_back);
    let free = "one was given back";
    let chunk = match (side, original) {
        (Side::Libc, None) => {
            let chunk = arena.claim(1).expect(free);
            fill(&chunk, 0);
            chunk
        }
        (Side::Libc, Some(original)) => {
            let chunk = arena.claim(1).expect(free);
            // SAFETY: two chunks of one length, the new one held by nobody else.
            unsafe { chunk.as_ptr().copy_from_nonoverlapping(original.as_ptr(), chunk.len()) };
            chunk
        }
        (side, None) => arena.claim_zeroed(1, side.touch()).expect(free),
        (side, Some(original)) => arena.claim_copy(original, side.touch()).expect(free),
    };
    // SAFETY: at least one page, the last word of which is ours.
    let last = unsafe { chunk.as_ptr().add(chunk.len() - 1).read() };
    assert_eq!(last, if original.is_some() { 0x5A } else { 0 });
    held.push(chunk);
    let end = held.len() - 1;
    held.swap(slot, end);
}

fn fill(chunk: &Chunk, byte: u8) {
    // SAFETY: the chunk's own bytes.
    unsafe { chunk.as_ptr().write_bytes(byte, chunk.len()) };
}
