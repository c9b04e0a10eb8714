//! Resource limits of the process.

use super::*;
use crate::support::Child;
use crate::support::child::deny_calls;
use crate::support::machine::{address_space_in_use, become_nobody, limit_resource};
use hugearena::Worker;

const ROOM: u64 = 64 << 20;
const WANTED: usize = 256 << 20;

/// Leaves `ROOM` bytes of address space; returns the limit.
fn limit_address_space() {
    limit_resource(libc::RLIMIT_AS, address_space_in_use() + ROOM);
}

fn check_address_space(size: PageSize) {
    for kind in KINDS {
        let wanted = Arena::builder().page_size(size).capacity(WANTED).backing(kind);
        let error = wanted.clone().strict().open().unwrap_err();
        let limit = error.limit().unwrap_or_else(|| panic!("no limit is named: {error}"));
        assert_names(&error, LimitKind::AddressSpace, WANTED, limit.available_bytes as usize);
        assert!((ROOM / 2..=ROOM).contains(&limit.available_bytes), "{error}");
        assert_eq!(limit.source, "RLIMIT_AS");
        assert!(limit.remedy.starts_with("ulimit -v "), "{error}");
        // Smaller pages need as much address space: nothing can stand in, and the first choice is what is told.
        let error = wanted.open().unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.kind), Some(LimitKind::AddressSpace), "{error}");
    }
}

#[test]
fn address_space_is_named() {
    Child::new().run(|| {
        limit_address_space();
        check_address_space(PageSize::base());
    });
}

#[test]
fn address_space_is_named_for_huge_pages() {
    Child::new().needs_pages(PageSize::HUGE_2M, WANTED / HUGE).run(|| {
        limit_address_space();
        check_address_space(PageSize::HUGE_2M);
    });
}

#[test]
fn a_remedy_for_address_space_is_enough() {
    Child::new().run(|| {
        limit_address_space();
        let wanted = || Arena::builder().page_size(PageSize::base()).capacity(WANTED).strict().open();
        let remedy = wanted().unwrap_err().limit().unwrap().remedy.clone();
        let kib: u64 = remedy.strip_prefix("ulimit -v ").unwrap().parse().unwrap();
        limit_resource(libc::RLIMIT_AS, kib * 1024);
        let arena = wanted().unwrap_or_else(|error| panic!("after {remedy}: {error}"));
        assert!(arena.claim(1).is_some());
    });
}

/// The kernel answers with SIGXFSZ, which kills.
#[test]
fn the_size_of_files_is_named_and_no_signal() {
    Child::new().needs_pages(PageSize::HUGE_2M, 3).run(|| {
        limit_resource(libc::RLIMIT_FSIZE, 4 << 20);
        for size in [PageSize::base(), PageSize::HUGE_2M] {
            let builder = |bytes| Arena::builder().page_size(size).capacity(bytes).strict();
            let error = builder(6 << 20).open().unwrap_err();
            assert_names(&error, LimitKind::FileSize, 6 << 20, 4 << 20);
            let error = builder(2 << 20).max_capacity(1 << 30).open().unwrap_err();
            assert_names(&error, LimitKind::FileSize, 1 << 30, 4 << 20);
            let arena = builder(2 << 20).max_capacity(4 << 20).open().unwrap();
            arena.grow((2 << 20) / size.bytes()).unwrap();
            assert_eq!(arena.trim().unwrap(), (4 << 20) / size.bytes());
            assert!(builder(6 << 20).backing(BackingKind::Anonymous).open().is_ok(), "which has no file");
        }
    });
}

/// Experiments: 66.
#[test]
fn locked_memory_limits_nothing_here() {
    Child::new().run(|| {
        limit_resource(libc::RLIMIT_MEMLOCK, 0);
        become_nobody();
        for kind in KINDS {
            let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).backing(kind.clone()).strict();
            assert!(arena.open().unwrap().claim(256 << 10 >> 12).is_some());
            assert!(super::arena(2).backing(kind).open().unwrap().claim_zeroed(2, FirstTouch::whole()).is_some());
        }
    });
}

/// Experiments: 26.
#[test]
fn huge_pages_need_no_privilege() {
    Child::new().needs_pages(PageSize::HUGE_2M, 4).run(|| {
        limit_resource(libc::RLIMIT_MEMLOCK, 0);
        become_nobody();
        for kind in KINDS {
            let arena = arena(4).backing(kind).strict().open().unwrap();
            assert!(arena.claim_zeroed(4, FirstTouch::whole()).is_some());
        }
    });
}

/// As RLIMIT_NPROC and the pids cgroup do.
#[test]
fn a_thread_that_cannot_be_had_is_an_error_like_any_other() {
    Child::new().run(|| {
        let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open().unwrap();
        assert!(deny_calls(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN), "seccomp is not allowed here");
        let error = Worker::start(&arena).unwrap_err();
        assert_eq!(error.operation(), Operation::StartThread);
        assert!(error.to_string().contains("Resource temporarily unavailable"), "{error}");
        // The text has the system's error already: who prints chains of errors would print it twice.
        assert!(error.os_error().is_some() && std::error::Error::source(&error).is_none());
    });
}
