//! Which limit made an operation fail.
//!
//! The kernel answers with one of few error numbers; the figures it compared are in files. Both are put together
//! here, after the failure and never before an attempt: check-then-map would race.

use std::path::{Path, PathBuf};

use super::cgroup::{self, CgroupLimit};
use super::machine::{Machine, ThisMachine};
use super::{Pool, nodes, pool_file, sizes_of};
use crate::error::{Errno, Limit, LimitKind};
use crate::page_size::PageSize;
use crate::sys::process::Resource;
use crate::sys::{EACCES, EAGAIN, EFAULT, EINVAL, ENODEV, ENOMEM, ENOSPC, ENOSYS, EPERM, EROFS};

/// Names the limit that made mmap, population, ftruncate or the like fail with `errno`, or `None` when nothing
/// that can be read explains it.
///
/// Call it after the failed operation has given back what it held: pages that it still holds would be counted as
/// used by somebody else. `mount` is the hugetlbfs directory, when there is one.
pub(crate) fn diagnose(errno: Errno, page_size: PageSize, needed_bytes: u64, mount: Option<&Path>) -> Option<Limit> {
    diagnose_since(&Refusals::default(), errno, page_size, needed_bytes, mount, None)
}

/// As [`diagnose`], with the refusals counted before the attempt: a count that rose proves that a cgroup refused,
/// even if room was made since. `node` is the only one whose pages would do, when there is such a node.
pub(crate) fn diagnose_since(
    before: &Refusals,
    errno: Errno,
    page_size: PageSize,
    needed_bytes: u64,
    mount: Option<&Path>,
    node: Option<u32>,
) -> Option<Limit> {
    Failure { machine: &ThisMachine, errno, page_size, needed_bytes, mount, node }.name_limit(before)
}

/// Ordinary memory of a node, if it cannot hold `needed_bytes`.
///
/// One of two limits that are looked at before an attempt, see [`file_size`]: where a policy allows one node only, the kernel answers a
/// lack of ordinary memory by killing a process. It may still do so when others take the memory meanwhile.
pub(crate) fn ordinary_memory_of(node: u32, page_size: PageSize, needed_bytes: u64) -> Option<Limit> {
    let errno = ENOMEM;
    let failure = Failure { machine: &ThisMachine, errno, page_size, needed_bytes, mount: None, node: Some(node) };
    failure.ordinary_memory_of_node().filter(|limit| limit.available_bytes < needed_bytes)
}

/// RLIMIT_FSIZE, if it does not allow a file of `needed_bytes`.
///
/// Looked at before the attempt, like [`ordinary_memory_of`]: the kernel answers with a signal (SIGXFSZ) that kills.
pub(crate) fn file_size(needed_bytes: u64) -> Option<Limit> {
    let available_bytes = ThisMachine.soft_limit(Resource::FileSize).filter(|limit| *limit < needed_bytes)?;
    let remedy = format!("ulimit -f {}, or anonymous memory, which has no file", needed_bytes.div_ceil(1024));
    Some(Limit { kind: LimitKind::FileSize, needed_bytes, available_bytes, source: "RLIMIT_FSIZE".into(), remedy })
}

/// Every limit on having `needed_bytes` of huge pages in files of that directory, or without one in a memfd or in
/// anonymous memory, also those that allow them.
///
/// For reports, which attempt nothing that takes a page. What is found may be different a moment later.
pub(crate) fn limits_on(
    machine: &dyn Machine,
    page_size: PageSize,
    needed_bytes: u64,
    directory: Option<&Path>,
) -> Vec<Limit> {
    let of = |errno| Failure { machine, errno, page_size, needed_bytes, mount: directory, node: None };
    let failure = of(ENOMEM);
    if let Some(missing) = failure.missing_page_size().or_else(|| failure.missing_mount()) {
        return vec![missing];
    }
    let denied = machine.may_create(directory, page_size).err();
    let denied =
        denied.filter(|errno| [EACCES, EPERM, EROFS, ENOSYS].contains(errno)).map(|errno| of(errno).permission());
    let cgroups = cgroup::read(machine, &[page_size]);
    let cgroups = cgroups.iter().map(|limit| failure.cgroup(limit));
    denied.into_iter().chain(failure.enomem()).chain(cgroups).collect()
}

