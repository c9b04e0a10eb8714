//! The public interface of arenas, on base pages and on every huge page size that the supply allows.

#![allow(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc;

use hugearena::backing::{BackingKind, MemoryClass};
use hugearena::error::{LimitKind, Operation};
use hugearena::supply::Supply;
use hugearena::{Arena, ArenaBuilder, Chunk, FirstTouch, PageSize, Populate};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use support::machine::Mounted;
use support::{Child, for_each_page_size, is_filled};

const KINDS: [BackingKind; 2] = [BackingKind::Memfd, BackingKind::Anonymous];
const POPULATES: [Populate; 2] = [Populate::Eager, Populate::Lazy];

fn builder(size: PageSize, pages: usize) -> ArenaBuilder {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).strict()
}

fn open(size: PageSize, pages: usize) -> Arena {
    builder(size, pages).open().unwrap()
}

fn open_private(size: PageSize, pages: usize) -> Arena {
    builder(size, pages).backing(BackingKind::Anonymous).open().unwrap()
}

fn bytes_of(chunk: &mut Chunk) -> &mut [u8] {
    // SAFETY: the tests hand chunks to nobody else while they look at them.
    unsafe { chunk.slice_mut() }
}

/// Offsets in `len` bytes where the tests look: all of it, except in pages of 1 GiB, which would take too long.
fn samples(len: usize) -> Vec<std::ops::Range<usize>> {
    const PART: usize = 256 << 10;
    const LARGEST: usize = 64 << 20;
    let places = [0, 1 << 29, (1 << 30) - PART, len.saturating_sub(PART)];
    match len {
        0..=LARGEST => std::iter::once(0..len).collect(),
        _ => places.map(|start| start..start + PART).into(),
    }
}

fn scribble(chunk: &mut Chunk, fill: u8) {
    for part in samples(chunk.len()) {
        bytes_of(chunk)[part].fill(fill);
    }
}

fn holds(chunk: &mut Chunk, fill: u8) -> bool {
    samples(chunk.len()).into_iter().all(|part| is_filled(&bytes_of(chunk)[part], fill))
}

/// Claims every page one by one.
fn claim_all(arena: &Arena) -> Vec<Chunk> {
    std::iter::from_fn(|| arena.claim(1)).collect()
}

#[test]
fn every_backing_opens_and_hands_out_every_page() {
    for_each_page_size(5, |size, pages| {
        for kind in KINDS {
            for populate in POPULATES {
                let arena = builder(size, pages).backing(kind.clone()).populate(populate).open().unwrap();
                check_obtained(&arena, &kind, populate, size, pages);
                check_every_page(&arena, pages);
            }
        }
    });
}

fn check_obtained(arena: &Arena, kind: &BackingKind, populate: Populate, size: PageSize, pages: usize) {
    let obtained = arena.obtained();
    assert_eq!((obtained.page_size, obtained.capacity_bytes), (size, pages * size.bytes()));
    assert_eq!((arena.page_size(), arena.capacity()), (size, pages * size.bytes()));
    assert_eq!((&obtained.kind, obtained.populated), (kind, populate == Populate::Eager));
    assert_eq!((obtained.memory_class(), arena.memory_class()), (kind.memory_class(), kind.memory_class()));
    assert!(!obtained.is_fallback() && obtained.declined.is_empty());
    let when = if obtained.populated { "populated" } else { "populated when claimed" };
    let text = obtained.to_string();
    let rest = text.strip_prefix(&format!("{} bytes on {size} pages ({kind}), {when}", pages * size.bytes()));
    let nodes = rest.unwrap_or_else(|| panic!("{text}"));
    assert!(nodes.is_empty() || nodes.starts_with(", ") && nodes.contains(" pages on node "), "{text}");
    assert!(format!("{arena:?}").contains("Arena"));
}

