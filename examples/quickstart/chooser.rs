//! One program, two allocators: a thin wrapper that picks [`HugeAlloc`] or libc malloc when the process starts.
//!
//! A program of your own does not need this; it says
//!
//! ```ignore
//! #[global_allocator]
//! static GLOBAL: hugearena::HugeAlloc = hugearena::HugeAlloc::new();
//! ```
//!
//! Here the choice is made at run time, so that both sides of a comparison run the same machine code and pay the
//! same branch.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

use hugearena::HugeAlloc;

/// The environment variable that names the allocator of a process: `huge` (also when it is not set) or `libc`.
pub const VARIABLE: &str = "HUGEARENA_ALLOCATOR";

/// The two sides of every comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Libc,
    Huge,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Libc, Side::Huge];

    /// The value of [`VARIABLE`] that selects this side.
    pub const fn value(self) -> &'static str {
        match self {
            Side::Libc => "libc",
            Side::Huge => "huge",
        }
    }
}

/// A global allocator that is [`HugeAlloc`] or libc malloc, decided by [`VARIABLE`] at the first allocation.
pub struct Chooser {
    /// [`UNDECIDED`], [`LIBC`] or [`HUGE`].
    choice: AtomicU8,
    huge: HugeAlloc,
}

const UNDECIDED: u8 = 0;
const LIBC: u8 = 1;
const HUGE: u8 = 2;

impl Chooser {
    pub const fn new() -> Chooser {
        Chooser { choice: AtomicU8::new(UNDECIDED), huge: HugeAlloc::new() }
    }

    /// The side this process is on.
    pub fn side(&self) -> Side {
        if self.is_huge() { Side::Huge } else { Side::Libc }
    }

    /// The huge-page heap, for its statistics. It holds nothing when the process is on the other side.
    pub fn huge(&self) -> &HugeAlloc {
        &self.huge
    }

    #[inline]
    fn is_huge(&self) -> bool {
        match self.choice.load(Ordering::Relaxed) {
            UNDECIDED => self.decide(),
            choice => choice == HUGE,
        }
    }

    /// Threads that race here read the same environment and store the same answer.
    #[cold]
    fn decide(&self) -> bool {
        let huge = !environment_says_libc();
        self.choice.store(if huge { HUGE } else { LIBC }, Ordering::Relaxed);
        huge
    }
}

/// Reads the environment without `std::env`, which allocates and so would come straight back here.
fn environment_says_libc() -> bool {
    // SAFETY: libc set `environ` before any code that allocates; nothing has changed the environment this early,
    // because the standard library allocates on the way to `main`.
    let mut entry = unsafe { libc::environ };
    // SAFETY: `environ` is null, or an array of C strings that ends with a null pointer; the loop stops at it.
    while !entry.is_null() && unsafe { !(*entry).is_null() } {
        // SAFETY: not null, so it is one of the C strings.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        if let Some(value) = text.strip_prefix(VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            return value == Side::Libc.value().as_bytes();
        }
        // SAFETY: this entry is not the terminator, so the next one is still inside the array.
        entry = unsafe { entry.add(1) };
    }
    false
}

// SAFETY: every call goes to one of two allocators, and to the same one for the life of the process: `choice` is
// written with one value only. So a block is always freed where it came from, and the contracts are theirs.
unsafe impl GlobalAlloc for Chooser {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.is_huge() {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.huge.alloc(layout) }
        } else {
            // SAFETY: as above.
            unsafe { System.alloc(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if self.is_huge() {
            // SAFETY: the caller's promise, passed on; the block came from this allocator.
            unsafe { self.huge.dealloc(ptr, layout) }
        } else {
            // SAFETY: as above.
            unsafe { System.dealloc(ptr, layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if self.is_huge() {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.huge.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if self.is_huge() {
            // SAFETY: the caller's promise, passed on; the block came from this allocator.
            unsafe { self.huge.realloc(ptr, layout, new_size) }
        } else {
            // SAFETY: as above.
            unsafe { System.realloc(ptr, layout, new_size) }
        }
    }
}
