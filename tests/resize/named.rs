//! Named arenas that grow and shrink: what the next owner and peers find.

use std::path::PathBuf;

use hugearena::arena::{self, Restart};

use super::support::kill::rounds;
use super::support::machine::{Mounted, TempDir};
use super::*;

/// A mount of 2 MiB pages and a directory of records, both gone when dropped.
pub struct Ground {
    pub mount: Mounted,
    pub records: TempDir,
}

impl Ground {
    pub fn new(options: &str) -> Ground {
        Ground { mount: Mounted::hugetlbfs(PageSize::HUGE_2M, options, 0), records: TempDir::new() }
    }

    pub fn builder(&self, pages: usize, most: usize) -> ArenaBuilder {
        self.fixed(pages).max_capacity(most * HUGE)
    }

    fn fixed(&self, pages: usize) -> ArenaBuilder {
        let kind = BackingKind::Hugetlbfs { dir: Some(self.mount.path().into()) };
        Arena::builder().name("x").record_dir(self.records.path()).backing(kind).capacity(pages * HUGE)
    }

    fn attach(&self) -> arena::Attach {
        Arena::attach("x").record_dir(self.records.path())
    }

    pub fn remove(&self) {
        arena::remove_from(self.records.path(), "x").unwrap();
    }

    pub fn record(&self) -> PathBuf {
        self.records.path().join("x.record")
    }

    pub fn file(&self) -> PathBuf {
        self.mount.path().join("hugearena.x")
    }

    /// Pages that the file has.
    pub fn allocated(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.file()).unwrap().blocks() * 512 / HUGE as u64
    }

    /// Pages that the mount still allows: whatever others do to the pool.
    pub fn free(&self) -> u64 {
        let path = std::ffi::CString::new(self.mount.path().to_str().unwrap()).unwrap();
        // SAFETY: a C string, and a struct that statfs fills.
        unsafe {
            let mut found = std::mem::zeroed::<libc::statfs>();
            assert_eq!(libc::statfs(path.as_ptr(), &mut found), 0);
            found.f_bavail
        }
    }

    fn states(&self) -> Vec<PageState> {
        arena::inspect_from(self.records.path(), "x").unwrap().page_states().to_vec()
    }
}

pub fn child(pages: usize) -> Child {
    Child::new().needs_pages(PageSize::HUGE_2M, pages).in_mount_namespace()
}

fn restarted(arena: &Arena) -> &Restart {
    arena.named().unwrap().restart()
}

#[test]
fn a_restart_finds_what_was_left_and_no_more() {
    child(10).run(|| {
        let (clean, dirty, absent) = (PageState::Clean, PageState::Dirty, PageState::Absent);
        let ground = Ground::new("");
        let arena = ground.builder(4, 8).open().unwrap();
        assert_eq!((restarted(&arena), arena.stats().fresh, arena.stats().absent), (&Restart::Created, 4, 4));
        assert_eq!((arena.capacity(), arena.max_capacity(), ground.allocated()), (4 * HUGE, 8 * HUGE, 4));
        let mut low = arena.claim(2).unwrap();
        mark(&mut low, 9);
        arena.grow(2).unwrap();
        let mut high = arena.claim_zeroed(3, FirstTouch::unknown()).unwrap();
        mark(&mut high, 8);
        assert_eq!(arena.shrink(1).unwrap(), 1);
        assert_eq!(ground.allocated(), 5);
        let claimed = PageState::Claimed;
        assert_eq!(ground.states(), [claimed, claimed, claimed, claimed, claimed, absent, absent, absent]);
        assert_eq!(std::fs::metadata(ground.file()).unwrap().len(), 8 * HUGE as u64, "the file keeps its length");
        drop((low, high, arena));

        assert_eq!(ground.states(), [dirty, dirty, dirty, dirty, dirty, absent, absent, absent]);
        let arena = ground.builder(0, 8).open().unwrap();
        assert_eq!(
            (restarted(&arena), arena.stats().dirty, arena.stats().absent),
            (&Restart::Known { clean: 0 }, 5, 3)
        );
        assert_eq!(ground.allocated(), 5, "a restart takes no pages");
        let mut all = arena.claim(5).unwrap();
        assert!(bytes_of(&mut all)[..2 * HUGE].chunks(HUGE).all(|page| page[HUGE / 2] == 9), "contents are kept");
        drop(all);
        assert_eq!(arena.scrub(HUGE, &mut hugearena::memops::Nothing), HUGE);
        assert_eq!(arena.shrink(2).unwrap(), 2);
        drop(arena);
        assert_eq!(ground.states(), [clean, dirty, dirty, absent, absent, absent, absent, absent]);

        // Without a word about room it can be resized as before; with a capacity it has at least that.
        let arena = ground.fixed(4).open().unwrap();
        assert_eq!((restarted(&arena), arena.max_capacity()), (&Restart::Known { clean: 1 }, 8 * HUGE));
        assert_eq!((arena.stats().pages, arena.stats().fresh + arena.stats().clean), (4, 2));
        assert_eq!(arena.trim().unwrap(), 4);
        drop(arena);
        let arena = ground.fixed(0).open().unwrap();
        assert_eq!((arena.capacity(), ground.allocated()), (0, 0));
        arena.grow(8).unwrap();
        drop(arena);
        let arena = ground.builder(1, 8).open().unwrap();
        assert_eq!((restarted(&arena), arena.stats().pages), (&Restart::Known { clean: 8 }, 8));
        drop(arena);
        ground.remove();
    });
}

