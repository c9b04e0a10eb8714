//! fork(2): every lock is taken before and given back after, in the parent and in the child, so that the child
//! starts with lists that are whole. Caches of threads that do not exist in the child stay unused there.

#![allow(unsafe_code)]

use super::HEAP;
use crate::sys::process;

/// Registers the handlers, before the first block is handed out.
pub(crate) fn register() {
    // Without memory for the registration the process cannot allocate either; it goes on without.
    // SAFETY: the handlers only take and give back the heap's locks, in the heap's order, and do not unwind.
    let _ = unsafe { process::at_fork(prepare, done, done) };
}

unsafe extern "C" fn prepare() {
    HEAP.growth.acquire();
    for central in &HEAP.centrals {
        central.acquire();
    }
    HEAP.runs.acquire();
}

/// In the parent and in the child alike: the forking thread holds every lock.
unsafe extern "C" fn done() {
    // SAFETY: `prepare` took them, in this thread.
    unsafe {
        HEAP.runs.release();
        for central in &HEAP.centrals {
            central.release();
        }
        HEAP.growth.release();
    }
}
