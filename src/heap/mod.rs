//! A general-purpose allocator on huge pages: [`HugeAlloc`], for `#[global_allocator]`.
//!
//! ```text
//!  alloc(64)          thread    pop this thread's array of blocks of the class           (no atomics)
//!    | empty
//!  refill             central   a batch from the class's depot, else from span bitmaps   (class lock)
//!    | no span
//!  new span           runs      a run of free units, good fit                            (runs lock)
//!    | no run
//!  growth             growth    commit chunks of 2 MiB                                   (growth lock, system calls)
//! ```
//!
//! Locks are taken in the order starting, growth, class (by index), runs. Blocks above 256 KiB are runs themselves, and so are
//! those above 32 KiB that are to be aligned to more than a cache line.

#![allow(unsafe_code)]

#[cfg(feature = "allocator-api2")]
mod allocator;
mod central;
mod checks;
mod commit;
mod current;
mod fork;
mod growth;
mod large;
mod loans;
mod lock;
mod options;
mod runs;
mod size_class;
mod sizeless;
mod space;
mod span;
mod stats;
mod thread;
mod unit;

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::memops::FirstTouch;
use crate::sys::keeping_errno;
use crate::sys::process::ThreadKey;
use central::Central;
use growth::Growth;
use loans::Loans;
use lock::Lock;
use options::Options;
use runs::Runs;
use size_class::{CLASS, CLASSES};
use space::{CHUNK_BYTES, CHUNK_UNITS, Space};
pub use stats::{HeapStats, HeldPages};

/// A global allocator on huge pages.
///
/// Works without set-up and without privileges: 2 MiB pages where the pool has them, else transparent huge
/// pages, else base pages ([`page_sizes`](Self::page_sizes) is for other orders); [`stats`](Self::stats) says what was
/// obtained and what would improve it. Memory is
/// private to the process (copied on write after fork), populated when the heap grows, and kept until
/// [`trim`](Self::trim) or exit.
///
/// Every `HugeAlloc` of a program is a handle to the one heap of the process. The options of the first that
/// allocates are the ones that count.
///
/// # Fork and signals
///
/// A child of fork(2) has a usable heap, whatever other threads were doing. What their caches held stays unused in
/// the child. Fork handlers of others may allocate, whenever they were registered. As with any malloc, a signal handler
/// must not allocate, and must not fork but, with glibc 2.32 or later, in a process with one thread.
///
/// A huge page that parent or child writes to while both have it is copied to another one of the pool. Where the pool has
/// none, the kernel takes it from the child, and kills the child as soon as it looks there: also one that only reads,
/// if the parent writes. A process that has its pages from its own parent, such as a daemon, is killed like a child when
/// it writes. [`spare_pages`](Self::spare_pages) keeps pages for all that. `std::process::Command` does not fork,
/// unless it is given a user, a group, a hook (`pre_exec`), or a `PATH` together with a program without a slash.
///
/// # Limits and errors
///
/// Returns null when the limit or the system is exhausted, and never panics or unwinds. Before that, free memory that is in
/// pieces is gathered: what this thread's cache and the central lists hold, and chunks that can be had again elsewhere.
/// errno stays as it was, whatever the heap asks the system for. A double free, a foreign
/// pointer or a wrong layout is undefined behaviour as for any allocator; where the heap notices, it aborts.
///
/// In debug builds, and in others with the crate's feature `hardened`, every free and resize is checked: a double free,
/// a pointer that is not from the heap or not the start of a block, and a layout of another size class abort at once
/// with one line on standard error that says which, and freed memory is filled with `0xDE` (the first 256 KiB of
/// longer blocks). That costs a bit for each 8 bytes and a few nanoseconds a call; without it nothing.
///
/// # Examples
///
/// ```
/// use hugearena::HugeAlloc;
///
/// #[global_allocator]
/// static GLOBAL: HugeAlloc = HugeAlloc::new();
///
/// let numbers: Vec<u64> = (0..100_000).collect();
/// assert_eq!(numbers.iter().sum::<u64>(), 4_999_950_000);
/// println!("{}", GLOBAL.stats());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HugeAlloc {
    options: Options,
}

impl Default for HugeAlloc {
    fn default() -> HugeAlloc {
        HugeAlloc::new()
    }
}

