//! Arenas that grow and shrink: every backing, every page size, every limit that can stop a growth, and what the pool
//! says at each step.

#![allow(unsafe_code)]

mod support;

#[path = "resize/background.rs"]
mod background;
#[path = "resize/forked.rs"]
mod forked;
#[path = "resize/kill.rs"]
mod kill;
#[path = "resize/mappings.rs"]
mod mappings;
#[path = "resize/named.rs"]
mod named;
#[path = "resize/refused.rs"]
mod refused;
#[path = "resize/shadow.rs"]
mod shadow;

use hugearena::arena::PageState;
use hugearena::backing::BackingKind;
use hugearena::error::{LimitKind, Operation};
use hugearena::supply::Supply;
use hugearena::{Arena, ArenaBuilder, Chunk, FirstTouch, PageSize, Populate};

use support::{Child, for_each_page_size, fork, is_filled, is_zero, resident_bytes};

const KINDS: [BackingKind; 2] = [BackingKind::Memfd, BackingKind::Anonymous];
const HUGE: usize = 2 << 20;

fn builder(size: PageSize, pages: usize, most: usize) -> ArenaBuilder {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).max_capacity(most * size.bytes()).strict()
}

fn bytes_of(chunk: &mut Chunk) -> &mut [u8] {
    // SAFETY: the tests hand chunks to nobody else while they look at them.
    unsafe { chunk.slice_mut() }
}

/// The first and the last few bytes of each page, and its middle: enough to tell pages apart.
fn mark(chunk: &mut Chunk, fill: u8) {
    let page = chunk.arena().page_size().bytes();
    bytes_of(chunk).chunks_mut(page).for_each(|page| places(page.len()).for_each(|at| page[at..at + 64].fill(fill)));
}

fn is_marked(chunk: &mut Chunk, fill: u8) -> bool {
    let page = chunk.arena().page_size().bytes();
    bytes_of(chunk).chunks(page).all(|page| places(page.len()).all(|at| is_filled(&page[at..at + 64], fill)))
}

fn places(len: usize) -> impl Iterator<Item = usize> {
    [0, len / 2, len - 64].into_iter()
}

/// Pages of a pool that are free, and those of them that are promised.
fn pool(size: PageSize) -> Option<(u64, u64)> {
    Supply::read().pool(size).map(|pool| (pool.free, pool.reserved))
}

/// What a pool has given since `before`: taken, promised.
fn taken(size: PageSize, before: Option<(u64, u64)>) -> Option<(i64, i64)> {
    let (free, reserved) = pool(size)?;
    let (free_before, reserved_before) = before?;
    Some((free_before as i64 - free as i64, reserved as i64 - reserved_before as i64))
}

#[test]
fn every_backing_grows_shrinks_and_grows_again() {
    for_each_page_size(6, |size, most| {
        for kind in KINDS {
            let first = most / 3 + 1;
            let arena = builder(size, first, most).backing(kind.clone()).open().unwrap();
            let page = size.bytes();
            assert_eq!((arena.capacity(), arena.max_capacity()), (first * page, most * page));
            assert_eq!(arena.obtained().capacity_bytes, first * page);
            let mut held = arena.claim(first).unwrap();
            let address = held.as_ptr();
            mark(&mut held, 7);
            assert!(arena.claim(1).is_none(), "there is no page in the room");
            arena.grow(most - first).unwrap();
            assert_eq!((arena.capacity(), arena.stats().absent, arena.stats().fresh), (most * page, 0, most - first));
            if most > first {
                let mut new = arena.claim_zeroed(most - first, FirstTouch::unknown()).unwrap();
                assert_eq!(new.as_ptr(), address.map_addr(|at| at.saturating_add(first * page)), "addresses are fixed");
                assert!(is_marked(&mut new, 0), "{size} {kind}: new pages are zero");
                mark(&mut new, 8);
            }
            assert_eq!(arena.trim().unwrap(), most - first);
            assert_eq!((arena.capacity(), arena.stats().pages), (first * page, first));
            assert_eq!(arena.trim().unwrap(), 0, "what is claimed stays");
            assert!(is_marked(&mut held, 7) && held.as_ptr() == address);
            drop(held);
            assert_eq!(arena.trim().unwrap(), first);
            assert_eq!((arena.capacity(), arena.max_capacity()), (0, most * page));
            assert!(arena.claim(1).is_none() && arena.last_error().is_none());
            arena.grow(most).unwrap();
            let mut all = arena.claim_zeroed(most, FirstTouch::unknown()).unwrap();
            assert_eq!((all.as_ptr(), arena.stats().cleared_bytes), (address, 0), "the kernel has cleared them");
            assert!(is_marked(&mut all, 0));
        }
    });
}