#[test]
fn without_a_record_pages_are_found_by_asking_for_each() {
    child(10).run(|| {
        let ground = Ground::new(&format!("size={}", 9 * HUGE));
        let arena = ground.builder(5, 8).open().unwrap();
        let mut chunk = arena.claim(5).unwrap();
        mark(&mut chunk, 6);
        drop(chunk);
        let low = arena.claim(2).unwrap();
        assert_eq!(arena.trim().unwrap(), 3);
        arena.grow(5).unwrap();
        let top = arena.claim(5).unwrap();
        drop(low);
        assert_eq!(arena.trim().unwrap(), 2);
        drop((top, arena));
        let found = ground.allocated();
        std::fs::remove_file(ground.record()).unwrap();
        let arena = ground.builder(0, 8).open().unwrap();
        assert_eq!((restarted(&arena), arena.stats().dirty as u64), (&Restart::Unknown, found));
        assert_eq!((arena.stats().absent as u64, ground.allocated()), (8 - found, found));
        arena.grow(8 - found as usize).unwrap();
        let mut all = arena.claim_zeroed(8, FirstTouch::unknown()).unwrap();
        assert!(is_zero(bytes_of(&mut all)));
        drop((all, arena));
        ground.remove();
    });
}

#[test]
fn an_arena_that_exists_keeps_its_kind_and_its_room() {
    child(6).run(|| {
        let ground = Ground::new("");
        let refused = |builder: ArenaBuilder, reason: &str| {
            let error = builder.open().unwrap_err();
            assert!(error.operation() == Operation::Configure && error.to_string().contains(reason), "{error}");
        };
        drop(ground.fixed(2).open().unwrap());
        refused(ground.builder(2, 4), "cannot be resized");
        assert!(ground.fixed(2).open().unwrap().grow(1).is_err());
        ground.remove();
        drop(ground.builder(2, 4).open().unwrap());
        refused(ground.builder(2, 5), "room for 4 pages of 2M, not 5");
        refused(ground.fixed(5), "room for 4 pages of 2M, less than 5");
        assert_eq!(ground.fixed(0).open().unwrap().capacity(), 2 * HUGE);
        ground.remove();
    });
}

#[test]
fn what_cannot_be_had_at_a_restart_is_an_error_that_changes_nothing() {
    child(6).run(|| {
        let ground = Ground::new(&format!("size={}", 4 * HUGE));
        let error = ground.builder(5, 8).open().unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::MountSize), "{error}");
        assert!(!ground.file().exists() && !ground.record().exists());
        let mut chunk = ground.builder(3, 8).open().unwrap().claim(2).unwrap();
        mark(&mut chunk, 4);
        drop(chunk);
        let error = ground.builder(5, 8).open().unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::MountSize), "{error}");
        let arena = ground.builder(0, 8).open().unwrap();
        assert_eq!((restarted(&arena), arena.stats().pages), (&Restart::Known { clean: 1 }, 3));
        assert!(is_marked(&mut arena.claim(1).unwrap(), 4));
        arena.grow(1).unwrap();
        assert!(arena.grow(1).is_err());
        drop(arena);
        assert_eq!(ground.free(), 0);
        ground.remove();
        assert_eq!(ground.free(), 4);
    });
}

