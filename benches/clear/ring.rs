//! Chunks that are cleared and used one after the other, as a program with many buffers does it.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use hugearena::memops::{self, Callback, FirstTouch, Method, Nothing, Pace};
use hugearena::{Arena, Chunk, PageSize, Populate};

use crate::bare::Bare;
use crate::uses::Use;

/// How a chunk becomes zero.
#[derive(Clone, Copy)]
pub enum Way {
    /// `ptr::write_bytes`: libc's memset, ascending.
    Memset,
    /// What the library does when nobody tells it how: `Arena::claim_zeroed`.
    Claim,
    /// A method and a batch size of the bench's choice.
    Forced(Method, usize),
    /// The same, with a callback that does nothing between batches.
    Calling(Method, usize),
    /// A loop of the bench.
    Bare(Bare),
    /// Only the window, by memset, so that its use shows what memory just written costs.
    Window,
}

/// Nanoseconds of one clearing and of the use after it.
#[derive(Clone, Copy)]
pub struct Sample {
    pub clear: f64,
    pub usage: f64,
}

/// Enough for no chunk to be in any cache when its turn comes again: 128 MiB of 2 MiB chunks.
pub const COLD: usize = 64;

/// One chunk, which is in cache as far as it fits.
pub const HOT: usize = 1;

/// Above this, chunks are made dirty and checked a byte per 4 KiB.
const THOROUGH_BYTES: usize = 32 << 20;

/// What a holder leaves behind.
const DIRT: u8 = 0xA5;

/// An arena whose chunks are all held; a turn gives one back, claims it zeroed, uses it and makes it dirty.
pub struct Ring {
    arena: Arena,
    held: Vec<Option<Chunk>>,
    next: usize,
    turns: usize,
}

impl Ring {
    /// `len` chunks of one page.
    pub fn open(page_size: PageSize, len: usize) -> Result<Ring, String> {
        let arena = open(page_size, len, Populate::Eager)?;
        let mut ring = Ring { held: Vec::new(), arena, next: 0, turns: 0 };
        for _ in 0..len {
            let chunk = ring.arena.claim(1).ok_or("an arena is smaller than asked")?;
            soil(&chunk);
            ring.held.push(Some(chunk));
        }
        Ok(ring)
    }

    /// One turn. The contents are checked in every eighth, after the times were taken.
    pub fn sample(&mut self, way: Way, touch: FirstTouch, usage: Use) -> Sample {
        let slot = self.turn();
        let held = self.held[slot].take().expect("every slot is filled between turns");
        let (chunk, clear) = self.clear(held, way, touch);
        let start = Instant::now();
        usage.apply(&chunk, touch);
        let used = nanoseconds(start);
        if self.turns.is_multiple_of(8) && !matches!(way, Way::Window) && usage.is_read() {
            check(&chunk);
        }
        soil(&chunk);
        self.held[slot] = Some(chunk);
        Sample { clear, usage: used }
    }

    fn turn(&mut self) -> usize {
        let slot = self.next;
        self.next = (slot + 1) % self.held.len();
        self.turns += 1;
        slot
    }

    /// The zeroed chunk and how long it took, without the time to give it back before.
    fn clear(&self, held: Chunk, way: Way, touch: FirstTouch) -> (Chunk, f64) {
        if let Way::Claim = way {
            drop(held);
            let start = Instant::now();
            let chunk = self.arena.claim_zeroed(1, touch).expect("one chunk was given back");
            return (chunk, nanoseconds(start));
        }
        let start = Instant::now();
        clear(&held, way, touch);
        (held, nanoseconds(start))
    }
}

/// An arena of pages of just that size.
pub fn open(page_size: PageSize, pages: usize, populate: Populate) -> Result<Arena, String> {
    let builder = Arena::builder().page_size(page_size).capacity(pages * page_size.bytes());
    builder.populate(populate).strict().open().map_err(|error| error.to_string())
}

/// Whether so many pages can be had, for processes that have no way to say why they cannot.
pub fn can_open(page_size: PageSize, pages: usize) -> Result<(), String> {
    open(page_size, pages, Populate::Lazy).map(drop)
}

fn clear(chunk: &Chunk, way: Way, touch: FirstTouch) {
    let (dst, len) = (chunk.as_ptr().as_ptr(), chunk.len());
    // SAFETY: the chunk owns the region and is held by nobody else; windows lie inside it.
    unsafe {
        match way {
            Way::Memset => dst.write_bytes(0, len),
            Way::Bare(bare) => bare.clear(dst, len),
            Way::Window => {
                let window = touch.window(len);
                dst.add(window.start).write_bytes(0, window.len());
            }
            Way::Forced(method, batch_bytes) => {
                let _ = memops::clear_with(dst, len, touch, &method, &mut Nothing.in_batches_of(batch_bytes));
            }
            Way::Calling(method, batch_bytes) => {
                let callback = |progress| {
                    black_box(progress);
                    ControlFlow::Continue(())
                };
                let mut pace = Callback::new(callback).in_batches_of(batch_bytes);
                let _ = memops::clear_with(dst, len, touch, &method, &mut pace);
            }
            Way::Claim => unreachable!("claiming is the arena's"),
        }
    }
}

pub fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64
}

fn step(len: usize) -> usize {
    if len > THOROUGH_BYTES { 4096 } else { 1 }
}

/// Writes the whole chunk.
fn soil(chunk: &Chunk) {
    let (start, len) = (chunk.as_ptr().as_ptr(), chunk.len());
    // SAFETY: the chunk's own bytes, which only its holder uses.
    unsafe {
        if step(len) == 1 {
            start.write_bytes(DIRT, len);
        } else {
            (0..len).step_by(step(len)).for_each(|at| start.add(at).write_volatile(DIRT));
        }
    }
}

/// # Panics
///
/// If a byte is not zero.
fn check(chunk: &Chunk) {
    // SAFETY: as in `soil`.
    let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.len()) };
    assert!(bytes.iter().step_by(step(chunk.len())).all(|byte| *byte == 0), "a cleared chunk was not zero");
}
