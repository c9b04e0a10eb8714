//! Clearing a returned chunk from inside the poll loop, in the slack that the loop has anyway.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use hugearena::{Arena, FirstTouch, PageSize, ZeroingChunk};

use crate::gaps::Gaps;
use crate::lane::Background;

/// What is cleared.
pub const BYTES: usize = 1 << 30;
/// What one turn clears, if any. Small: a turn in which it does not fit clears nothing.
const BATCH_BYTES: usize = 8 << 10;
/// Clearing leaves the loop so many times as long as it took: turns without a packet, where it fits best, stay as
/// frequent as they were, or the gaps of the others would weigh more.
const SHARE: u32 = 16;
/// Turns in which the loop's own gaps are learned.
const WARM_UP: u64 = 200_000;
/// One turn in so many clears a batch though there is no slack, so that it comes to an end on any machine. Fewer than
/// one in 1,000, which is what p99.9 would see.
const AT_LEAST: u64 = 4_000;
/// The turn that memset falls in.
const MEMSET_AT: u64 = 50_000;

/// How the chunk is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all: so many turns are measured.
    Nothing { turns: u64 },
    /// A batch at a time, when the turn is short.
    Paced,
    /// libc's memset, all of it in one turn.
    Memset,
}

/// A chunk that has been used and returned, and is being cleared.
pub struct Clearing {
    way: Way,
    arena: Arena,
    zeroing: Option<ZeroingChunk>,
    /// Turns since the warm-up.
    turns: u64,
    own: Gaps,
    before: Instant,
    /// How long a turn may take, clearing included: less than one in a hundred takes by itself.
    budget: Duration,
    /// What a batch takes: the longest of the last few.
    cost: Duration,
    /// When the next batch may come.
    next: Instant,
    started: Option<Instant>,
    took: Option<Duration>,
    is_done: bool,
}

impl Clearing {
    pub fn new(way: Way, page_size: PageSize) -> hugearena::Result<Clearing> {
        let arena = Arena::builder().page_size(page_size).capacity(BYTES).open()?;
        // Somebody used all of it, and gave it back.
        drop(arena.claim(arena.stats().pages));
        Ok(Clearing {
            way,
            arena,
            zeroing: None,
            turns: 0,
            own: Gaps::new(),
            before: Instant::now(),
            budget: Duration::ZERO,
            cost: Duration::from_micros(1),
            next: Instant::now(),
            started: None,
            took: None,
            is_done: false,
        })
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// How long the clearing took.
    pub fn took(&self) -> Option<Duration> {
        self.took
    }

    pub fn budget(&self) -> Duration {
        self.budget
    }

    fn warm_up(&mut self, started: Instant) {
        self.own.record(started - self.before);
        self.before = started;
        if self.own.count() == WARM_UP {
            self.budget = Duration::from_nanos(self.own.quantile(0.99)) * 4 / 5;
            let pages = self.arena.stats().pages;
            self.zeroing = self.arena.start_zeroed(pages, FirstTouch::at(0, 4096), BATCH_BYTES);
            self.started = Some(Instant::now());
        }
    }

    /// Clears a batch if that fits.
    fn clear_a_batch(&mut self, started: Instant) {
        let Some(zeroing) = &mut self.zeroing else { return };
        let now = Instant::now();
        let fits = now >= self.next && now - started + self.cost <= self.budget;
        if fits || self.turns.is_multiple_of(AT_LEAST) {
            let is_done = zeroing.advance().is_done();
            let done = Instant::now();
            self.cost = self.cost.max(done - now);
            self.next = done + (done - now) * SHARE;
            if is_done {
                self.took = self.started.map(|started| started.elapsed());
                self.is_done = true;
            }
        }
        self.cost -= self.cost / 64;
    }

    fn memset(&mut self) {
        let chunk = self.zeroing.take().expect("claimed by the warm-up");
        drop(chunk);
        let chunk = self.arena.claim(self.arena.stats().pages).expect("all pages are free");
        // SAFETY: a chunk of ours, which nobody else has.
        unsafe { libc::memset(chunk.as_ptr().as_ptr().cast(), 0, chunk.len()) };
        self.took = self.started.map(|started| started.elapsed());
    }
}

impl Background for Clearing {
    #[inline]
    fn turn(&mut self, started: Instant) {
        if self.started.is_none() {
            return self.warm_up(started);
        }
        self.turns += 1;
        match self.way {
            // Takes the same looks at the clock.
            Way::Nothing { turns } if self.turns > turns => self.is_done = true,
            Way::Nothing { .. } => self.cost = Instant::now() - started,
            Way::Paced => self.clear_a_batch(started),
            Way::Memset if self.turns == MEMSET_AT => self.memset(),
            Way::Memset => self.is_done = self.turns >= 2 * MEMSET_AT,
        }
    }

    fn is_measured(&self) -> bool {
        self.turns > 1
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}
