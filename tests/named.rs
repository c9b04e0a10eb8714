//! Named arenas: created, restarted, attached, removed; one owner at a time; and never a dirty page believed clean.
//! Each test runs in a process and on a mount of its own.

#![allow(unsafe_code)]

mod support;

#[path = "named/attach.rs"]
mod attach;
#[path = "named/kill.rs"]
mod kill;
#[path = "named/records.rs"]
mod records;

use std::path::{Path, PathBuf};

use hugearena::arena::{self, PageState, Restart};
use hugearena::backing::BackingKind;
use hugearena::error::{LimitKind, Operation};
use hugearena::supply::Supply;
use hugearena::{Arena, ArenaBuilder, Chunk, FirstTouch, PageSize, Populate};

use support::machine::{Mounted, TempDir};
use support::{Child, claim_clean, fork, is_filled, is_zero, without_system_calls};

const HUGE: usize = 2 << 20;

/// A mount of 2 MiB pages and a directory of records, both gone when dropped.
struct Ground {
    mount: Mounted,
    records: TempDir,
}

impl Ground {
    fn new() -> Ground {
        Ground { mount: Mounted::hugetlbfs(PageSize::HUGE_2M, "", 0), records: TempDir::new() }
    }

    fn builder(&self, pages: usize) -> ArenaBuilder {
        let kind = BackingKind::Hugetlbfs { dir: Some(self.mount.path().into()) };
        Arena::builder().name("x").record_dir(self.records.path()).backing(kind).capacity(pages * HUGE)
    }

    fn open(&self, pages: usize) -> Arena {
        self.builder(pages).open().unwrap()
    }

    fn attach(&self) -> arena::Attach {
        Arena::attach("x").record_dir(self.records.path())
    }

    fn remove(&self) {
        arena::remove_from(self.records.path(), "x").unwrap();
        assert!(names_in(self.records.path()).is_empty() && names_in(self.mount.path()).is_empty());
    }

    fn file(&self) -> PathBuf {
        self.mount.path().join("hugearena.x")
    }