fn check_every_page(arena: &Arena, pages: usize) {
    let size = arena.page_size().bytes();
    let mut chunks = claim_all(arena);
    let offsets: BTreeSet<_> = chunks.iter().map(Chunk::offset).collect();
    assert_eq!(offsets, (0..pages).map(|page| page * size).collect());
    let base = chunks.iter().map(|chunk| chunk.as_ptr().addr().get() - chunk.offset()).collect::<BTreeSet<_>>();
    assert_eq!(base.len(), 1, "offsets count from one start");
    for (index, chunk) in chunks.iter_mut().enumerate() {
        assert_eq!((chunk.len(), chunk.pages(), chunk.as_ptr().addr().get() % size), (size, 1, 0));
        assert_eq!(chunk.arena().capacity(), pages * size);
        assert!(holds(chunk, 0), "fresh pages are zero");
        scribble(chunk, index as u8 + 1);
    }
    assert!(chunks.iter_mut().enumerate().all(|(index, chunk)| holds(chunk, index as u8 + 1)));
    assert!(arena.claim(1).is_none() && arena.claim_zeroed(1, FirstTouch::unknown()).is_none());
    assert!(arena.last_error().is_none(), "an arena that is full is no error");
    drop(chunks);
    let whole = arena.claim(pages).unwrap();
    assert_eq!((whole.offset(), whole.len()), (0, pages * size));
}

#[test]
fn runs_are_contiguous_and_fit_only_where_they_fit() {
    for_each_page_size(9, |size, pages| {
        let arena = builder(size, pages).populate(Populate::Lazy).open().unwrap();
        assert!(arena.claim(0).is_none() && arena.claim(pages + 1).is_none() && arena.claim(usize::MAX).is_none());
        assert!(arena.claim_zeroed(0, FirstTouch::whole()).is_none());
        if pages < 9 {
            return;
        }
        let mut chunks = claim_all(&arena);
        chunks.sort_by_key(Chunk::offset);
        // Holes of one, two and three pages.
        let kept: Vec<_> = chunks.into_iter().enumerate().filter(|(page, _)| [0, 2, 5].contains(page)).collect();
        assert_eq!(arena.stats().claimed, 3);
        assert!(arena.claim(4).is_none());
        let three = arena.claim(3).unwrap();
        assert!(arena.claim(3).is_none());
        let two = arena.claim_zeroed(2, FirstTouch::unknown()).unwrap();
        assert_eq!((three.offset(), two.offset()), (6 * size.bytes(), 3 * size.bytes()));
        assert!(arena.claim(2).is_none() && arena.claim(1).is_some());
        drop(kept);
    });
}

#[test]
fn pages_are_fresh_until_claimed_and_dirty_afterwards() {
    for_each_page_size(4, |size, pages| {
        let arena = open(size, pages);
        let counts = |arena: &Arena| {
            let stats = arena.stats();
            assert_eq!((stats.pages, stats.page_size), (pages, size));
            [stats.fresh, stats.clean, stats.dirty, stats.claimed]
        };
        assert_eq!(counts(&arena), [pages, 0, 0, 0]);
        let chunk = arena.claim_zeroed(1, FirstTouch::unknown()).unwrap();
        assert_eq!(counts(&arena), [pages - 1, 0, 0, 1]);
        drop(chunk);
        assert_eq!(counts(&arena), [pages - 1, 0, 1, 0]);
        assert_eq!(arena.stats().cleared_bytes, 0, "the kernel zeroed fresh pages, nobody does so again");
        let dirty = arena.claim(1).unwrap();
        assert_eq!(counts(&arena), [pages - 1, 0, 0, 1], "whoever wants no zeroes gets the dirty page");
        let fresh = arena.claim_zeroed(1, FirstTouch::unknown()).unwrap();
        assert_eq!(arena.stats().cleared_bytes, 0, "whoever wants zeroes gets a fresh page");
        drop((dirty, fresh));
        drop(arena.claim_zeroed(pages, FirstTouch::unknown()).unwrap());
        assert_eq!(arena.stats().cleared_bytes, 2 * size.bytes() as u64, "only the two dirty pages were cleared");
        assert_eq!(counts(&arena), [0, 0, pages, 0]);
        let text = arena.stats().to_string();
        assert!(text.starts_with(&format!("{pages} pages of {size}: 0 claimed, 0 fresh, 0 clean")), "{text}");
    });
}

