//! What takes two nodes with huge pages on each, and a root who may move them about.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::support::cgroup::{Cgroup, CgroupSpec, Limit as Which, Version, join};
use crate::support::machine::is_root;
use hugearena::doctor::{Facts, judge};
use hugearena::supply::Supply;

const HUGE: PageSize = PageSize::HUGE_2M;
const BYTES: usize = 2 << 20;

fn pool_file(node: u32) -> PathBuf {
    format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages").into()
}

/// Two nodes, each with exactly so many free pages while this lives.
pub struct TwoNodes {
    pub nodes: [u32; 2],
    before: Vec<(PathBuf, String)>,
    _lock: support::pool::PoolLock,
}

impl TwoNodes {
    /// `None`, with a line that says so, where there are no two nodes to have.
    pub fn with_pages(pages: [u64; 2]) -> Option<TwoNodes> {
        let lock = support::pool::PoolLock::take();
        let usable = nodes().filter(|nodes| nodes.len() == 2 && is_root());
        let Some(nodes) = usable.and_then(|nodes| <[u32; 2]>::try_from(nodes).ok()) else {
            assert!(std::env::var_os("HUGEARENA_REQUIRE_NODES").is_none(), "HUGEARENA_REQUIRE_NODES is set");
            support::print_skip("two nodes", "needs root on a machine with two NUMA nodes: tests/numa-vm.sh");
            return None;
        };
        let files: Vec<_> = nodes.into_iter().map(pool_file).collect();
        let before = files.iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect();
        let two = TwoNodes { nodes, before, _lock: lock };
        for (file, pages) in files.iter().zip(pages) {
            two.resize(file, pages);
        }
        assert_eq!(two.free(), pages, "the pool could be made so");
        Some(two)
    }

    fn resize(&self, file: &Path, pages: u64) {
        fs::write(file, pages.to_string()).unwrap();
        assert_eq!(fs::read_to_string(file).unwrap().trim(), pages.to_string(), "{}", file.display());
    }

    /// Free pages of each node, as the supply says.
    pub fn free(&self) -> [u64; 2] {
        let supply = Supply::read();
        self.nodes.map(|node| {
            let mut pools = supply.node_pools.iter();
            pools.find(|pool| pool.node == node && pool.page_size == HUGE).unwrap().free
        })
    }

    pub fn counts(&self, arena: &Arena) -> [usize; 2] {
        let counts = counts(arena);
        self.nodes.map(|node| counts.get(&node).copied().unwrap_or(0))
    }
}

impl Drop for TwoNodes {
    fn drop(&mut self) {
        for (file, pages) in &self.before {
            let _ = fs::write(file, pages);
        }
    }
}

/// Experiments: 32, 35.
#[test]
fn each_node_serves_whoever_is_strict() {
    let Some(two) = TwoNodes::with_pages([16, 24]) else { return };
    for kind in KINDS {
        for threads in [1, 2] {
            let open = |node, pages| {
                let builder = arena(HUGE, pages).backing(kind.clone()).populate_threads(threads);
                builder.placement(Placement::Strict(two.nodes[node])).open().unwrap()
            };
            let (near, far) = (open(0, 16), open(1, 24));
            assert_eq!((two.counts(&near), two.counts(&far)), ([16, 0], [0, 24]));
            assert_eq!(two.free(), [0, 0], "the last page of each");
            drop((near, far));
            assert_eq!(two.free(), [16, 24]);
        }
    }
}

/// mmap reserves from the whole pool and succeeds; a touch would raise SIGBUS.
///
/// Experiments: 33.
#[test]
fn a_strict_placement_on_an_empty_node_is_a_clean_error() {
    let Some(two) = TwoNodes::with_pages([32, 0]) else { return };
    for kind in KINDS {
        for threads in [1, 4] {
            let builder = arena(HUGE, 8).backing(kind.clone()).populate_threads(threads);
            let error = builder.placement(Placement::Strict(two.nodes[1])).open().unwrap_err();
            assert_eq!(error.operation(), Operation::Populate, "{error}");
            check_limit(&error, two.nodes[1], 8, 0);
            assert_eq!(two.free(), [32, 0], "what the failed call took is back");
        }
    }
}

/// The policy holds for what comes later, too; and what a node does not have leaves the arena as it was.
#[test]
fn an_arena_grows_on_its_node() {
    let Some(two) = TwoNodes::with_pages([32, 8]) else { return };
    for kind in KINDS {
        let builder = arena(HUGE, 2).max_capacity(20 * BYTES).backing(kind.clone());
        let near = builder.placement(Placement::Strict(two.nodes[1])).open().unwrap();
        assert_eq!((two.free(), near.obtained().nodes.on(two.nodes[1])), ([32, 6], Some(2)));
        near.grow(4).unwrap();
        assert_eq!(two.free(), [32, 2]);
        let held = near.claim(6).unwrap();
        let error = near.grow(5).unwrap_err();
        check_limit(&error, two.nodes[1], 5, 2);
        near.grow(2).unwrap();
        let error = near.grow(1).unwrap_err();
        check_limit(&error, two.nodes[1], 1, 0);
        let supply = Supply::read();
        assert_eq!(supply.pool(HUGE).unwrap().reserved, 0, "no promise is left behind");
        assert_eq!((near.trim().unwrap(), two.free()), (2, [32, 2]));
        drop((held, near));
        assert_eq!(two.free(), [32, 8]);
    }
}

