//! Tests in processes of their own: the test binary runs again, for one test, which finds that it is the child.

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitStatus, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hugearena::PageSize;

use super::cgroup::{self, Cgroup, CgroupSpec};
use super::machine;
use super::pool::{self, Hog, PoolLock, PoolUnchanged};
use super::{is_so_within, missing, print_figure, print_skip, skip, skip_size};

/// Which of the test's children this is, from 0.
const IS_CHILD: &str = "HUGEARENA_TEST_CHILD";
const CGROUP: &str = "HUGEARENA_TEST_CGROUP";
/// A child that takes longer is killed by SIGALRM, which the parent reports. It hangs then: the longest takes seconds,
/// and a minute on a slow machine that has other things to do.
pub const SECONDS: u32 = 900;
/// Tries of a test that other processes disturbed.
const TRIES: usize = 5;

/// Whether this process runs a single test for a parent.
pub fn is_child() -> bool {
    std::env::var_os(IS_CHILD).is_some()
}

/// Which of its test's children this one is, from 0.
pub fn call() -> usize {
    std::env::var(IS_CHILD).unwrap().parse().unwrap()
}

/// A process of its own for one test, and what has to be true while it runs.
#[derive(Default)]
pub struct Child {
    needs_root: bool,
    needs_pages: Option<(PageSize, usize)>,
    pool_pages: Option<u64>,
    mount_namespace: bool,
    cgroup: Option<CgroupSpec>,
    ignores_pool: bool,
}

impl Child {
    pub fn new() -> Child {
        Child::default()
    }

    /// Only root can run this.
    pub fn needs_root(mut self) -> Child {
        self.needs_root = true;
        self
    }

    /// At least so many pages are available.
    pub fn needs_pages(mut self, size: PageSize, pages: usize) -> Child {
        self.needs_pages = Some((size, pages));
        self
    }

    /// Exactly so many pages of 2 MiB are available.
    pub fn pool_of(mut self, pages: u64) -> Child {
        self.pool_pages = Some(pages);
        self
    }

    /// What is mounted in the child is mounted for the child only. Needs root.
    pub fn in_mount_namespace(mut self) -> Child {
        self.mount_namespace = true;
        self.needs_root()
    }

    /// In a hugetlb cgroup. Needs root.
    pub fn in_cgroup(mut self, spec: CgroupSpec) -> Child {
        self.cgroup = Some(spec);
        self.needs_root()
    }

    /// The parent's heap may take pages meanwhile, so that the pool's counters prove nothing. It has the lock of the pool
    /// all the same: where others leave few pages, children of the child may not find one to copy to.
    pub fn ignoring_pool(mut self) -> Child {
        self.ignores_pool = true;
        self
    }

    /// Runs `body`, which belongs to the test function that calls this, in a process of its own; panics unless
    /// it returns. Skips the test, with the reason, where it cannot be run.
    pub fn run<F: FnOnce()>(self, body: F) {
        let test = test_name::<F>();
        let call = next_call(&test);
        if is_child() {
            // A test may have several children: each is one of them, and has what that one needs.
            static IS_RUNNING: AtomicBool = AtomicBool::new(false);
            assert!(!IS_RUNNING.load(Relaxed), "a child in a child, which nobody would run");
            if call != self::call() {
                return;
            }
            IS_RUNNING.store(true, Relaxed);
            // SAFETY: no preconditions; the default action of SIGALRM ends a process that hangs.
            unsafe { libc::alarm(SECONDS) };
            if let Some(group) = std::env::var_os(CGROUP) {
                cgroup::join(group.as_ref());
            }
            body();
            return IS_RUNNING.store(false, Relaxed);
        }
        self.run_parent(&test, call);
    }

    fn run_parent(self, test: &str, call: usize) {
        let _guard = if self.ignores_pool { Err(PoolLock::take()) } else { Ok(PoolUnchanged::begin()) };
        if self.needs_root && !machine::is_root() {
            return skip(test, "needs root");
        }
        if let Some((size, pages)) = self.needs_pages
            && let Some(reason) = missing(size, pages)
        {
            return skip_size(size, &format!("{test}: {reason}"));
        }
        let cgroup = match self.cgroup.as_ref().map(Cgroup::create).transpose() {
            Ok(cgroup) => cgroup,
            Err(reason) if self.cgroup.is_some_and(|spec| spec.version.is_ruled_out()) => {
                return print_skip(test, &reason);
            }
            Err(reason) => return skip(test, &reason),
        };
        let run = || self.command(test, call, cgroup.as_ref()).output().unwrap();
        match self.pool_pages {
            None => check(test, &run()),
            Some(pages) => run_with_pool_of(pages, test, run),
        }
    }

    fn command(&self, test: &str, call: usize, cgroup: Option<&Cgroup>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(IS_CHILD, call.to_string());
        command.env("RUST_BACKTRACE", "0");
        if let Some(cgroup) = cgroup {
            command.env(CGROUP, cgroup.path());
        }
        if self.mount_namespace {
            // SAFETY: two system calls, nothing else.
            unsafe { command.pre_exec(machine::own_mount_namespace) };
        }
        command
    }
}

