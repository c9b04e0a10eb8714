//! Peers: at any address, with few faults, for reading or for writing.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use hugearena::arena::{NotShared, View};

use super::*;

/// Minor faults of this thread so far.
fn faults() -> i64 {
    // SAFETY: getrusage fills the struct.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn a_view_is_bounded_and_sees_what_the_owner_writes() {
    child(4).run(|| {
        let ground = Ground::new();
        let arena = ground.open(3);
        let mut chunk = arena.claim(1).unwrap();
        scribble(&mut chunk);
        let (both, only) = (ground.attach().open().unwrap(), ground.attach().read_only().open().unwrap());
        assert!(both.is_writable() && !only.is_writable());
        assert_eq!((both.len(), both.page_size()), (3 * HUGE, PageSize::HUGE_2M));
        assert_eq!(both.attachment().not_shared, Some(NotShared::TooShort));
        let (start, len) = (chunk.offset(), chunk.len());
        // SAFETY: mapped in this process, and nobody writes at the same time.
        unsafe {
            assert!(is_filled(only.get(start, len).unwrap().as_ref(), 0xA5));
            both.get(start + 5, 1).unwrap().cast::<u8>().write(1);
            assert_eq!(only.get(start + 5, 1).unwrap().cast::<u8>().read(), 1);
        }
        for (offset, len) in
            [(3 * HUGE, 1), (0, 3 * HUGE + 1), (usize::MAX, 2), (1, usize::MAX), (usize::MAX, usize::MAX)]
        {
            assert!(both.get(offset, len).is_none(), "{offset}, {len}");
        }
        assert!(both.get(3 * HUGE, 0).is_some_and(|none| none.is_empty()) && both.get(0, 3 * HUGE).is_some());
        drop((chunk, arena, both, only));
        ground.remove();
    });
}

#[test]
fn writing_to_a_read_only_view_is_a_fault() {
    child(2).run(|| {
        let ground = Ground::new();
        let arena = ground.open(1);
        let status = fork(|| {
            let view = ground.attach().read_only().open().unwrap();
            // SAFETY: the end of this process, as it should be.
            unsafe { view.get(0, 1).unwrap().cast::<u8>().write(1) };
            0
        });
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGSEGV));
        drop(arena);
        ground.remove();
    });
}

/// Experiments: 58, 63, 64.
#[test]
fn two_hundred_times_at_two_hundred_addresses() {
    child(3).run(|| {
        let ground = Ground::new();
        let arena = ground.open(2);
        let mut chunk = arena.claim(2).unwrap();
        scribble(&mut chunk);
        let (mut held, mut addresses) = (Vec::new(), BTreeSet::new());
        for round in 0..200usize {
            // Other mappings, of other lengths, so that no address is the last one's.
            held.push(Arena::builder().page_size(PageSize::base()).capacity((round * 7919 % 1000 + 1) << 12).open());
            let view = ground.attach().share_tables(round % 2 == 0).open().unwrap();
            let bytes = view.get(HUGE, HUGE).unwrap();
            // SAFETY: mapped; nobody writes.
            assert_eq!(unsafe { bytes.cast::<u8>().read() }, 0xA5);
            addresses.insert(bytes.cast::<u8>().addr());
            if round % 3 == 0 {
                held.push(Arena::builder().page_size(PageSize::base()).capacity(5 * HUGE).open());
            }
            std::mem::forget(view);
        }
        assert_eq!(addresses.len(), 200);
    });
}

/// Faults on the program's own pages, which the kernel may move or take away at any time. Where pages are missing there
/// are more: the tail alone has eight.
const NOISE: i64 = 4;

/// A whole GiB: what one page table maps.
#[test]
fn with_a_holder_a_gigabyte_takes_one_fault() {
    const PAGES: usize = 520;
    child(PAGES).run(|| {
        let ground = Ground::new();
        let arena = ground.open(PAGES);
        let status = fork(|| {
            let view = ground.attach().open().unwrap();
            let attached = *view.attachment();
            eprintln!("{attached}");
            assert_eq!((attached.tables, attached.shared_tables, attached.not_shared), (1, 1, None));
            assert!(attached.page_faults <= 1 + 8 + 4, "one, eight of the tail, and some of ours: {attached}");
            // A forked child has none of its program's code mapped: the first time is not counted.
            faults_of_touching(&view, 1);
            assert!(faults_of_touching(&view, PAGES) <= NOISE, "every page was there");
            0
        });
        assert!(status.success());
        check_not_shared(&ground, PAGES);
        drop(arena);
        let alone = ground.open(PAGES);
        assert_eq!(alone.named().unwrap().attachment().not_shared, Some(NotShared::NoHolder));
        drop(alone);
        ground.remove();
    });
}

/// Reads a byte of each page, and writes it if the view can.
fn faults_of_touching(view: &View, pages: usize) -> i64 {
    let before = faults();
    for page in 0..pages {
        let at = view.get(page * HUGE, 1).unwrap().cast::<u8>().as_ptr();
        // SAFETY: mapped; nobody else looks.
        unsafe {
            let byte = at.read_volatile();
            if view.is_writable() {
                at.write_volatile(byte);
            }
        }
    }
    faults() - before
}

fn check_not_shared(ground: &Ground, pages: usize) {
    let why = [(false, NotShared::ReadOnly), (true, NotShared::OptedOut)];
    for (writable, why) in why {
        let attach = ground.attach();
        let attach = if writable { attach.share_tables(false) } else { attach.read_only() };
        let view = attach.open().unwrap();
        let attached = view.attachment();
        assert_eq!((attached.shared_tables, attached.not_shared), (0, Some(why)), "{attached}");
        assert!(attached.page_faults >= pages as u64, "{attached}");
        faults_of_touching(&view, 1);
        assert!(faults_of_touching(&view, pages) <= NOISE, "every page was there");
    }
}

#[test]
fn a_file_that_lacks_pages_gets_them_or_an_error() {
    child(4).run(|| {
        let ground = Ground::new();
        ground.open(3);
        // An owner that was killed while it populated: punched, so that the time of modification stays.
        let file = std::fs::OpenOptions::new().write(true).open(ground.file()).unwrap();
        punch(file.as_fd(), HUGE, HUGE);
        let view = ground.attach().open().unwrap();
        // SAFETY: mapped; nobody writes.
        assert!(is_zero(unsafe { view.get(0, 3 * HUGE).unwrap().as_ref() }));
        drop(view);
        punch(file.as_fd(), 0, HUGE);
        let arena = ground.open(3);
        assert_eq!(restarted(&arena), &Restart::Known { clean: 3 });
        check_clean(&arena);
        drop(arena);
        ground.remove();
    });
}

fn punch(file: std::os::fd::BorrowedFd<'_>, offset: usize, len: usize) {
    use std::os::fd::AsRawFd;
    let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: an open descriptor, and nobody has that page mapped.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), flags, offset as i64, len as i64) }, 0);
}
