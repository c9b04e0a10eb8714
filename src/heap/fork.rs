//! fork(2): every lock is taken before and given back after, in the parent and in the child, so that the child
//! starts with lists that are whole. Caches of threads that do not exist in the child stay unused there; the room that was
//! lent to them may be lent again.
//!
//! A process with one thread needs none of that, and gets none: nobody else can hold a lock, and a signal handler that
//! forks, which glibc allows such a process, may have interrupted this thread while it holds one.
//!
//! fork(2) of glibc takes the lock of all stdio streams after the handlers, and before the locks of its own malloc. A
//! thread in `fflush(NULL)` has it and waits for one stream, whose holder may be in `getline` and wait for the heap: so
//! ours are taken behind it as well.
//!
//! Linux 6.18 loses pages of 1 GiB in fork(2), at random: `copy_hugetlb_page_range` asks the table that a page's entry
//! lies in how many processes share it, and only tables of entries for 2 MiB have that count; in others a stale number
//! may stand there, and the entry is then not copied. The child would read zeroes, so it looks, and ends instead.

#![allow(unsafe_code)]

use super::HEAP;
use crate::sys::{glibc, process};

/// Registers the handlers, before the first block is handed out.
pub(crate) fn register() {
    // Without memory for the registration the process cannot allocate either; it goes on without.
    // SAFETY: the handlers only take and give back the heap's locks, in the heap's order, and do not unwind.
    let _ = unsafe { process::at_fork(prepare, done_in_parent, done_in_child) };
}

unsafe extern "C" fn prepare() {
    if glibc::is_single_threaded() {
        return;
    }
    glibc::lock_streams();
    HEAP.growth.acquire();
    for central in &HEAP.centrals {
        central.acquire();
    }
    HEAP.runs.acquire();
    // Handlers that were registered before ours run from here to `release`, and may allocate.
    process::begin_fork();
}

unsafe extern "C" fn done_in_parent() {
    if process::is_forking() {
        // SAFETY: this thread is between `prepare` and here.
        unsafe { release() };
        glibc::unlock_streams();
    }
}

unsafe extern "C" fn done_in_child() {
    if process::is_forking() {
        // SAFETY: as in the parent; the only thread of the child counts as the one that took them.
        unsafe { release() };
        glibc::reset_streams();
        HEAP.keep_own_loans();
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

/// Gives the locks back.
///
/// # Safety
///
/// The calling thread holds them all, through [`prepare`].
unsafe fn release() {
    process::end_fork();
    // SAFETY: the caller's contract.
    unsafe {
        HEAP.runs.release();
        for central in &HEAP.centrals {
            central.release();
        }
        HEAP.growth.release();
    }
}