impl HugeAlloc {
    /// Like `alloc_zeroed`, with the caller's hint where it will touch the block first: those bytes are cleared
    /// last and are in cache when the call returns. `alloc_zeroed` itself assumes the start of the block.
    ///
    /// Bytes that the kernel zeroed and nobody has had since are not cleared again. Returns null when the heap
    /// is exhausted.
    ///
    /// # Safety
    ///
    /// As for [`GlobalAlloc::alloc_zeroed`]: `layout` has a size above 0. The hint may be anything.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{FirstTouch, HugeAlloc};
    /// use std::alloc::{GlobalAlloc, Layout};
    ///
    /// let heap = HugeAlloc::new();
    /// let layout = Layout::from_size_align(8 << 20, 64).unwrap();
    /// // SAFETY: the layout's size is not 0; the block is freed once, with its layout.
    /// unsafe {
    ///     let block = heap.alloc_zeroed_hint(layout, FirstTouch::at(4 << 20, 64 << 10));
    ///     assert!(!block.is_null());
    ///     assert_eq!(block.add(4 << 20).read(), 0);
    ///     heap.dealloc(block, layout);
    /// }
    /// ```
    #[inline]
    pub unsafe fn alloc_zeroed_hint(&self, layout: Layout, touch: FirstTouch) -> *mut u8 {
        if size_class::of(layout) >= CLASSES {
            return checks::note_alloc(large::alloc_zeroed(self, layout, touch));
        }
        // SAFETY: the caller's contract.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: a block of at least the layout's size, ours alone.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    /// What the heap holds, on which pages, and what would improve it. Reads a few files; not for hot paths.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        stats::read(&HEAP)
    }

    /// Gives memory that holds nothing back to the system, in whole 2 MiB chunks; returns bytes.
    ///
    /// Empties this thread's cache and the central depots first; other threads keep theirs.
    pub fn trim(&self) -> usize {
        let Some(space) = HEAP.space() else {
            return 0;
        };
        keeping_errno(|| {
            HEAP.gather(space);
            HEAP.trim(space)
        })
    }
}

// SAFETY: blocks come from runs and spans that are handed out once until they are given back (`runs`, `span`);
// sizes and alignments are those of the class or run, at least the layout's (`size_class`, `large`). Nothing
// here unwinds: broken invariants abort.
unsafe impl GlobalAlloc for HugeAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = size_class::of(layout);
        if class >= CLASSES {
            return checks::note_alloc(large::alloc(self, layout));
        }
        let block = thread::pop(class);
        checks::note_alloc(if block.is_null() { thread::alloc_slow(self, class) } else { block })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { checks::check_free(block, layout) };
        let class = size_class::of(layout);
        if class >= CLASSES {
            large::dealloc(block);
        } else if !thread::push(class, block) {
            thread::dealloc_slow(class, block);
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.alloc_zeroed_hint(layout, FirstTouch::unknown()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's contract: `new_size` rounded up to the alignment is at most `isize::MAX`.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let (old_class, new_class) = (size_class::of(layout), size_class::of(new_layout));
        checks::check_live(block, layout);
        // The class of a small block is what its layout says, so another class means another block.
        if old_class == new_class && old_class < CLASSES {
            return block;
        }
        // SAFETY: the caller's contract.
        unsafe { self.realloc_slow(block, layout, new_layout) }
    }
}

impl HugeAlloc {
    /// # Safety
    ///
    /// As for [`GlobalAlloc::realloc`].
    #[cold]
    #[inline(never)]
    unsafe fn realloc_slow(&self, block: *mut u8, layout: Layout, new_layout: Layout) -> *mut u8 {
        let was_large = size_class::of(layout) >= CLASSES;
        let is_large = size_class::of(new_layout) >= CLASSES;
        if was_large && is_large && large::resize_in_place(block, new_layout.size()) {
            return block;
        }
        // SAFETY: the caller's contract; the new block is another one, at least as long as what is copied.
        unsafe {
            let new = if was_large && is_large {
                checks::note_alloc(large::alloc_to_grow(self, new_layout))
            } else {
                self.alloc(new_layout)
            };
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(new_layout.size()));
                self.dealloc(block, layout);
            } else if was_large && is_large && large::resize_at_last(block, new_layout.size()) {
                return block;
            }
            new
        }
    }
}

/// The heap of this process.
static HEAP: Heap = Heap::new();

/// Everything the threads share. Const-constructed: allocation works before `main`.
struct Heap {
    /// Held by the first allocation until there is a space: the fork handlers know a lock, and not a cell's state.
    starting: Lock<()>,
    /// Const: set by the first allocation; `None` when the process cannot have a heap.
    space: OnceLock<Option<Space>>,
    /// Const from the start to the exit: the pthread key whose destructor empties a thread's cache, plus one; 0 for none.
    exit_key: AtomicU32,
    loans: Loans,
    /// Steps of growth so far: a hint for caches.
    growths: AtomicU32,
    growth: Lock<Growth>,
    centrals: [Lock<Central>; CLASSES],
    runs: Lock<Runs>,
}

impl Heap {
    const fn new() -> Heap {
        Heap {
            starting: Lock::new(()),
            space: OnceLock::new(),
            exit_key: AtomicU32::new(0),
            loans: Loans::new(),
            growths: AtomicU32::new(0),
            growth: Lock::new(Growth::new()),
            centrals: [const { Lock::new(Central::new()) }; CLASSES],
            runs: Lock::new(Runs::new()),
        }
    }

    /// Makes the heap ready, with the options of the first who calls. Returns whether there is one.
    fn start(&self, config: &HugeAlloc) -> bool {
        match self.space.get() {
            Some(space) => space.is_some(),
            None => self.start_once(config),
        }
    }