#[test]
fn claim_zeroed_is_zero_whatever_the_hint_and_the_last_holder() {
    for_each_page_size(4, |size, pages| {
        let arena = open_private(size, pages);
        let page = size.bytes();
        let edges = [0, 1, page - 1, page, pages * page - 1, pages * page, usize::MAX];
        let lengths = if size >= PageSize::HUGE_1G { vec![1] } else { vec![0, 1, 4096, page, usize::MAX] };
        for offset in edges {
            for len in &lengths {
                let mut all = arena.claim(pages).unwrap();
                scribble(&mut all, 0xA5);
                drop(all);
                let mut zeroed = arena.claim_zeroed(pages, FirstTouch::at(offset, *len)).unwrap();
                assert!(holds(&mut zeroed, 0), "{size}: not zero with a hint of {len} at {offset}");
            }
        }
    });
}

#[test]
fn chunks_outlive_handles_and_go_back_from_any_thread() {
    for_each_page_size(4, |size, pages| {
        let arena = open(size, pages);
        let clone = arena.clone();
        let mut chunks = claim_all(&clone);
        drop(clone);
        chunks.iter_mut().for_each(|chunk| scribble(chunk, 7));
        let (send, receive) = mpsc::channel::<Chunk>();
        let consumer = std::thread::spawn(move || {
            receive.into_iter().all(|mut chunk| {
                assert!(holds(&mut chunk, 7));
                chunk.arena().stats().claimed > 0
            })
        });
        chunks.into_iter().for_each(|chunk| send.send(chunk).unwrap());
        drop(send);
        assert!(consumer.join().unwrap());
        assert_eq!(arena.stats().claimed, 0);
        let mut last = arena.claim(1).unwrap();
        drop(arena);
        scribble(&mut last, 9);
        assert!(holds(&mut last, 9), "a chunk keeps its arena mapped");
        std::thread::spawn(move || drop(last)).join().unwrap();
    });
}

#[test]
fn handles_and_chunks_may_go_anywhere() {
    fn anywhere<T: Send + Sync + 'static>() {}
    fn shared<T: Clone>() {}
    anywhere::<Arena>();
    anywhere::<Chunk>();
    anywhere::<hugearena::arena::View>();
    anywhere::<hugearena::arena::FileRegion<'static>>();
    shared::<Arena>();
}

/// Marks every page of a chunk at both ends, where a neighbour would come in.
fn stamp(chunk: &Chunk, page: usize, mark: u64) {
    for at in (0..chunk.len()).step_by(page).flat_map(|start| [start, start + page - 8]) {
        // SAFETY: inside the chunk, aligned to eight bytes.
        unsafe { chunk.as_ptr().add(at).cast().write(mark) };
    }
}

fn is_stamped(chunk: &Chunk, page: usize, mark: u64) -> bool {
    let mut places = (0..chunk.len()).step_by(page).flat_map(|start| [start, start + page - 8]);
    // SAFETY: inside the chunk, aligned to eight bytes, and initialized.
    places.all(|at| unsafe { chunk.as_ptr().add(at).cast::<u64>().read() } == mark)
}

#[test]
fn threads_never_share_a_page_and_keep_what_they_write() {
    for_each_page_size(16, |size, pages| {
        for populate in POPULATES {
            let arena = builder(size, pages).populate(populate).open().unwrap();
            let owners: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
            let rounds = if size.is_huge() { 2_000 } else { 10_000 };
            std::thread::scope(|scope| {
                for thread in 1..=4 {
                    let (arena, owners) = (&arena, &owners);
                    scope.spawn(move || claim_and_check(arena, owners, thread, rounds));
                }
            });
            assert_eq!(arena.stats().claimed, 0);
            assert!(arena.claim(pages).is_some(), "nothing is lost");
        }
    });
}

fn claim_and_check(arena: &Arena, owners: &[AtomicU64], thread: u64, rounds: u64) {
    let page = arena.page_size().bytes();
    let mut held: Option<(Chunk, u64)> = None;
    for round in 0..rounds {
        let count = 1 + (round * thread) as usize % 3;
        let mark = thread << 32 | round;
        let new = arena.claim(count).map(|chunk| {
            for owner in &owners[pages_of(&chunk)] {
                assert_eq!(owner.swap(thread, SeqCst), 0, "a page has two owners");
            }
            stamp(&chunk, page, mark);
            (chunk, mark)
        });
        if let Some((chunk, mark)) = std::mem::replace(&mut held, new) {
            assert!(is_stamped(&chunk, page, mark), "a page was written by somebody else");
            disown(&chunk, owners);
        }
    }
    if let Some((chunk, _)) = held {
        disown(&chunk, owners);
    }
}

