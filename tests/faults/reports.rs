//! What others have run into and this crate must not: the smallest test that would show it.

use std::alloc::{GlobalAlloc, Layout};
use std::io::{Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use super::*;
use crate::support::cgroup::{CgroupSpec, Limit as Which, Version};
use crate::support::child::{deny_calls, start, wait_for};
use crate::support::machine::TempDir;
use crate::support::{Child, PoolUnchanged, descriptors, mappings, print_skip, vm_flags};
use hugearena::backing::MemoryClass;
use hugearena::supply::Supply;
use hugearena::{HugeAlloc, Populate};

/// A page table's worth of pages and one more.
const MANY: usize = 513;

fn all_kinds() -> impl Iterator<Item = ArenaBuilder> {
    let kinds =
        KINDS.into_iter().flat_map(|kind| [Populate::Eager, Populate::Lazy].map(|populate| (kind.clone(), populate)));
    kinds.map(|(kind, populate)| arena(3).backing(kind).populate(populate).strict())
}

/// Experiments: 12.
#[test]
fn no_mapping_goes_without_a_reservation() {
    Child::new().needs_pages(PageSize::HUGE_2M, 3).run(|| {
        for builder in all_kinds() {
            let arena = builder.open().unwrap();
            let chunk = arena.claim(1).unwrap();
            let flags = vm_flags(chunk.as_ptr().addr().get());
            assert!(!flags.contains(&"nr".into()) && flags.contains(&"ht".into()), "{flags:?}");
        }
    });
}

/// The pool may be overcommitted from ordinary memory while this lives.
struct Overcommitted {
    before: String,
}

const OVERCOMMIT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

impl Overcommitted {
    fn by(pages: u64) -> Overcommitted {
        let before = std::fs::read_to_string(OVERCOMMIT).unwrap();
        std::fs::write(OVERCOMMIT, pages.to_string()).unwrap();
        Overcommitted { before }
    }
}

impl Drop for Overcommitted {
    fn drop(&mut self) {
        std::fs::write(OVERCOMMIT, &self.before).unwrap();
    }
}

fn a_limit_of_nothing(version: Version) -> Child {
    Child::new().in_cgroup(CgroupSpec { version, limit: Which::Max, bytes: 0, on_parent: false })
}

fn check_limit_of_nothing(overcommit: u64) {
    let _more = Overcommitted::by(overcommit);
    for kind in KINDS {
        let error = arena(1).backing(kind.clone()).strict().open().unwrap_err();
        assert_names(&error, LimitKind::CgroupMax, HUGE, 0);
        assert_fell_back(arena(1).backing(kind), LimitKind::CgroupMax);
    }
}

/// Experiments: 2, 10.
#[test]
fn a_limit_of_nothing_is_named_where_pages_may_be_overcommitted() {
    a_limit_of_nothing(Version::V2).run(|| check_limit_of_nothing(8));
}

/// Experiments: 2, 10.
#[test]
fn a_limit_of_nothing_of_version_1_is_named_where_pages_may_be_overcommitted() {
    a_limit_of_nothing(Version::V1).run(|| check_limit_of_nothing(8));
}

/// Experiments: 28.
#[test]
fn where_memfds_are_denied_the_error_says_so_and_other_memory_is_to_be_had() {
    Child::new().needs_pages(PageSize::HUGE_2M, 2).run(|| {
        assert!(deny_calls(&[libc::SYS_memfd_create], libc::EPERM), "seccomp is not allowed here");
        let error = arena(2).open().unwrap_err();
        let limit = assert_names(&error, LimitKind::Permission, 2 * HUGE, 0);
        assert!(limit.remedy.contains("seccomp"), "{limit}");
        let private = arena(2).backing(BackingKind::Anonymous).strict().open().unwrap();
        assert!(private.claim_zeroed(2, FirstTouch::whole()).is_some());
        heap::use_heap();
    });
}

/// Experiments: 42.
#[test]
fn sizes_are_tried_largest_first() {
    Child::new().pool_of(0).run(|| {
        let gigantic = support::too_many(PageSize::HUGE_1G);
        let builder = Arena::builder().page_size(PageSize::HUGE_1G).capacity(gigantic << 30);
        let arena = builder.populate(Populate::Lazy).open().unwrap();
        let obtained = arena.obtained();
        let declined: Vec<_> = obtained.declined.iter().map(|declined| declined.page_size).collect();
        assert_eq!(declined, [PageSize::HUGE_1G, PageSize::HUGE_2M], "{obtained}");
        assert_eq!(obtained.page_size, PageSize::base());
    });
}

/// Experiments: 48.
#[test]
fn an_arena_needs_no_mount() {
    Child::new().in_mount_namespace().needs_pages(PageSize::HUGE_2M, 2).run(|| {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        for mount in
            mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|mount| mount[2] == "hugetlbfs")
        {
            let point = std::ffi::CString::new(mount[1]).unwrap();
            // SAFETY: a C string; the mounts of this process are its own.
            assert_eq!(unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) }, 0);
        }
        let arena = arena(2).strict().open().unwrap();
        assert_eq!((&arena.obtained().kind, arena.memory_class()), (&BackingKind::Memfd, MemoryClass::Shared));
    });
}

