//! hugetlb cgroups: how many bytes of huge pages a container may use and reserve, in both versions.
//!
//! Limits hold for a whole subtree, so every ancestor that is visible from here is read as well; one that lies
//! outside a namespace can still refuse, and nothing here can tell.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::machine::Machine;
use super::mountinfo::{self, Mount};
use crate::error::LimitKind;
use crate::page_size::PageSize;

/// A limit that a hugetlb cgroup sets on this process. Unlimited cgroups are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupLimit {
    /// [`CgroupMax`](LimitKind::CgroupMax) or [`CgroupReserved`](LimitKind::CgroupReserved).
    pub kind: LimitKind,
    /// The page size that it limits.
    pub page_size: PageSize,
    /// Bytes allowed to the cgroup and everything below it.
    pub limit_bytes: u64,
    /// Bytes that these use now.
    pub used_bytes: u64,
    /// How often a request was refused. Version 1 counts for each limit; version 2 has one count for both limits
    /// of a cgroup, and counts refusals to cgroups below it.
    pub refusals: u64,
    /// The file that the limit was read from.
    pub file: PathBuf,
}

impl CgroupLimit {
    /// Bytes that the cgroup still allows.
    #[must_use]
    pub fn available_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit_bytes != NO_LIMIT
    }
}

impl fmt::Display for CgroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CgroupLimit { limit_bytes, used_bytes, refusals, .. } = self;
        write!(f, "{}: {used_bytes} of {limit_bytes} bytes, {refusals} refusals", self.file.display())
    }
}

const NO_LIMIT: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// What follows `hugetlb.2MB.` in the names of the files: limit, usage, refusals.
fn file_names(version: Version, kind: LimitKind) -> [&'static str; 3] {
    match (version, kind) {
        (Version::V1, LimitKind::CgroupReserved) => ["rsvd.limit_in_bytes", "rsvd.usage_in_bytes", "rsvd.failcnt"],
        (Version::V1, _) => ["limit_in_bytes", "usage_in_bytes", "failcnt"],
        (Version::V2, LimitKind::CgroupReserved) => ["rsvd.max", "rsvd.current", "events"],
        (Version::V2, _) => ["max", "current", "events"],
    }
}

/// Every hugetlb limit on this process for pages of `sizes`, its own cgroup first, then the ancestors.
pub(crate) fn read(machine: &dyn Machine, sizes: &[PageSize]) -> Vec<CgroupLimit> {
    let mut limits = read_all(machine, sizes);
    limits.retain(CgroupLimit::is_limited);
    limits
}

/// As [`read`], with the cgroups that set no limit themselves: in version 2 they count the refusals of others.
pub(crate) fn read_all(machine: &dyn Machine, sizes: &[PageSize]) -> Vec<CgroupLimit> {
    let membership = machine.text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = mountinfo::read(machine);
    let mut limits = Vec::new();
    for (version, own) in memberships(&membership) {
        // One hierarchy may be mounted in several places, some hidden, some showing fewer ancestors.
        let views = mounts.iter().filter(|mount| shows(mount, version));
        let views = views.map(|mount| read_chain(machine, version, &visible_chain(mount, own), sizes));
        limits.extend(views.max_by_key(Vec::len).unwrap_or_default());
    }
    limits
}

/// The lines of `/proc/self/cgroup` that can concern hugetlb: `7:cpu,hugetlb:/path` (1) and `0::/path` (2).
fn memberships(text: &str) -> impl Iterator<Item = (Version, &Path)> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        // A cgroup that was removed under a living process keeps its ancestors.
        let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
        if controllers.split(',').any(|controller| controller == "hugetlb") {
            Some((Version::V1, path))
        } else {
            (id == "0" && controllers.is_empty()).then_some((Version::V2, path))
        }
    })
}

fn shows(mount: &Mount, version: Version) -> bool {
    match version {
        Version::V1 => mount.kind == "cgroup" && mount.has_option("hugetlb"),
        Version::V2 => mount.kind == "cgroup2",
    }
}