fn disown(chunk: &Chunk, owners: &[AtomicU64]) {
    owners[pages_of(chunk)].iter().for_each(|owner| owner.store(0, SeqCst));
}

#[derive(Clone, Debug)]
enum Step {
    Claim(usize),
    Zeroed(usize, usize, usize),
    Release(usize),
}

fn any_step(pages: usize, bytes: usize) -> impl Strategy<Value = Step> {
    let count = 0..pages + 2;
    prop_oneof![
        3 => count.clone().prop_map(Step::Claim),
        3 => (count, 0..bytes + 2, 0..bytes).prop_map(|(count, offset, len)| Step::Zeroed(count, offset, len)),
        4 => any::<usize>().prop_map(Step::Release),
    ]
}

/// Against a list of flags: a claim succeeds exactly when a run is free, chunks do not overlap, keep what was
/// written, and are zero when that was asked for.
#[test]
fn any_sequence_of_claims_agrees_with_a_shadow() {
    for_each_page_size(9, |size, pages| {
        let (cases, steps) = match size {
            PageSize::HUGE_1G => (1, 6),
            PageSize::HUGE_2M => (8, 40),
            _ => (128, 80),
        };
        let mut runner =
            TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) });
        let strategy = proptest::collection::vec(any_step(pages, pages * size.bytes()), 1..steps);
        let run = |steps: Vec<Step>| {
            for kind in KINDS {
                Shadow::new(builder(size, pages).backing(kind).open().unwrap()).play(&steps);
            }
            Ok(())
        };
        runner.run(&strategy, run).unwrap();
    });
}

struct Shadow {
    arena: Arena,
    used: Vec<bool>,
    live: Vec<(Chunk, u8)>,
    next_fill: u8,
}

impl Shadow {
    fn new(arena: Arena) -> Shadow {
        let pages = arena.stats().pages;
        Shadow { arena, used: vec![false; pages], live: Vec::new(), next_fill: 0 }
    }

    fn play(mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Claim(count) => {
                    let chunk = self.arena.claim(count);
                    self.take(chunk, count, false);
                }
                Step::Zeroed(count, offset, len) => {
                    let chunk = self.arena.claim_zeroed(count, FirstTouch::at(offset, len));
                    self.take(chunk, count, true);
                }
                Step::Release(at) if !self.live.is_empty() => {
                    let (mut chunk, fill) = self.live.swap_remove(at % self.live.len());
                    assert!(holds(&mut chunk, fill));
                    self.used[pages_of(&chunk)].fill(false);
                }
                Step::Release(_) => {}
            }
            assert_eq!(self.arena.stats().claimed, self.used.iter().filter(|used| **used).count());
        }
    }

    fn take(&mut self, chunk: Option<Chunk>, count: usize, zeroed: bool) {
        let possible = count > 0 && self.used.windows(count).any(|run| run.iter().all(|used| !used));
        assert_eq!(chunk.is_some(), possible, "{count} of {:?}", self.used);
        let Some(mut chunk) = chunk else { return };
        assert_eq!(chunk.pages(), count);
        assert!(self.used[pages_of(&chunk)].iter().all(|used| !used), "a page has two owners");
        assert!(!zeroed || holds(&mut chunk, 0));
        self.used[pages_of(&chunk)].fill(true);
        self.next_fill = self.next_fill.wrapping_add(1).max(1);
        scribble(&mut chunk, self.next_fill);
        self.live.push((chunk, self.next_fill));
    }
}

fn pages_of(chunk: &Chunk) -> std::ops::Range<usize> {
    let first = chunk.offset() / chunk.arena().page_size().bytes();
    first..first + chunk.pages()
}