/// Experiments: 50.
#[test]
fn lengths_that_are_no_whole_pages_leave_nothing_behind() {
    static HEAP: HugeAlloc = HugeAlloc::new();
    Child::new().needs_pages(PageSize::HUGE_2M, 40).run(|| {
        {
            let _unchanged = PoolUnchanged::begin();
            for round in 0..1_000 {
                let builder = Arena::builder().capacity(5_000).backing(KINDS[round % 2].clone());
                assert_eq!(builder.strict().open().unwrap().capacity(), HUGE);
            }
        }
        let layout = Layout::from_size_align(5_000, 8).unwrap();
        let mut mapped = 0;
        for round in 0..10_000 {
            // SAFETY: a block is freed once, with its layout.
            unsafe {
                let block = HEAP.alloc(layout);
                block.write(1);
                HEAP.dealloc(block, layout);
            }
            if round == 0 {
                mapped = HEAP.stats().mapped_bytes;
            }
        }
        assert_eq!(HEAP.stats().mapped_bytes, mapped);
    });
}

/// Experiments: 53, 68, 69.
#[test]
fn a_large_arena_is_as_many_pages_one_mapping_and_one_descriptor() {
    Child::new().needs_pages(PageSize::HUGE_2M, MANY).run(|| {
        let (maps, fds) = (mappings().lines().count(), descriptors());
        let arena = arena(MANY).populate_threads(1).strict().open().unwrap();
        assert_eq!((mappings().lines().count() - maps, descriptors() - fds), (1, 1));
        let link = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let is_ours = |name: std::path::PathBuf| name.to_string_lossy().starts_with("/memfd:hugearena");
        let mut files = link.filter(|link| std::fs::read_link(link).is_ok_and(is_ours));
        let file = std::fs::metadata(files.next().unwrap()).unwrap();
        assert_eq!((file.len(), file.blocks() * 512), ((MANY * HUGE) as u64, (MANY * HUGE) as u64));
        drop(arena);
    });
}

/// The parent gets more memory after fork, and gives back what it had: its child has what it inherited.
///
/// Experiments: 60.
#[test]
fn a_parent_that_grows_and_shrinks_takes_nothing_from_its_child() {
    static HEAP: HugeAlloc = HugeAlloc::new();
    Child::new().needs_pages(PageSize::HUGE_2M, 64).run(|| {
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        let size = 3 << 20;
        // SAFETY: blocks of that size, each freed once, by the parent.
        let old: Vec<_> = (0..4).map(|_| unsafe { HEAP.alloc(layout(size)) }).collect();
        // SAFETY: as above.
        old.iter().for_each(|block| unsafe { block.write_bytes(0xA5, size) });
        let (mut ready, mut go) = pipe().unwrap();
        let child = start(|| {
            let mut byte = [0];
            ready.read_exact(&mut byte).unwrap();
            // SAFETY: inherited; the parent's are other pages, or the same until one of both writes.
            let intact =
                old.iter().all(|block| support::is_filled(unsafe { std::slice::from_raw_parts(*block, size) }, 0xA5));
            i32::from(!intact)
        });
        // SAFETY: as above; what is new stays.
        unsafe {
            (0..4).for_each(|_| HEAP.alloc(layout(size)).write_bytes(1, size));
            old.iter().for_each(|block| HEAP.dealloc(*block, layout(size)));
        }
        HEAP.trim();
        go.write_all(&[1]).unwrap();
        assert!(wait_for(child).success());
    });
}

/// Bytes of the core that a process leaves which has 8 MiB of huge pages, written.
fn core_bytes(directory: &Path, filter: &str, kind: &BackingKind, included: bool) -> Option<u64> {
    let child = start(|| {
        std::env::set_current_dir(directory).unwrap();
        std::fs::write("/proc/self/coredump_filter", filter).unwrap();
        let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads a live struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &unlimited) }, 0);
        let builder = arena(4).backing(kind.clone()).strict();
        let builder = if included { builder.include_in_core_dumps() } else { builder };
        let arena = builder.open().unwrap();
        let mut chunk = arena.claim(4).unwrap();
        // SAFETY: our own chunk.
        unsafe { chunk.slice_mut() }.fill(0xA5);
        std::process::abort()
    });
    assert_eq!(wait_for(child).signal(), Some(libc::SIGABRT));
    let core = std::fs::read_dir(directory).unwrap().next()?.unwrap().path();
    let bytes = std::fs::metadata(&core).unwrap().len();
    std::fs::remove_file(core).unwrap();
    Some(bytes)
}