fn check_limit(error: &hugearena::Error, node: u32, needed: usize, available: usize) {
    println!("{error}");
    let limit = error.limit().unwrap_or_else(|| panic!("no limit is named: {error}"));
    assert_eq!(limit.kind, LimitKind::Node, "{error}");
    let bytes = |pages: usize| (pages * BYTES) as u64;
    assert_eq!((limit.needed_bytes, limit.available_bytes), (bytes(needed), bytes(available)), "{error}");
    assert!(limit.source.contains(&format!("node{node}/hugepages")), "{error}");
}

#[test]
fn a_node_that_is_short_is_named_and_its_remedy_is_enough() {
    let Some(two) = TwoNodes::with_pages([32, 5]) else { return };
    let open = || arena(HUGE, 8).placement(Placement::Strict(two.nodes[1])).populate_threads(2).open();
    let error = open().unwrap_err();
    check_limit(&error, two.nodes[1], 8, 5);
    assert_eq!(two.free(), [32, 5]);
    let (pages, file) = error.limit().unwrap().remedy.strip_prefix("echo ").unwrap().split_once(" > ").unwrap();
    two.resize(Path::new(file), pages.parse().unwrap());
    assert_eq!(two.counts(&open().unwrap()), [0, 8]);
}

#[test]
fn pages_that_stand_in_are_on_the_node_as_well() {
    let Some(two) = TwoNodes::with_pages([32, 0]) else { return };
    for kind in KINDS {
        let builder = Arena::builder().capacity(8 * BYTES).backing(kind).placement(Placement::Strict(two.nodes[1]));
        let arena = builder.open().unwrap();
        let obtained = arena.obtained();
        assert_eq!((obtained.page_size, obtained.misplaced_pages()), (PageSize::base(), Some(0)), "{obtained}");
        assert_eq!(obtained.nodes.on(two.nodes[1]), Some(8 * BYTES / PageSize::base().bytes()));
        check_limit(&obtained.declined[0].error, two.nodes[1], 8, 0);
    }
}

#[test]
fn a_lazy_page_that_the_node_lacks_is_an_error_of_the_claim() {
    let Some(two) = TwoNodes::with_pages([32, 2]) else { return };
    let builder = arena(HUGE, 4).placement(Placement::Strict(two.nodes[1])).populate(Populate::Lazy);
    let arena = builder.open().unwrap();
    let held = arena.claim(2).unwrap();
    assert_eq!(numa_maps(held.as_ptr().addr().get()), BTreeMap::from([(two.nodes[1], 2)]));
    assert!(arena.claim(1).is_none());
    check_limit(&arena.last_error().unwrap(), two.nodes[1], 1, 0);
}

/// Experiments: 33.
#[test]
fn a_preference_that_is_not_met_is_stated() {
    let Some(two) = TwoNodes::with_pages([32, 3]) else { return };
    for kind in KINDS {
        let open = |pages| {
            arena(HUGE, pages).backing(kind.clone()).placement(Placement::Preferred(two.nodes[1])).open().unwrap()
        };
        let met = open(3);
        assert_eq!((two.counts(&met), met.obtained().misplaced_pages()), ([0, 3], Some(0)));
        drop(met);
        let arena = open(8);
        assert_eq!((two.counts(&arena), arena.obtained().misplaced_pages()), ([5, 3], Some(5)));
        println!("{}", arena.obtained());
        let text = arena.obtained().to_string();
        assert!(text.contains(&format!("(preferred: node {})", two.nodes[1])), "{text}");
    }
}

/// Experiments: 33.
#[test]
fn interleaved_pages_are_spread_evenly() {
    let Some(two) = TwoNodes::with_pages([32, 32]) else { return };
    for kind in KINDS {
        for threads in [1, 2] {
            let builder = arena(HUGE, 16).backing(kind.clone()).populate_threads(threads);
            let arena = builder.placement(Placement::Interleave).open().unwrap();
            assert_eq!(two.counts(&arena), [8, 8], "{}", arena.obtained());
        }
    }
}

#[test]
fn what_nobody_asked_to_be_placed_is_counted_too() {
    let Some(two) = TwoNodes::with_pages([6, 6]) else { return };
    let arena = arena(HUGE, 12).open().unwrap();
    assert_eq!(two.counts(&arena), [6, 6]);
    let supply = Supply::read().to_string();
    assert!(supply.contains(&format!("node {}: 0 of 6 pages of 2M free", two.nodes[1])), "{supply}");
}