/// What a callback of [`ArenaBuilder::on_progress`] is told.
fn told(builder: ArenaBuilder, stop: bool) -> (std::thread::Result<hugearena::Result<Arena>>, Vec<(usize, usize)>) {
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = told.clone();
    let builder = builder.on_progress(move |progress| {
        sink.lock().unwrap().push((progress.done_bytes / HUGE, progress.total_bytes / HUGE));
        assert!(!stop, "a callback that panics");
        std::ops::ControlFlow::Continue(())
    });
    let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.open()));
    let told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    (opened, told)
}

#[test]
fn who_watches_a_restart_is_told_of_all_that_comes_and_may_panic() {
    child(40).run(|| {
        let ground = Ground::new(&format!("size={}", 40 * HUGE));
        let (opened, all) = told(ground.builder(20, 60).populate_threads(1), false);
        assert_eq!((all.first(), all.last()), (Some(&(16, 20)), Some(&(20, 20))), "{all:?}");
        // A hole below what is claimed, so that what comes is in two places.
        let arena = opened.unwrap().unwrap();
        let (low, high) = (arena.claim(2).unwrap(), arena.claim(18).unwrap());
        drop(low);
        assert_eq!(arena.trim().unwrap(), 2);
        drop((high, arena));
        for _ in 0..3 {
            let (opened, _) = told(ground.builder(40, 60), true);
            assert!(opened.is_err());
            assert_eq!((ground.allocated(), ground.free()), (18, 22), "nothing is left behind");
        }
        let (opened, all) = told(ground.builder(40, 60).populate_threads(1), false);
        assert_eq!(all, [(2, 22), (18, 22), (22, 22)]);
        assert_eq!(opened.unwrap().unwrap().stats().pages, 40);
        ground.remove();
        assert_eq!(ground.free(), 40);
    });
}

/// Opens the arena, and is killed when 16 of its pages are there: the others are reserved.
fn killed_at_16_pages(builder: ArenaBuilder) {
    let killed = builder.populate_threads(1).on_progress(|_| {
        // SAFETY: no preconditions.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        unreachable!("killed")
    });
    let process = support::child::start(|| killed.open().map_or(1, |_| 0));
    assert_eq!(support::child::wait_for(process).code(), None);
}

#[test]
fn what_a_killed_owner_has_left_reserved_goes_back_to_the_pool() {
    child(24).run(|| {
        let ground = Ground::new(&format!("size={}", 24 * HUGE));
        for wanted in [0, 2, 18, 24] {
            killed_at_16_pages(ground.builder(20, 30));
            assert_eq!((ground.allocated(), ground.free()), (16, 4), "four are reserved");
            let arena = ground.builder(wanted, 30).open().unwrap();
            assert_eq!(restarted(&arena), &Restart::Known { clean: 0 });
            assert_eq!((ground.allocated(), ground.free()), (wanted as u64, 24 - wanted as u64), "{wanted}");
            arena.grow(24 - wanted).unwrap();
            drop(arena);
            ground.remove();
        }
    });
}

#[test]
fn what_a_killed_owner_has_left_reserved_is_not_in_the_way_of_the_next_one() {
    child(24).run(|| {
        let ground = Ground::new(&format!("size={}", 24 * HUGE));
        killed_at_16_pages(ground.builder(20, 30));
        let file = std::fs::File::options().write(true).open(ground.file()).unwrap();
        let (mode, len) = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 16 * HUGE as libc::off_t);
        // SAFETY: pages of a file that nobody has mapped.
        assert_eq!(unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), mode, 0, len) }, 0);
        let other = ground.fixed(20).name("y").open().unwrap();
        assert_eq!((ground.allocated(), ground.free()), (0, 0), "all that is left is reserved where it will not grow");
        let arena = ground.builder(4, 30).open().unwrap();
        assert_eq!((arena.stats().pages, ground.allocated()), (4, 4));
        drop((arena, other));
        ground.remove();
        arena::remove_from(ground.records.path(), "y").unwrap();
    });
}

