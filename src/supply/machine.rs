//! Where the figures come from: the real machine, or a made-up one in tests.
//!
//! Everything above this file turns text into numbers and can therefore be tested on machines that nobody has:
//! six page sizes, nested cgroups, mounts with odd names.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Errno;
use crate::page_size::PageSize;
use crate::sys::file::{self, FileSystem};
use crate::sys::process::{self, Resource};
use crate::sys::{self, memory};

/// Who may do what in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// User id of the owner.
    pub owner: u32,
    /// Permission bits, as chmod(1) takes them.
    pub mode: u32,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Its number, which no other hugetlb file has, on whatever mount.
    pub inode: u64,
    /// Bytes allocated to it.
    pub bytes: u64,
}

/// What can be asked of a machine. `None` means "cannot be read", whatever the reason.
pub(crate) trait Machine {
    /// The contents of a file.
    fn bytes(&self, file: &Path) -> Option<Vec<u8>>;
    /// The names in a directory, in no order; empty when it cannot be read.
    fn names(&self, directory: &Path) -> Vec<String>;
    /// statfs(2).
    fn file_system(&self, path: &Path) -> Option<FileSystem>;
    /// Owner and mode of a path.
    fn access(&self, path: &Path) -> Option<Access>;
    /// A soft resource limit in bytes; `None` when unlimited.
    fn soft_limit(&self, resource: Resource) -> Option<u64>;
    /// Whether this process may make a file of pages of that size, in a directory or without one; takes no page.
    fn may_create(&self, directory: Option<&Path>, page_size: PageSize) -> Result<(), Errno>;
    /// Where a symbolic link points.
    fn link(&self, path: &Path) -> Option<PathBuf>;
    /// What a file holds; follows links, those of procfs to files without a name as well.
    fn stored(&self, path: &Path) -> Option<Stored>;

    /// The contents of a file as text.
    fn text(&self, file: &Path) -> Option<String> {
        self.bytes(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file that holds one decimal number.
    fn number(&self, file: &Path) -> Option<u64> {
        self.text(file)?.trim().parse().ok()
    }
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisMachine;

impl Machine for ThisMachine {
    fn bytes(&self, file: &Path) -> Option<Vec<u8>> {
        std::fs::read(file).ok()
    }

    fn names(&self, directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn file_system(&self, path: &Path) -> Option<FileSystem> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        file::file_system(&path).ok()
    }

    fn access(&self, path: &Path) -> Option<Access> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Access { owner: metadata.uid(), mode: metadata.mode() & 0o7777 })
    }

    fn soft_limit(&self, resource: Resource) -> Option<u64> {
        process::soft_limit(resource)
    }

    fn may_create(&self, directory: Option<&Path>, page_size: PageSize) -> Result<(), Errno> {
        match directory.map(|path| CString::new(path.as_os_str().as_bytes())) {
            None => memory::memfd(c"hugearena-probe", page_size).map(drop),
            Some(path) => file::may_create_in(&path.map_err(|_| sys::EINVAL)?),
        }
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        std::fs::read_link(path).ok()
    }

    fn stored(&self, path: &Path) -> Option<Stored> {
        // Blocks of stat(2) are 512 bytes on every file system.
        std::fs::metadata(path)
            .ok()
            .map(|found| Stored { inode: found.ino(), bytes: found.blocks().saturating_mul(512) })
    }
}

#[cfg(test)]
pub(crate) mod fake {
    //! A machine made of text.

    use super::*;
    use std::collections::BTreeMap;

    /// Files by path; a directory's names follow from them.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct FakeMachine {
        pub files: BTreeMap<PathBuf, String>,
        pub file_systems: BTreeMap<PathBuf, FileSystem>,
        /// Links by path: where they point, and what the file there holds.
        pub links: BTreeMap<PathBuf, (PathBuf, Stored)>,
        pub address_space: Option<u64>,
        pub locked_memory: Option<u64>,
        /// Why no file may be made.
        pub denied: Option<Errno>,
    }

    impl FakeMachine {
        /// Adds a file, or replaces its contents.
        pub(crate) fn with(mut self, path: impl Into<PathBuf>, contents: impl ToString) -> FakeMachine {
            self.files.insert(path.into(), contents.to_string());
            self
        }

        /// Adds an open descriptor, or another link to a file that holds something.
        pub(crate) fn with_link(mut self, path: &str, target: &str, inode: u64, bytes: u64) -> FakeMachine {
            self.links.insert(path.into(), (target.into(), Stored { inode, bytes }));
            self
        }

        /// Adds a pool: total, free, reserved, surplus, overcommit.
        pub(crate) fn with_pool(self, kib: u64, pages: [u64; 5]) -> FakeMachine {
            let names = ["nr", "free", "resv", "surplus", "nr_overcommit"];
            names.iter().zip(pages).fold(self, |machine, (name, pages)| {
                let file = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}_hugepages");
                machine.with(file, format!("{pages}\n"))
            })
        }

        /// Adds a node's pool: total, free, surplus.
        pub(crate) fn with_node_pool(self, node: u32, kib: u64, pages: [u64; 3]) -> FakeMachine {
            ["nr", "free", "surplus"].iter().zip(pages).fold(self, |machine, (name, pages)| {
                let pool = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB");
                machine.with(format!("{pool}/{name}_hugepages"), format!("{pages}\n"))
            })
        }

        /// Adds a hugetlbfs: page size, blocks in all (0: no limit), blocks free.
        pub(crate) fn with_hugetlbfs(mut self, path: &str, block_bytes: u64, blocks: [u64; 2]) -> FakeMachine {
            let [blocks, blocks_free] = blocks;
            let found = FileSystem { is_hugetlbfs: true, block_bytes, blocks, blocks_free };
            self.file_systems.insert(path.into(), found);
            self
        }
    }

    impl Machine for FakeMachine {
        fn bytes(&self, file: &Path) -> Option<Vec<u8>> {
            self.files.get(file).map(|text| text.clone().into_bytes())
        }

        fn names(&self, directory: &Path) -> Vec<String> {
            let known = self.files.keys().chain(self.links.keys());
            let below = known.filter_map(|file| file.strip_prefix(directory).ok());
            let mut names: Vec<_> =
                below.filter_map(|rest| Some(rest.iter().next()?.to_string_lossy().into_owned())).collect();
            names.sort_unstable();
            names.dedup();
            names
        }

        fn file_system(&self, path: &Path) -> Option<FileSystem> {
            self.file_systems.get(path).copied()
        }

        fn access(&self, path: &Path) -> Option<Access> {
            self.file_systems.get(path).map(|_| Access { owner: 0, mode: 0o755 })
        }

        fn soft_limit(&self, resource: Resource) -> Option<u64> {
            match resource {
                Resource::AddressSpace => self.address_space,
                Resource::LockedMemory => self.locked_memory,
                Resource::FileSize => None,
            }
        }

        fn may_create(&self, _: Option<&Path>, _: PageSize) -> Result<(), Errno> {
            self.denied.map_or(Ok(()), Err)
        }

        fn link(&self, path: &Path) -> Option<PathBuf> {
            self.links.get(path).map(|(target, _)| target.clone())
        }

        fn stored(&self, path: &Path) -> Option<Stored> {
            self.links.get(path).map(|(_, stored)| *stored)
        }
    }
}
