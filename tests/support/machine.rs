//! What a test changes about its own process or its surroundings: user, limits, mounts, cgroups.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hugearena::PageSize;

pub fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Gives up root for the whole process, if it is root.
pub fn become_nobody() {
    if !is_root() {
        return;
    }
    // SAFETY: calls on this process alone. The last undoes what the kernel does to processes that change users:
    // it hides their own procfs files from them.
    unsafe {
        assert_eq!(libc::setgroups(0, ptr::null()), 0);
        assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
    }
}

/// Sets a soft resource limit of this process.
pub fn limit_resource(resource: libc::__rlimit_resource_t, bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls use a live struct.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(resource, &limit), 0);
    }
}

/// Address space in use by this process, in bytes.
pub fn address_space_in_use() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<u64>().unwrap() * PageSize::base().bytes() as u64
}

/// For `pre_exec`: mounts made from here on are seen by this process and its children only.
pub fn own_mount_namespace() -> io::Result<()> {
    // SAFETY: two calls; the strings are C strings.
    let done = unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(c"none".as_ptr(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A new directory, removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hugearena-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A file system mounted in a directory of its own, gone when dropped. Inside a mount namespace.
pub struct Mounted(TempDir);

impl Mounted {
    /// hugetlbfs on pages of `size`, with more `options` of the file system.
    pub fn hugetlbfs(size: PageSize, options: &str, flags: libc::c_ulong) -> Mounted {
        let dir = TempDir::new();
        let options = format!("pagesize={size}{}{options}", if options.is_empty() { "" } else { "," });
        mount(c"hugetlbfs", dir.path(), &options, flags).unwrap();
        Mounted(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.path());
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn mount(kind: &std::ffi::CStr, at: &Path, options: &str, flags: libc::c_ulong) -> io::Result<()> {
    let (at, options) = (c_path(at), CString::new(options).unwrap());
    // SAFETY: all are C strings.
    let result = unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unmount(at: &Path) {
    let at = c_path(at);
    // SAFETY: a C string.
    unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
}

/// Which of a cgroup's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Pages in use.
    Max,
    /// Pages reserved.
    Reserved,
}

/// A hugetlb cgroup for a child process to run in.
#[derive(Clone, Debug)]
pub struct CgroupSpec {
    pub limit: Limit,
    pub bytes: u64,
    /// The limit is on the group above that of the process.
    pub on_parent: bool,
}

/// A cgroup of version 2 with a limit on pages of 2 MiB, removed when dropped.
pub struct Cgroup {
    hierarchy: PathBuf,
    /// Whether the controller was off for children of the root.
    enabled_here: bool,
    /// Outermost first.
    groups: Vec<PathBuf>,
}

impl Cgroup {
    /// # Errors
    ///
    /// Why there cannot be one here.
    pub fn create(spec: &CgroupSpec) -> Result<Cgroup, String> {
        let hierarchy = hierarchy().ok_or("no cgroup hierarchy (version 2) offers hugetlb")?;
        let enabled_here = !lists_hugetlb(&hierarchy.join("cgroup.subtree_control"));
        let mut cgroup = Cgroup { hierarchy, enabled_here, groups: Vec::new() };
        let explain = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        let mut directory = cgroup.hierarchy.clone();
        for name in [format!("hugearena-test-{}", std::process::id()), "inner".into()] {
            let control = directory.join("cgroup.subtree_control");
            fs::write(&control, "+hugetlb").map_err(|error| explain(&control, error))?;
            directory.push(name);
            fs::create_dir(&directory).map_err(|error| explain(&directory, error))?;
            cgroup.groups.push(directory.clone());
        }
        let limited = &cgroup.groups[usize::from(!spec.on_parent)];
        let file = limited.join(match spec.limit {
            Limit::Max => "hugetlb.2MB.max",
            Limit::Reserved => "hugetlb.2MB.rsvd.max",
        });
        fs::write(&file, spec.bytes.to_string()).map_err(|error| explain(&file, error))?;
        Ok(cgroup)
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
            for _ in 0..100 {
                if fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        if self.enabled_here {
            let _ = fs::write(self.hierarchy.join("cgroup.subtree_control"), "-hugetlb");
        }
    }
}

fn lists_hugetlb(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|word| word == "hugetlb"))
}

fn hierarchy() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(point))
    });
    points.find(|point| lists_hugetlb(&point.join("cgroup.controllers")))
}

/// Moves this process into a cgroup.
pub fn join_cgroup(group: &Path) {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}
