//! hugetlb cgroups: the container's share, whatever the pool has.

use super::*;
use crate::support::Child;
use crate::support::cgroup::{CgroupSpec, Limit as Which, Version};
use hugearena::Populate;

fn limit(version: Version, limit: Which, pages: usize) -> CgroupSpec {
    CgroupSpec { version, limit, bytes: (pages * HUGE) as u64, on_parent: false }
}

fn in_cgroup(spec: CgroupSpec) -> Child {
    Child::new().needs_pages(PageSize::HUGE_2M, 8).in_cgroup(spec)
}

/// In a group that allows three pages.
fn check_limit(spec: CgroupSpec) {
    let (kind, operation) = match spec.limit {
        Which::Max => (LimitKind::CgroupMax, Operation::Populate),
        Which::Reserved => (LimitKind::CgroupReserved, Operation::Map),
    };
    for backing in KINDS {
        let error = arena(5).backing(backing.clone()).strict().open().unwrap_err();
        assert_eq!(error.operation(), operation, "{error}");
        let limit = assert_names(&error, kind, 5 * HUGE, 3 * HUGE);
        assert!(limit.source.ends_with(spec.file_name()), "{limit}");
        assert_eq!(limit.source.contains("/inner/"), !spec.on_parent, "{limit}");
        assert!(limit.remedy.contains(&format!("echo {} > {}", 5 * HUGE, limit.source)), "{limit}");
        assert_fell_back(arena(5).backing(backing.clone()), kind);
        let exact = arena(3).backing(backing).strict().open().unwrap();
        assert!(exact.claim_zeroed(3, FirstTouch::whole()).is_some(), "what the limit allows can be had");
    }
}

/// Experiments: 1, 3, 4, 7, 9.
#[test]
fn a_limit_on_use_is_named() {
    let spec = limit(Version::V2, Which::Max, 3);
    in_cgroup(spec).run(|| check_limit(spec));
}

/// Experiments: 4.
#[test]
fn a_limit_on_reservations_is_named() {
    let spec = limit(Version::V2, Which::Reserved, 3);
    in_cgroup(spec).run(|| check_limit(spec));
}

/// Experiments: 1.
#[test]
fn a_limit_on_use_of_a_group_above_is_named() {
    let spec = CgroupSpec { on_parent: true, ..limit(Version::V2, Which::Max, 3) };
    in_cgroup(spec).run(|| check_limit(spec));
}

/// Experiments: 4.
#[test]
fn a_limit_on_reservations_of_a_group_above_is_named() {
    let spec = CgroupSpec { on_parent: true, ..limit(Version::V2, Which::Reserved, 3) };
    in_cgroup(spec).run(|| check_limit(spec));
}

/// Experiments: 1, 4.
#[test]
fn a_limit_on_use_of_version_1_is_named() {
    let spec = limit(Version::V1, Which::Max, 3);
    in_cgroup(spec).run(|| check_limit(spec));
}

/// Experiments: 4.
#[test]
fn a_limit_on_reservations_of_a_group_above_of_version_1_is_named() {
    let spec = CgroupSpec { on_parent: true, ..limit(Version::V1, Which::Reserved, 3) };
    in_cgroup(spec).run(|| check_limit(spec));
}

/// Experiments: 2, 10.
#[test]
fn a_limit_of_nothing_is_named() {
    in_cgroup(limit(Version::V2, Which::Max, 0)).run(|| {
        let error = arena(1).strict().open().unwrap_err();
        assert_names(&error, LimitKind::CgroupMax, HUGE, 0);
        assert_fell_back(arena(1), LimitKind::CgroupMax);
    });
}

/// Experiments: 12.
#[test]
fn a_lazy_arena_meets_the_limit_when_claimed() {
    in_cgroup(limit(Version::V2, Which::Max, 3)).run(|| {
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

/// Experiments: 3.
#[test]
fn the_heap_falls_back_under_a_limit_on_use() {
    in_cgroup(limit(Version::V2, Which::Max, 3)).run(|| heap::check_fallback(3));
}

#[test]
fn the_heap_falls_back_under_a_limit_on_reservations() {
    in_cgroup(limit(Version::V2, Which::Reserved, 3)).run(|| heap::check_fallback(3));
}

#[test]
fn the_heap_falls_back_under_a_limit_of_nothing() {
    in_cgroup(limit(Version::V2, Which::Max, 0)).run(|| heap::check_fallback(0));
}
