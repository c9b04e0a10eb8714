//! What limits huge pages here: the kernel's pools, hugetlb cgroups, mounts, resource limits.
//!
//! [`Supply::read`] takes a snapshot; nothing in it is reserved, and another process may take it all a moment
//! later. The crate therefore never decides from it whether a mapping will succeed: it maps, and reads the supply
//! afterwards to say why that failed.

mod cgroup;
pub(crate) mod diagnosis;
pub(crate) mod list;
pub(crate) mod machine;
pub(crate) mod mountinfo;
pub(crate) mod nodes;
pub(crate) mod obtained;
mod transparent;

use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};

pub use cgroup::CgroupLimit;
pub(crate) use diagnosis::{diagnose, limits_on, no_mount, truncated};
pub use nodes::NodePool;
pub use transparent::{TransparentHuge, TransparentMode, transparent_huge};

use crate::error::Limit;
use crate::page_size::PageSize;
use crate::sys::file;
use crate::sys::process::Resource;
use machine::{Machine, ThisMachine};

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The huge page sizes of this kernel, largest first: the order in which a fallback tries them.
///
/// Empty without hugetlb, and where sysfs cannot be read. A size that is listed may have no pages.
///
/// # Examples
///
/// ```
/// for size in hugearena::supply::page_sizes() {
///     println!("{size}");
/// }
/// ```
///
/// # Sources
///
/// Linux, `Documentation/admin-guide/mm/hugetlbpage.rst`: `/sys/kernel/mm/hugepages/hugepages-<size>kB`.
#[must_use]
pub fn page_sizes() -> Vec<PageSize> {
    sizes_of(&ThisMachine)
}

/// RLIMIT_MEMLOCK, if this process may not pin `needed_bytes` more: what to ask when registering memory with io_uring,
/// AF_XDP, VFIO or RDMA failed with `ENOMEM` (AF_XDP: `ENOBUFS`). `None` when the limit allows that much, when there is
/// none, and for processes with `CAP_IPC_LOCK`.
///
/// What this process has pinned is taken into account; what other processes of the same user have registered with
/// io_uring or AF_XDP, which counts there too, cannot be seen. The kernel charges whole huge pages, and a ring of io_uring
/// for itself (Linux 6.14): ask for a little more than what is registered.
///
/// # Examples
///
/// ```
/// match hugearena::supply::pin_limit(1 << 30) {
///     None => println!("1 GiB may be registered"),
///     Some(limit) => println!("{limit}"), // figures, and the command that raises it
/// }
/// ```
///
/// # Sources
///
/// getrlimit(2), io_uring_register(2), capabilities(7).
#[must_use]
pub fn pin_limit(needed_bytes: u64) -> Option<Limit> {
    diagnosis::pin_limit_on(&ThisMachine, needed_bytes)
}

pub(crate) fn sizes_of(machine: &dyn Machine) -> Vec<PageSize> {
    let names = machine.names(Path::new(POOLS));
    let mut sizes: Vec<_> = names.iter().filter_map(|name| size_of_pool(name)).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// `hugepages-2048kB`
fn size_of_pool(name: &str) -> Option<PageSize> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    PageSize::from_bytes(kib.checked_mul(1024)?)
}

fn pool_file(size: PageSize, name: &str) -> PathBuf {
    Path::new(POOLS).join(format!("hugepages-{}kB", size.bytes() / 1024)).join(name)
}

/// The kernel's pool of huge pages of one size, over all NUMA nodes. All counts are pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pool {
    /// The size of one page.
    pub page_size: PageSize,
    /// Pages in the pool, surplus included.
    pub total: u64,
    /// Pages that hold nothing. Some of them may be reserved.
    pub free: u64,
    /// Free pages that are promised to mappings which have not touched them yet.
    pub reserved: u64,
    /// Pages beyond the configured size, taken from ordinary memory until they are freed.
    pub surplus: u64,
    /// The most surplus pages that the kernel may take.
    pub overcommit: u64,
}

