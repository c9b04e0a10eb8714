//! SIGKILL while an arena grows and shrinks: the pool has its pages back, and the next owner believes no dirty page
//! clean.

use std::time::Duration;

use hugearena::arena::Restart;
use hugearena::memops::{Nothing, Pace};

use super::named::{Ground, child};
use super::support::claim_clean;
use super::support::kill::{Random, killed_after, killed_after_ready, rounds};
use super::*;

/// SIGKILLs, in full.
const ROUNDS: usize = 200;
const MOST: usize = 12;

/// Grows and shrinks, and makes dirty what it claims.
fn use_arena(arena: &Arena, random: &mut Random) {
    let steps = random.below(60) + 3;
    for _ in 0..steps {
        let pages = random.below(4) as usize + 1;
        match random.below(8) {
            0 | 1 => arena.claim(pages).iter_mut().for_each(|chunk| mark(chunk, 1)),
            2 => arena.claim_zeroed(pages, FirstTouch::unknown()).iter_mut().for_each(|chunk| mark(chunk, 1)),
            3 => drop(arena.scrub(pages * HUGE, &mut Nothing.in_batches_of(64 << 10))),
            4 => drop(arena.trim().unwrap()),
            5 => drop(arena.shrink(pages).unwrap()),
            _ => drop(arena.grow(pages)),
        }
    }
}

#[test]
fn no_dirty_page_is_believed_clean_and_remove_restores_the_pool() {
    child(MOST).run(|| {
        let mut random = Random::seeded();
        let ground = Ground::new(&format!("size={}", MOST * HUGE));
        let (mut known, mut clean, mut lacking) = (0, 0, 0);
        for round in 0..rounds(ROUNDS) {
            // Early, while it is created and populated; or later, counted from when it is open.
            let longest = [4_000, 2_000, 20_000][round % 3];
            let time = Duration::from_micros(random.below(longest));
            let (first, mut its_own) = (random.below(5) as usize + 1, random.another());
            let open = || ground.builder(first, MOST).open().unwrap();
            match round % 3 {
                0 => killed_after(time, || use_arena(&open(), &mut its_own)),
                _ => killed_after_ready(time, |ready| {
                    let arena = open();
                    ready();
                    use_arena(&arena, &mut its_own);
                }),
            };
            let arena = ground.builder(0, MOST).open().unwrap();
            let stats = arena.stats();
            assert_eq!((stats.pages + stats.absent, ground.allocated()), (MOST, stats.pages as u64), "{stats}");
            known += usize::from(matches!(arena.named().unwrap().restart(), Restart::Known { .. }));
            lacking += usize::from(stats.absent > 0 && stats.pages > 0);
            clean += check_clean(&arena);
            arena.grow(stats.absent).unwrap();
            let mut all = arena.claim_zeroed(MOST, FirstTouch::unknown()).unwrap();
            assert!(is_marked(&mut all, 0), "round {round}");
            mark(&mut all, 1);
            drop((all, arena));
            if round % 2 == 0 {
                ground.remove();
                assert_eq!(ground.free(), MOST as u64, "removed, and the pages are not back");
            }
        }
        eprintln!("{known} restarts with a record, {lacking} of arenas with some of their pages; {clean} clean pages");
        assert!(known >= rounds(ROUNDS) / 3 * 2, "{known}: each that was open has left a record");
        assert!(lacking > 0, "no arena was left with some of its pages");
        if ground.file().exists() {
            ground.remove();
        }
    });
}

/// Every page that counts as clean is zero where it was marked.
fn check_clean(arena: &Arena) -> usize {
    let mut chunks = claim_clean(arena);
    for chunk in &mut chunks {
        assert!(is_marked(chunk, 0), "the page at {} is dirty", chunk.offset());
    }
    chunks.len()
}

#[test]
fn the_pool_has_its_pages_back() {
    Child::new().pool_of(MOST as u64).run(|| {
        let mut random = Random::seeded();
        for round in 0..rounds(ROUNDS) {
            let kind = KINDS[round % 2].clone();
            let populate = [Populate::Eager, Populate::Lazy, Populate::Background][round % 3];
            let time = Duration::from_micros(random.below([1_000, 4_000, 20_000][round % 3]));
            let (first, mut its_own) = (random.below(5) as usize + 1, random.another());
            killed_after(time, || {
                let builder = builder(PageSize::HUGE_2M, first, MOST).backing(kind).populate(populate);
                use_arena(&builder.open().unwrap(), &mut its_own);
            });
            let is_back = || pool(PageSize::HUGE_2M).is_some_and(|(free, reserved)| free - reserved == MOST as u64);
            assert!(support::is_so_within(Duration::from_secs(30), is_back), "{round}");
        }
    });
}