    /// As [`start`](Self::start), when there was no heap a moment ago.
    #[cold]
    fn start_once(&self, config: &HugeAlloc) -> bool {
        // Before the first lock: one that another thread holds at fork would stay held in the child.
        fork::register();
        let starting = self.starting.lock();
        if let Some(space) = self.space.get() {
            return space.is_some();
        }
        self.growth.lock().set_options(config.options);
        // SAFETY: the only values stored under the key are caches, which is what the destructor takes.
        if let Ok(key) = unsafe { ThreadKey::new(thread::at_thread_exit) } {
            self.exit_key.store(key.to_raw() + 1, Relaxed);
        }
        // Nobody waits inside the cell, and no child is forked meanwhile: it is filled under the lock.
        let space = self.space.get_or_init(|| Space::new().ok());
        drop(starting);
        if let Some(space) = space {
            self.grow_initially(space);
        }
        space.is_some()
    }

    /// The space, once there is one.
    #[inline]
    fn space(&self) -> Option<&Space> {
        self.space.get()?.as_ref()
    }

    /// Has [`thread::at_thread_exit`] called with `cache` at the end of this thread.
    fn call_at_thread_exit(&self, cache: *mut u8) -> bool {
        match self.exit_key.load(Relaxed) {
            0 => false,
            key => ThreadKey::from_raw(key - 1).set(cache).is_ok(),
        }
    }

    /// From now on nothing is called at the end of a thread.
    fn forget_exit_key(&self) {
        match self.exit_key.swap(0, Relaxed) {
            0 => {}
            key => ThreadKey::from_raw(key - 1).delete(),
        }
    }

    /// Takes a run of `units` whose first is a multiple of `align`, contents unknown.
    fn take_run(&self, units: u32, align: u32) -> Option<u32> {
        let start = self.take_unmarked_run(units, align)?;
        self.space()?.mark_dirty(start, units);
        Some(start)
    }

    /// As [`take_run`](Self::take_run), with the record of which units are dirty as it was: for the caller to
    /// clear by, and then to mark.
    fn take_unmarked_run(&self, units: u32, align: u32) -> Option<u32> {
        let space = self.space()?;
        if units.checked_add(align)? > space.chunk_count().saturating_mul(CHUNK_UNITS) {
            return None;
        }
        let free = self.runs.lock().take(space, units, align);
        free.or_else(|| self.grow(space, units, align))
    }

    /// Gives a run back.
    fn give_run(&self, start: u32) {
        let Some(space) = self.space() else {
            return;
        };
        let len = space.unit(start).len.load(Relaxed);
        self.runs.lock().insert(space, start, len);
        self.release_room(space, start + len);
    }

    /// Whether a good part of what the heap holds is free, so that it should use that before it grows. While
    /// somebody grows, no.
    fn is_mostly_free(&self) -> bool {
        const PLENTY_BYTES: u64 = 32 << 20;
        let Some(committed) = self.committed_bytes_now() else {
            return false;
        };
        let free = self.runs.lock().free_units() * space::UNIT_BYTES as u64;
        free > PLENTY_BYTES.max(committed / 4)
    }

    /// What the heap holds; unknown while somebody grows.
    fn committed_bytes_now(&self) -> Option<u64> {
        Some(u64::from(self.growth.try_lock()?.committed()) * CHUNK_BYTES as u64)
    }

    /// Fills `out` with blocks of `class`, as far as they come without growing twice; returns how many, 0 only
    /// when the heap is exhausted.
    fn take_blocks(&self, class: usize, out: &mut [MaybeUninit<*mut u8>]) -> usize {
        let Some(space) = self.space() else {
            return 0;
        };
        let units = CLASS[class].units;
        loop {
            let mut central = self.centrals[class].lock();
            let got = central.take(space, class, out);
            if got > 0 {
                return got;
            }
            let run = self.runs.lock().take(space, units, 1);
            if let Some(start) = run {
                span::create(space, start, class);
                central.list(space, class, start);
                return central.take(space, class, out);
            }
            drop(central);
            let Some(start) = self.grow(space, units, 1) else {
                return 0;
            };
            span::create(space, start, class);
            self.centrals[class].lock().list(space, class, start);
        }
    }

    /// One block of `class`, or null: for threads without a cache, or without room in it.
    fn take_block(&self, class: usize) -> *mut u8 {
        let mut block = [MaybeUninit::new(ptr::null_mut())];
        self.take_blocks(class, &mut block);
        // SAFETY: initialized above, and written to only with blocks.
        unsafe { block[0].assume_init() }
    }

    /// Gives blocks of `class` that nobody uses to its central list.
    fn give_blocks(&self, class: usize, blocks: &[*mut u8]) {
        if let Some(space) = self.space() {
            self.centrals[class].lock().give(self, space, class, blocks);
        }
    }

    /// Gives one block straight back to its span: for threads without a cache, which must not hoard.
    fn give_block(&self, class: usize, block: *mut u8) {
        if let Some(space) = self.space() {
            self.centrals[class].lock().give_to_spans(self, space, class, &[block]);
        }
    }
}
