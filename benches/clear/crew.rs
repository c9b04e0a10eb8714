//! Processes that work side by side, each on memory of its own, and meet between pieces of work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// One process of a crew.
pub struct Member {
    count: usize,
    shared: NonNull<Shared>,
}

/// Mapped by all of them.
struct Shared {
    arrived: AtomicUsize,
    meetings: AtomicUsize,
    failed: AtomicUsize,
}

/// What precedes the numbers in the shared memory.
const HEADER_BYTES: usize = 4096;

impl Member {
    /// Returns when all processes of the crew are here. Gives its CPU away while it waits.
    pub fn meet(&self) {
        // SAFETY: mapped as long as the crew runs.
        let shared = unsafe { self.shared.as_ref() };
        let meeting = shared.meetings.load(Acquire);
        if shared.arrived.fetch_add(1, AcqRel) + 1 == self.count {
            shared.arrived.store(0, Relaxed);
            shared.meetings.store(meeting + 1, Release);
        }
        while shared.meetings.load(Acquire) == meeting {
            assert_eq!(shared.failed.load(Relaxed), 0, "another process of the crew failed");
            std::thread::yield_now();
        }
    }
}

/// Runs `work` in `count` processes, each of which comes back with `numbers` numbers.
///
/// The calling process has one thread: what other threads hold stays locked in children for ever.
pub fn run(count: usize, numbers: usize, work: impl Fn(&Member) -> Vec<f64>) -> Result<Vec<Vec<f64>>, String> {
    let memory = SharedMemory::new(HEADER_BYTES + count * numbers * size_of::<f64>())?;
    let mut children = Vec::new();
    for rank in 0..count {
        // SAFETY: one thread, so the child may do whatever the parent may.
        match unsafe { libc::fork() } {
            0 => child(&Member { count, shared: memory.start.cast() }, memory.numbers(rank, numbers), &work),
            -1 => {
                memory.shared().failed.store(1, Relaxed);
                break;
            }
            pid => children.push(pid),
        }
    }
    let is_complete = children.len() == count;
    let ends = children.into_iter().map(wait).collect::<Vec<bool>>();
    if !is_complete || ends.contains(&false) {
        return Err(format!("a process of {count} could not do its work"));
    }
    // SAFETY: every child has filled its part and has ended.
    Ok((0..count).map(|rank| unsafe { (*memory.numbers(rank, numbers)).to_vec() }).collect())
}

/// Works, leaves its numbers, and ends without running what the parent registered for its own end.
fn child(member: &Member, numbers: *mut [f64], work: &impl Fn(&Member) -> Vec<f64>) -> ! {
    // SAFETY: affects this process only: it does not outlive its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let result = catch_unwind(AssertUnwindSafe(|| work(member)));
    let is_whole = result.is_ok_and(|result| {
        // SAFETY: this child's part of the shared memory, which the parent reads after our end.
        let numbers = unsafe { &mut *numbers };
        let is_whole = result.len() == numbers.len();
        numbers.iter_mut().zip(result).for_each(|(number, value)| *number = value);
        is_whole
    });
    if !is_whole {
        // SAFETY: mapped until this process ends.
        unsafe { member.shared.as_ref() }.failed.store(1, Relaxed);
    }
    // SAFETY: always allowed.
    unsafe { libc::_exit(i32::from(!is_whole)) }
}

/// Whether the child ended well.
fn wait(pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is writable; `pid` is a child that nobody else waits for.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    waited == pid && status == 0
}

struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
}

impl SharedMemory {
    fn new(bytes: usize) -> Result<SharedMemory, String> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        let start = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
        start.map(|start| SharedMemory { start, bytes }).ok_or_else(|| "no shared memory".to_owned())
    }

    fn shared(&self) -> &Shared {
        // SAFETY: zeroes are a valid header, and it is aligned to a page.
        unsafe { self.start.cast().as_ref() }
    }

    /// The part of one process.
    fn numbers(&self, rank: usize, count: usize) -> *mut [f64] {
        // SAFETY: `new` was asked for all parts behind the header.
        let first = unsafe { self.start.add(HEADER_BYTES + rank * count * size_of::<f64>()) };
        std::ptr::slice_from_raw_parts_mut(first.cast().as_ptr(), count)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
