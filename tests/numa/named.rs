//! Named arenas: placed before the first touch, and told where they are when they are found again.

use super::two_nodes::TwoNodes;
use super::*;
use crate::support::machine::{Mounted, TempDir};
use hugearena::arena::{inspect_from, remove_from};

const HUGE: PageSize = PageSize::HUGE_2M;

struct Ground {
    mount: Mounted,
    records: TempDir,
}

impl Ground {
    fn new() -> Ground {
        Ground { mount: Mounted::hugetlbfs(HUGE, "", 0), records: TempDir::new() }
    }

    fn open(&self, pages: usize, placement: Placement) -> hugearena::Result<Arena> {
        let kind = BackingKind::Hugetlbfs { dir: Some(self.mount.path().into()) };
        let builder = Arena::builder().name("x").record_dir(self.records.path()).backing(kind);
        builder.capacity(pages * HUGE.bytes()).placement(placement).populate_threads(2).open()
    }

    fn is_empty(&self) -> bool {
        [self.mount.path(), self.records.path()].iter().all(|path| std::fs::read_dir(path).unwrap().next().is_none())
    }
}

#[test]
fn a_named_arena_is_on_its_node_and_a_restart_tells_where_it_is() {
    let Some(two) = TwoNodes::with_pages([16, 16]) else { return };
    let ground = Ground::new();
    let [near, far] = two.nodes;
    let arena = ground.open(8, Placement::Strict(far)).unwrap();
    assert_eq!(two.counts(&arena), [0, 8]);
    // SAFETY: our own chunk.
    unsafe { arena.claim(8).unwrap().as_ptr().write(0xA5) };
    drop(arena);
    assert_eq!(two.free(), [16, 8]);
    let seen = inspect_from(ground.records.path(), "x").unwrap();
    assert_eq!((seen.nodes.on(far), seen.nodes.elsewhere_than(far)), (Some(8), Some(0)), "{seen}");

    // Strict elsewhere is not met by what is there, which stays.
    let error = ground.open(8, Placement::Strict(near)).unwrap_err();
    assert_eq!(error.operation(), Operation::Place, "{error}");
    assert!(error.to_string().contains(&format!("8 pages on node {far}")), "{error}");
    println!("{error}");
    let arena = ground.open(8, Placement::Preferred(near)).unwrap();
    assert_eq!((two.counts(&arena), arena.obtained().misplaced_pages()), ([0, 8], Some(8)));
    // SAFETY: as above.
    let byte = unsafe { arena.claim(8).unwrap().as_ptr().read() };
    assert_eq!(byte, 0xA5, "an owner that was refused has changed nothing");
    println!("{}", arena.obtained());
    drop(arena);
    let arena = ground.open(8, Placement::Strict(far)).unwrap();
    assert_eq!(arena.obtained().misplaced_pages(), Some(0));
    drop(arena);
    remove_from(ground.records.path(), "x").unwrap();
    assert_eq!(two.free(), [16, 16]);
}

/// As above; the room that it has no pages in is nowhere.
#[test]
fn a_named_arena_that_can_grow_is_as_strict() {
    let Some(two) = TwoNodes::with_pages([16, 16]) else { return };
    let ground = Ground::new();
    let [near, far] = two.nodes;
    let open = |pages: usize, placement| {
        let kind = BackingKind::Hugetlbfs { dir: Some(ground.mount.path().into()) };
        let builder = Arena::builder().name("x").record_dir(ground.records.path()).backing(kind);
        builder.capacity(pages * HUGE.bytes()).max_capacity(12 * HUGE.bytes()).placement(placement).open()
    };
    let arena = open(4, Placement::Strict(far)).unwrap();
    arena.grow(2).unwrap();
    assert_eq!(two.free(), [16, 10]);
    // A gap, so that the pages are in two places.
    let (low, gap, high) = (arena.claim(1).unwrap(), arena.claim(1).unwrap(), arena.claim(4).unwrap());
    drop(gap);
    assert_eq!(arena.trim().unwrap(), 1);
    drop((low, high, arena));
    for pages in [0, 8] {
        let error = open(pages, Placement::Strict(near)).unwrap_err();
        assert_eq!(error.operation(), Operation::Place, "{error}");
        assert!(error.to_string().contains(&format!("1 pages on node {far}")), "{error}");
        assert_eq!(two.free(), [16, 11]);
    }
    let arena = open(8, Placement::Strict(far)).unwrap();
    assert_eq!((arena.stats().pages, two.free()), (8, [16, 8]));
    drop(arena);
    remove_from(ground.records.path(), "x").unwrap();
    assert_eq!(two.free(), [16, 16]);
}

#[test]
fn a_named_arena_that_a_node_cannot_hold_leaves_nothing() {
    let Some(two) = TwoNodes::with_pages([16, 3]) else { return };
    let ground = Ground::new();
    let error = ground.open(8, Placement::Strict(two.nodes[1])).unwrap_err();
    assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::Node), "{error}");
    assert!(ground.is_empty());
    let arena = ground.open(8, Placement::Preferred(two.nodes[1])).unwrap();
    assert_eq!((two.counts(&arena), arena.obtained().misplaced_pages()), ([5, 3], Some(5)));
    drop(arena);
    remove_from(ground.records.path(), "x").unwrap();
    let arena = ground.open(6, Placement::Interleave).unwrap();
    assert_eq!(two.counts(&arena), [3, 3]);
    drop(arena);
    remove_from(ground.records.path(), "x").unwrap();
    assert!(ground.is_empty() && two.free() == [16, 3]);
}

/// On one node: what one node can show.
#[test]
fn a_named_arena_is_placed_and_counted() {
    let Some(nodes) = nodes() else { return };
    Child::new().in_mount_namespace().needs_pages(HUGE, 4).run(|| {
        let ground = Ground::new();
        let arena = ground.open(4, Placement::Strict(nodes[0])).unwrap();
        assert_eq!(counts(&arena), BTreeMap::from([(nodes[0], 4)]));
        drop(arena);
        let error = ground.open(4, Placement::Strict(1023)).unwrap_err();
        assert_eq!(error.operation(), Operation::Configure, "{error}");
        remove_from(ground.records.path(), "x").unwrap();
    });
}

/// Experiments: 29.
#[test]
fn where_the_calls_are_denied_a_named_arena_says_so() {
    Child::new().in_mount_namespace().needs_pages(HUGE, 2).run(|| {
        let ground = Ground::new();
        assert!(support::child::deny_calls(&CALLS, libc::EPERM), "seccomp is not allowed here");
        let error = ground.open(2, Placement::Strict(0)).unwrap_err();
        assert_eq!(error.operation(), Operation::Place, "{error}");
        assert!(ground.is_empty());
        let arena = ground.open(2, Placement::Preferred(0)).unwrap();
        assert!(arena.obtained().to_string().contains("placement unknown: mbind: "), "{}", arena.obtained());
        drop(arena);
        remove_from(ground.records.path(), "x").unwrap();
    });
}