#[test]
fn safe_slices_are_for_private_memory_only() {
    for_each_page_size(2, |size, pages| {
        let mut private = open_private(size, pages).claim(1).unwrap();
        assert_eq!(private.arena().memory_class(), MemoryClass::Private);
        private.as_mut_slice().unwrap()[size.bytes() - 1] = 5;
        assert_eq!(private.as_slice().map(|bytes| (bytes.len(), bytes[size.bytes() - 1])), Some((size.bytes(), 5)));
        drop(private);
        let mut shared = open(size, pages).claim(1).unwrap();
        assert_eq!(shared.arena().memory_class(), MemoryClass::Shared);
        assert!(shared.as_slice().is_none() && shared.as_mut_slice().is_none());
        assert_eq!(bytes_of(&mut shared).len(), size.bytes());
        assert!(format!("{shared:?}").contains(&format!("page_size: {size}")));
    });
}

#[test]
fn a_forked_child_has_no_shared_memory() {
    for_each_page_size(2, |size, pages| {
        let mut chunk = open(size, pages).claim(1).unwrap();
        scribble(&mut chunk, 3);
        let status = support::fork(|| {
            // SAFETY: there is no memory in this process, which is what is tested: it dies.
            unsafe { chunk.as_ptr().write_volatile(4) };
            0
        });
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGSEGV), "{status}");
        assert!(holds(&mut chunk, 3));
        let arena = chunk.arena().clone();
        let status = support::fork(|| {
            drop(chunk);
            drop(arena);
            0
        });
        assert!(status.success(), "a child may drop what it inherited: {status}");
    });
}

/// Experiments: 59.
#[test]
fn a_forked_child_has_its_own_copy_of_private_memory() {
    // The child's copy takes pages from the pool as well.
    for_each_page_size(4, |size, pages| {
        if size >= PageSize::HUGE_1G {
            return; // see the next test
        }
        let pages = pages / 2;
        let arena = open_private(size, pages);
        let mut chunk = arena.claim(1).unwrap();
        scribble(&mut chunk, 3);
        let status = support::fork(|| {
            let was_there = holds(&mut chunk, 3);
            scribble(&mut chunk, 4);
            i32::from(!(was_there && holds(&mut chunk, 4)))
        });
        assert!(status.success(), "{status}");
        assert!(holds(&mut chunk, 3), "the parent does not see what the child wrote");
    });
}

/// Linux 6.18 loses some private pages of 1 GiB at fork, as twenty lines of C without this crate show: rather none than
/// zeroes in the place of what was there.
#[test]
fn a_forked_child_has_no_pages_of_1_gib() {
    for_each_page_size(2, |size, pages| {
        if size < PageSize::HUGE_1G {
            return;
        }
        let page = size.bytes();
        let builder = Arena::builder().page_size(size).backing(BackingKind::Anonymous).strict();
        for builder in [builder.clone().capacity(page), builder.capacity(page).max_capacity(pages * page)] {
            let arena = builder.open().unwrap();
            let mut chunk = arena.claim(1).unwrap();
            scribble(&mut chunk, 3);
            let status = support::fork(|| {
                assert!(chunk.as_slice().is_none() && arena.claim(1).is_none());
                // SAFETY: there is no memory in this process, which is what is tested: it dies.
                unsafe { chunk.as_ptr().read_volatile() };
                0
            });
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGSEGV), "{status}");
            assert!(holds(&mut chunk, 3));
        }
    });
}

/// Locks that other threads had when the process was copied are nobody's in the child, which has a copy of the pages.
#[test]
fn a_child_forked_while_others_claim_claims_as_well() {
    let arena = open_private(PageSize::base(), 64);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    drop((arena.claim(5), arena.claim_zeroed(1, FirstTouch::unknown())));
                }
            });
        }
        for round in 0..200 {
            let status = support::fork(|| {
                // Nobody else claims here, and what was being claimed is at most this much.
                let all: Vec<_> = (0..8).map(|_| arena.claim(2)).collect();
                i32::from(all.iter().any(Option::is_none))
            });
            assert!(status.success(), "round {round}: {status}");
        }
        stop.store(true, Relaxed);
    });
}

