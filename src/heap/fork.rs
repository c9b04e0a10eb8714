//! fork(2): every lock is taken before and given back after, in the parent and in the child, so that the child
//! starts with lists that are whole. Caches of threads that do not exist in the child stay unused there; the room that was
//! lent to them may be lent again.
//!
//! Linux 6.18 loses pages of 1 GiB in fork(2), at random: `copy_hugetlb_page_range` asks the table that a page's entry
//! lies in how many processes share it, and only tables of entries for 2 MiB have that count; in others a stale number
//! may stand there, and the entry is then not copied. The child would read zeroes, so it looks, and ends instead.

#![allow(unsafe_code)]

use super::HEAP;
use crate::sys::process;

/// Registers the handlers, before the first block is handed out.
pub(crate) fn register() {
    // Without memory for the registration the process cannot allocate either; it goes on without.
    // SAFETY: the handlers only take and give back the heap's locks, in the heap's order, and do not unwind.
    let _ = unsafe { process::at_fork(prepare, done, done_in_child) };
}

unsafe extern "C" fn prepare() {
    HEAP.growth.acquire();
    for central in &HEAP.centrals {
        central.acquire();
    }
    HEAP.runs.acquire();
    // Handlers that were registered before ours run from here to `done`, and may allocate.
    process::begin_fork();
}

/// In the parent, and in the child alike: the forking thread holds every lock.
unsafe extern "C" fn done() {
    process::end_fork();
    // SAFETY: `prepare` took them, in this thread.
    unsafe {
        HEAP.runs.release();
        for central in &HEAP.centrals {
            central.release();
        }
        HEAP.growth.release();
    }
}

unsafe extern "C" fn done_in_child() {
    // SAFETY: as in the parent.
    unsafe { done() };
    HEAP.keep_own_loans();
    if let Some(space) = HEAP.space()
        && HEAP.has_lost_pages(space)
    {
        process::abort_with(
            "hugearena: the kernel lost a 1 GiB page of the heap in this child of fork(2): see HugeAlloc::fork_unsafe\n",
        );
    }
}