#[test]
fn shrinking_takes_the_highest_free_pages_and_leaves_spare_ones() {
    for_each_page_size(9, |size, pages| {
        if pages < 9 {
            return;
        }
        for kind in KINDS {
            let arena = builder(size, 9, 9).spare_pages(2).backing(kind).open().unwrap();
            let (fresh, claimed, absent) = (PageState::Fresh, PageState::Claimed, PageState::Absent);
            let low = arena.claim_zeroed(4, FirstTouch::unknown()).unwrap();
            let high = arena.claim_zeroed(3, FirstTouch::unknown()).unwrap();
            drop(low);
            assert_eq!(arena.shrink(1).unwrap(), 1);
            let dirty = PageState::Dirty;
            assert_eq!(arena.page_states(), [dirty, dirty, dirty, dirty, claimed, claimed, claimed, fresh, absent]);
            assert_eq!(arena.shrink(3).unwrap(), 3, "around what is claimed");
            assert_eq!(arena.page_states()[..3], [dirty, dirty, absent]);
            assert_eq!(arena.trim().unwrap(), 0, "two are spare");
            arena.grow(1).unwrap();
            assert_eq!(arena.page_states()[..4], [dirty, dirty, fresh, absent], "the lowest come first");
            assert_eq!(arena.trim().unwrap(), 1);
            drop(high);
            assert_eq!(arena.trim().unwrap(), 3);
            assert_eq!((arena.stats().pages, arena.stats().dirty), (2, 2));
            arena.grow(7).unwrap();
            assert!(arena.claim(9).is_some(), "nothing is lost");
        }
    });
}

#[test]
fn resizing_has_to_be_asked_for() {
    let refused = |result: hugearena::Result<()>, reason: &str| {
        let error = result.unwrap_err();
        assert!(error.operation() == Operation::Configure && error.to_string().contains(reason), "{error}");
    };
    let size = PageSize::base();
    let fixed = Arena::builder().page_size(size).capacity(size.bytes()).open().unwrap();
    refused(fixed.grow(1), "not opened with max_capacity");
    refused(fixed.shrink(1).map(drop), "not opened with max_capacity");
    refused(fixed.trim().map(drop), "not opened with max_capacity");
    assert_eq!(fixed.capacity(), fixed.max_capacity());
    let arena = builder(size, 1, 3).open().unwrap();
    refused(arena.grow(3), "room for 2 more");
    refused(arena.grow(usize::MAX), "room for 2 more");
    arena.grow(0).unwrap();
    arena.grow(2).unwrap();
    refused(arena.grow(1), "room for 0 more");
    refused(builder(size, 3, 2).open().map(drop), "max_capacity is");
    refused(builder(size, 0, 2).open().map(drop), "0 bytes");
    refused(Arena::builder().capacity(1).max_capacity(usize::MAX).open().map(drop), "max_capacity is");
    let status = fork(|| i32::from(arena.grow(1).is_ok() || arena.trim().is_ok()));
    assert!(status.success(), "a child resized memory that it has not");
    assert_eq!(arena.trim().unwrap(), 3);
}

#[test]
fn a_child_resizes_its_copy_of_a_private_arena() {
    for_each_page_size(2, |size, pages| {
        if size >= PageSize::HUGE_1G {
            return;
        }
        let arena = builder(size, 1, 2 * pages).backing(BackingKind::Anonymous).open().unwrap();
        let mut held = arena.claim(1).unwrap();
        mark(&mut held, 3);
        let status = fork(|| {
            arena.grow(1).unwrap();
            let mut chunk = arena.claim_zeroed(1, FirstTouch::unknown()).unwrap();
            mark(&mut chunk, 4);
            drop(chunk);
            i32::from(arena.trim().unwrap() != 1)
        });
        assert!(status.success());
        assert_eq!(arena.stats().pages, 1, "the parent's arena is as it was");
        assert!(is_marked(&mut held, 3));
    });
}

