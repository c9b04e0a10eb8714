//! fork(2): every lock is taken before and given back after, in the parent and in the child, so that the child
//! starts with lists that are whole. Caches of threads that do not exist in the child stay unused there; the room that was
//! lent to them may be lent again.
//!
//! A process with one thread needs none of that, and gets none: nobody else can hold a lock, and a signal handler that
//! forks, which glibc allows such a process, may have interrupted this thread while it holds one.
//!
//! fork(2) of glibc takes the lock of all stdio streams after the handlers, and before the locks of its own malloc. A
//! thread in `fflush(NULL)` has it and waits for one stream, whose holder may be in `getline` and wait for the heap: so
//! ours are taken behind it as well (glibc bug 19431).
//!
//! Nothing here touches a huge page: after a fork, the first to write to one gets another page from the pool, and where the
//! pool has none and that is the parent, the child's goes to it. Whoever touches it there, if only to read, is killed by
//! SIGBUS. A child that touches no block of the heap before it calls exec(2) lives, whatever the pool has.
//!
//! Linux 6.18 loses pages of 1 GiB in fork(2), at random: `copy_hugetlb_page_range` asks the table that a page's entry
//! lies in how many processes share it, and only tables of entries for 2 MiB have that count; in others a stale number
//! may stand there, and the entry is then not copied. The child would read zeroes, so it looks, and ends instead.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::HEAP;
use crate::sys::glibc;
use crate::sys::process::{self, Registration};

/// How many times more than once the thread that forks has come through [`prepare`]. Its own while it has every lock.
static REPEATS: AtomicU32 = AtomicU32::new(0);

/// Registers the handlers, before the first lock is taken. Handlers that are registered twice run as if they were once.
pub(crate) fn register() {
    static HANDLERS: Registration = Registration::new();
    HANDLERS.ensure(|| {
        // Without memory for the registration the process cannot allocate either; it goes on without.
        // SAFETY: the handlers only take and give back the heap's locks, in the heap's order, and do not unwind.
        let _ = unsafe { process::at_fork(prepare, done_in_parent, done_in_child) };
    });
}

unsafe extern "C" fn prepare() {
    if !glibc::is_single_threaded() {
        take();
    }
}

unsafe extern "C" fn done_in_parent() {
    if give_back() {
        glibc::unlock_streams();
    }
}

unsafe extern "C" fn done_in_child() {
    if give_back() {
        glibc::reset_streams();
        HEAP.forget_loans();
    }
    if process::is_forking() {
        // Of handlers that were registered twice, the last to run looks.
        return;
    }
    // A signal handler that forks in a process with one thread may have interrupted the holder of the growth lock, which
    // is this thread: then it is lent, as to other handlers.
    process::begin_fork();
    let has_lost_pages = HEAP.space().is_some_and(|space| HEAP.has_lost_pages(space));
    process::end_fork();
    if has_lost_pages {
        process::abort_with(
            "hugearena: the kernel lost a 1 GiB page of the heap in this child of fork(2): see HugeAlloc::fork_unsafe\n",
        );
    }
}

/// Takes the locks, the first time that the thread which forks comes here.
fn take() {
    if process::is_forking() {
        REPEATS.fetch_add(1, Relaxed);
        return;
    }
    glibc::lock_streams();
    HEAP.starting.acquire();
    HEAP.growth.acquire();
    for central in &HEAP.centrals {
        central.acquire();
    }
    HEAP.runs.acquire();
    // Handlers that were registered before ours run from here to `give_back`, and may allocate.
    process::begin_fork();
}

/// Gives the locks back after the last repeat; whether it was that. A thread that comes here without having taken them has
/// none: it was alone, or some C libraries run what is registered in the middle of a fork.
fn give_back() -> bool {
    if !process::is_forking() {
        return false;
    }
    if REPEATS.load(Relaxed) > 0 {
        REPEATS.fetch_sub(1, Relaxed);
        return false;
    }
    process::end_fork();
    // SAFETY: `take` took them, in this thread.
    unsafe {
        HEAP.runs.release();
        for central in &HEAP.centrals {
            central.release();
        }
        HEAP.growth.release();
        HEAP.starting.release();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_that_comes_through_twice_takes_and_gives_back_once() {
        take();
        take();
        assert!(process::is_forking());
        assert!(!give_back());
        assert!(process::is_forking(), "the other one is still to come");
        assert!(give_back());
        glibc::unlock_streams();
        assert!(!process::is_forking());
        let held = HEAP.starting.lock();
        assert!(!give_back(), "in the middle of a fork that did not come through `take`");
        assert!(HEAP.starting.try_lock().is_none());
        drop(held);
    }
}
