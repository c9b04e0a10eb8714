//! Growth that is refused: everything is as it was, the error names the limit, and nobody is killed.

use super::support::cgroup::{CgroupSpec, Limit, Version};
use super::support::machine::Mounted;
use super::*;

/// Grows by `pages`, which is refused by `limit`; then everything is as before, and smaller growth works.
fn refused(arena: &Arena, pages: usize, limit: LimitKind) {
    let (before, stats) = (pool(PageSize::HUGE_2M), arena.stats());
    let error = arena.grow(pages).unwrap_err();
    assert_eq!(error.limit().map(|limit| limit.kind), Some(limit), "{error}");
    assert!(!error.limit().unwrap().remedy.is_empty());
    assert_eq!((taken(PageSize::HUGE_2M, before), arena.stats()), (Some((0, 0)), stats), "{error}");
    assert_eq!(arena.obtained().page_size, PageSize::HUGE_2M);
}

/// Pages that are marked stay so; those that come are usable.
fn check(arena: &Arena, held: &mut Chunk, more: usize) {
    assert!(is_marked(held, 7));
    arena.grow(more).unwrap();
    let mut new = arena.claim_zeroed(more, FirstTouch::unknown()).unwrap();
    assert!(is_marked(&mut new, 0));
    mark(&mut new, 1);
    drop(new);
    assert_eq!(arena.trim().unwrap(), more);
    assert!(is_marked(held, 7));
}

fn marked(arena: &Arena, pages: usize) -> Chunk {
    let mut held = arena.claim(pages).unwrap();
    mark(&mut held, 7);
    held
}

#[test]
fn by_the_pool() {
    Child::new().pool_of(6).run(|| {
        for kind in KINDS {
            let arena = builder(PageSize::HUGE_2M, 2, 20).backing(kind.clone()).open().unwrap();
            let mut held = marked(&arena, 2);
            refused(&arena, 5, LimitKind::Pool);
            refused(&arena, 18, LimitKind::Pool);
            check(&arena, &mut held, 4);
            // With holes in the arena: several runs at once.
            arena.grow(4).unwrap();
            let chunks: Vec<_> = (0..4).map(|_| arena.claim(1).unwrap()).collect();
            let kept: Vec<_> = chunks.into_iter().filter(|chunk| chunk.offset() / HUGE % 2 == 1).collect();
            assert_eq!(arena.trim().unwrap(), 2);
            refused(&arena, 3, LimitKind::Pool);
            arena.grow(2).unwrap();
            drop(kept);
            assert!(arena.claim(4).is_some());
            // Nothing at all is free.
            refused(&arena, 1, LimitKind::Pool);
            assert!(is_marked(&mut held, 7));
        }
    });
}

#[test]
fn by_promises_to_others() {
    Child::new().pool_of(6).run(|| {
        for kind in KINDS {
            let arena = builder(PageSize::HUGE_2M, 1, 20).backing(kind).open().unwrap();
            let others = Arena::builder().capacity(4 * HUGE).populate(Populate::Lazy).strict().open().unwrap();
            refused(&arena, 2, LimitKind::Pool);
            arena.grow(1).unwrap();
            refused(&arena, 1, LimitKind::Pool);
            assert!(others.claim(4).is_some(), "what was promised is there");
        }
    });
}

fn in_cgroup(version: Version, limit: Limit) -> Child {
    let spec = CgroupSpec { version, limit, bytes: 4 * HUGE as u64, on_parent: false };
    Child::new().needs_pages(PageSize::HUGE_2M, 12).in_cgroup(spec)
}

/// In a group that allows four pages.
fn check_use() {
    for kind in KINDS {
        let arena = builder(PageSize::HUGE_2M, 2, 9).backing(kind.clone()).open().unwrap();
        let mut held = marked(&arena, 2);
        // Some of the pages can be had.
        refused(&arena, 6, LimitKind::CgroupMax);
        check(&arena, &mut held, 2);
        arena.grow(2).unwrap();
        // None of them.
        refused(&arena, 3, LimitKind::CgroupMax);
        assert_eq!(arena.trim().unwrap(), 2);
        check(&arena, &mut held, 1);
    }
}

fn check_reservations() {
    for kind in KINDS {
        let arena = builder(PageSize::HUGE_2M, 2, 9).backing(kind.clone()).open().unwrap();
        let mut held = marked(&arena, 2);
        refused(&arena, 6, LimitKind::CgroupReserved);
        check(&arena, &mut held, 2);
        arena.grow(2).unwrap();
        refused(&arena, 1, LimitKind::CgroupReserved);
        assert_eq!(arena.trim().unwrap(), 2);
        check(&arena, &mut held, 1);
    }
}

#[test]
fn by_a_cgroup_that_limits_use() {
    in_cgroup(Version::V2, Limit::Max).run(|| {
        check_use();
    });
}