    fn record(&self) -> PathBuf {
        self.records.path().join("x.record")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for name in names_in(self.records.path()) {
            std::fs::remove_file(self.records.path().join(name)).unwrap();
        }
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn free_pages() -> u64 {
    Supply::read().pool(PageSize::HUGE_2M).unwrap().available_pages()
}

/// In a process of its own, on a mount of its own, with so many pages.
fn child(pages: usize) -> Child {
    Child::new().needs_pages(PageSize::HUGE_2M, pages).in_mount_namespace()
}

fn scribble(chunk: &mut Chunk) {
    // SAFETY: the tests hand chunks to nobody else meanwhile.
    unsafe { chunk.slice_mut() }.fill(0xA5);
}

fn restarted(arena: &Arena) -> &Restart {
    arena.named().unwrap().restart()
}

/// Experiments: 74.
#[test]
fn a_restart_knows_what_is_zero_and_keeps_the_rest() {
    child(8).run(|| {
        let ground = Ground::new();
        let arena = ground.open(6);
        assert_eq!((restarted(&arena), arena.stats().fresh), (&Restart::Created, 6));
        let mut chunk = arena.claim(3).unwrap();
        scribble(&mut chunk);
        drop(chunk);
        assert_eq!(arena.scrub(HUGE, &mut hugearena::memops::Nothing), HUGE);
        let (fresh, clean, dirty) = (PageState::Fresh, PageState::Clean, PageState::Dirty);
        assert_eq!(arena.page_states(), [clean, dirty, dirty, fresh, fresh, fresh]);
        let seen = || arena::inspect_from(ground.records.path(), "x").unwrap();
        assert_eq!(seen().page_states(), [clean, dirty, dirty, clean, clean, clean]);
        let held = [arena.claim(1), arena.claim(1)];
        assert_eq!(seen().page_states(), [clean, PageState::Claimed, PageState::Claimed, clean, clean, clean]);
        drop(held);
        let text = arena.named().unwrap().to_string();
        assert!(text.contains("created") && text.contains("hugearena.x"), "{text}");
        drop(arena);
        assert_eq!(seen().page_states(), [clean, dirty, dirty, clean, clean, clean]);

        let arena = ground.builder(0).open().unwrap();
        assert_eq!(restarted(&arena), &Restart::Known { clean: 4 });
        let stats = arena.stats();
        assert_eq!((stats.fresh, stats.clean, stats.dirty, stats.claimed), (0, 4, 2, 0));
        let mut dirty = arena.claim(1).unwrap();
        // SAFETY: our own chunk.
        assert!(is_filled(unsafe { dirty.slice_mut() }, 0xA5), "what an owner leaves is there for the next");
        check_clean(&arena);
        drop((dirty, arena));
        ground.remove();
    });
}

/// Every page that counts as clean is zero. Claims them all.
fn check_clean(arena: &Arena) -> usize {
    let mut chunks = claim_clean(arena);
    for chunk in &mut chunks {
        // SAFETY: our own chunk.
        assert!(is_zero(unsafe { chunk.slice_mut() }), "the page at {} is dirty", chunk.offset());
    }
    chunks.len()
}

#[test]
fn zeroed_on_release_is_clean_for_the_next_owner() {
    child(4).run(|| {
        let ground = Ground::new();
        let arena = ground.builder(3).zero_on_release().open().unwrap();
        let mut chunk = arena.claim(2).unwrap();
        scribble(&mut chunk);
        drop((chunk, arena));
        let arena = ground.open(3);
        assert_eq!((restarted(&arena), check_clean(&arena)), (&Restart::Known { clean: 3 }, 3));
        drop(arena);
        ground.remove();
    });
}

/// Experiments: 18.
#[test]
fn one_owner_at_a_time() {
    child(4).run(|| {
        let ground = Ground::new();
        let arena = ground.open(2);
        let refused = |result: hugearena::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.operation(), Operation::Own, "{error}");
            assert!(error.to_string().contains("another owner lives"), "{error}");
        };
        refused(ground.builder(2).open().map(drop));
        refused(arena::remove_from(ground.records.path(), "x"));
        // Another descriptor of the file comes and goes, and with it every fcntl lock of this process.
        drop((std::fs::File::open(ground.file()).unwrap(), ground.attach().open().unwrap()));
        let elsewhere = fork(|| i32::from(ground.builder(2).open().is_ok()));
        assert!(elsewhere.success(), "another process became the owner too");
        // Other records do not know this owner; the file does.
        let other = TempDir::new();
        refused(ground.builder(2).record_dir(other.path()).open().map(drop));
        assert!(names_in(other.path()).is_empty());
        drop(arena);
        ground.open(2);
        ground.remove();
    });
}

#[test]
fn a_record_of_an_owner_before_the_last_is_not_believed() {
    child(4).run(|| {
        let ground = Ground::new();
        drop(ground.open(2));
        // Another owner, whose records are elsewhere, fills the pages that the first record calls zero.
        let other = TempDir::new();
        let second = ground.builder(2).record_dir(other.path()).open().unwrap();
        assert_eq!(restarted(&second), &Restart::Unknown);
        let chunk = second.claim(2).unwrap();
        // SAFETY: a chunk of that length; no peer is there.
        unsafe { chunk.as_ptr().as_ptr().write_bytes(0xA5, chunk.len()) };
        drop((chunk, second));
        let third = ground.open(2);
        assert_eq!(restarted(&third), &Restart::Unknown);
        let chunk = third.claim_zeroed(2, hugearena::FirstTouch::unknown()).unwrap();
        // SAFETY: as above.
        assert!(support::is_zero(unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.len()) }));
        drop((chunk, third));
        ground.remove();
    });
}

