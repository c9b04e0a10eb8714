//! Arena chunks as registered buffers of io_uring, by the code of the example, on a real file with O_DIRECT.

#![allow(unsafe_code)]

#[allow(dead_code)]
#[path = "../examples/io_uring/storage.rs"]
mod storage;
mod support;

use std::io;
use std::path::PathBuf;

use hugearena::{Arena, PageSize};
use io_uring::IoUring;
use storage::{Options, REGISTRATION_MAX, register};

use support::machine::{become_nobody, limit_resource};
use support::{Child, for_each_page_size, skip};

/// A ring, or the reason why the kernel or the container does not give one; such a test is skipped.
fn ring() -> Result<IoUring, io::Error> {
    IoUring::new(8).inspect_err(|error| skip("io_uring", &error.to_string()))
}

/// Whether O_DIRECT can be had in the directory for temporary files, or where the tests run.
fn direct_directory() -> Option<PathBuf> {
    use std::os::unix::fs::OpenOptionsExt;
    let is_direct = |directory: &PathBuf| {
        let flags = libc::O_DIRECT | libc::O_TMPFILE;
        std::fs::OpenOptions::new().write(true).custom_flags(flags).open(directory).is_ok()
    };
    let found = [std::env::temp_dir(), ".".into()].into_iter().find(is_direct);
    if found.is_none() {
        skip("O_DIRECT", "neither the temporary nor the current directory has it");
    }
    found
}

fn open(size: PageSize, pages: usize) -> Arena {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).strict().open().unwrap()
}

#[test]
fn what_is_written_is_read_and_nothing_faults() {
    let (Ok(_), Some(directory)) = (ring(), direct_directory()) else { return };
    for_each_page_size(8, |size, _| {
        let arena_bytes = size.bytes().max(16 << 20);
        if let Some(limit) = hugearena::supply::pin_limit(arena_bytes as u64 + (1 << 20)) {
            return skip("registered buffers", &limit.to_string());
        }
        let options = Options {
            directory: directory.clone(),
            file_bytes: 24 << 20,
            total_bytes: 4 * (24 << 20),
            page_size: size,
            arena_bytes,
        };
        let report = storage::run(&options).unwrap();
        eprintln!("{report}");
        assert_eq!((report.corrupted, report.registrations), (0, 1));
        assert_eq!((report.written_bytes, report.read_bytes), (48 << 20, 48 << 20));
        // Threads of the harness fault too: a page for each transfer would be hundreds.
        let blocks = report.steady_bytes / storage::BLOCK as u64;
        assert!(report.steady_faults < blocks / 2, "{} faults in {blocks} transfers", report.steady_faults);
    });
}

#[test]
fn two_gib_are_two_registrations_and_not_one() {
    let Ok(ring) = ring() else { return };
    for_each_page_size(2, |size, pages| {
        if size < PageSize::HUGE_1G {
            return;
        }
        let arena = open(size, pages);
        let chunk = arena.claim(pages).unwrap();
        let whole = libc::iovec { iov_base: chunk.as_ptr().as_ptr().cast(), iov_len: chunk.len() };
        // SAFETY: the chunk outlives the registration, which is refused.
        let refused = unsafe { ring.submitter().register_buffers(&[whole]) }.unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT), "{refused}");
        if let Some(limit) = hugearena::supply::pin_limit(chunk.len() as u64) {
            return skip("registering 2 GiB", &limit.to_string());
        }
        // SAFETY: the chunk outlives the registration, and nothing is in flight.
        unsafe { register(&ring, &chunk).unwrap() };
        assert_eq!(chunk.regions(REGISTRATION_MAX).iter().len(), 2);
        assert_eq!(chunk.regions(REGISTRATION_MAX).locate(REGISTRATION_MAX, 1).map(|(index, _)| index), Some(1));
        ring.submitter().unregister_buffers().unwrap();
    });
}

#[test]
fn what_may_not_be_locked_is_an_error_with_figures_and_the_arena_opens() {
    for size in [PageSize::base(), PageSize::HUGE_2M] {
        Child::new().needs_pages(size, 64).run(move || {
            become_nobody();
            limit_resource(libc::RLIMIT_MEMLOCK, 64 << 10);
            let Ok(ring) = ring() else { return };
            let arena = open(size, 64);
            let chunk = arena.claim(64).unwrap();
            // The hard limit may be lower still.
            let allowed = hugearena::supply::Supply::read().locked_memory.unwrap();
            // SAFETY: the chunk outlives the ring's use of it, which is none.
            let error = unsafe { register(&ring, &chunk) }.unwrap_err().to_string();
            for part in ["RLIMIT_MEMLOCK", &format!("{allowed} available"), "bytes needed", "ulimit -l"] {
                assert!(error.contains(part), "{error}");
            }
        });
    }
}