/// Experiments: 71.
#[test]
fn cores_have_shared_arenas_only_where_they_are_wanted() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with(['|', '/']) {
        return print_skip("core dumps", &format!("core_pattern is {}", pattern.trim()));
    }
    Child::new().needs_root().needs_pages(PageSize::HUGE_2M, 8).run(|| {
        let directory = TempDir::new();
        let all = 4 * HUGE as u64;
        // Bit 6: shared huge pages; bit 5: private ones.
        for (filter, kind, included, wanted) in [
            ("0x33", BackingKind::Memfd, false, false),
            ("0x73", BackingKind::Memfd, false, false),
            ("0x33", BackingKind::Memfd, true, false),
            ("0x73", BackingKind::Memfd, true, true),
            ("0x33", BackingKind::Anonymous, false, true),
            ("0x13", BackingKind::Anonymous, false, false),
        ] {
            let Some(bytes) = core_bytes(directory.path(), filter, &kind, included) else {
                return support::print_skip("core dumps", "the kernel wrote none");
            };
            assert_eq!(bytes > all, wanted, "{bytes} bytes with filter {filter} ({kind}, included: {included})");
        }
    });
}

/// Experiments: 66.
#[test]
fn registering_is_what_locked_memory_limits_and_not_an_arena() {
    Child::new().needs_pages(PageSize::HUGE_2M, 2).run(|| {
        support::machine::limit_resource(libc::RLIMIT_MEMLOCK, 64 << 10);
        support::machine::become_nobody();
        // The hard limit may be lower still.
        let allowed = Supply::read().locked_memory.unwrap();
        let arena = arena(2).strict().open().unwrap();
        let chunk = arena.claim(2).unwrap();
        // SAFETY: locks our own memory, or does not.
        let result = unsafe { libc::mlock(chunk.as_ptr().as_ptr().cast(), chunk.len()) };
        assert_eq!(result, -1, "mlock stands for what registers memory, and is charged");
        let facts = hugearena::doctor::Facts::collect(PageSize::HUGE_2M, 2 * HUGE as u64);
        let report = hugearena::doctor::judge(&facts);
        let note = report.findings.iter().find(|finding| finding.what.contains("RLIMIT_MEMLOCK"));
        let note = note.unwrap_or_else(|| panic!("{report}"));
        assert!(
            note.why.starts_with(&format!("{allowed} bytes")) && note.remedy.as_deref() == Some("ulimit -l 4096"),
            "{note}"
        );
    });
}

/// Programs are started by a process that has all of the pool, and writes to it meanwhile.
///
/// Experiments: 13.
#[test]
fn programs_are_started_while_the_pool_is_empty() {
    static HEAP: HugeAlloc = HugeAlloc::new();
    Child::new().pool_of(6).run(|| {
        let layout = Layout::from_size_align(3 << 20, 64).unwrap();
        // SAFETY: blocks of that size, which stay.
        let blocks: Vec<_> = (0..8).map(|_| unsafe { HEAP.alloc(layout) }).collect();
        for round in 0..support::kill::rounds(1000) {
            // SAFETY: as above.
            unsafe { blocks[round % 8].write_bytes(round as u8, 3 << 20) };
            let mut command = Command::new("true");
            if round % 4 == 3 {
                // With a hook, std forks instead of spawning.
                // SAFETY: the hook does nothing.
                unsafe { command.pre_exec(|| Ok(())) };
            }
            let status = command.status().unwrap();
            assert!(status.success(), "round {round}: {status}");
        }
    });
}

/// Experiments: 18.
#[test]
fn another_descriptor_that_closes_takes_no_lock_with_it() {
    Child::new().in_mount_namespace().needs_pages(PageSize::HUGE_2M, 1).run(|| {
        let (mount, records) = (support::machine::Mounted::hugetlbfs(PageSize::HUGE_2M, "", 0), TempDir::new());
        let kind = BackingKind::Hugetlbfs { dir: Some(mount.path().into()) };
        let builder = arena(1).name("x").record_dir(records.path()).backing(kind);
        let owner = builder.clone().open().unwrap();
        for path in [records.path().join("x.lock"), mount.path().join("hugearena.x")] {
            let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
            // A lock of the process on another descriptor, which closing any descriptor takes away.
            let mut lock: libc::flock =
                libc::flock { l_type: libc::F_RDLCK as _, l_whence: 0, l_start: 0, l_len: 1, l_pid: 0 };
            // SAFETY: reads a live struct.
            let _ = unsafe { libc::fcntl(again.as_raw_fd(), libc::F_SETLK, &mut lock) };
        }
        let status = support::fork(|| {
            let error = builder.clone().open().unwrap_err();
            i32::from(error.operation() != Operation::Own)
        });
        assert!(status.success(), "another process became the owner");
        drop(owner);
        hugearena::arena::remove_from(records.path(), "x").unwrap();
    });
}