/// How many children the test has had before.
fn next_call(test: &str) -> usize {
    static CALLS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let next = calls.entry(test.to_owned()).or_default();
    *next += 1;
    *next - 1
}

/// Tries again when the pool is not what it was made to be any more: other processes live here too.
fn run_with_pool_of(pages: u64, test: &str, run: impl Fn() -> Output) {
    let mut attempts = 0;
    loop {
        let others = pool::others();
        let hog = match Hog::leaving(pages) {
            Ok(hog) => hog,
            Err(reason) => return skip_size(PageSize::HUGE_2M, &format!("{test}: {reason}")),
        };
        let output = run();
        let is_another = !output.status.success() && !pages_return_to(pages);
        // Pages that somebody gave back when the test was running may be taken again by now.
        let has_others = !output.status.success() && pool::others() != others;
        drop(hog);
        attempts += 1;
        if attempts < TRIES && (is_another || has_others) {
            continue;
        }
        if has_others {
            return print_skip(test, "other processes take and give back pages all the time");
        }
        return check(test, &output);
    }
}

fn pages_return_to(pages: u64) -> bool {
    let is_back = || {
        let supply = hugearena::supply::Supply::read();
        supply.pool(PageSize::HUGE_2M).is_some_and(|pool| pool.available_pages() == pages)
    };
    is_so_within(Duration::from_secs(1), is_back)
}

fn check(test: &str, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for reason in err.lines().filter_map(|line| line.strip_prefix("skipped: ")) {
        print_skip(test, reason);
    }
    err.lines().filter_map(|line| line.strip_prefix("figure: ")).for_each(print_figure);
    let status = output.status;
    assert_eq!(status.signal(), None, "{test} was killed by a signal\n{out}\n{err}");
    assert!(status.success() && out.contains("1 passed"), "{test}: {status}\n{out}\n{err}");
}

/// The name by which the harness knows the function that a closure of type `F` was written in.
fn test_name<F>() -> String {
    // `binary::module::test::{{closure}}`
    let path = std::any::type_name::<F>();
    let (path, _) = path.split_once("::{{closure}}").expect("the body is a closure of the test");
    path.split_once("::").expect("the path starts with the crate").1.into()
}

/// fork(2): `body` runs in the child, whose exit code is what it returns, or 101 when it panics.
pub fn fork(body: impl FnOnce() -> i32) -> ExitStatus {
    wait_for(start(body))
}

/// As [`fork`], without waiting for the child.
pub fn start(body: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child runs `body` and ends without returning into the harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: no preconditions.
        unsafe { libc::alarm(SECONDS) };
        let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: ends this process at once: no handlers, no destructors.
        unsafe { libc::_exit(code) };
    }
    child
}

/// waitpid(2).
pub fn wait_for(child: libc::pid_t) -> ExitStatus {
    let mut status = 0;
    // SAFETY: the status is a live variable.
    while unsafe { libc::waitpid(child, &mut status, 0) } != child {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "waitpid: {error}");
    }
    ExitStatus::from_raw(status)
}

/// Proves that `body` makes no system call: it runs in a forked process whose every call but exit(2) is the end.
/// `warm_up` runs before.
pub fn without_system_calls<T>(warm_up: impl FnOnce() -> T, body: impl FnOnce(&mut T)) {
    match with_calls_forbidden(warm_up, body) {
        None => skip("system calls", "seccomp is not allowed here"),
        Some(status) if status.signal() == Some(libc::SIGSYS) => panic!("a system call was made, or the code panicked"),
        Some(status) => assert!(status.success(), "the code failed: {status}"),
    }
}

/// How a process ended that ran `body` when it may make no system call: by SIGSYS if it did; `None` where they
/// cannot be forbidden.
pub fn with_calls_forbidden<T>(warm_up: impl FnOnce() -> T, body: impl FnOnce(&mut T)) -> Option<ExitStatus> {
    const NO_SECCOMP: i32 = 77;
    let status = fork(|| {
        let mut state = warm_up();
        if !forbid_system_calls() {
            return NO_SECCOMP;
        }
        body(&mut state);
        // SAFETY: exit(2) of this process's only thread: `_exit` is another call.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!("the process has ended");
    });
    (status.code() != Some(NO_SECCOMP)).then_some(status)
}

/// From here on these calls fail with `errno`, as in a container; whether that could be had.
pub fn deny_calls(calls: &[libc::c_long], errno: i32) -> bool {
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut steps = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number, 0)];
    for call in calls {
        steps.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 1));
        steps.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0));
    }
    steps.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    install(&mut steps)
}

/// A filter, not seccomp's strict mode: that one also takes the time stamp counter away.
fn forbid_system_calls() -> bool {
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, std::mem::offset_of!(libc::seccomp_data, nr) as u32, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit as u32, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0),
    ];
    install(&mut steps)
}

fn install(steps: &mut [libc::sock_filter]) -> bool {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program and its steps live through the calls, which copy them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}
