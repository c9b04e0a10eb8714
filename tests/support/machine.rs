//! What a test changes about its own process or its surroundings: user, limits, mounts.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

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

/// Does it on one CPU, which threads like any other keep busy meanwhile. The calling thread stays on that CPU.
pub fn on_a_busy_cpu(body: impl FnOnce()) {
    stay_on_this_cpu();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Also when it panics: the scope waits for the threads.
        let result = catch_unwind(AssertUnwindSafe(body));
        stop.store(true, Relaxed);
        result.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

fn stay_on_this_cpu() {
    // SAFETY: calls on a live set.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
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

/// A new directory, removed when dropped, with all that a test that failed or was killed in has left there.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("hugearena-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                // Process ids come again: one that was killed has left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.unwrap(),
            }
            // Whatever the umask is: records are not kept where others may write.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            return TempDir(path);
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file system mounted in a directory of its own, gone when dropped.
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

/// mount(2), without a source.
pub fn mount(kind: &CStr, at: &Path, options: &str, flags: libc::c_ulong) -> io::Result<()> {
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
