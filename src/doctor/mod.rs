//! What this process may have of huge pages, which limit binds, and what to run about it.
//!
//! [`Facts::collect`] reads; [`judge`] decides, from the facts alone. Neither changes anything, and neither needs
//! privileges: what an unprivileged process cannot read does not limit it either. The figures are those of one moment.
//!
#![doc = include_str!("faults.md")]

mod holders;
mod judgement;
mod program;

use std::path::{Path, PathBuf};

pub use holders::{Held, HeldFile, Holder, Holders, Via};
pub use judgement::{Finding, Report, Weight, judge};
pub use program::gains_capabilities;

use crate::backing::mounts;
use crate::error::Limit;
use crate::page_size::PageSize;
use crate::supply::machine::{Machine, ThisMachine};
use crate::supply::{self, Supply};

/// A hugetlbfs mount, as its file system answers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugeMount {
    /// Where.
    pub path: PathBuf,
    /// The size of the pages of its files.
    pub page_size: PageSize,
    /// Bytes that its `size=` still allows; `None` when it sets no limit.
    pub room_bytes: Option<u64>,
}

/// What there is to know about having so many bytes of pages of one size, here and now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// The page size asked about.
    pub page_size: PageSize,
    /// Bytes asked about: whole pages.
    pub needed_bytes: u64,
    /// The directory that files of pages are to be in; without one, memfds and anonymous memory are asked about.
    pub directory: Option<PathBuf>,
    /// Pools, nodes, cgroups, resource limits, transparent huge pages.
    pub supply: Supply,
    /// Every limit on such files, or on memfds and anonymous memory, also those that allow what is asked.
    pub limits: Vec<Limit>,
    /// hugetlbfs mounts with pages of every size, in the order of the sizes.
    pub mounts: Vec<HugeMount>,
    /// Ordinary memory that a pool could still be grown from; `None` where it cannot be read.
    pub memory_available_bytes: Option<u64>,
}

impl Facts {
    /// Reads sysfs, procfs, cgroup files and mounts. What cannot be read is left out, so this never fails.
    ///
    /// `needed_bytes` is rounded up to whole pages, and to one page.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::PageSize;
    /// use hugearena::doctor::{Facts, judge};
    ///
    /// let report = judge(&Facts::collect(PageSize::HUGE_2M, 64 << 20));
    /// println!("{report}");
    /// ```
    ///
    /// # Sources
    ///
    /// As for [`Supply`]; proc_meminfo(5), mount_namespaces(7).
    #[must_use]
    pub fn collect(page_size: PageSize, needed_bytes: u64) -> Facts {
        Facts::of(&ThisMachine, page_size, needed_bytes, None)
    }

    /// As [`collect`](Self::collect), for files in a directory on hugetlbfs, as named arenas are: its mount's `size=`
    /// and its permissions count as well.
    #[must_use]
    pub fn collect_in(directory: impl Into<PathBuf>, page_size: PageSize, needed_bytes: u64) -> Facts {
        Facts::of(&ThisMachine, page_size, needed_bytes, Some(directory.into()))
    }

    fn of(machine: &dyn Machine, page_size: PageSize, needed_bytes: u64, directory: Option<PathBuf>) -> Facts {
        let page = page_size.bytes() as u64;
        // What does not fit an address is more than any limit, rounded or not.
        let needed_bytes = needed_bytes.max(1).checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let supply = Supply::of(machine);
        Facts {
            page_size,
            needed_bytes,
            limits: supply::limits_on(machine, page_size, needed_bytes, directory.as_deref()),
            directory,
            mounts: all_mounts(machine),
            memory_available_bytes: memory_available(machine),
            supply,
        }
    }
}

/// Those of every page size, largest first.
fn all_mounts(machine: &dyn Machine) -> Vec<HugeMount> {
    let found = supply::sizes_of(machine).into_iter().flat_map(|size| mounts::find(machine, size));
    found
        .map(|mount| HugeMount { path: mount.path, page_size: mount.page_size, room_bytes: mount.room_bytes })
        .collect()
}

/// `MemAvailable:   123 kB`
fn memory_available(machine: &dyn Machine) -> Option<u64> {
    let text = machine.text(Path::new("/proc/meminfo"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests;
