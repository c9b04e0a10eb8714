//! Populating by several threads: what is there afterwards, progress, cancelling, and failures half-way.

#![allow(unsafe_code)]

mod support;

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hugearena::backing::BackingKind;
use hugearena::error::{LimitKind, Operation};
use hugearena::{Arena, ArenaBuilder, FirstTouch, PageSize};

use support::cgroup::{CgroupSpec, Limit, Version};
use support::{Child, PoolUnchanged, for_each_page_size, is_zero, mappings};

const KINDS: [BackingKind; 2] = [BackingKind::Memfd, BackingKind::Anonymous];

fn arena(size: PageSize, pages: usize) -> ArenaBuilder {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).strict()
}

fn threads_of_this_process() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Mappings of memfds, whichever test they belong to.
fn memfds() -> usize {
    mappings().lines().filter(|line| line.contains("memfd:hugearena")).count()
}

#[test]
fn every_page_is_there_and_zero() {
    for_each_page_size(40, |size, pages| {
        for kind in KINDS {
            for threads in [0, 1, 2, 3, 7, 1000] {
                let arena = arena(size, pages).backing(kind.clone()).populate_threads(threads).open().unwrap();
                let mut chunk = arena.claim(pages).unwrap();
                // SAFETY: our own chunk, in nobody else's hands.
                let bytes = unsafe { chunk.slice_mut() };
                // All of 1 GiB would take seconds in a debug build.
                for page in bytes.chunks_mut(size.bytes()) {
                    assert!(is_zero(&page[..4096]) && is_zero(&page[size.bytes() - 4096..]));
                    page[0] = 1;
                }
            }
        }
    });
}

#[test]
fn progress_is_told_on_the_opening_thread_up_to_the_end() {
    for_each_page_size(40, |size, pages| {
        for threads in [1, 2] {
            let told = Arc::new(Mutex::new(Vec::new()));
            let (sink, opener) = (Arc::clone(&told), std::thread::current().id());
            let builder = arena(size, pages).populate_threads(threads).on_progress(move |progress| {
                assert_eq!(std::thread::current().id(), opener);
                assert_eq!((progress.page_size, progress.total_bytes), (size, pages * size.bytes()));
                sink.lock().unwrap().push(progress.done_bytes);
                ControlFlow::Continue(())
            });
            drop(builder.open().unwrap());
            let told = told.lock().unwrap();
            assert!(told.is_sorted_by(|a, b| a < b) && told.last() == Some(&(pages * size.bytes())), "{told:?}");
        }
    });
}

/// In a process of its own: other tests would start threads and mappings meanwhile.
#[test]
fn cancelling_leaves_nothing_behind() {
    Child::new().run(|| {
        for_each_page_size(64, |size, pages| {
            for (kind, threads) in KINDS.into_iter().zip([1, 2]) {
                let before = (memfds(), support::descriptors(), threads_of_this_process());
                let asked = Arc::new(Mutex::new(0));
                let count = Arc::clone(&asked);
                // Not strict: what was cancelled is not tried again on smaller pages.
                let builder = Arena::builder().page_size(size).capacity(pages * size.bytes()).backing(kind);
                let builder = builder.populate_threads(threads).on_progress(move |_| {
                    *count.lock().unwrap() += 1;
                    ControlFlow::Break(())
                });
                let error = builder.open().unwrap_err();
                assert_eq!(error.operation(), Operation::Populate, "{error}");
                assert_eq!(error.os_error().and_then(std::io::Error::raw_os_error), Some(libc::ECANCELED), "{error}");
                assert_eq!((error.limit(), *asked.lock().unwrap()), (None, 1), "{error}");
                assert_eq!((memfds(), support::descriptors()), (before.0, before.1));
                // A thread that has been joined is seen a moment longer.
                let are_gone = || threads_of_this_process() == before.2;
                assert!(support::is_so_within(Duration::from_secs(30), are_gone));
            }
        });
    });
}

#[test]
fn a_callback_that_panics_leaves_nothing_behind() {
    for_each_page_size(64, |size, pages| {
        for threads in [1, 2] {
            let builder = arena(size, pages).populate_threads(threads).on_progress(|_| panic!("as it should"));
            assert!(catch_unwind(AssertUnwindSafe(|| builder.open())).is_err());
        }
    });
}

/// In a cgroup that may use 20 pages.
fn in_cgroup(version: Version) -> Child {
    let spec = CgroupSpec { version, limit: Limit::Max, bytes: 20 << 21, on_parent: false };
    Child::new().needs_pages(PageSize::HUGE_2M, 60).in_cgroup(spec)
}

fn check_part_that_fails(threads: [usize; 2]) {
    for kind in KINDS {
        for threads in threads {
            let _guard = PoolUnchanged::begin();
            let wanted = |pages| arena(PageSize::HUGE_2M, pages).backing(kind.clone()).populate_threads(threads);
            let error = wanted(60).open().unwrap_err();
            assert_eq!(error.operation(), Operation::Populate, "{error}");
            let limit = error.limit().unwrap_or_else(|| panic!("no limit is named: {error}"));
            assert_eq!((limit.kind, limit.available_bytes), (LimitKind::CgroupMax, 20 << 21), "{error}");
            assert!(wanted(20).open().unwrap().claim_zeroed(20, FirstTouch::unknown()).is_some());
        }
    }
}

/// Experiments: 7.
#[test]
fn a_part_that_fails_undoes_all_and_names_the_limit() {
    in_cgroup(Version::V2).run(|| check_part_that_fails([2, 5]));
}

#[test]
fn a_part_that_fails_under_a_limit_of_version_1_undoes_all() {
    in_cgroup(Version::V1).run(|| check_part_that_fails([2, 5]));
}

/// What the system gives no threads for is done by those there are.
#[test]
fn without_threads_the_caller_populates() {
    Child::new().run(|| {
        support::machine::become_nobody();
        support::machine::limit_resource(libc::RLIMIT_NPROC, 1);
        let told = Arc::new(Mutex::new(0));
        let sink = Arc::clone(&told);
        let builder = arena(PageSize::base(), 1 << 12).populate_threads(8).on_progress(move |progress| {
            *sink.lock().unwrap() = progress.done_bytes;
            ControlFlow::Continue(())
        });
        let arena = builder.open().unwrap();
        assert!(arena.claim(1 << 12).is_some());
        assert_eq!(*told.lock().unwrap(), arena.capacity());
        assert!(std::thread::Builder::new().spawn(|| ()).is_err() || support::machine::is_root());
    });
}
