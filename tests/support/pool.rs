//! The kernel's pools during a test: unchanged, or emptied on purpose.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugearena::PageSize;
use hugearena::supply::Supply;

use super::child;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Nobody else who takes this touches the pool: threads of this process, and other test runs on this machine.
pub struct PoolLock {
    /// Closed first: the next thread may count descriptors.
    _processes: Option<File>,
    _threads: MutexGuard<'static, ()>,
}

impl PoolLock {
    pub fn take() -> PoolLock {
        assert!(!IS_HELD.replace(true), "this test has the lock already, as a child's parent does");
        let threads = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // The parent of a child process holds the lock for it.
        let file = if child::is_child() { None } else { lock_file() };
        let locked = file.filter(|file| file.lock().is_ok());
        PoolLock { _processes: locked, _threads: threads }
    }
}

thread_local! {
    /// Whether this thread has it: it would wait for itself.
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        IS_HELD.set(false);
    }
}

fn lock_file() -> Option<File> {
    let path = std::env::temp_dir().join("hugearena-tests.lock");
    // Without O_CREAT first: the kernel may refuse that for a file of somebody else in a sticky directory.
    let open = |create| OpenOptions::new().write(true).create(create).truncate(false).open(&path);
    let file = open(false).or_else(|_| open(true)).ok()?;
    let _ = file.set_permissions(Permissions::from_mode(0o666));
    Some(file)
}

/// What the pools hold, and what other processes hold of them as far as that can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot {
    /// Total, free, reserved, surplus by page size.
    counters: BTreeMap<PageSize, [u64; 4]>,
    others: BTreeMap<u32, u64>,
}

impl Snapshot {
    fn read() -> Snapshot {
        let pools = Supply::read().pools;
        let counters = pools.iter().map(|pool| (pool.page_size, [pool.total, pool.free, pool.reserved, pool.surplus]));
        Snapshot { counters: counters.collect(), others: others() }
    }

    /// Whether somebody else took or gave back pages, or the administrator resized a pool.
    fn was_disturbed(&self, later: &Snapshot) -> bool {
        let configured = |snapshot: &Snapshot| -> Vec<u64> {
            snapshot.counters.values().map(|[total, _, _, surplus]| total - surplus).collect()
        };
        // What was promised or taken before the test began is not the test's to give back.
        let gave_back = self.counters.iter().any(|(size, [_, free, reserved, _])| {
            later.counters.get(size).is_some_and(|later| later[1] > *free || later[2] < *reserved)
        });
        self.others != later.others || configured(self) != configured(later) || gave_back
    }
}

/// KiB of hugetlb memory by process, without this one.
pub fn others() -> BTreeMap<u32, u64> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| *id != std::process::id()).filter_map(|id| Some((id, held_kib(id)?))).collect()
}

fn held_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:"))?.trim().strip_suffix(" kB")?;
    kib.trim().parse().ok().filter(|kib| *kib > 0)
}

/// How long pages that a process or a socket had may take to come back: the kernel gives some back when it has time.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same where others take and give back pages, so that waiting proves nothing.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(1);

/// How often a guard of this process could not tell, because of others.
pub static DISTURBED: AtomicUsize = AtomicUsize::new(0);

/// Holds the lock; when dropped, panics unless every pool's total, free, reserved and surplus pages are as they
/// were. Pages come back a moment after a process ends, so it has patience before it says so; and it says nothing
/// when other processes are seen to have taken or given back pages meanwhile.
pub struct PoolUnchanged {
    before: Snapshot,
    patience: Duration,
    _lock: PoolLock,
}

impl PoolUnchanged {
    pub fn begin() -> PoolUnchanged {
        PoolUnchanged::begin_with(PATIENCE)
    }

    /// With another patience, for pages that will not come back.
    pub fn begin_with(patience: Duration) -> PoolUnchanged {
        let lock = PoolLock::take();
        PoolUnchanged { before: Snapshot::read(), patience, _lock: lock }
    }
}

impl Drop for PoolUnchanged {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let start = Instant::now();
        loop {
            let now = Snapshot::read();
            if now.counters == self.before.counters {
                return;
            }
            let is_disturbed = self.before.was_disturbed(&now);
            let patience = if is_disturbed { self.patience.min(PATIENCE_WITH_OTHERS) } else { self.patience };
            if start.elapsed() < patience {
                sleep(Duration::from_millis(10));
                continue;
            }
            let (before, now_is) = (&self.before, &now);
            let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            let kernel = kernel.trim();
            assert!(is_disturbed, "the pools changed: before {before:?}, now {now_is:?}; Linux {kernel}");
            DISTURBED.fetch_add(1, Relaxed);
            return super::print_skip("pool counters", "another process changed them during the test");
        }
    }
}

/// Reserves huge pages of 2 MiB so that others find few. Gives them back when dropped, and if the process dies.
pub struct Hog {
    held: Vec<(*mut libc::c_void, usize)>,
}

impl Hog {
    /// Leaves exactly `pages` pages available.
    ///
    /// # Errors
    ///
    /// Why that cannot be done.
    pub fn leaving(pages: u64) -> Result<Hog, String> {
        let mut hog = Hog { held: Vec::new() };
        for _ in 0..20 {
            let supply = Supply::read();
            let pool = supply.pool(PageSize::HUGE_2M).ok_or("this kernel has no pages of 2M")?;
            if pool.overcommit > 0 {
                return Err("pages may be overcommitted (nr_overcommit_hugepages)".into());
            }
            let available = pool.available_pages();
            if available == pages {
                return Ok(hog);
            }
            let surplus = available.checked_sub(pages);
            let surplus = surplus.ok_or(format!("{pages} pages needed, {available} available"))?;
            hog.reserve(surplus as usize * PageSize::HUGE_2M.bytes());
        }
        Err("other processes take and give back pages all the time".into())
    }

    /// Fails when somebody else was faster; the caller looks again.
    fn reserve(&mut self, len: usize) {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; shared memory is reserved at once.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, rw, flags, -1, 0) };
        if at != libc::MAP_FAILED {
            self.held.push((at, len));
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        for (at, len) in self.held.drain(..) {
            // SAFETY: our own mapping, never touched.
            unsafe { libc::munmap(at, len) };
        }
    }
}