/// In a process of its own, so that HugetlbPages is this arena's, and with the pool's lock held.
#[test]
fn the_pool_and_the_process_agree_with_the_statistics_at_each_step() {
    Child::new().pool_of(12).run(|| {
        let size = PageSize::HUGE_2M;
        for kind in KINDS {
            for populate in [Populate::Eager, Populate::Lazy] {
                let before = pool(size);
                let arena = builder(size, 3, 8).backing(kind.clone()).populate(populate).open().unwrap();
                let agree = |arena: &Arena, when: &str| {
                    let stats = arena.stats();
                    let (there, promised) = (stats.pages - stats.unpopulated, stats.unpopulated);
                    let expected = Some((there as i64, promised as i64));
                    assert_eq!(taken(size, before), expected, "{kind} {populate:?} {when}: {stats}");
                    assert_eq!(hugetlb_bytes(), there * HUGE, "{kind} {populate:?} {when}: {stats}");
                    assert_eq!(stats.pages + stats.absent, 8);
                };
                agree(&arena, "opened");
                let chunk = arena.claim(1).unwrap();
                agree(&arena, "claimed");
                let zeroed = arena.claim_zeroed(2, FirstTouch::whole());
                agree(&arena, "claimed zeroed");
                arena.grow(2).unwrap();
                agree(&arena, "grown");
                arena.grow(3).unwrap();
                agree(&arena, "grown to the end");
                drop(zeroed);
                agree(&arena, "released");
                assert_eq!(arena.shrink(2).unwrap(), 2);
                agree(&arena, "shrunk");
                arena.scrub(usize::MAX, &mut hugearena::memops::Nothing);
                agree(&arena, "scrubbed");
                assert_eq!(arena.trim().unwrap(), 5);
                agree(&arena, "trimmed");
                let grown = arena.grow(12).unwrap_err();
                assert_eq!(grown.operation(), Operation::Configure);
                arena.grow(7).unwrap();
                agree(&arena, "grown again");
                drop((chunk, arena));
                assert_eq!((taken(size, before), hugetlb_bytes()), (Some((0, 0)), 0), "{kind} {populate:?} dropped");
            }
            // What was promised and never populated goes back, too.
            let before = pool(size);
            let arena = builder(size, 3, 8).backing(kind.clone()).populate(Populate::Lazy).open().unwrap();
            assert_eq!(taken(size, before), Some((0, 3)));
            assert_eq!(arena.trim().unwrap(), 3);
            assert_eq!(taken(size, before), Some((0, 0)), "{kind}: {}", arena.stats());
        }
    });
}

/// `HugetlbPages` of this process.
fn hugetlb_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")?.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse::<usize>().unwrap() << 10
}

#[test]
fn where_smaller_pages_stand_in_they_come_and_go_as_well() {
    Child::new().pool_of(0).run(|| {
        for kind in KINDS {
            let most = 8 * HUGE;
            let (told, heard) = std::sync::mpsc::channel();
            let builder = Arena::builder().capacity(2 * HUGE).max_capacity(most).backing(kind.clone());
            let arena = builder.on_fallback(move |declined| told.send(declined.to_string()).unwrap()).open().unwrap();
            assert!(arena.obtained().is_fallback() && arena.stats().to_string().contains("1 page sizes could not"));
            let events: Vec<_> = heard.try_iter().collect();
            assert!(events.len() == arena.stats().fallbacks && events[0].contains("2M pages: cannot "), "{events:?}");
            let mut held = arena.claim(2).unwrap();
            assert_eq!(held.as_ptr().align_offset(HUGE), 0);
            mark(&mut held, 5);
            // The program's own pages are less than one huge page.
            let empty = resident_bytes();
            arena.grow(6).unwrap();
            assert!(resident_bytes() >= empty + 5 * HUGE, "{kind}: populated, {}", arena.stats());
            let mut more = arena.claim_zeroed(6, FirstTouch::unknown()).unwrap();
            assert!(is_marked(&mut more, 0));
            mark(&mut more, 6);
            drop(more);
            assert_eq!(arena.trim().unwrap(), 6);
            assert!(resident_bytes() <= empty + HUGE, "{kind}: the system has its memory back");
            assert!(is_marked(&mut held, 5));
            arena.grow(1).unwrap();
            assert!(is_zero(bytes_of(&mut arena.claim_zeroed(1, FirstTouch::unknown()).unwrap())));
        }
    });
}

#[test]
fn a_view_sees_what_the_owner_grows_and_loses_nothing_that_is_valid() {
    for_each_page_size(4, |size, most| {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let arena = builder(size, 1, most).open().unwrap();
        arena.share(&ours).unwrap();
        let view = hugearena::arena::View::receive(&theirs).unwrap();
        assert_eq!(view.len(), most * size.bytes());
        let mut held = arena.claim(1).unwrap();
        mark(&mut held, 9);
        let byte = |offset: usize| {
            // SAFETY: the tests look only where a chunk is.
            unsafe { view.get(offset, 1).unwrap().cast::<u8>().read() }
        };
        assert_eq!(byte(0), 9);
        if most > 1 {
            arena.grow(most - 1).unwrap();
            let mut new = arena.claim(most - 1).unwrap();
            mark(&mut new, 10);
            assert_eq!(byte(new.offset()), 10, "what came later is there for the view as well");
            view.make_present(new.offset(), new.len()).unwrap();
            drop(new);
            assert_eq!(arena.trim().unwrap(), most - 1);
        }
        assert_eq!(byte(0), 9, "what is claimed stays for all");
        // Against the rules: a free page that was given back. It is no secret to the next owner.
        if most > 2 && view.make_present((most - 1) * size.bytes(), 1).is_ok() {
            // SAFETY: present.
            unsafe { view.get((most - 1) * size.bytes(), 1).unwrap().cast::<u8>().write(66) };
            arena.grow(most - 1).unwrap();
            let mut all = arena.claim_zeroed(most - 1, FirstTouch::unknown()).unwrap();
            assert!(is_marked(&mut all, 0), "a stray write is not taken for zeroes");
        }
    });
}