/// Experiments: 71.
#[test]
fn core_dumps_and_children_leave_out_shared_memory_only() {
    for_each_page_size(2, |size, pages| {
        let flags = |builder: ArenaBuilder| {
            let chunk = builder.open().unwrap().claim(1).unwrap();
            let flags = support::vm_flags(chunk.as_ptr().addr().get());
            [flags.contains(&"dd".into()), flags.contains(&"dc".into())]
        };
        assert_eq!(flags(builder(size, pages)), [true, true]);
        assert_eq!(flags(builder(size, pages).include_in_core_dumps()), [false, true]);
        let lost_at_fork = size >= PageSize::HUGE_1G;
        assert_eq!(flags(builder(size, pages).backing(BackingKind::Anonymous)), [false, lost_at_fork]);
    });
}

/// In a process of its own: other tests open files and start threads meanwhile.
#[test]
fn nothing_is_left_behind_by_arenas_that_come_and_go() {
    Child::new().run(|| for_each_page_size(2, check_that_nothing_is_left));
}

fn check_that_nothing_is_left(size: PageSize, pages: usize) {
    let names = |text: &str| text.lines().filter(|line| line.contains("hugearena") || line.contains("huge")).count();
    let before = (support::descriptors(), names(&support::mappings()));
    let address_space = support::machine::address_space_in_use();
    for kind in KINDS.iter().cycle().take(if size >= PageSize::HUGE_1G { 2 } else { 40 }) {
        let arena = builder(size, pages).backing(kind.clone()).populate(Populate::Lazy).open().unwrap();
        let chunk = arena.claim(1);
        drop(arena);
        drop(chunk);
    }
    assert_eq!((support::descriptors(), names(&support::mappings())), before);
    let grown = support::machine::address_space_in_use().saturating_sub(address_space);
    assert!(grown < (10 * pages * size.bytes()).max(1 << 20) as u64, "{grown} bytes of address space are lost");
}