impl Pool {
    fn read(machine: &dyn Machine, page_size: PageSize) -> Option<Pool> {
        let count = |name| machine.number(&pool_file(page_size, name));
        let (free, reserved) = steady(|| Some((count("free_hugepages")?, count("resv_hugepages").unwrap_or(0))))?;
        Some(Pool {
            page_size,
            total: count("nr_hugepages")?,
            free,
            reserved: promises(reserved),
            surplus: count("surplus_hugepages").unwrap_or(0),
            overcommit: count("nr_overcommit_hugepages").unwrap_or(0),
        })
    }

    /// Pages that are free and promised to nobody.
    #[must_use]
    pub fn unreserved_pages(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }

    /// Pages that a new reservation can get at best: the unreserved ones, and those that the kernel may take from
    /// ordinary memory, if it finds any that are contiguous.
    #[must_use]
    pub fn available_pages(&self) -> u64 {
        self.unreserved_pages().saturating_add(self.overcommit.saturating_sub(self.surplus))
    }
}

/// Two counts that change together, by files of their own: read until they are the same twice. While somebody populates
/// what was promised to him, both fall; read once, one in twelve pairs spoke of pages that were not there, or not of all.
fn steady(mut read: impl FnMut() -> Option<(u64, u64)>) -> Option<(u64, u64)> {
    const READINGS: usize = 8;
    let mut last = read()?;
    for _ in 1..READINGS {
        let now = read()?;
        if now == last {
            break;
        }
        last = now;
    }
    Some(last)
}

/// The pages promised, from the kernel's count of them, which has no sign: Linux 6.18 lets it fall below zero while a
/// child of fork(2) lives whose parent has ended, or has unmapped private huge pages that the two share. Read as it stands,
/// that would make an empty pool of a full one, for every process of the machine.
fn promises(counted: u64) -> u64 {
    if i64::try_from(counted).is_ok() { counted } else { 0 }
}

/// A snapshot of what this process could get, and of what holds it back.
///
/// # Examples
///
/// ```
/// use hugearena::{PageSize, supply::Supply};
///
/// let supply = Supply::read();
/// println!("{supply}");
/// println!("{} pages of 2M to be had", supply.available_pages(PageSize::HUGE_2M));
/// ```
///
/// # Sources
///
/// Linux, `Documentation/admin-guide/mm/hugetlbpage.rst`, `admin-guide/cgroup-v2.rst` (HugeTLB) and
/// `admin-guide/cgroup-v1/hugetlb.rst`; getrlimit(2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Supply {
    /// The pools, largest page size first.
    pub pools: Vec<Pool>,
    /// Each NUMA node's share of the pools: nodes ascending, the largest page size first.
    pub node_pools: Vec<NodePool>,
    /// hugetlb limits of this process's cgroup and of those above it.
    pub cgroup_limits: Vec<CgroupLimit>,
    /// RLIMIT_AS in bytes; `None` when unlimited.
    pub address_space: Option<u64>,
    /// RLIMIT_MEMLOCK in bytes; `None` when unlimited. hugetlb memory is exempt; registering it with a device
    /// or with io_uring is not.
    pub locked_memory: Option<u64>,
    /// What the system says about transparent huge pages.
    pub transparent_huge: TransparentHuge,
}

impl Supply {
    /// Reads sysfs, procfs and cgroup files. What cannot be read is left out, so this never fails.
    #[must_use]
    pub fn read() -> Supply {
        Supply::of(&ThisMachine)
    }

    pub(crate) fn of(machine: &dyn Machine) -> Supply {
        let sizes = sizes_of(machine);
        Supply {
            pools: sizes.iter().filter_map(|&size| Pool::read(machine, size)).collect(),
            node_pools: nodes::pools(machine),
            cgroup_limits: cgroup::read(machine, &sizes),
            address_space: machine.soft_limit(Resource::AddressSpace),
            locked_memory: machine.soft_limit(Resource::LockedMemory),
            transparent_huge: TransparentHuge::of(machine),
        }
    }

