//! hugetlbfs mounts that are too small, read-only, somebody else's, or not hugetlbfs at all.

use std::fs::{OpenOptions, read_dir, read_link};
use std::path::{Path, PathBuf};

use super::*;
use crate::support::Child;
use crate::support::machine::{Mounted, TempDir, become_nobody};
use hugearena::Populate;
use hugearena::supply::Supply;

fn on(dir: &Path) -> BackingKind {
    BackingKind::Hugetlbfs { dir: Some(dir.into()) }
}

fn mounted(options: &str, flags: libc::c_ulong) -> Mounted {
    Mounted::hugetlbfs(PageSize::HUGE_2M, options, flags)
}

/// Experiments: 5.
#[test]
fn the_size_of_a_mount_is_named() {
    Child::new().needs_pages(PageSize::HUGE_2M, 8).in_mount_namespace().run(|| {
        let mount = mounted("size=8M", 0);
        let wanted = |pages| arena(pages).backing(on(mount.path()));
        for populate in [Populate::Eager, Populate::Lazy] {
            let error = wanted(5).populate(populate).strict().open().unwrap_err();
            let limit = assert_names(&error, LimitKind::MountSize, 5 * HUGE, 4 * HUGE);
            assert!(limit.source.contains(mount.path().to_str().unwrap()), "{limit}");
            assert!(limit.remedy.contains("mount -t hugetlbfs -o pagesize=2M,size=10485760"), "{limit}");
            assert_fell_back(wanted(5).populate(populate), LimitKind::MountSize);
        }
        let held = wanted(3).strict().open().unwrap();
        let error = wanted(2).strict().open().unwrap_err();
        assert_names(&error, LimitKind::MountSize, 2 * HUGE, HUGE);
        assert!(held.claim(3).is_some() && wanted(1).strict().open().is_ok());
    });
}

#[test]
fn a_read_only_mount_is_named() {
    Child::new().in_mount_namespace().run(|| {
        let mount = mounted("", libc::MS_RDONLY);
        let wanted = arena(2).backing(on(mount.path()));
        let error = wanted.clone().strict().open().unwrap_err();
        let limit = assert_names(&error, LimitKind::Permission, 2 * HUGE, 0);
        assert_eq!(error.operation(), Operation::CreateBacking);
        assert_eq!(limit.remedy, format!("mount -o remount,rw {}", mount.path().display()));
        assert_falls_to_base_pages(wanted, LimitKind::Permission);
        let error = arena(2).backing(BackingKind::Hugetlbfs { dir: None }).strict().open().unwrap_err();
        assert!(error.limit().is_some_and(|limit| limit.kind == LimitKind::Permission), "{error}");
    });
}

/// As `assert_fell_back`; what stands in has no use for the mount.
fn assert_falls_to_base_pages(builder: ArenaBuilder, kind: LimitKind) {
    assert_eq!(builder.clone().open().unwrap().obtained().kind, BackingKind::Memfd);
    assert_fell_back(builder, kind);
}

/// Experiments: 26.
#[test]
fn a_mount_of_somebody_else_is_named_with_owner_and_mode() {
    Child::new().in_mount_namespace().run(|| {
        let mount = mounted("mode=0755", 0);
        // SAFETY: changes this process's user for the calls below; the mount is taken down by root again.
        let as_user = |uid| unsafe { assert_eq!(libc::seteuid(uid), 0) };
        as_user(65534);
        let wanted = arena(2).backing(on(mount.path()));
        let error = wanted.clone().strict().open().unwrap_err();
        let limit = assert_names(&error, LimitKind::Permission, 2 * HUGE, 0);
        assert!(limit.source.contains("owner 0, mode 0755"), "{limit}");
        assert!(limit.remedy.contains("memfd"), "{limit}");
        assert_falls_to_base_pages(wanted, LimitKind::Permission);
        as_user(0);
    });
}

#[test]
fn a_mount_for_everybody_serves_everybody() {
    Child::new().needs_pages(PageSize::HUGE_2M, 4).in_mount_namespace().run(|| {
        let mount = mounted("mode=1777", 0);
        let status = support::fork(|| {
            become_nobody();
            let given = arena(2).backing(on(mount.path())).strict().open().unwrap();
            let found = arena(2).backing(BackingKind::Hugetlbfs { dir: None }).strict().open().unwrap();
            i32::from(given.claim(2).is_none() || found.claim(2).is_none())
        });
        assert!(status.success(), "{status}");
    });
}