/// That there is no mount with such pages, for who needs one.
pub(crate) fn no_mount(page_size: PageSize, needed_bytes: u64) -> Limit {
    let failure = Failure { machine: &ThisMachine, errno: ENODEV, page_size, needed_bytes, mount: None, node: None };
    failure.missing_page_size().unwrap_or_else(|| failure.no_mount("/proc/self/mountinfo".into()))
}

/// That a file which has to have `needed_bytes` is shorter.
pub(crate) fn truncated(needed_bytes: u64, available_bytes: u64) -> Limit {
    let remedy = "somebody with write access truncated it: open it anew, and keep that access from whoever did";
    let source = "fstat(2) of the arena's file".into();
    Limit { kind: LimitKind::FileLength, needed_bytes, available_bytes, source, remedy: remedy.into() }
}

/// RLIMIT_MEMLOCK, if it does not let this process pin `needed_bytes` more.
pub(crate) fn pin_limit_on(machine: &dyn Machine, needed_bytes: u64) -> Option<Limit> {
    let (errno, page_size) = (ENOMEM, PageSize::base());
    Failure { machine, errno, page_size, needed_bytes, mount: None, node: None }.pinned_memory()
}

/// How often each cgroup limit had refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Vec<(PathBuf, u64)>);

impl Refusals {
    /// Counts now. Empty, and free of proof, where no cgroup limits pages of that size.
    pub(crate) fn read(page_size: PageSize) -> Refusals {
        Refusals::of(&ThisMachine, page_size)
    }

    fn of(machine: &dyn Machine, page_size: PageSize) -> Refusals {
        let limits = cgroup::read_all(machine, &[page_size]);
        Refusals(limits.into_iter().map(|limit| (limit.file, limit.refusals)).collect())
    }

    fn rose(&self, now: &CgroupLimit) -> bool {
        self.0.iter().any(|(file, refusals)| *file == now.file && *refusals < now.refusals)
    }
}

struct Failure<'a> {
    machine: &'a dyn Machine,
    errno: Errno,
    page_size: PageSize,
    needed_bytes: u64,
    mount: Option<&'a Path>,
    node: Option<u32>,
}

