//! Any sequence of claims, releases, growth and shrinking against a naive model: one entry a page. And the same by many
//! threads at once, each of which knows what it wrote.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use hugearena::Worker;
use hugearena::memops::{Nothing, Pace};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::background::eventually;
use super::support::kill::Random;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Claim(usize),
    Zeroed(usize),
    Release(usize),
    Grow(usize),
    Shrink(usize),
    Trim,
    Scrub(usize),
}

fn any_step(most: usize) -> impl Strategy<Value = Step> {
    let count = 0..most + 2;
    prop_oneof![
        3 => count.clone().prop_map(Step::Claim),
        3 => count.clone().prop_map(Step::Zeroed),
        5 => any::<usize>().prop_map(Step::Release),
        3 => count.clone().prop_map(Step::Grow),
        2 => count.clone().prop_map(Step::Shrink),
        1 => Just(Step::Trim),
        1 => count.prop_map(Step::Scrub),
    ]
}

#[test]
fn any_sequence_agrees_with_a_naive_model() {
    for_each_page_size(9, |size, most| {
        let (cases, steps) = match size {
            PageSize::HUGE_1G => (1, 6),
            PageSize::HUGE_2M => (12, 40),
            _ => (150, 100),
        };
        let mut runner =
            TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) });
        let strategy = (1..most + 1, 0usize..3, proptest::collection::vec(any_step(most), 1..steps));
        let run = |(first, spare, steps): (usize, usize, Vec<Step>)| {
            for kind in KINDS {
                for populate in [Populate::Eager, Populate::Lazy] {
                    let builder = builder(size, first, most).spare_pages(spare).populate(populate);
                    let arena = builder.backing(kind.clone()).open().unwrap();
                    Model::new(arena, first, most, spare).play(&steps);
                }
            }
            Ok(())
        };
        runner.run(&strategy, run).unwrap();
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Absent,
    /// What was last written to it.
    Free(u8),
    Claimed,
}

struct Model {
    arena: Arena,
    spare: usize,
    pages: Vec<Page>,
    live: Vec<(Chunk, u8)>,
    base: Option<usize>,
    next_fill: u8,
}

impl Model {
    fn new(arena: Arena, first: usize, most: usize, spare: usize) -> Model {
        let pages = (0..most).map(|page| if page < first { Page::Free(0) } else { Page::Absent }).collect();
        Model { arena, spare, pages, live: Vec::new(), base: None, next_fill: 1 }
    }

    fn play(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Claim(count) => self.claimed(count, self.arena.claim(count), false),
                Step::Zeroed(count) => {
                    self.claimed(count, self.arena.claim_zeroed(count, FirstTouch::unknown()), true);
                }
                Step::Release(at) => self.release(at),
                Step::Grow(count) => self.grow(count),
                Step::Shrink(count) => self.shrink(count, self.arena.shrink(count)),
                Step::Trim => self.shrink(usize::MAX, self.arena.trim()),
                Step::Scrub(count) => self.scrub(count),
            }
            self.check_states();
        }
    }

    fn indices(&self, is: impl Fn(Page) -> bool) -> Vec<usize> {
        (0..self.pages.len()).filter(|page| is(self.pages[*page])).collect()
    }

    fn free(&self) -> Vec<usize> {
        self.indices(|page| matches!(page, Page::Free(_)))
    }

    fn claimed(&mut self, count: usize, chunk: Option<Chunk>, zeroed: bool) {
        let is_free = |page: &Page| matches!(page, Page::Free(_));
        let possible = count > 0 && self.pages.windows(count).any(|run| run.iter().all(is_free));
        assert_eq!(chunk.is_some(), possible, "{count} of {:?}: {:?}", self.pages, self.arena.last_error());
        let Some(mut chunk) = chunk else { return };
        let (page, first) = (self.arena.page_size().bytes(), chunk.offset() / self.arena.page_size().bytes());
        let base = chunk.as_ptr().addr().get() - chunk.offset();
        assert_eq!(*self.base.get_or_insert(base), base, "addresses do not change");
        for (index, part) in bytes_of(&mut chunk).chunks(page).enumerate() {
            let Page::Free(content) = self.pages[first + index] else { panic!("{:?}", self.pages) };
            let expected = if zeroed { 0 } else { content };
            // Claims without zeroes may find zeroes that a scrub or the kernel has made since.
            let holds = |fill| places(part.len()).all(|at| is_filled(&part[at..at + 64], fill));
            assert!(holds(expected), "page {}: not {expected}", first + index);
        }
        mark(&mut chunk, self.next_fill);
        self.pages[first..first + count].fill(Page::Claimed);
        self.live.push((chunk, self.next_fill));
        self.next_fill = self.next_fill % 250 + 1;
    }

    fn release(&mut self, at: usize) {
        if self.live.is_empty() {
            return;
        }
        let (mut chunk, fill) = self.live.swap_remove(at % self.live.len());
        assert!(is_marked(&mut chunk, fill), "nobody else has written there");
        let first = chunk.offset() / self.arena.page_size().bytes();
        self.pages[first..first + chunk.pages()].fill(Page::Free(fill));
    }

    fn grow(&mut self, count: usize) {
        let absent = self.indices(|page| page == Page::Absent);
        assert_eq!(self.arena.grow(count).is_ok(), count <= absent.len());
        if count <= absent.len() {
            absent[..count].iter().for_each(|page| self.pages[*page] = Page::Free(0));
        }
    }

    fn shrink(&mut self, count: usize, given: hugearena::Result<usize>) {
        let free = self.free();
        let expected = count.min(free.len().saturating_sub(self.spare));
        assert_eq!(given.unwrap(), expected);
        free.iter().rev().take(expected).for_each(|page| self.pages[*page] = Page::Absent);
    }

    fn scrub(&mut self, count: usize) {
        let bytes = count * self.arena.page_size().bytes();
        let dirty = self.arena.stats().dirty;
        assert_eq!(self.arena.scrub(bytes, &mut Nothing), bytes.min(dirty * self.arena.page_size().bytes()));
        for (page, state) in self.arena.page_states().into_iter().enumerate() {
            if state == PageState::Clean {
                self.pages[page] = Page::Free(0);
            }
        }
    }

    fn check_states(&self) {
        for (page, state) in self.arena.page_states().into_iter().enumerate() {
            let agrees = match (self.pages[page], state) {
                (Page::Absent, PageState::Absent) | (Page::Claimed, PageState::Claimed) => true,
                (Page::Free(content), PageState::Fresh | PageState::Clean | PageState::Reserved) => content == 0,
                (Page::Free(_), PageState::Dirty) => true,
                _ => false,
            };
            assert!(agrees, "page {page} is {state}: {:?}", self.pages);
        }
        let stats = self.arena.stats();
        assert_eq!(
            (stats.pages + stats.absent, stats.claimed),
            (self.pages.len(), self.indices(|page| page == Page::Claimed).len())
        );
        assert_eq!(self.arena.capacity(), stats.pages * self.arena.page_size().bytes());
    }
}