#[test]
fn an_empty_pool_behind_a_mount_is_the_pools_fault() {
    Child::new().pool_of(1).in_mount_namespace().run(|| {
        let mount = mounted("size=64M", 0);
        let wanted = arena(2).backing(on(mount.path()));
        let error = wanted.clone().strict().open().unwrap_err();
        assert_names(&error, LimitKind::Pool, 2 * HUGE, HUGE);
        assert_falls_to_base_pages(wanted, LimitKind::Pool);
    });
}

/// A wrong path is a mistake of whoever configured it, so that nothing stands in for it.
#[test]
fn a_directory_that_is_not_hugetlbfs_is_an_error_even_with_fallback() {
    Child::new().run(|| {
        let dir = TempDir::new();
        for builder in [arena(1).strict(), arena(1)] {
            let error = builder.backing(on(dir.path())).open().unwrap_err();
            assert_eq!((error.operation(), error.limit()), (Operation::Configure, None), "{error}");
            let text = error.to_string();
            assert!(text.contains("is not on a hugetlbfs") && text.contains(dir.path().to_str().unwrap()), "{text}");
        }
    });
}

#[test]
fn a_mount_with_other_pages_is_an_error_even_with_fallback() {
    Child::new().in_mount_namespace().run(|| {
        let mount = mounted("", 0);
        for builder in [arena(1).strict(), arena(1)] {
            let error = builder.page_size(PageSize::HUGE_1G).backing(on(mount.path())).open().unwrap_err();
            assert_eq!(error.operation(), Operation::Configure, "{error}");
            assert!(error.to_string().contains("has pages of 2M, not of 1G"), "{error}");
        }
    });
}

#[test]
fn without_any_mount_the_error_says_how_to_make_one() {
    Child::new().run(|| {
        let wanted = arena(1).backing(BackingKind::Hugetlbfs { dir: None });
        let Err(error) = wanted.clone().strict().open() else {
            return support::skip("a machine without hugetlbfs mounts", "this one has a mount that serves");
        };
        let text = error.to_string();
        let kind = error.limit().map(|limit| limit.kind);
        if Supply::read().pool(PageSize::HUGE_2M).is_some() {
            assert!(matches!(kind, Some(LimitKind::MountMissing | LimitKind::Permission)), "{text}");
            assert!(
                kind != Some(LimitKind::MountMissing) || text.contains("mount -t hugetlbfs -o pagesize=2M"),
                "{text}"
            );
        } else {
            assert_eq!(kind, Some(LimitKind::PageSizeMissing), "{text}");
        }
        assert!(wanted.open().unwrap().obtained().is_fallback());
    });
}

/// The descriptor of this process whose file is below `dir`.
fn file_below(dir: &Path) -> PathBuf {
    let links = read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let mut below = links.filter(|link| read_link(link).is_ok_and(|target| target.starts_with(dir)));
    below.next().expect("the arena has a file there")
}

/// Whoever has the descriptor can truncate the file: outside the guarantee for what is populated already, but
/// what is populated later is an error and no signal.
#[test]
fn a_truncated_file_is_an_error_when_claimed() {
    Child::new().needs_pages(PageSize::HUGE_2M, 4).in_mount_namespace().run(|| {
        let mount = mounted("", 0);
        let arena = arena(4).backing(on(mount.path())).populate(Populate::Lazy).strict().open().unwrap();
        let kept = arena.claim(1).unwrap();
        let file = OpenOptions::new().write(true).open(file_below(mount.path())).unwrap();
        file.set_len(2 * HUGE as u64).unwrap();
        let held = arena.claim(1).unwrap();
        assert!(arena.claim(1).is_none() && arena.claim_zeroed(2, FirstTouch::unknown()).is_none());
        let error = arena.last_error().expect("it says why");
        assert_eq!(error.operation(), Operation::Populate);
        assert_eq!(error.os_error().and_then(std::io::Error::raw_os_error), Some(libc::EFAULT), "{error}");
        assert_names(&error, LimitKind::FileLength, 4 * HUGE, 2 * HUGE);
        assert_eq!(arena.stats().claimed, 2);
        drop((kept, held));
    });
}

#[test]
fn a_memfd_cannot_be_truncated() {
    Child::new().run(|| {
        let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).strict().open().unwrap();
        let file = OpenOptions::new().write(true).open(file_below(Path::new("/memfd:hugearena (deleted)"))).unwrap();
        let refused = file.set_len(0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(arena.claim_zeroed(256 << 10 >> 12, FirstTouch::whole()).is_some());
    });
}
