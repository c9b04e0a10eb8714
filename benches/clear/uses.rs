//! What a caller does with a chunk that it has just got.

use std::hint::black_box;

use hugearena::Chunk;
use hugearena::memops::FirstTouch;

/// A pattern of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads the window that was named.
    Read,
    /// Writes the window that was named.
    Write,
    ReadFirst64K,
    ReadFirst512K,
    ReadLast64K,
    ReadAll,
    ReadAllBackwards,
    WriteAll,
    /// One line in each of 512 pages, in an order that no prefetcher follows.
    ReadScattered,
    Nothing,
}

impl Use {
    /// What may follow a claim that named no window.
    pub const AFTER_UNKNOWN: [Use; 8] = [
        Use::ReadFirst64K,
        Use::ReadFirst512K,
        Use::ReadLast64K,
        Use::ReadAll,
        Use::ReadAllBackwards,
        Use::WriteAll,
        Use::ReadScattered,
        Use::Nothing,
    ];

    /// Whether the chunk is as it was afterwards.
    pub fn is_read(self) -> bool {
        !matches!(self, Use::Write | Use::WriteAll)
    }

    /// # Panics
    ///
    /// If it reads anything but zeroes.
    pub fn apply(self, chunk: &Chunk, touch: FirstTouch) {
        let len = chunk.len();
        match self {
            Use::Read => read(chunk, touch.window(len)),
            Use::Write => write(chunk, touch.window(len)),
            Use::ReadFirst64K => read(chunk, 0..len.min(64 << 10)),
            Use::ReadFirst512K => read(chunk, 0..len.min(512 << 10)),
            Use::ReadLast64K => read(chunk, len.saturating_sub(64 << 10)..len),
            Use::ReadAll => read(chunk, 0..len),
            Use::ReadAllBackwards => read_backwards(chunk),
            Use::WriteAll => write(chunk, 0..len),
            Use::ReadScattered => read_scattered(chunk),
            Use::Nothing => {}
        }
    }
}

/// The chunk as words. It is zeroed, so every word is initialized.
fn words(chunk: &Chunk) -> &[u64] {
    // SAFETY: page-aligned, the chunk's own, and written by nobody while it is borrowed.
    unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr().cast(), chunk.len() / size_of::<u64>()) }
}

fn read(chunk: &Chunk, bytes: std::ops::Range<usize>) {
    let words = black_box(&words(chunk)[bytes.start / 8..bytes.end / 8]);
    // By lines, so that the loop is as fast as loads are, whatever the compiler makes of it.
    let mut all = [0; 8];
    for line in words.chunks_exact(8) {
        all.iter_mut().zip(line).for_each(|(all, word)| *all |= word);
    }
    assert_eq!(all, [0; 8]);
}

fn read_backwards(chunk: &Chunk) {
    let all = words(chunk).chunks_exact(8).rev().fold(0, |all, line| all | line[0] | line[7]);
    assert_eq!(all, 0);
}

fn read_scattered(chunk: &Chunk) {
    let words = words(chunk);
    let pages = words.len() / 512;
    // An odd step visits every page of a power of two.
    let all = (0..pages.min(512)).fold(0, |all, turn| all | words[turn * 331 % pages * 512 + turn * 8 % 512]);
    assert_eq!(all, 0);
}

fn write(chunk: &Chunk, bytes: std::ops::Range<usize>) {
    // SAFETY: inside the chunk, whose holder is alone with it.
    unsafe { black_box(chunk.as_ptr().as_ptr()).add(bytes.start).write_bytes(1, bytes.len()) };
}