#[test]
fn an_arena_that_cannot_be_had_leaves_nothing_behind() {
    Child::new().run(|| {
        let failing = [
            Arena::builder(),
            Arena::builder().capacity(usize::MAX),
            Arena::builder().capacity(isize::MAX as usize),
            builder(PageSize::base(), 1 << 40),
            builder(PageSize::base(), 1 << 40).backing(BackingKind::Anonymous),
            builder(PageSize::HUGE_2M, 1 << 25),
            builder(PageSize::HUGE_2M, 1 << 25).backing(BackingKind::Anonymous),
            builder(PageSize::base(), 1).backing(BackingKind::Hugetlbfs { dir: None }),
            builder(PageSize::HUGE_2M, 1).backing(BackingKind::Hugetlbfs { dir: Some("/proc".into()) }),
            builder(PageSize::HUGE_2M, 1).backing(BackingKind::Hugetlbfs { dir: Some("/no/such".into()) }),
            builder(PageSize::from_bytes(1 << 34).unwrap(), 1),
        ];
        let fail = || {
            for builder in &failing {
                let error = builder.clone().open().expect_err("this cannot be had");
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        };
        fail();
        let before = (support::descriptors(), support::mappings().lines().count());
        (0..5).for_each(|_| fail());
        assert_eq!((support::descriptors(), support::mappings().lines().count()), before);
    });
}

#[test]
fn options_that_make_no_sense_are_errors_of_configuration() {
    let hugetlbfs = |dir: Option<&str>| BackingKind::Hugetlbfs { dir: dir.map(Into::into) };
    for (builder, words) in [
        (Arena::builder(), "0 bytes"),
        (Arena::builder().capacity(usize::MAX), "isize::MAX"),
        (builder(PageSize::base(), 1).backing(hugetlbfs(None)), "base pages"),
        (builder(PageSize::HUGE_2M, 1).backing(hugetlbfs(Some("/proc"))), "not on a hugetlbfs"),
    ] {
        let error = builder.open().unwrap_err();
        assert_eq!(error.operation(), Operation::Configure, "{error}");
        assert!(error.to_string().contains(words) && error.os_error().is_none(), "{error}");
    }
}

/// Experiments: 50.
#[test]
fn capacity_is_rounded_up_to_whole_pages() {
    for_each_page_size(2, |size, pages| {
        let bytes = (pages - 1) * size.bytes() + 1;
        let arena = Arena::builder().page_size(size).capacity(bytes).strict().open().unwrap();
        assert_eq!((arena.capacity(), arena.stats().pages), (pages * size.bytes(), pages));
    });
}

#[test]
fn pages_that_are_not_there_are_an_error_or_stand_ins_that_say_why() {
    for_each_page_size(0, |size, _| {
        if !size.is_huge() {
            return;
        }
        let pages = support::too_many(size);
        let error = builder(size, pages).populate(Populate::Lazy).open().unwrap_err();
        let limit = error.limit().unwrap_or_else(|| panic!("no limit: {error}"));
        assert_eq!(limit.kind, LimitKind::Pool, "{error}");
        assert_eq!(limit.needed_bytes, (pages * size.bytes()) as u64);
        assert!(limit.remedy.starts_with("echo ") && error.to_string().contains(&limit.remedy), "{error}");

        let arena = Arena::builder().page_size(size).capacity(pages * size.bytes());
        let arena = arena.populate(Populate::Lazy).open().unwrap();
        let obtained = arena.obtained();
        assert!(obtained.is_fallback() && obtained.page_size < size, "{obtained}");
        assert_eq!(obtained.declined[0].page_size, size);
        assert!(obtained.to_string().contains(&format!("\n  not on {size} pages: cannot ")), "{obtained}");
        assert_eq!(arena.page_size(), size, "the grain stays");
        let chunk = arena.claim(1).unwrap();
        assert_eq!((chunk.len(), chunk.as_ptr().addr().get() % size.bytes()), (size.bytes(), 0), "{obtained}");
    });
}

#[test]
fn a_gibibyte_on_smaller_huge_pages_is_still_aligned_to_a_gibibyte() {
    Child::new().needs_pages(PageSize::HUGE_2M, 512).run(|| {
        let supply = Supply::read();
        if supply.pool(PageSize::HUGE_1G).is_none() {
            return support::skip_size(PageSize::HUGE_1G, "this kernel has no pages of that size");
        }
        // None of 1 GiB is left for the others.
        let available = supply.available_pages(PageSize::HUGE_1G) as usize;
        let hog = builder(PageSize::HUGE_1G, available.max(1)).populate(Populate::Lazy).open();
        assert_eq!(hog.is_ok(), available > 0);
        for kind in KINDS {
            let arena = Arena::builder().page_size(PageSize::HUGE_1G).capacity(1 << 30).backing(kind);
            let arena = arena.populate(Populate::Lazy).open().unwrap();
            assert_eq!(arena.obtained().page_size, PageSize::HUGE_2M, "{}", arena.obtained());
            let mut chunk = arena.claim(1).unwrap();
            scribble(&mut chunk, 1);
            assert_eq!(chunk.as_ptr().addr().get() % (1 << 30), 0, "{}", arena.obtained());
        }
    });
}

#[test]
fn hugetlbfs_serves_from_the_directory_given_or_finds_one() {
    Child::new().in_mount_namespace().run(|| on_each_mount(check_hugetlbfs));
}

fn check_hugetlbfs(size: PageSize, dir: &Path) {
    let inner = dir.join("inner");
    std::fs::create_dir(&inner).unwrap();
    for place in [Some(dir.to_path_buf()), Some(inner.clone()), None] {
        let kind = BackingKind::Hugetlbfs { dir: place };
        for populate in POPULATES {
            let arena = builder(size, 2).backing(kind.clone()).populate(populate).open().unwrap();
            check_obtained(&arena, &kind, populate, size, 2);
            check_every_page(&arena, 2);
            let maps = support::mappings();
            assert!(maps.contains(dir.to_str().unwrap()), "{maps}");
        }
    }
    std::fs::remove_dir(&inner).unwrap();
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "files have no names");
}

/// On a mount of each page size that two pages can be had of.
fn on_each_mount(test: impl Fn(PageSize, &Path)) {
    for size in [PageSize::HUGE_2M, PageSize::HUGE_1G] {
        match support::missing(size, 2) {
            Some(reason) => support::skip_size(size, &reason),
            None => test(size, Mounted::hugetlbfs(size, "", 0).path()),
        }
    }
}
