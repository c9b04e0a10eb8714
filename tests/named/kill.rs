//! SIGKILL at any moment: the next owner believes no dirty page clean.

use std::time::Duration;

use hugearena::memops::{Nothing, Pace};

use super::*;
use crate::support::kill::{Random, killed_after, killed_after_ready, rounds};
use crate::support::print_figure;

const PAGES: usize = 8;

/// Everything that changes what is known about a page. What is claimed is made dirty where it is looked at: at both
/// ends and in the middle.
fn use_arena(ground: &Ground, random: &mut Random, opened: &dyn Fn()) {
    let arena = ground.builder(PAGES);
    let arena = if random.below(3) == 0 { arena.zero_on_release() } else { arena };
    let arena = arena.open().unwrap();
    opened();
    let mark = |chunk: &mut Chunk| {
        for page in 0..chunk.pages() {
            // SAFETY: the chunk is ours.
            let bytes = unsafe { chunk.slice_mut() };
            [0, HUGE / 2, HUGE - 1].iter().for_each(|at| bytes[page * HUGE + at] = 1);
        }
    };
    let steps = random.below(60) + 3;
    for _ in 0..steps {
        let pages = random.below(3) as usize + 1;
        match random.below(6) {
            0 | 1 => arena.claim(pages).iter_mut().for_each(mark),
            2 | 3 => arena.claim_zeroed(pages, FirstTouch::at(HUGE / 2, 64)).iter_mut().for_each(mark),
            4 => drop(arena.scrub(pages * HUGE, &mut Nothing.in_batches_of(64 << 10))),
            _ => {
                let mut zeroing = arena.start_zeroed(pages, FirstTouch::unknown(), 256 << 10).unwrap();
                (0..random.below(30)).for_each(|_| {
                    let _ = zeroing.advance();
                });
                zeroing.finish().iter_mut().for_each(mark);
            }
        }
    }
}

/// Experiments: 14, 74.
#[test]
fn no_dirty_page_is_believed_clean() {
    child(PAGES).run(|| {
        let (mut random, rounds) = (Random::seeded(), rounds(200));
        let mount = Mounted::hugetlbfs(PageSize::HUGE_2M, &format!("size={}", PAGES * HUGE), 0);
        let ground = Ground { mount, records: TempDir::new() };
        let (mut clean, mut kinds) = (0, [0; 3]);
        for round in 0..rounds {
            // Early, while it is created and populated; or later, counted from when it is open, while it is used and
            // shut down.
            let longest = [8_000, 4_000, 40_000][round % 3];
            let time = Duration::from_micros(random.below(longest));
            let mut its_own = random.another();
            match round % 3 {
                0 => killed_after(time, || use_arena(&ground, &mut its_own, &|| ())),
                _ => killed_after_ready(time, |opened| use_arena(&ground, &mut its_own, opened)),
            };
            let arena = ground.open(PAGES);
            kinds[match restarted(&arena) {
                Restart::Created => 0,
                Restart::Known { .. } => 1,
                _ => 2,
            }] += 1;
            clean += check_clean(&arena);
            drop(arena);
            if round % 2 == 0 {
                ground.remove();
                assert_eq!(free_in(ground.mount.path()), PAGES as u64, "removed, and the pages are not back");
            }
        }
        let [created, known, unknown] = kinds;
        eprintln!("{created} new, {known} restarts with a record ({clean} clean pages), {unknown} without");
        assert!(known >= rounds / 3 * 2, "{kinds:?}: each that was open has left a record");
        assert!(clean > 0, "nothing was looked at");
        print_figure(&format!("named arenas killed, no dirty page believed clean, pages back: {rounds} of {rounds}"));
        if names_in(ground.mount.path()).contains(&"hugearena.x".to_string()) {
            ground.remove();
        }
    });
}

/// Pages that the mount still allows: whatever others do to the pool.
fn free_in(mount: &Path) -> u64 {
    let path = std::ffi::CString::new(mount.to_str().unwrap()).unwrap();
    // SAFETY: a C string, and a struct that statfs fills.
    unsafe {
        let mut found = std::mem::zeroed::<libc::statfs>();
        assert_eq!(libc::statfs(path.as_ptr(), &mut found), 0);
        found.f_bfree
    }
}

#[test]
fn an_owner_that_dies_leaves_its_peers_their_memory() {
    child(4).run(|| {
        let mount = Mounted::hugetlbfs(PageSize::HUGE_2M, &format!("size={}", 3 * HUGE), 0);
        let ground = Ground { mount, records: TempDir::new() };
        let was_running = killed_after_ready(Duration::ZERO, |ready| {
            let arena = ground.open(3);
            let mut chunk = arena.claim(2).unwrap();
            scribble(&mut chunk);
            ready();
            loop {
                std::thread::park();
            }
        });
        assert!(was_running);
        let view = ground.attach().open().unwrap();
        let bytes = view.get(0, 2 * HUGE).unwrap();
        // SAFETY: mapped; nobody writes.
        assert!(is_filled(unsafe { bytes.as_ref() }, 0xA5));
        let next = ground.open(3);
        assert_eq!(restarted(&next), &Restart::Known { clean: 1 });
        let mut chunk = next.claim_zeroed(3, FirstTouch::unknown()).unwrap();
        // SAFETY: ours and the view's, both here.
        unsafe {
            assert!(is_zero(view.get(0, 3 * HUGE).unwrap().as_ref()), "the same memory");
            chunk.slice_mut()[HUGE] = 7;
            assert_eq!(view.get(HUGE, 1).unwrap().cast::<u8>().read(), 7);
        }
        drop((chunk, next));
        ground.remove();
        // SAFETY: still mapped.
        assert_eq!(unsafe { view.get(HUGE, 1).unwrap().cast::<u8>().read() }, 7, "removed, and still there for peers");
        assert_eq!(free_in(ground.mount.path()), 0);
        drop(view);
        assert_eq!(free_in(ground.mount.path()), 3, "gone with the last peer");
    });
}
