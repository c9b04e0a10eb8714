//! hugetlb cgroups: the container's share, whatever the pool has.

use super::*;
use crate::support::Child;
use crate::support::machine::{CgroupSpec, Limit as Which};
use hugearena::Populate;

fn in_cgroup(limit: Which, pages: usize, on_parent: bool) -> Child {
    let spec = CgroupSpec { limit, bytes: (pages * HUGE) as u64, on_parent };
    Child::new().needs_pages(PageSize::HUGE_2M, 8).in_cgroup(spec)
}

fn check_limit(kind: LimitKind, operation: Operation, file: &str) {
    for backing in KINDS {
        let error = arena(5).backing(backing.clone()).strict().open().unwrap_err();
        assert_eq!(error.operation(), operation, "{error}");
        let limit = assert_names(&error, kind, 5 * HUGE, 3 * HUGE);
        assert!(limit.source.ends_with(file), "{limit}");
        assert!(limit.remedy.contains(&format!("echo {} > {}", 5 * HUGE, limit.source)), "{limit}");
        assert_fell_back(arena(5).backing(backing.clone()), kind);
        let exact = arena(3).backing(backing).strict().open().unwrap();
        assert!(exact.claim_zeroed(3, FirstTouch::whole()).is_some(), "what the limit allows can be had");
    }
}

#[test]
fn a_limit_on_use_is_named() {
    in_cgroup(Which::Max, 3, false)
        .run(|| check_limit(LimitKind::CgroupMax, Operation::Populate, "/inner/hugetlb.2MB.max"));
}

#[test]
fn a_limit_on_reservations_is_named() {
    in_cgroup(Which::Reserved, 3, false)
        .run(|| check_limit(LimitKind::CgroupReserved, Operation::Map, "/inner/hugetlb.2MB.rsvd.max"));
}

#[test]
fn a_limit_on_use_of_a_group_above_is_named() {
    in_cgroup(Which::Max, 3, true).run(|| {
        check_limit(LimitKind::CgroupMax, Operation::Populate, "/hugetlb.2MB.max");
        let error = arena(5).strict().open().unwrap_err();
        assert!(!error.limit().unwrap().source.contains("inner"), "{error}");
    });
}

#[test]
fn a_limit_on_reservations_of_a_group_above_is_named() {
    in_cgroup(Which::Reserved, 3, true).run(|| {
        check_limit(LimitKind::CgroupReserved, Operation::Map, "/hugetlb.2MB.rsvd.max");
        let error = arena(5).strict().open().unwrap_err();
        assert!(!error.limit().unwrap().source.contains("inner"), "{error}");
    });
}

#[test]
fn a_limit_of_nothing_is_named() {
    in_cgroup(Which::Max, 0, false).run(|| {
        let error = arena(1).strict().open().unwrap_err();
        assert_names(&error, LimitKind::CgroupMax, HUGE, 0);
        assert_fell_back(arena(1), LimitKind::CgroupMax);
    });
}

#[test]
fn a_lazy_arena_meets_the_limit_when_claimed() {
    in_cgroup(Which::Max, 3, false).run(|| {
        for backing in KINDS {
            let arena = arena(5).backing(backing).populate(Populate::Lazy).strict().open().unwrap();
            let mut held: Vec<_> = (0..3).map(|_| arena.claim(1).unwrap()).collect();
            assert!(arena.claim(1).is_none());
            let error = arena.last_error().expect("it says why");
            assert_eq!(error.operation(), Operation::Populate);
            assert_names(&error, LimitKind::CgroupMax, HUGE, 0);
            assert!(arena.last_error().is_none(), "it says so once");
            assert_eq!(arena.stats().claimed, 3, "pages that could not be had are free again");
            assert!(arena.claim_zeroed(2, FirstTouch::unknown()).is_none() && arena.last_error().is_some());
            held.truncate(1);
            assert!(arena.claim(1).is_some(), "pages that are there can be had again");
        }
    });
}

#[test]
fn the_heap_falls_back_under_a_limit_on_use() {
    in_cgroup(Which::Max, 3, false).run(|| heap::check_fallback(3));
}

#[test]
fn the_heap_falls_back_under_a_limit_on_reservations() {
    in_cgroup(Which::Reserved, 3, false).run(|| heap::check_fallback(3));
}

#[test]
fn the_heap_falls_back_under_a_limit_of_nothing() {
    in_cgroup(Which::Max, 0, false).run(|| heap::check_fallback(0));
}