impl Failure<'_> {
    fn name_limit(&self, before: &Refusals) -> Option<Limit> {
        let huge = self.page_size.is_huge();
        match self.errno {
            EACCES | EPERM | EROFS | ENOSYS => Some(self.permission()),
            EINVAL | ENODEV => self.missing_page_size(),
            EAGAIN => self.locked_memory(),
            // Reserving: the pool and the mount are asked, and the cgroups' reservation limits.
            ENOMEM if huge => self.tightest(before, LimitKind::CgroupReserved, self.enomem()),
            ENOMEM => {
                let ordinary = self.ordinary_memory().into_iter().chain(self.ordinary_memory_of_node());
                least(self.enomem().into_iter().chain(ordinary), self.needed_bytes)
            }
            // Populating what is already reserved: the pool has said yes, the cgroups' usage limits have not, or the
            // nodes that may be used: reservations are not made by node.
            EFAULT if huge => self.tightest(before, LimitKind::CgroupMax, self.nodes(self.node).into_iter().collect()),
            // fallocate(2), which does both.
            ENOSPC if huge => {
                let limits = self.pool().into_iter().chain(self.mount_size()).collect();
                self.tightest(before, LimitKind::CgroupMax, limits)
            }
            _ => None,
        }
    }

    /// What can make mmap fail with ENOMEM, cgroups apart.
    fn enomem(&self) -> Vec<Limit> {
        // mmap knows the cpuset and not the policy, which is set on what it maps.
        let nodes = self.nodes(None);
        let limits = [self.pool(), nodes, self.mount_size(), self.address_space(), self.map_count()];
        limits.into_iter().flatten().collect()
    }

    /// A cgroup whose count proves that it refused; else the limit that allows least, if that is too little; else a
    /// pool whose overcommit promised pages that memory is too fragmented to give.
    fn tightest(&self, before: &Refusals, kind: LimitKind, others: Vec<Limit>) -> Option<Limit> {
        let mut cgroups = cgroup::read_all(self.machine, &[self.page_size]);
        cgroups.retain(|limit| limit.kind == kind);
        if let Some(refused) =
            cgroups.iter().filter(|limit| before.rose(limit)).min_by_key(|limit| limit.available_bytes())
        {
            return Some(self.refused_by(refused));
        }
        let cgroups = cgroups.iter().map(|limit| self.cgroup(limit));
        least(others.into_iter().chain(cgroups), self.needed_bytes).or_else(|| self.unreserved_pool())
    }

    fn limit(&self, kind: LimitKind, available_bytes: u64, source: impl Into<String>, remedy: String) -> Limit {
        Limit { kind, needed_bytes: self.needed_bytes, available_bytes, source: source.into(), remedy }
    }

    fn cgroup(&self, limit: &CgroupLimit) -> Limit {
        let file = limit.file.display().to_string();
        let remedy = format!("raise it: echo {} > {file}", self.whole(limit.used_bytes));
        self.limit(limit.kind, limit.available_bytes(), file, remedy)
    }

    /// A refusal is certain, the limit need not be this one: version 2 counts it in the cgroup of the process, and
    /// the limit may be set above what a cgroup namespace shows.
    fn refused_by(&self, limit: &CgroupLimit) -> Limit {
        if limit.available_bytes() < self.needed_bytes {
            return self.cgroup(limit);
        }
        let file = limit.file.display();
        let remedy = "it would allow this now: a cgroup above, out of sight from here, allows less (ask whoever runs \
                      this container), or room was made since";
        self.limit(limit.kind, 0, format!("refusals counted beside {file}"), remedy.into())
    }

    fn pool(&self) -> Option<Limit> {
        let pool = Pool::read(self.machine, self.page_size)?;
        Some(self.pool_limit(&pool, pool.available_pages()))
    }

    fn unreserved_pool(&self) -> Option<Limit> {
        let pool = Pool::read(self.machine, self.page_size)?;
        let limit = self.pool_limit(&pool, pool.unreserved_pages());
        (limit.available_bytes < self.needed_bytes).then_some(limit)
    }

    fn pool_limit(&self, pool: &Pool, available_pages: u64) -> Limit {
        let in_use = pool.total.saturating_sub(pool.unreserved_pages());
        let wanted = in_use.saturating_add(self.needed_bytes.div_ceil(self.page_size.bytes() as u64));
        let file = pool_file(self.page_size, "nr_hugepages");
        let mut remedy = format!("echo {wanted} > {}", file.display());
        if self.page_size >= PageSize::HUGE_1G {
            remedy += &format!(", or boot with hugepagesz={} hugepages={wanted}", self.page_size);
        }
        let available = available_pages.saturating_mul(self.page_size.bytes() as u64);
        self.limit(LimitKind::Pool, available, file.with_file_name("free_hugepages").display().to_string(), remedy)
    }

    /// The free pages of the only nodes that may be used: the one asked for, or those that the cpuset allows, if these
    /// are not all.
    fn nodes(&self, asked: Option<u32>) -> Option<Limit> {
        let (usable, place) = match asked {
            Some(node) => (vec![node], String::new()),
            None => self.nodes_of_cpuset()?,
        };
        let pools = usable.iter().filter_map(|&node| nodes::pool(self.machine, node, self.page_size));
        let pools: Vec<_> = pools.collect();
        let page = self.page_size.bytes() as u64;
        let available = pools.iter().map(|pool| pool.free).sum::<u64>().saturating_mul(page);
        let first = pools.first()?;
        let wanted = (first.total - first.free.min(first.total)).saturating_add(self.needed_bytes.div_ceil(page));
        let remedy = format!("echo {wanted} > {}", nodes::file(first.node, self.page_size, "nr_hugepages").display());
        let file = nodes::file(first.node, self.page_size, "free_hugepages").display().to_string();
        Some(self.limit(LimitKind::Node, available, file + &place, remedy))
    }

    /// The nodes, and what to add to the name of the first one's file to say why these.
    fn nodes_of_cpuset(&self) -> Option<(Vec<u32>, String)> {
        let allowed = nodes::allowed(self.machine)?;
        let is_all = nodes::ids(self.machine).iter().all(|node| allowed.contains(node));
        let place = format!(", Mems_allowed_list of /proc/self/status: nodes {allowed:?}");
        (!is_all).then_some((allowed, place))
    }

    fn ordinary_memory_of_node(&self) -> Option<Limit> {
        let node = self.node?;
        let available = nodes::ordinary_bytes(self.machine, node)?;
        let source = nodes::meminfo(node).display().to_string();
        Some(self.limit(LimitKind::Node, available, source, "ask for less, or for another node".into()))
    }

    fn mount_size(&self) -> Option<Limit> {
        let mount = self.mount?;
        let found = self.machine.file_system(mount)?;
        if !found.is_hugetlbfs || found.blocks == 0 {
            return None;
        }
        let bytes = |blocks: u64| blocks.saturating_mul(found.block_bytes);
        let wanted = self.whole(bytes(found.blocks.saturating_sub(found.blocks_free)));
        let mount = mount.display();
        // Verified on 6.18: a remount with another size succeeds and changes nothing.
        let remedy = format!("mount another: mount -t hugetlbfs -o pagesize={},size={wanted} none DIR", self.page_size);
        Some(self.limit(LimitKind::MountSize, bytes(found.blocks_free), format!("statfs of {mount}"), remedy))
    }

    fn address_space(&self) -> Option<Limit> {
        let limit = self.machine.soft_limit(Resource::AddressSpace)?;
        let statm = self.machine.text(Path::new("/proc/self/statm"))?;
        let pages: u64 = statm.split_whitespace().next()?.parse().ok()?;
        let used = pages.saturating_mul(PageSize::base().bytes() as u64);
        let remedy = format!("ulimit -v {}", used.saturating_add(self.needed_bytes).div_ceil(1024));
        Some(self.limit(LimitKind::AddressSpace, limit.saturating_sub(used), "RLIMIT_AS", remedy))
    }

    fn locked_memory(&self) -> Option<Limit> {
        let limit = self.machine.soft_limit(Resource::LockedMemory)?;
        let status = self.machine.text(Path::new("/proc/self/status")).unwrap_or_default();
        let used = kib_of(&status, "VmLck").unwrap_or(0);
        let remedy = format!("ulimit -l {}", used.saturating_add(self.needed_bytes).div_ceil(1024));
        let limit = self.limit(LimitKind::LockedMemory, limit.saturating_sub(used), "RLIMIT_MEMLOCK", remedy);
        (limit.available_bytes < self.needed_bytes).then_some(limit)
    }

    /// What drivers pin is counted apart from what mlock(2) locks, against the same limit, unless the process may lock
    /// anything.
    fn pinned_memory(&self) -> Option<Limit> {
        const CAP_IPC_LOCK: u64 = 1 << 14;
        let limit = self.machine.soft_limit(Resource::LockedMemory)?;
        let status = self.machine.text(Path::new("/proc/self/status")).unwrap_or_default();
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
        if capabilities & CAP_IPC_LOCK != 0 {
            return None;
        }
        let used = kib_of(&status, "VmPin").unwrap_or(0);
        let kib = used.saturating_add(self.needed_bytes).div_ceil(1024);
        let remedy = format!("ulimit -l {kib}, LimitMEMLOCK={kib}K in the unit of a service, or CAP_IPC_LOCK");
        let limit = self.limit(LimitKind::LockedMemory, limit.saturating_sub(used), "RLIMIT_MEMLOCK", remedy);
        (limit.available_bytes < self.needed_bytes).then_some(limit)
    }

    /// `vm.max_map_count` is a number of mappings: either it allows one more, or nothing at all.
    fn map_count(&self) -> Option<Limit> {
        let file = "/proc/sys/vm/max_map_count";
        let most = self.machine.number(Path::new(file))?;
        let maps = self.machine.bytes(Path::new("/proc/self/maps"))?;
        let mappings = maps.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let remedy = format!("sysctl vm.max_map_count={}", most.saturating_mul(2));
        // vsyscall is listed and not counted.
        (mappings >= most).then(|| self.limit(LimitKind::Memory, 0, format!("{file}, {mappings} in use"), remedy))
    }

    /// What the kernel's overcommit policy allows for base pages.
    fn ordinary_memory(&self) -> Option<Limit> {
        let policy = self.machine.number(Path::new("/proc/sys/vm/overcommit_memory"))?;
        let meminfo = self.machine.text(Path::new("/proc/meminfo"))?;
        let bytes = |key| kib_of(&meminfo, key);
        let (available, remedy) = match policy {
            0 => (bytes("MemTotal")?.saturating_add(bytes("SwapTotal")?), "ask for less"),
            2 => (bytes("CommitLimit")?.saturating_sub(bytes("Committed_AS")?), "raise vm.overcommit_ratio"),
            _ => return None,
        };
        Some(self.limit(LimitKind::Memory, available, "/proc/meminfo", remedy.into()))
    }

    fn missing_page_size(&self) -> Option<Limit> {
        let sizes = sizes_of(self.machine);
        if !self.page_size.is_huge() || sizes.contains(&self.page_size) {
            return None;
        }
        let names: Vec<_> = sizes.iter().map(PageSize::to_string).collect();
        let remedy = match names.is_empty() {
            true => "this kernel offers no huge pages, or /sys is not mounted: use base pages, or a kernel with CONFIG_HUGETLBFS".into(),
            false => format!("use one of {}", names.join(", ")),
        };
        Some(self.limit(LimitKind::PageSizeMissing, 0, super::POOLS, remedy))
    }

    /// The directory that was named has no such pages.
    fn missing_mount(&self) -> Option<Limit> {
        let path = self.mount?;
        let problem = match self.machine.file_system(path) {
            Some(found) if !found.is_hugetlbfs => "no hugetlbfs",
            Some(found) if found.block_bytes == self.page_size.bytes() as u64 => return None,
            Some(_) => "pages of another size",
            None => "no such directory, or no way to it",
        };
        Some(self.no_mount(format!("statfs of {}: {problem}", path.display())))
    }

    fn no_mount(&self, source: String) -> Limit {
        let size = self.page_size;
        let remedy =
            format!("make one (mount -t hugetlbfs -o pagesize={size} none DIR), or use a memfd, which needs none");
        self.limit(LimitKind::MountMissing, 0, source, remedy)
    }

    fn permission(&self) -> Limit {
        let Some(mount) = self.mount else {
            let remedy = "allow it in the seccomp profile or security policy of the container";
            return self.limit(LimitKind::Permission, 0, "the call itself", remedy.into());
        };
        let path = mount.display();
        let remedy = match self.errno {
            EROFS => format!("mount -o remount,rw {path}"),
            _ => format!("let this user write to {path}, or use a memfd, which needs no mount"),
        };
        let access = self.machine.access(mount);
        let source = access.map_or_else(
            || format!("{path}"),
            |access| format!("{path}, owner {}, mode {:04o}", access.owner, access.mode),
        );
        self.limit(LimitKind::Permission, 0, source, remedy)
    }

    /// What a limit has to be for the operation to fit beside `used_bytes`.
    fn whole(&self, used_bytes: u64) -> u64 {
        let page = self.page_size.bytes() as u64;
        let wanted = used_bytes.saturating_add(self.needed_bytes);
        wanted.checked_next_multiple_of(page).unwrap_or(wanted)
    }
}

/// The limit that allows least, if that is less than needed; the first of equals.
fn least(limits: impl Iterator<Item = Limit>, needed_bytes: u64) -> Option<Limit> {
    limits.filter(|limit| limit.available_bytes < needed_bytes).min_by_key(|limit| limit.available_bytes)
}

/// `VmLck:      64 kB`, in bytes.
fn kib_of(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests;