    /// The pool of that page size, if the kernel has one.
    #[must_use]
    pub fn pool(&self, size: PageSize) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.page_size == size)
    }

    /// Pages of that size which this process could get now: the least that pool and cgroups allow.
    #[must_use]
    pub fn available_pages(&self, size: PageSize) -> u64 {
        let pool = self.pool(size).map_or(0, Pool::available_pages);
        let cgroups = self.cgroup_limits.iter().filter(|limit| limit.page_size == size);
        cgroups.map(|limit| limit.available_bytes() >> size.log2()).fold(pool, u64::min)
    }
}

impl fmt::Display for Supply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "page      total       free   reserved    surplus overcommit  available")?;
        for pool in &self.pools {
            let Pool { page_size, total, free, reserved, surplus, overcommit } = pool;
            let page = page_size.to_string();
            let available = pool.available_pages();
            writeln!(f, "{page:4} {total:10} {free:10} {reserved:10} {surplus:10} {overcommit:10} {available:10}")?;
        }
        if self.pools.is_empty() {
            writeln!(f, "none")?;
        }
        // On one node they are the figures above.
        if self.node_pools.iter().any(|pool| pool.node != self.node_pools[0].node) {
            for NodePool { node, page_size, total, free, surplus } in &self.node_pools {
                writeln!(f, "node {node}: {free} of {total} pages of {page_size} free; {surplus} are surplus")?;
            }
        }
        for limit in &self.cgroup_limits {
            writeln!(f, "{limit}")?;
        }
        let bytes = |limit: Option<u64>| limit.map_or("unlimited".into(), |bytes| format!("{bytes} bytes"));
        writeln!(f, "RLIMIT_AS: {}, RLIMIT_MEMLOCK: {}", bytes(self.address_space), bytes(self.locked_memory))?;
        write!(f, "{}", self.transparent_huge)
    }
}

/// [`Pool::available_pages`] read afresh, or `None` where there is no such pool.
///
/// For the heap, while it serves a request: allocates nothing, takes no lock, cannot panic. Reads six small files, more
/// where others populate meanwhile: tens of microseconds (55 us for four on the Zen 1 guest), so once per growth. cgroups are not looked at.
pub(crate) fn available_pages_now(size: PageSize) -> Option<u64> {
    let both = || Some((pool_count_now(size, b"free_hugepages")?, pool_count_now(size, b"resv_hugepages")?));
    let (free, reserved) = steady(both)?;
    let reserved = promises(reserved);
    let surplus = pool_count_now(size, b"surplus_hugepages")?;
    let overcommit = pool_count_now(size, b"nr_overcommit_hugepages")?;
    let pool = Pool { page_size: size, total: 0, free, reserved, surplus, overcommit };
    Some(pool.available_pages())
}

/// Whether `MADV_HUGEPAGE` can have an effect on private memory; `None` where that cannot be seen, for want of
/// descriptors or of a `/sys`. For the heap, like [`available_pages_now`].
pub(crate) fn transparent_huge_now() -> Option<bool> {
    let mut text = [0; 64];
    let setting = file::read_small(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut text).ok()?;
    Some(!setting.windows(7).any(|word| word == b"[never]"))
}

fn pool_count_now(size: PageSize, name: &[u8]) -> Option<u64> {
    const ROOM: usize = 96;
    let mut path = [0; ROOM];
    let mut digits = [0; 20];
    let kib = decimal(size.bytes() as u64 / 1024, &mut digits);
    // The last byte stays 0, whatever the length.
    let mut free = path.iter_mut().take(ROOM - 1);
    for &byte in [POOLS.as_bytes(), b"/hugepages-", kib, b"kB/", name].into_iter().flatten() {
        *free.next()? = byte;
    }
    let mut text = [0; 24];
    let text = file::read_small(CStr::from_bytes_until_nul(&path).ok()?, &mut text).ok()?;
    number(text)
}

/// The decimal digits of `number`, written into the end of `digits`, which has room for any `u64`.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    digits.get(20 - used..).unwrap_or_default()
}

/// Decimal digits up to a newline or the end; `None` for anything else, and beyond `u64`.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"\n").unwrap_or(text);
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let append = |number: u64, &byte: &u8| number.checked_mul(10)?.checked_add(digit(byte)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, append) }
}

#[cfg(test)]
mod tests;
