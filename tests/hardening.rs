//! Wrong frees are noticed where they happen: in debug builds, and in others with the feature `hardened`. Each in a
//! process of its own, which says what was wrong in one line and aborts.

#![cfg(any(debug_assertions, feature = "hardened"))]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;

use hugearena::HugeAlloc;

/// Not the allocator of this program: what the harness does is not looked at.
static HEAP: HugeAlloc = HugeAlloc::new();

const IS_CHILD: &str = "HUGEARENA_HARDENING_CHILD";
const FREED: u8 = 0xDE;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn alloc(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    let block = unsafe { HEAP.alloc(layout(size)) };
    assert!(!block.is_null());
    block
}

/// Frees a pointer, rightly or not: what the heap does about it is what is tested.
fn free(block: *mut u8, size: usize) {
    // SAFETY: wrong on purpose in some tests; the process ends at the check, before memory is touched.
    unsafe { HEAP.dealloc(block, layout(size)) }
}

/// Tests that look at memory they have freed run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `body` in a process of its own, which has to abort after one line that says `what`.
fn dies<F: FnOnce()>(what: &str, body: F) {
    if std::env::var_os(IS_CHILD).is_some() {
        body();
        std::process::exit(0);
    }
    let path = std::any::type_name::<F>();
    let test = path.split("::").nth(1).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(IS_CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{}\n{text}", output.status);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("hugearena: ")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("hugearena: freed 0x"), "{text}");
    assert!(lines[0].ends_with(what), "{what} is not in {lines:?}");
}

#[test]
fn a_block_in_the_cache_is_not_freed_again() {
    dies("double free", || {
        let block = alloc(100);
        free(block, 100);
        free(block, 100);
    });
}

#[test]
fn a_block_in_the_depot_is_not_freed_again() {
    dies("double free", || {
        let blocks: Vec<_> = (0..2_000).map(|_| alloc(64)).collect();
        // Another thread's cache overflows into the depot, and is emptied when the thread ends.
        let addresses: Vec<_> = blocks.iter().map(|block| block.expose_provenance()).collect();
        let others = move || addresses.into_iter().for_each(|at| free(std::ptr::with_exposed_provenance_mut(at), 64));
        std::thread::spawn(others).join().unwrap();
        free(blocks[1_000], 64);
    });
}

#[test]
fn a_block_of_a_free_span_is_not_freed_again() {
    dies("double free", || {
        let blocks: Vec<_> = (0..200).map(|_| alloc(2_000)).collect();
        blocks.iter().for_each(|block| free(*block, 2_000));
        // The depot goes back into the spans, and spans that nobody uses become free runs; a block keeps its chunk.
        let _kept = alloc(5_000);
        HEAP.trim();
        free(blocks[0], 2_000);
    });
}

#[test]
fn a_coloured_block_is_not_freed_again() {
    dies("double free", || {
        let block = alloc(100_000);
        free(block, 100_000);
        free(block, 100_000);
    });
}

#[test]
fn a_large_block_is_not_freed_again() {
    dies("double free", || {
        let block = alloc(5 << 20);
        free(block, 5 << 20);
        free(block, 5 << 20);
    });
}

#[test]
fn a_block_that_went_back_to_the_system_is_not_freed_again() {
    dies("double free, or never allocated", || {
        let block = alloc(64 << 20);
        free(block, 64 << 20);
        assert!(HEAP.trim() > 0);
        free(block, 64 << 20);
    });
}

#[test]
fn a_block_is_not_freed_by_two_threads() {
    dies("double free", || {
        let block = alloc(100).expose_provenance();
        let freer = move || free(std::ptr::with_exposed_provenance_mut(block), 100);
        std::thread::spawn(freer).join().unwrap();
        freer();
    });
}

#[test]
fn a_pointer_to_the_stack_is_not_freed() {
    dies("it is not from this heap", || {
        let mut value = [0u64; 4];
        free(value.as_mut_ptr().cast(), 32);
    });
}

#[test]
fn a_large_pointer_to_the_stack_is_not_freed() {
    dies("it is not from this heap", || {
        let mut value = [0u64; 4];
        free(value.as_mut_ptr().cast(), 5 << 20);
    });
}

#[test]
fn a_block_of_another_allocator_is_not_freed() {
    dies("it is not from this heap", || {
        free(alloc(100), 100);
        // SAFETY: the size is not 0.
        free(unsafe { System.alloc(layout(100)) }, 100);
    });
}

#[test]
fn a_free_before_the_first_allocation_is_noticed() {
    // SAFETY: the size is not 0.
    dies("it is not from this heap", || free(unsafe { System.alloc(layout(100)) }, 100));
}

#[test]
fn the_middle_of_a_small_block_is_not_freed() {
    dies("it points into the middle of a block", || free(alloc(100).wrapping_add(16), 100));
}

#[test]
fn an_odd_pointer_is_not_freed() {
    dies("it points into the middle of a block", || free(alloc(100).wrapping_add(1), 100));
}

#[test]
fn the_middle_of_a_large_block_is_not_freed() {
    dies("it points into the middle of a block, or of what is free", || {
        free(alloc(5 << 20).wrapping_add(1 << 20), 5 << 20)
    });
}

#[test]
fn another_layout_is_noticed() {
    dies("it was allocated with another layout", || free(alloc(100), 200));
}

#[test]
fn a_layout_of_the_other_path_is_noticed() {
    dies("it was allocated with another layout", || free(alloc(100), 5 << 20));
}

#[test]
fn a_small_layout_for_a_large_block_is_noticed() {
    dies("it was allocated with another layout", || free(alloc(5 << 20), 100));
}

#[test]
fn a_freed_block_is_not_resized() {
    dies("double free", || {
        let block = alloc(100);
        free(block, 100);
        // SAFETY: wrong on purpose; the process ends at the check.
        unsafe { HEAP.realloc(block, layout(100), 104) };
    });
}

#[test]
fn freed_memory_is_filled() {
    let _alone = ALONE.lock();
    for size in [1, 24, 100, 2_000, 100_000, 5 << 20] {
        let block = alloc(size);
        // SAFETY: a live block.
        unsafe { block.write_bytes(1, size) };
        free(block, size);
        // SAFETY: reads of mapped memory that was freed: exactly what the fill is for.
        let filled = (0..size.min(256 << 10)).all(|at| unsafe { block.add(at).read_volatile() } == FREED);
        assert!(filled, "{size} bytes");
    }
}

#[test]
fn right_frees_are_not_wrong() {
    let _alone = ALONE.lock();
    let kept: Vec<_> = (1..4_000).map(|number| (alloc(number * 37), number * 37)).collect();
    for (block, size) in kept {
        // SAFETY: a live block, resized and freed with its layout of the moment.
        unsafe {
            let grown = HEAP.realloc(block, layout(size), size * 2);
            let shrunk = HEAP.realloc(grown, layout(size * 2), size / 2 + 1);
            HEAP.dealloc(shrunk, layout(size / 2 + 1));
        }
    }
    HEAP.trim();
}