#[test]
fn another_geometry_or_place_is_refused_and_nothing_changes() {
    child(6).run(|| {
        let ground = Ground::new();
        ground.open(2);
        let refuse = |builder: ArenaBuilder, reason: &str| {
            let error = builder.open().unwrap_err();
            assert!(error.operation() == Operation::Configure && error.to_string().contains(reason), "{error}");
        };
        refuse(ground.builder(3), "2 pages of 2M, not 3");
        refuse(ground.builder(2).page_size(PageSize::HUGE_1G), "on pages of 2M, not of 1G");
        let elsewhere = ground.mount.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let kind = BackingKind::Hugetlbfs { dir: Some(elsewhere.clone()) };
        refuse(ground.builder(2).backing(kind), "it exists, as ");
        std::fs::remove_dir(elsewhere).unwrap();
        refuse(ground.builder(2).record_dir(ground.mount.path()), "cannot be kept on hugetlbfs");
        assert_eq!(restarted(&ground.open(2)), &Restart::Known { clean: 2 });
        ground.remove();
    });
}

/// Experiments: 45.
#[test]
fn an_arena_is_found_again_in_any_mount_and_below_it() {
    child(6).run(|| {
        let ground = Ground::new();
        let other = Mounted::hugetlbfs(PageSize::HUGE_2M, "size=64M", 0);
        let below = other.path().join("a").join("b");
        std::fs::create_dir_all(&below).unwrap();
        let kind = BackingKind::Hugetlbfs { dir: Some(below.clone()) };
        let arena = ground.builder(2).backing(kind).open().unwrap();
        assert_eq!(arena.named().unwrap().path(), below.join("hugearena.x"));
        drop(arena);
        // Without a directory the record says where.
        let builder = || Arena::builder().name("x").record_dir(ground.records.path()).capacity(2 * HUGE);
        assert_eq!(restarted(&builder().open().unwrap()), &Restart::Known { clean: 2 });
        std::fs::rename(below.join("hugearena.x"), ground.mount.path().join("hugearena.x")).unwrap_err();
        ground.remove();
        // Without a record the mounts are looked through.
        ground.open(2);
        std::fs::remove_file(ground.record()).unwrap();
        let arena = builder().open().unwrap();
        assert_eq!((restarted(&arena), arena.named().unwrap().path()), (&Restart::Unknown, ground.file().as_path()));
        drop(arena);
        std::fs::remove_file(ground.record()).unwrap();
        ground.remove();
        // With nothing at all, the mount with the most room is taken.
        let arena = builder().open().unwrap();
        assert_eq!(restarted(&arena), &Restart::Created);
        drop(arena);
        arena::remove_from(ground.records.path(), "x").unwrap();
    });
}

/// Experiments: 45.
#[test]
fn both_page_sizes_have_names_at_once() {
    child(4).needs_pages(PageSize::HUGE_1G, 1).run(|| {
        let (ground, gigantic) = (Ground::new(), Mounted::hugetlbfs(PageSize::HUGE_1G, "", 0));
        let small = ground.open(2);
        let kind = BackingKind::Hugetlbfs { dir: Some(gigantic.path().into()) };
        let large = ground.builder(2).name("y").page_size(PageSize::HUGE_1G).backing(kind).capacity(1 << 30);
        let large = large.open().unwrap();
        assert_eq!((small.page_size(), large.page_size()), (PageSize::HUGE_2M, PageSize::HUGE_1G));
        let view = Arena::attach("y").record_dir(ground.records.path()).open().unwrap();
        assert!(view.len() == 1 << 30 && view.attachment().page_faults < 10, "{}", view.attachment());
        drop((small, large, view));
        arena::remove_from(ground.records.path(), "y").unwrap();
        ground.remove();
    });
}

#[test]
fn what_cannot_be_created_leaves_nothing_and_says_why() {
    Child::new().in_mount_namespace().pool_of(4).run(|| {
        let ground = Ground::new();
        let error = ground.builder(5).open().unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::Pool), "{error}");
        assert!(names_in(ground.records.path()).is_empty() && names_in(ground.mount.path()).is_empty());
        assert_eq!(free_pages(), 4);
        let small = Mounted::hugetlbfs(PageSize::HUGE_2M, "size=4M", 0);
        let kind = BackingKind::Hugetlbfs { dir: Some(small.path().into()) };
        let error = ground.builder(3).backing(kind).open().unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::MountSize), "{error}");
        assert!(names_in(ground.records.path()).is_empty() && names_in(small.path()).is_empty());
        drop(ground.open(4));
        assert_eq!(free_pages(), 0, "the pages stay");
        ground.remove();
        assert_eq!(free_pages(), 4);
    });
}