#[test]
fn peers_take_no_pages_and_see_those_that_come() {
    child(1030).run(|| {
        let ground = Ground::new("");
        // Long enough for shared page tables: one table and a bit.
        let (first, most) = (514, 520);
        let arena = ground.builder(first, most).open().unwrap();
        let before = ground.allocated();
        for read_only in [false, true] {
            let attach = ground.attach();
            let view = if read_only { attach.read_only() } else { attach }.open().unwrap();
            assert_eq!((view.len(), ground.allocated()), (most * HUGE, before), "{}", view.attachment());
            let mut chunk = arena.claim(first).unwrap();
            mark(&mut chunk, 3);
            // SAFETY: claimed by us, mapped by the view.
            let byte = |offset: usize| unsafe { view.get(offset, 1).unwrap().cast::<u8>().read() };
            let faults = || minor_faults();
            let start = faults();
            assert!((0..512).all(|page| byte(page * HUGE) == 3));
            if !read_only {
                assert!(faults() - start < 10, "page tables are shared: {}", view.attachment());
            }
            arena.grow(4).unwrap();
            let mut new = arena.claim(4).unwrap();
            mark(&mut new, 5);
            assert_eq!(byte(new.offset() + HUGE), 5);
            drop((chunk, new));
            assert_eq!(arena.shrink(4).unwrap(), 4);
            assert_eq!(ground.allocated(), before);
        }
        // With all of its pages it is attached to like any other.
        arena.grow(most - first).unwrap();
        let view = ground.attach().open().unwrap();
        assert!(view.attachment().page_faults < 20, "{}", view.attachment());
        assert_eq!(view.attachment().shared_tables, 1, "{}", view.attachment());
        drop((view, arena));
        ground.remove();
    });
}

fn minor_faults() -> u64 {
    // SAFETY: getrusage fills the struct.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt as u64
    }
}

#[test]
fn what_peers_took_of_its_room_goes_back_when_it_shrinks_again() {
    Child::new().in_mount_namespace().needs_pages(PageSize::HUGE_2M, 10).run(|| {
        let ground = Ground::new("size=20M");
        let arena = ground.builder(10, 10).open().unwrap();
        let mut chunk = arena.claim(3).unwrap();
        mark(&mut chunk, 7);
        let view = ground.attach().open().unwrap();
        assert_eq!((arena.trim().unwrap(), ground.allocated()), (7, 3));
        // As attaching does that began before the pages went, and ends after it.
        view.make_present(0, view.len()).unwrap();
        assert_eq!(ground.allocated(), 10);
        assert_eq!((arena.trim().unwrap(), ground.allocated()), (0, 3), "{}", arena.stats());
        assert!(is_marked(&mut chunk, 7));
        view.make_present(0, view.len()).unwrap();
        arena.grow(7).unwrap();
        assert!(arena.claim_zeroed(7, FirstTouch::unknown()).is_some());
        assert_eq!(arena.shrink(2).unwrap(), 2);
        assert_eq!(ground.allocated(), 8);
        drop((view, chunk, arena));
        ground.remove();
    });
}

/// Chunks come and go, the arena grows and shrinks, and a peer takes what it has no right to all the time.
#[test]
fn what_peers_take_is_never_given_back_under_a_chunk() {
    const MOST: usize = 24;
    Child::new().in_mount_namespace().needs_pages(PageSize::HUGE_2M, MOST).run(|| {
        let ground = Ground::new(&format!("size={}M", 2 * MOST));
        let arena = ground.builder(2, MOST).open().unwrap();
        let view = ground.attach().open().unwrap();
        let (start, done) = (std::time::Instant::now(), std::sync::atomic::AtomicUsize::new(0));
        let is_over = || done.load(std::sync::atomic::Ordering::Relaxed) >= 2;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for page in (0..MOST).cycle().take_while(|_| !is_over()) {
                    // Refused where the mount has no page for it.
                    let _ = view.make_present(page * HUGE, HUGE);
                }
            });
            for fill in 1..=2u8 {
                let (arena, done) = (&arena, &done);
                scope.spawn(move || {
                    for turn in 0..rounds(2_000) {
                        // Refused where the other has taken the room, or the peer the page.
                        let _ = arena.grow(1 + turn % 5);
                        let Some(mut chunk) = arena.claim_zeroed(1 + turn % 3, FirstTouch::unknown()) else { continue };
                        assert!(is_marked(&mut chunk, 0), "turn {turn}");
                        mark(&mut chunk, fill);
                        arena.shrink(turn % 7).unwrap();
                        assert!(is_marked(&mut chunk, fill), "turn {turn}");
                    }
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                });
            }
        });
        eprintln!("{:?}, {}", start.elapsed(), arena.stats());
        arena.trim().unwrap();
        assert_eq!((arena.stats().pages, ground.allocated()), (0, 0));
        drop((view, arena));
        ground.remove();
    });
}
