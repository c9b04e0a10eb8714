//! Children of fork when the pool has no page for them.

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use super::*;
use crate::support::{Child, fork, is_filled};
use hugearena::HugeAlloc;
use hugearena::supply::Supply;

const BLOCK: usize = 3 << 20;

fn layout() -> Layout {
    Layout::from_size_align(BLOCK, 64).unwrap()
}

/// Blocks filled with their number, each at least on one page of its own, until the pool has no page left, or
/// growth leaves it what it has.
fn fill(heap: &HugeAlloc) -> Vec<*mut u8> {
    let mut blocks = Vec::new();
    while heap.stats().fallbacks == 0 {
        // SAFETY: the size is not 0, and the block is live.
        unsafe {
            let block = heap.alloc(layout());
            assert!(!block.is_null());
            block.write_bytes(blocks.len() as u8, BLOCK);
            blocks.push(block);
        }
    }
    blocks
}

/// Writes to this thread's cache.
fn use_cache(heap: &HugeAlloc) {
    let layout = Layout::new::<u64>();
    // SAFETY: the size is not 0; the block is freed once.
    unsafe { heap.dealloc(heap.alloc(layout), layout) };
}

fn is_whole(blocks: &[*mut u8]) -> bool {
    blocks.iter().enumerate().all(|(number, block)| {
        // SAFETY: a live block.
        is_filled(unsafe { std::slice::from_raw_parts(*block, BLOCK) }, number as u8)
    })
}

fn available() -> u64 {
    Supply::read().available_pages(PageSize::HUGE_2M)
}

/// A pipe end to hold a child with: it reads until the other end is closed.
fn pipe() -> [libc::c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to a live array.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

/// The pool is exactly full and the parent writes while a child lives: the kernel takes the page from the child.
#[test]
fn a_parent_survives_a_full_pool() {
    static HEAP: HugeAlloc = HugeAlloc::new();
    Child::new().pool_of(8).run(|| {
        let blocks = fill(&HEAP);
        assert_eq!(available(), 0, "{}", HEAP.stats());
        let [read, write] = pipe();
        // SAFETY: the child only reads, and ends without returning into the harness.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: descriptors of this process, a live byte, and the end of the process.
            unsafe {
                libc::close(write);
                libc::read(read, (&raw mut byte).cast(), 1);
                libc::_exit(i32::from(!is_whole(&blocks)));
            }
        }
        for (number, block) in blocks.iter().enumerate() {
            // SAFETY: a live block.
            unsafe { block.write_bytes(number as u8, BLOCK) };
        }
        // SAFETY: our own descriptors.
        unsafe { (libc::close(write), libc::close(read)) };
        let status = support::child::wait_for(child);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "the child's page went to the parent: {status}");
        assert!(is_whole(&blocks), "and the parent has every byte");
    });
}

/// The end of a pipe that the handler of [`a_child_that_touches_no_block_survives_a_full_pool`] reads, and the other one.
static HELD: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// Holds a child of fork(2), before handlers that were registered later, until the parent closes its end.
unsafe extern "C" fn hold() {
    let mut byte = 0u8;
    // SAFETY: descriptors of this process, and a live byte.
    unsafe {
        libc::close(HELD[1].load(Relaxed));
        libc::read(HELD[0].load(Relaxed), (&raw mut byte).cast(), 1);
    }
}

/// The heap's own handlers as well: every page of the heap, those of thread caches included, is the parent's by then. Nor
/// do they touch one when the child forks again, as daemons do.
#[test]
fn a_child_that_touches_no_block_survives_a_full_pool() {
    static HEAP: HugeAlloc = HugeAlloc::new();
    Child::new().pool_of(8).run(|| {
        // SAFETY: the handler may run in any child of this process.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(hold)) }, 0);
        // A process that has had more than one thread takes locks when it forks, and so do its children.
        std::thread::spawn(|| ()).join().unwrap();
        // So that there is a cache, on the first page.
        use_cache(&HEAP);
        let blocks = fill(&HEAP);
        assert_eq!(available(), 0, "{}", HEAP.stats());
        HELD.iter().zip(pipe()).for_each(|(end, descriptor)| end.store(descriptor, Relaxed));
        // SAFETY: the child ends without touching more than its stack.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut status = 0;
            // SAFETY: the end of both processes; a live status.
            unsafe {
                let grandchild = libc::fork();
                if grandchild > 0 {
                    libc::waitpid(grandchild, &mut status, 0);
                }
                libc::_exit(i32::from(grandchild < 0 || status != 0))
            };
        }
        for (number, block) in blocks.iter().enumerate() {
            // SAFETY: a live block.
            unsafe { block.write_bytes(number as u8, BLOCK) };
        }
        use_cache(&HEAP);
        // SAFETY: our own descriptors.
        HELD.iter().for_each(|end| unsafe { assert_eq!(libc::close(end.load(Relaxed)), 0) });
        let status = support::child::wait_for(child);
        assert!(status.success(), "{status}");
        assert!(is_whole(&blocks), "and the parent has every byte");
    });
}

/// Experiments: 13.
#[test]
fn a_child_that_only_reads_survives_a_full_pool() {
    static HEAP: HugeAlloc = HugeAlloc::new();
    Child::new().pool_of(8).run(|| {
        let blocks = fill(&HEAP);
        let status = fork(|| i32::from(!is_whole(&blocks)));
        assert!(status.success(), "{status}");
        let mut command = Command::new("true");
        // SAFETY: no preconditions.
        command.uid(unsafe { libc::geteuid() }).env("PATH", "/bin:/usr/bin");
        assert!(command.status().unwrap().success());
        assert!(is_whole(&blocks));
    });
}

#[test]
fn spare_pages_are_for_children_that_write() {
    static HEAP: HugeAlloc = HugeAlloc::new().spare_pages(12);
    Child::new().pool_of(20).run(|| {
        let blocks = fill(&HEAP);
        assert!(available() >= 12, "{}", HEAP.stats());
        let status = fork(|| {
            for (number, block) in blocks.iter().enumerate() {
                // SAFETY: a live block.
                unsafe { block.write_bytes(number as u8, BLOCK) };
            }
            i32::from(!is_whole(&blocks))
        });
        assert!(status.success(), "{status}\n{}", HEAP.stats());
        assert!(is_whole(&blocks));
    });
}