#[test]
fn progress_is_told_and_can_stop_it() {
    use std::ops::ControlFlow;
    use std::sync::{Arc, Mutex};
    const PAGES: usize = 80;
    child(PAGES).run(|| {
        let ground = Ground::new();
        let error = ground.builder(PAGES).on_progress(|_| ControlFlow::Break(())).open().unwrap_err();
        assert_eq!(error.os_error().and_then(std::io::Error::raw_os_error), Some(libc::ECANCELED), "{error}");
        assert!(names_in(ground.records.path()).is_empty() && names_in(ground.mount.path()).is_empty());
        let panics = ground.builder(PAGES).on_progress(|_| panic!("of the callback"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panics.clone().open())).is_err());
        assert!(names_in(ground.records.path()).is_empty() && names_in(ground.mount.path()).is_empty());
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        let builder = ground.builder(PAGES).on_progress(move |progress| {
            listener.lock().unwrap().push((progress.done_bytes, progress.total_bytes));
            ControlFlow::Continue(())
        });
        drop(builder.clone().open().unwrap());
        let seen = std::mem::take(&mut *told.lock().unwrap());
        assert!(seen.is_sorted() && seen.last() == Some(&(PAGES * HUGE, PAGES * HUGE)), "{seen:?}");
        // A callback that panics takes the new arena with it, and no old one.
        drop(builder.open().unwrap());
        punch(&ground, PAGES / 2);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panics.open()));
        assert!(result.is_err());
        drop(ground.open(PAGES));
        ground.remove();
    });
}

/// Takes pages from the end of the file, as they lack when an owner is killed while it populates.
fn punch(ground: &Ground, pages: usize) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::options().write(true).open(ground.file()).unwrap();
    let len = file.metadata().unwrap().len() as i64;
    let (bytes, flags) = ((pages * HUGE) as i64, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE);
    // SAFETY: a call on an open descriptor; nobody has the pages mapped.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), flags, len - bytes, bytes) }, 0);
}

#[test]
fn claims_of_a_named_arena_make_no_system_call() {
    child(4).run(|| {
        let ground = Ground::new();
        // Opened by the process that claims: a child has no shared memory of its parent's.
        without_system_calls(
            || ground.builder(4).zero_on_release().open().unwrap(),
            |arena| {
                for _ in 0..20 {
                    drop((arena.claim(1), arena.claim_zeroed(2, FirstTouch::unknown())));
                }
            },
        );
        ground.remove();
    });
}

#[test]
fn options_that_make_no_sense_are_refused_without_privileges() {
    let records = TempDir::new();
    let named = |name: &str| Arena::builder().name(name).record_dir(records.path()).capacity(HUGE);
    let refuse = |builder: ArenaBuilder, reason: &str| {
        let error = builder.open().unwrap_err();
        assert!(error.operation() == Operation::Configure && error.to_string().contains(reason), "{error}");
    };
    let long = "x".repeat(65);
    for name in ["", ".", "..", "a/b", "a b", "\u{e9}", "nul\0", &long] {
        refuse(named(name), "wanted 1 to 64 letters");
        assert_eq!(Arena::attach(name).open().unwrap_err().operation(), Operation::Configure);
        assert_eq!(arena::remove_from(records.path(), name).unwrap_err().operation(), Operation::Configure);
    }
    refuse(named("x").page_size(PageSize::base()), "only huge pages");
    refuse(named("x").backing(BackingKind::Anonymous), "anonymous memory");
    refuse(named("x").populate(Populate::Lazy), "lazily");
    refuse(named("x").capacity(usize::MAX), "isize::MAX");
    let nowhere = BackingKind::Hugetlbfs { dir: Some(std::env::temp_dir()) };
    refuse(named("x").backing(nowhere), "is not on a hugetlbfs");
    assert_eq!(Arena::attach("x").record_dir(records.path()).open().unwrap_err().operation(), Operation::Attach);
    assert_eq!(arena::remove_from(records.path(), "x").unwrap_err().operation(), Operation::Remove);
    assert!(names_in(records.path()).is_empty());
}