#[test]
fn a_mount_loses_nothing_of_its_size_by_what_a_cgroup_refuses() {
    in_cgroup(Version::V2, Limit::Max).in_mount_namespace().run(|| {
        let ground = super::named::Ground::new(&format!("size={}", 20 * HUGE));
        let arena = ground.builder(2, 20).open().unwrap();
        for pages in [6, 3].into_iter().cycle().take(8) {
            refused(&arena, pages, LimitKind::CgroupMax);
            assert_eq!((ground.allocated(), ground.free()), (2, 18));
        }
        arena.grow(2).unwrap();
        for pages in 1..8 {
            refused(&arena, pages, LimitKind::CgroupMax);
            assert_eq!((ground.allocated(), ground.free()), (4, 16), "a page of the mount's size is lost");
        }
        drop(arena);
        ground.remove();
        assert_eq!(ground.free(), 20);
    });
}

#[test]
fn by_a_cgroup_of_version_1_that_limits_use() {
    in_cgroup(Version::V1, Limit::Max).run(|| {
        check_use();
    });
}

#[test]
fn by_a_cgroup_that_limits_reservations() {
    in_cgroup(Version::V2, Limit::Reserved).run(|| {
        check_reservations();
    });
}

#[test]
fn by_a_cgroup_of_version_1_that_limits_reservations() {
    in_cgroup(Version::V1, Limit::Reserved).run(|| {
        check_reservations();
    });
}

#[test]
fn by_the_size_of_a_mount() {
    Child::new().needs_pages(PageSize::HUGE_2M, 8).in_mount_namespace().run(|| {
        let mount = Mounted::hugetlbfs(PageSize::HUGE_2M, &format!("size={}", 4 * HUGE), 0);
        let kind = BackingKind::Hugetlbfs { dir: Some(mount.path().into()) };
        let arena = builder(PageSize::HUGE_2M, 1, 8).backing(kind).open().unwrap();
        let mut held = marked(&arena, 1);
        refused(&arena, 4, LimitKind::MountSize);
        check(&arena, &mut held, 3);
        arena.grow(3).unwrap();
        refused(&arena, 1, LimitKind::MountSize);
    });
}

#[test]
fn room_is_refused_by_the_address_space() {
    Child::new().run(|| {
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
        // SAFETY: the struct is live.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        for kind in KINDS {
            let error = builder(PageSize::base(), 1, 2 << 20).backing(kind).open().unwrap_err();
            assert_eq!(error.operation(), Operation::ReserveAddresses, "{error}");
            assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::AddressSpace), "{error}");
        }
    });
}

/// Everybody wants the last pages: as many get all as can, and the others an error.
#[test]
fn one_of_two_that_race_for_the_last_pages_gets_them() {
    Child::new().pool_of(6).run(|| {
        for kind in KINDS {
            let arenas = [(); 2].map(|()| builder(PageSize::HUGE_2M, 1, 9).backing(kind.clone()).open().unwrap());
            for round in 0..200 {
                let barrier = std::sync::Barrier::new(2);
                let grow = |arena: &Arena| {
                    barrier.wait();
                    arena.grow(3)
                };
                let (one, other) = std::thread::scope(|scope| {
                    let other = scope.spawn(|| grow(&arenas[1]));
                    (grow(&arenas[0]), other.join().unwrap())
                });
                let got = usize::from(one.is_ok()) + usize::from(other.is_ok());
                // Each takes one page before it reserves the rest: 4 pages are enough for one, and too few for both.
                assert_eq!(got, 1, "round {round} {kind}: {one:?} {other:?}");
                let error = one.and(other).unwrap_err();
                assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::Pool), "{error}");
                for arena in &arenas {
                    arena.shrink(3).unwrap();
                    arena.grow(1 - arena.stats().pages).unwrap();
                }
            }
        }
    });
}

/// A peer that has the descriptor can seal the file against what shrinking does.
#[test]
fn what_the_system_does_not_take_back_stays_and_is_said() {
    Child::new().run(|| {
        let size = PageSize::base();
        let arena = builder(size, 4, 8).open().unwrap();
        let mut held = arena.claim(1).unwrap();
        mark(&mut held, 7);
        drop(held);
        let is_ours = |fd: &i32| {
            std::fs::read_link(format!("/proc/self/fd/{fd}"))
                .is_ok_and(|name| name.to_string_lossy().contains("memfd:hugearena"))
        };
        let fd = (0..100).find(is_ours).expect("the arena's descriptor");
        // SAFETY: changes only the seals of a file of ours.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) }, 0);
        let error = arena.trim().unwrap_err();
        assert!(error.operation() == Operation::Unmap && error.to_string().contains("4 pages of 4K"), "{error}");
        let stats = arena.stats();
        assert_eq!((stats.pages, stats.claimed, stats.dirty, stats.absent), (4, 0, 4, 4));
        assert!(is_zero(bytes_of(&mut arena.claim_zeroed(4, FirstTouch::unknown()).unwrap())));
        assert!(arena.grow(1).is_err());
        assert_eq!(arena.stats().pages, 4);
    });
}