/// The kernel would kill a process for ordinary memory that only one node may give.
#[test]
fn ordinary_memory_that_a_node_cannot_hold_is_an_error() {
    let Some(two) = TwoNodes::with_pages([0, 0]) else { return };
    let meminfo = fs::read_to_string(format!("/sys/devices/system/node/node{}/meminfo", two.nodes[1])).unwrap();
    let kib = meminfo.lines().find_map(|line| line.split_once("MemTotal:")?.1.trim().strip_suffix(" kB")).unwrap();
    let wanted = (kib.trim().parse::<usize>().unwrap() << 10).next_multiple_of(BYTES);
    let builder = Arena::builder().page_size(PageSize::base()).capacity(wanted);
    let error = builder.placement(Placement::Strict(two.nodes[1])).open().unwrap_err();
    assert_eq!((error.operation(), error.limit().map(|limit| limit.kind)), (Operation::Place, Some(LimitKind::Node)));
}

/// A container whose cpuset leaves it one node: the pool has pages, and none of them may be used.
///
/// Experiments: 5.
#[test]
fn nodes_that_a_cpuset_leaves_out_are_named() {
    let Some(two) = TwoNodes::with_pages([32, 1]) else { return };
    let group = Path::new("/sys/fs/cgroup/hugearena-cpuset");
    let made = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset").and_then(|()| fs::create_dir(group));
    if let Err(error) = made {
        return support::print_skip("cpusets", &format!("no cgroup of version 2 with cpuset: {error}"));
    }
    let status = support::fork(|| {
        fs::write(group.join("cpuset.mems"), two.nodes[1].to_string()).unwrap();
        fs::write(group.join("cgroup.procs"), "0").unwrap();
        for kind in KINDS {
            check_limit(&arena(HUGE, 8).backing(kind).open().unwrap_err(), two.nodes[1], 8, 1);
        }
        let report = judge(&Facts::collect(HUGE, 8 * BYTES as u64));
        assert_eq!(report.tightest.map(|limit| limit.kind), Some(LimitKind::Node), "what doctor says");
        let strict = |pages| arena(HUGE, pages).placement(Placement::Strict(two.nodes[0])).open();
        check_limit(&strict(8).unwrap_err(), two.nodes[1], 8, 1);
        let error = strict(1).unwrap_err();
        assert_eq!(error.operation(), Operation::Configure, "{error}");
        0
    });
    fs::remove_dir(group).unwrap();
    assert!(status.success(), "{status}");
}

/// Which of the kernel's two answers can be relied on for huge pages: printed, and held to agree if both are given.
///
/// Experiments: 34.
#[test]
fn move_pages_agrees_or_says_that_it_cannot() {
    let Some(two) = TwoNodes::with_pages([4, 4]) else { return };
    let arena = arena(HUGE, 4).placement(Placement::Strict(two.nodes[1])).open().unwrap();
    let chunk = arena.claim(1).unwrap();
    let (page, mut node) = (chunk.as_ptr().addr().get(), -1_i32);
    let none = std::ptr::null::<libc::c_int>();
    // SAFETY: one address to read and one node to write, both live.
    let result = unsafe { libc::syscall(libc::SYS_move_pages, 0, 1, &raw const page, none, &raw mut node, 0) };
    println!("move_pages of a huge page on node {}: returned {result}, status {node}", two.nodes[1]);
    assert!(result == 0 && (node == two.nodes[1] as i32 || node == -libc::ENOENT), "{result} {node}");
}

/// A filter answers mbind(2) with success and does nothing: only the proof can tell.
#[test]
fn a_policy_that_was_not_kept_is_found_out() {
    let Some(two) = TwoNodes::with_pages([32, 0]) else { return };
    let status = support::fork(|| {
        assert!(support::child::deny_calls(&CALLS[..1], 0));
        for kind in KINDS {
            let builder = arena(HUGE, 8).backing(kind).placement(Placement::Strict(two.nodes[1]));
            let error = builder.open().unwrap_err();
            assert_eq!(error.operation(), Operation::Place, "{error}");
            assert!(error.to_string().contains(&format!("8 pages on node {}", two.nodes[0])), "{error}");
            println!("{error}");
        }
        0
    });
    assert!(status.success(), "{status}");
    assert_eq!(two.free(), [32, 0]);
}

/// A cgroup's limit is the whole of what it allows, and the nodes share it.
///
/// Experiments: 38.
#[test]
fn a_limit_of_a_cgroup_is_had_half_from_each_node() {
    let Some(two) = TwoNodes::with_pages([16, 16]) else { return };
    let create = |version| {
        let spec = CgroupSpec { version, limit: Which::Max, bytes: 8 * BYTES as u64, on_parent: false };
        Cgroup::create(&spec)
    };
    let group = match create(Version::V1).or_else(|_| create(Version::V2)) {
        Ok(group) => group,
        Err(reason) => return support::print_skip("a hugetlb cgroup on two nodes", &reason),
    };
    let status = support::fork(|| {
        join(group.path());
        let open = |node| arena(HUGE, 4).placement(Placement::Strict(node)).open().unwrap();
        let halves = two.nodes.map(open);
        assert_eq!(halves.each_ref().map(|half| two.counts(half)), [[4, 0], [0, 4]]);
        let error = arena(HUGE, 1).placement(Placement::Strict(two.nodes[1])).open().unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::CgroupMax), "{error}");
        0
    });
    assert!(status.success(), "{status}");
}
