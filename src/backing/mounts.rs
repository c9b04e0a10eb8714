//! hugetlbfs mounts: found in the mount table, believed only after statfs(2).
//!
//! Page size and room come from the file system itself, never from the text of its options: these vary in order and
//! spelling, and a mount may hide another one.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::Errno;
use crate::page_size::PageSize;
use crate::supply::machine::Machine;
use crate::supply::mountinfo;
use crate::sys::{EINVAL, ENODEV, file};

/// A directory on hugetlbfs: a mount point or anything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HugeDirectory {
    pub path: PathBuf,
    /// The size of the pages of its files.
    pub page_size: PageSize,
    /// Bytes that the mount's `size=` still allows; `None` when it sets no limit.
    pub room_bytes: Option<u64>,
}

impl HugeDirectory {
    /// Asks the file system of `path`; `None` unless it is a hugetlbfs.
    pub(crate) fn confirm(machine: &dyn Machine, path: &Path) -> Option<HugeDirectory> {
        let found = machine.file_system(path).filter(|found| found.is_hugetlbfs)?;
        let page_size = PageSize::from_bytes(found.block_bytes)?;
        let room_bytes = (found.blocks > 0).then(|| found.blocks_free.saturating_mul(found.block_bytes));
        Some(HugeDirectory { path: path.into(), page_size, room_bytes })
    }

    /// A file without a name on pages of this directory's size. Whether this process may write here is known only by
    /// doing it.
    pub(crate) fn create_unnamed(&self) -> Result<OwnedFd, Errno> {
        let path = CString::new(self.path.as_os_str().as_bytes()).map_err(|_| EINVAL)?;
        let fd = file::unnamed_file(&path)?;
        // Somebody may have mounted something else here since.
        let found = file::file_system_of(fd.as_fd())?;
        if found.is_hugetlbfs && found.block_bytes == self.page_size.bytes() as u64 { Ok(fd) } else { Err(ENODEV) }
    }
}

/// Every hugetlbfs mount with pages of `page_size`: the one with the most room first, those of equal room in the
/// order of the mount table.
pub(crate) fn find(machine: &dyn Machine, page_size: PageSize) -> Vec<HugeDirectory> {
    let mut found: Vec<HugeDirectory> = Vec::new();
    for mount in mountinfo::read(machine) {
        if mount.kind != "hugetlbfs" || found.iter().any(|known| known.path == mount.point) {
            continue;
        }
        let confirmed = HugeDirectory::confirm(machine, &mount.point);
        found.extend(confirmed.filter(|mount| mount.page_size == page_size));
    }
    found.sort_by_key(|mount| std::cmp::Reverse(mount.room_bytes.unwrap_or(u64::MAX)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supply::machine::ThisMachine;
    use crate::supply::machine::fake::FakeMachine;
    use crate::sys::file::FileSystem;

    const MIB: u64 = 1 << 20;

    /// Experiments: 44, 45.
    #[test]
    fn the_file_system_is_believed_and_not_the_options() {
        let table = "1 0 0:1 / /small rw - hugetlbfs none rw,size=4194304\n\
            2 0 0:2 / /dev/huge\\040pages rw shared:3 - hugetlbfs none rw,gid=7,pagesize=1024M\n\
            3 0 0:3 / /hidden rw - hugetlbfs none rw,pagesize=2M\n\
            4 0 0:4 / /gone rw - hugetlbfs none rw\n\
            5 0 0:5 / /one rw - hugetlbfs none rw,pagesize=2M\n\
            6 0 0:1 / /small rw - hugetlbfs none rw\n\
            7 0 0:7 / /tmp rw - tmpfs none rw\n";
        let mut machine = FakeMachine::default()
            .with("/proc/self/mountinfo", table)
            .with_hugetlbfs("/small", 2 * MIB, [2, 1])
            .with_hugetlbfs("/dev/huge pages", 2 * MIB, [0, 0])
            .with_hugetlbfs("/one", 1 << 30, [0, 0]);
        let other = FileSystem { is_hugetlbfs: false, block_bytes: 4096, blocks: 9, blocks_free: 9 };
        machine.file_systems.insert("/hidden".into(), other);

        let found = find(&machine, PageSize::HUGE_2M);
        let seen: Vec<_> = found.iter().map(|mount| (mount.path.to_str().unwrap(), mount.room_bytes)).collect();
        assert_eq!(seen, [("/dev/huge pages", None), ("/small", Some(2 * MIB))]);
        assert_eq!(find(&machine, PageSize::HUGE_1G)[0].path, Path::new("/one"));
    }

    #[test]
    fn an_ordinary_directory_is_no_hugetlbfs() {
        for path in ["/", "/proc", "/no/such/place", "/nul\0byte"] {
            assert_eq!(HugeDirectory::confirm(&ThisMachine, Path::new(path)), None, "{path:?}");
        }
    }

    #[test]
    fn what_is_not_hugetlbfs_any_more_is_refused() {
        let path = std::env::temp_dir();
        let stale = HugeDirectory { path, page_size: PageSize::HUGE_2M, room_bytes: None };
        assert!(stale.create_unnamed().is_err());
    }

    #[test]
    fn mounts_of_this_machine_have_the_size_asked_for() {
        for size in crate::supply::page_sizes() {
            assert!(find(&ThisMachine, size).iter().all(|mount| mount.page_size == size));
        }
    }
}