/// The directories of the cgroup `own` and of its ancestors, as far as the mount shows them.
fn visible_chain(mount: &Mount, own: &Path) -> Vec<PathBuf> {
    let is_up = |component: Component<'_>| component == Component::ParentDir;
    let below = match own.strip_prefix(&mount.root) {
        Ok(below) => below,
        // The mount was made outside our cgroup namespace: its root is an ancestor of ours, and what lies between
        // has no name here.
        Err(_) if mount.root.components().skip(1).all(is_up) => Path::new(""),
        Err(_) => return Vec::new(),
    };
    if below.components().any(is_up) {
        return Vec::new();
    }
    below.ancestors().map(|below| mount.point.join(below)).collect()
}

fn read_chain(machine: &dyn Machine, version: Version, chain: &[PathBuf], sizes: &[PageSize]) -> Vec<CgroupLimit> {
    let mut limits = Vec::new();
    for directory in chain {
        for &size in sizes {
            for kind in [LimitKind::CgroupMax, LimitKind::CgroupReserved] {
                limits.extend(read_limit(machine, version, directory, size, kind));
            }
        }
    }
    limits
}

fn read_limit(
    machine: &dyn Machine,
    version: Version,
    directory: &Path,
    page_size: PageSize,
    kind: LimitKind,
) -> Option<CgroupLimit> {
    let [limit, used, refusals] =
        file_names(version, kind).map(|name| directory.join(format!("hugetlb.{}.{name}", kernel_name(page_size))));
    let limit_bytes = limit_of(&machine.text(&limit)?);
    let used_bytes = machine.number(&used)?;
    let refusals = machine.text(&refusals).and_then(|text| refusals_of(&text)).unwrap_or(0);
    Some(CgroupLimit { kind, page_size, limit_bytes, used_bytes, refusals, file: limit })
}

/// How the kernel writes a page size in these file names: `64KB`, `2MB`, `1GB`.
fn kernel_name(size: PageSize) -> String {
    format!("{size}B")
}

/// "No limit" is the word `max`, or the largest number of bytes rounded down to whole pages of some size.
fn limit_of(text: &str) -> u64 {
    const SURELY_NONE: u64 = 1 << 62;
    text.trim().parse().ok().filter(|&bytes| bytes < SURELY_NONE).unwrap_or(NO_LIMIT)
}

