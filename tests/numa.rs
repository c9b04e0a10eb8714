//! Placement on NUMA nodes: policy, proof, and what is said where the calls are denied. On one node what one node
//! can show; `tests/numa-vm.sh` runs all of it on a kernel with two.

#![allow(unsafe_code)]

mod support;

#[path = "numa/named.rs"]
mod named;
#[path = "numa/two_nodes.rs"]
mod two_nodes;

use std::collections::BTreeMap;

use hugearena::backing::BackingKind;
use hugearena::error::{LimitKind, Operation};
use hugearena::numa::{Located, NodePages, Topology};
use hugearena::{Arena, ArenaBuilder, PageSize, Placement, Populate};

use support::{Child, for_each_page_size};

const KINDS: [BackingKind; 2] = [BackingKind::Memfd, BackingKind::Anonymous];
const CALLS: [libc::c_long; 3] = [libc::SYS_mbind, libc::SYS_get_mempolicy, libc::SYS_move_pages];

fn arena(size: PageSize, pages: usize) -> ArenaBuilder {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).strict()
}

/// The nodes with memory; `None`, and a line that says so, where the calls are denied or there is no NUMA.
fn nodes() -> Option<Vec<u32>> {
    let probe = arena(PageSize::base(), 1).placement(Placement::Interleave).open();
    match probe.as_ref().map(|arena| &arena.obtained().nodes) {
        Ok(Located::Counted(_)) => Some(Topology::read().nodes_with_memory().to_vec()),
        other => {
            support::print_skip("NUMA", &format!("{other:?}"));
            None
        }
    }
}

/// What the kernel's own table of mappings says about the mapping that starts at `address`: a third opinion.
fn numa_maps(address: usize) -> BTreeMap<u32, usize> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
    let mut lines = maps.lines().filter(|line| line.starts_with(&format!("{address:x} ")));
    let words = lines.next().expect("the mapping is listed").split(' ');
    words.filter_map(|word| word.strip_prefix('N')?.split_once('=')).map(parse_count).collect()
}

fn parse_count((node, pages): (&str, &str)) -> (u32, usize) {
    (node.parse().unwrap(), pages.parse().unwrap())
}

/// The counts of the arena, which are those of the kernel's table as well.
fn counts(arena: &Arena) -> BTreeMap<u32, usize> {
    let Located::Counted(counts) = &arena.obtained().nodes else { panic!("{}", arena.obtained()) };
    let counts: BTreeMap<_, _> = counts.iter().map(|NodePages { node, pages, .. }| (*node, *pages)).collect();
    let pages = arena.stats().pages;
    assert_eq!(counts.values().sum::<usize>(), pages, "every page is somewhere");
    let whole = arena.claim(pages).unwrap();
    // Neighbouring mappings of base pages may be listed as one.
    if arena.page_size().is_huge() {
        assert_eq!(counts, numa_maps(whole.as_ptr().addr().get()));
    }
    for (node, pages) in &counts {
        assert!(arena.obtained().to_string().contains(&format!("{pages} pages on node {node}")), "{arena:?}");
    }
    counts
}

/// Experiments: 35.
#[test]
fn a_strict_placement_is_met_and_proved() {
    let Some(nodes) = nodes() else { return };
    for_each_page_size(8, |size, pages| {
        for kind in KINDS {
            for threads in [1, 3] {
                let builder = arena(size, pages).backing(kind.clone()).populate_threads(threads);
                let arena = builder.placement(Placement::Strict(nodes[0])).open().unwrap();
                assert_eq!(counts(&arena), BTreeMap::from([(nodes[0], pages)]));
                assert_eq!(arena.obtained().misplaced_pages(), Some(0));
                assert!(arena.obtained().to_string().contains(&format!("(strict: node {})", nodes[0])));
            }
        }
    });
}

#[test]
fn where_one_node_has_memory_it_has_all_pages() {
    let Some(nodes) = nodes() else { return };
    if nodes.len() > 1 {
        return;
    }
    for_each_page_size(4, |size, pages| {
        for placement in [Placement::Any, Placement::Preferred(nodes[0]), Placement::Interleave] {
            let arena = arena(size, pages).placement(placement).open().unwrap();
            assert_eq!(counts(&arena), BTreeMap::from([(nodes[0], pages)]), "{placement}");
        }
    });
}