/// One entry a page: the thread that holds it.
struct Owners(Vec<AtomicU64>);

impl Owners {
    fn enter(&self, chunk: &Chunk, thread: u64) {
        self.of(chunk).for_each(|owner| assert_eq!(owner.swap(thread, SeqCst), 0, "a page has two owners"));
    }

    fn leave(&self, chunk: &Chunk) {
        self.of(chunk).for_each(|owner| owner.store(0, SeqCst));
    }

    fn of(&self, chunk: &Chunk) -> impl Iterator<Item = &AtomicU64> {
        let first = chunk.offset() / chunk.arena().page_size().bytes();
        self.0[first..first + chunk.pages()].iter()
    }
}

#[test]
fn threads_claim_scrub_grow_and_shrink_at_once() {
    for_each_page_size(70, |size, most| {
        if size >= PageSize::HUGE_1G {
            return;
        }
        for kind in KINDS {
            for populate in [Populate::Eager, Populate::Lazy, Populate::Background] {
                let builder = builder(size, most / 2, most).spare_pages(2).populate(populate);
                let arena = builder.backing(kind.clone()).open().unwrap();
                stress(&arena, most, populate == Populate::Background);
            }
        }
    });
}

fn stress(arena: &Arena, most: usize, is_background: bool) {
    let owners = Owners((0..most).map(|_| AtomicU64::new(0)).collect());
    let end = Instant::now() + Duration::from_millis(250);
    let worker = Worker::start(arena).unwrap();
    let mut seeds = Random::seeded();
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (arena, owners, random) = (&arena, &owners, seeds.another());
            scope.spawn(move || claim_until(arena, owners, end, thread, random));
        }
        for _ in 0..2 {
            let (arena, mut random) = (&arena, seeds.another());
            scope.spawn(move || {
                while Instant::now() < end {
                    let pages = random.below(8) as usize;
                    match random.below(5) {
                        0 | 1 => drop(arena.grow(pages)),
                        2 => drop(arena.trim().unwrap()),
                        3 => drop(arena.scrub(pages * arena.page_size().bytes(), &mut Nothing.in_batches_of(1 << 16))),
                        _ => drop(arena.shrink(pages).unwrap()),
                    }
                }
            });
        }
    });
    drop(worker);
    // What the worker of a background arena has in hand counts as claimed, until it is done.
    eventually("all is populated", || arena.stats().unpopulated == 0 || !is_background);
    eventually("the worker has nothing in hand", || arena.stats().claimed == 0 || !is_background);
    let stats = arena.stats();
    assert_eq!((stats.claimed, stats.pages + stats.absent), (0, most), "{stats}");
    arena.grow(stats.absent).unwrap();
    let mut all = arena.claim_zeroed(most, FirstTouch::unknown()).unwrap_or_else(|| panic!("{:?}", arena.last_error()));
    assert!(is_marked(&mut all, 0));
    drop(all);
    assert_eq!(arena.trim().unwrap(), most - 2);
}

fn claim_until(arena: &Arena, owners: &Owners, end: Instant, thread: u64, mut random: Random) {
    let mut held: Vec<(Chunk, u8)> = Vec::new();
    while Instant::now() < end {
        let (pages, fill) = (random.below(3) as usize + 1, random.below(250) as u8 + 1);
        let claimed = match random.below(4) {
            0 => arena.claim(pages),
            1 => arena.start_zeroed(pages, FirstTouch::unknown(), 1 << 16).and_then(|mut zeroing| {
                let batches = random.below(80);
                (0..batches).for_each(|_| {
                    let _ = zeroing.advance();
                });
                zeroing.finish().ok().map(zeroed)
            }),
            _ => arena.claim_zeroed(pages, FirstTouch::unknown()).map(zeroed),
        };
        if let Some(mut chunk) = claimed {
            owners.enter(&chunk, thread);
            mark(&mut chunk, fill);
            held.push((chunk, fill));
        }
        if held.len() > 6 || random.below(3) == 0 {
            held.drain(..held.len().div_ceil(2)).for_each(|held| release(owners, held));
        }
    }
    held.into_iter().for_each(|held| release(owners, held));
}

fn zeroed(mut chunk: Chunk) -> Chunk {
    assert!(is_marked(&mut chunk, 0), "claimed zeroed, and is not zero");
    chunk
}

fn release(owners: &Owners, (mut chunk, fill): (Chunk, u8)) {
    assert!(is_marked(&mut chunk, fill), "a page was written by somebody else");
    owners.leave(&chunk);
}