/// A bare count in version 1, a line `max N` in version 2.
fn refusals_of(text: &str) -> Option<u64> {
    let numbers = text.lines().map(|line| line.strip_prefix("max ").unwrap_or(line));
    numbers.filter_map(|number| number.trim().parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::super::machine::fake::FakeMachine;
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn v2(files: &[(&str, &str)], own: &str, mount: &str) -> Vec<CgroupLimit> {
        let machine = FakeMachine::default().with("/proc/self/cgroup", own).with("/proc/self/mountinfo", mount);
        let machine = files.iter().fold(machine, |machine, (file, text)| machine.with(file, text));
        read(&machine, &[PageSize::HUGE_2M])
    }

    #[test]
    fn version_2_is_walked_up_to_the_root() {
        let files = [
            ("/cg/a/b/hugetlb.2MB.max", "max\n"),
            ("/cg/a/b/hugetlb.2MB.current", "4194304\n"),
            ("/cg/a/b/hugetlb.2MB.rsvd.max", "8388608\n"),
            ("/cg/a/b/hugetlb.2MB.rsvd.current", "6291456\n"),
            ("/cg/a/b/hugetlb.2MB.events", "max 3\n"),
            ("/cg/a/hugetlb.2MB.max", "6291456\n"),
            ("/cg/a/hugetlb.2MB.current", "6291456\n"),
            ("/cg/a/hugetlb.2MB.rsvd.max", "9223372036854771712\n"),
            ("/cg/a/hugetlb.2MB.rsvd.current", "0\n"),
        ];
        let limits = v2(&files, "4:memory:/else\n0::/a/b\n", "1 2 0:3 / /cg rw - cgroup2 none rw\n");
        let seen: Vec<_> = limits.iter().map(|limit| (limit.kind, limit.available_bytes(), limit.refusals)).collect();
        assert_eq!(seen, [(LimitKind::CgroupReserved, 2 * MIB, 3), (LimitKind::CgroupMax, 0, 0)]);
        assert_eq!(limits[1].file, Path::new("/cg/a/hugetlb.2MB.max"));
    }

    #[test]
    fn version_1_shares_a_hierarchy_and_hides_the_host_part_of_its_path() {
        let machine = FakeMachine::default()
            .with("/proc/self/cgroup", "7:net_cls,hugetlb:/docker/x/y\n0::/\n")
            .with("/proc/self/mountinfo", "1 2 0:3 /docker/x /cg/h rw - cgroup cgroup rw,net_cls,hugetlb\n")
            .with("/cg/h/y/hugetlb.1GB.limit_in_bytes", 3u64 << 30)
            .with("/cg/h/y/hugetlb.1GB.usage_in_bytes", 1u64 << 30)
            .with("/cg/h/y/hugetlb.1GB.failcnt", 2)
            .with("/cg/h/hugetlb.1GB.rsvd.limit_in_bytes", 1u64 << 30)
            .with("/cg/h/hugetlb.1GB.rsvd.usage_in_bytes", 0)
            .with("/cg/h/hugetlb.1GB.rsvd.failcnt", 5)
            .with("/cg/h/hugetlb.1GB.limit_in_bytes", "9223372035781033984")
            .with("/cg/h/hugetlb.1GB.usage_in_bytes", 0);
        let limits = read(&machine, &[PageSize::HUGE_1G]);
        let seen: Vec<_> = limits.iter().map(|limit| (limit.kind, limit.available_bytes(), limit.refusals)).collect();
        assert_eq!(seen, [(LimitKind::CgroupMax, 2 << 30, 2), (LimitKind::CgroupReserved, 1 << 30, 5)]);
    }

    #[test]
    fn chains_stop_where_the_mount_stops() {
        let mount = |root: &str| Mount {
            root: root.into(),
            point: "/cg".into(),
            kind: "cgroup2".into(),
            options: String::new(),
        };
        let cases: [(&str, &str, &[&str]); 8] = [
            ("/", "/", &["/cg"]),
            ("/", "/a/b", &["/cg/a/b", "/cg/a", "/cg"]),
            ("/a", "/a/b", &["/cg/b", "/cg"]),
            ("/a", "/ab", &[]),
            // Namespaces: a mount from outside, a process outside, both.
            ("/..", "/", &["/cg"]),
            ("/../..", "/a", &["/cg"]),
            ("/", "/../x", &[]),
            ("/..", "/../x", &["/cg/x", "/cg"]),
        ];
        for (root, own, want) in cases {
            let want: Vec<_> = want.iter().map(PathBuf::from).collect();
            assert_eq!(visible_chain(&mount(root), Path::new(own)), want, "{root} {own}");
        }
    }

    #[test]
    fn the_mount_that_shows_most_is_read() {
        let files = [("/big/a/hugetlb.2MB.max", "0"), ("/big/a/hugetlb.2MB.current", "0")];
        let mounts = "1 2 0:3 / /hidden rw - cgroup2 none rw\n1 2 0:3 / /big rw - cgroup2 none rw\n";
        assert_eq!(v2(&files, "0::/a (deleted)\n", mounts).len(), 1);
    }

    #[test]
    fn file_names_follow_the_kernel() {
        for (bytes, name) in [(1 << 16, "64KB"), (2 << 20, "2MB"), (512 << 20, "512MB"), (16 << 30, "16GB")] {
            assert_eq!(PageSize::from_bytes(bytes).map(kernel_name).as_deref(), Some(name));
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "[-0-9:/,a-z\n. ]{0,200}", any: String) {
            for text in [&text, &any] {
                memberships(text).count();
                limit_of(text);
                refusals_of(text);
                v2(&[], text, text);
            }
        }
    }
}