/// Also with fallback: a wrong number is a mistake of whoever configured it.
///
/// Experiments: 36.
#[test]
fn a_node_that_does_not_exist_is_an_error() {
    let Some(nodes) = nodes() else { return };
    for node in [63, 64, 1023, 1024, u32::MAX].into_iter().filter(|node| !nodes.contains(node)) {
        for placement in [Placement::Strict(node), Placement::Preferred(node)] {
            for populate in [Populate::Eager, Populate::Lazy] {
                let builder = Arena::builder().page_size(PageSize::base()).capacity(1 << 20);
                let error = builder.placement(placement).populate(populate).open().unwrap_err();
                assert_eq!(error.operation(), Operation::Configure, "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("node {node})")) && text.contains("nodes with memory: ["), "{text}");
            }
        }
    }
}

#[test]
fn a_lazy_arena_is_placed_as_well() {
    let Some(nodes) = nodes() else { return };
    for_each_page_size(4, |size, pages| {
        let builder = arena(size, pages).populate(Populate::Lazy).placement(Placement::Strict(nodes[0]));
        let arena = builder.open().unwrap();
        assert!(matches!(arena.obtained().nodes, Located::Unknown(_)), "not counted: {}", arena.obtained());
        let whole = arena.claim(pages).unwrap();
        if size.is_huge() {
            assert_eq!(numa_maps(whole.as_ptr().addr().get()), BTreeMap::from([(nodes[0], pages)]));
        }
    });
}

#[test]
fn the_policy_of_the_thread_is_left_alone() {
    let policy = || {
        let mut mode: libc::c_int = -1;
        let none = std::ptr::null_mut::<libc::c_ulong>();
        // SAFETY: writes the mode into a live variable and nothing else.
        let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, none, 0, 0, 0) };
        (result == 0).then_some(mode)
    };
    let before = policy();
    let Some(nodes) = nodes() else { return };
    let builder = arena(PageSize::base(), 1024).placement(Placement::Strict(nodes[0])).populate_threads(2);
    let _arena = builder.open().unwrap();
    assert_eq!(policy(), before);
}

/// Experiments: 29, 30.
#[test]
fn where_the_calls_are_denied_placement_is_unknown_and_strict_an_error() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let status = support::fork(|| {
            if !support::child::deny_calls(&CALLS, errno) {
                return 77;
            }
            check_denied(errno);
            0
        });
        match status.code() {
            Some(77) => support::skip("denied calls", "seccomp is not allowed here"),
            _ => assert!(status.success(), "{status}"),
        }
    }
}

fn check_denied(errno: i32) {
    let builder = || Arena::builder().page_size(PageSize::base()).capacity(1 << 20);
    for placement in [Placement::Preferred(0), Placement::Interleave] {
        let arena = builder().placement(placement).open().unwrap();
        assert!(matches!(arena.obtained().nodes, Located::Unknown(_)));
        let text = arena.obtained().to_string();
        assert!(text.contains("placement unknown: mbind: ") && text.contains(&placement.to_string()), "{text}");
        assert_eq!(arena.obtained().misplaced_pages(), None);
        assert!(arena.claim(256).is_some());
    }
    assert!(builder().open().is_ok(), "nothing asked, nothing denied");
    let error = builder().placement(Placement::Strict(0)).open().unwrap_err();
    assert_eq!(error.operation(), Operation::Place, "{error}");
    assert_eq!(error.os_error().and_then(std::io::Error::raw_os_error), Some(errno), "{error}");
    let limit = error.limit().unwrap_or_else(|| panic!("no limit is named: {error}"));
    assert!(limit.kind == LimitKind::Permission && limit.remedy.contains("seccomp"), "{error}");
}

/// A container may allow mbind(2) and deny the questions: what cannot be proved is not strict.
#[test]
fn a_strict_placement_that_cannot_be_proved_is_an_error() {
    Child::new().run(|| {
        if nodes().is_none() {
            return;
        }
        if !support::child::deny_calls(&CALLS[1..2], libc::EPERM) {
            return support::skip("denied calls", "seccomp is not allowed here");
        }
        let builder =
            || arena(PageSize::base(), 8).placement(Placement::Strict(Topology::read().nodes_with_memory()[0]));
        assert!(builder().open().is_ok(), "move_pages answers instead");
        assert!(support::child::deny_calls(&CALLS[2..], libc::EPERM));
        let error = builder().open().unwrap_err();
        assert!(error.operation() == Operation::Place && error.to_string().contains("placement unknown"), "{error}");
    });
}
