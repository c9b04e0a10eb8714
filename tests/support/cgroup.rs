//! hugetlb cgroups for child processes to run in, of both versions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::is_so_within;

/// Version 1, a hierarchy of its own, or version 2, the unified one. The controller can only be in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl Version {
    /// Whether the other one has the controller, so that this one cannot.
    pub fn is_ruled_out(self) -> bool {
        Hierarchy::of(if self == Version::V1 { Version::V2 } else { Version::V1 }).is_ok()
    }
}

/// Which of a cgroup's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Pages in use.
    Max,
    /// Pages reserved.
    Reserved,
}

/// A group with a limit on pages of 2 MiB, and a group in it for the process.
#[derive(Clone, Copy, Debug)]
pub struct CgroupSpec {
    pub version: Version,
    pub limit: Limit,
    pub bytes: u64,
    /// The limit is on the group above that of the process.
    pub on_parent: bool,
}

impl CgroupSpec {
    /// The name of the file that holds the limit.
    pub fn file_name(&self) -> &'static str {
        match (self.version, self.limit) {
            (Version::V1, Limit::Max) => "hugetlb.2MB.limit_in_bytes",
            (Version::V1, Limit::Reserved) => "hugetlb.2MB.rsvd.limit_in_bytes",
            (Version::V2, Limit::Max) => "hugetlb.2MB.max",
            (Version::V2, Limit::Reserved) => "hugetlb.2MB.rsvd.max",
        }
    }
}

/// Cgroups made by [`CgroupSpec`], removed when dropped.
pub struct Cgroup {
    /// Outermost first.
    groups: Vec<PathBuf>,
    hierarchy: Hierarchy,
}

impl Cgroup {
    /// # Errors
    ///
    /// Why there cannot be one here.
    pub fn create(spec: &CgroupSpec) -> Result<Cgroup, String> {
        let mut cgroup = Cgroup { groups: Vec::new(), hierarchy: Hierarchy::of(spec.version)? };
        cgroup.fill(spec).map_err(|(path, error)| format!("{}: {error}", path.display()))?;
        Ok(cgroup)
    }

    fn fill(&mut self, spec: &CgroupSpec) -> Result<(), (PathBuf, io::Error)> {
        let mut directory = self.hierarchy.root.clone();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Also in one process no two have a name: the last one may not be gone yet.
        let number = NEXT.fetch_add(1, Relaxed);
        for name in [format!("hugearena-test-{}-{number}", std::process::id()), "inner".into()] {
            if spec.version == Version::V2 {
                write(directory.join(CONTROL), "+hugetlb")?;
            }
            directory.push(name);
            fs::create_dir(&directory).map_err(|error| (directory.clone(), error))?;
            self.groups.push(directory.clone());
        }
        let limited = &self.groups[usize::from(!spec.on_parent)];
        write(limited.join(spec.file_name()), &spec.bytes.to_string())
    }

    /// The group that the process belongs in.
    pub fn path(&self) -> &Path {
        self.groups.last().expect("made in `create`")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for group in self.groups.iter().rev() {
            // A process that has ended leaves its group a moment later.
            let _ = is_so_within(Duration::from_secs(30), || fs::remove_dir(group).is_ok());
        }
    }
}

/// Moves this process into a group.
pub fn join(group: &Path) {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

const CONTROL: &str = "cgroup.subtree_control";

fn write(file: PathBuf, text: &str) -> Result<(), (PathBuf, io::Error)> {
    fs::write(&file, text).map_err(|error| (file, error))
}

/// Where the groups go; as it was when dropped.
struct Hierarchy {
    root: PathBuf,
    /// The controller was off for children of the root, and will be again.
    enabled_here: bool,
}

impl Hierarchy {
    fn of(version: Version) -> Result<Hierarchy, String> {
        let found = match version {
            // Never mounted here: a hierarchy of version 1 that had groups may outlive its mount, unseen, and keeps
            // the controller from version 2 as long as it does.
            Version::V1 => mounts("cgroup", "hugetlb").into_iter().next(),
            Version::V2 => {
                mounts("cgroup2", "").into_iter().find(|root| lists_hugetlb(&root.join("cgroup.controllers")))
            }
        };
        let root = found.ok_or(format!("no cgroup hierarchy of {version:?} offers hugetlb"))?;
        let enabled_here = version == Version::V2 && !lists_hugetlb(&root.join(CONTROL));
        Ok(Hierarchy { root, enabled_here })
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        if self.enabled_here {
            let _ = fs::write(self.root.join(CONTROL), "-hugetlb");
        }
    }
}

fn lists_hugetlb(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|word| word == "hugetlb"))
}

/// Mount points of file systems of a kind, with an option.
fn mounts(kind: &str, option: &str) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let point = |line: &str| {
        let fields: Vec<_> = line.split(' ').collect();
        let fits = fields[2] == kind && (option.is_empty() || fields[3].split(',').any(|found| found == option));
        fits.then(|| PathBuf::from(fields[1]))
    };
    text.lines().filter_map(point).collect()
}
