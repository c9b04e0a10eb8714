//! Thread caches: the fast path.
//!
//! A cache is an array of block pointers per class. `alloc` pops, `dealloc` pushes onto the *freeing* thread's
//! array; the class comes from the `Layout` both times, so no header is read and no owner looked up. Neither
//! touches the block, so a block that another thread freed is not fetched before its new owner wants it.
//!
//! A thread starts on [`EMPTY`], a static cache that is empty and full at once: its first call takes the slow
//! path without a test for null, and gets a cache of its own there. After the thread's end it is on [`DEAD`]:
//! calls from later destructors still work, straight on the central lists.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, offset_of};
use std::ptr::{self, null_mut};
use std::sync::atomic::Ordering::Relaxed;

use super::size_class::{CLASS, CLASSES, SLOT_START, SLOTS};
use super::space::UNIT_BYTES;
use super::{HEAP, HugeAlloc, current};
use crate::sys::keeping_errno;

/// Bytes of free blocks that one thread's cache may hold by right; what it may borrow besides, all threads share.
const BUDGET_BYTES: usize = 192 << 10;
/// Bytes that a bin has room for at first; each time that is not enough, twice as much.
const FIRST_ROOM_BYTES: usize = 1 << 10;
/// Bins that are asked for room at a time when the budget is spent, and how many misses go by between two times.
const STEALING_TRIES: usize = 4;
const STEALING_PERIOD: u32 = 8;
/// Misses between two times that unused classes are given back: few blocks of a class that a program has done with
/// would keep many spans.
const SCAVENGING_PERIOD: u32 = 1024;
/// The same when the heap has grown meanwhile: many threads that free what others allocate miss seldom, and hold much
/// together.
const SCAVENGING_PERIOD_IN_GROWTH: u32 = 64;
const _: () = assert!(CLASSES <= u128::BITS as usize && SLOTS <= u16::MAX as usize);

/// The cached blocks of one class: a stack that grows up from `base`.
///
/// | | next `alloc` | next `dealloc` |
/// |---|---|---|
/// | `top == base` | slow: refill | |
/// | `top == end` | | slow: make room |
#[derive(Debug)]
#[repr(C)]
struct Bin {
    top: *mut *mut u8,
    base: *mut *mut u8,
    end: *mut *mut u8,
}

impl Bin {
    /// Blocks it has room for.
    fn room(&self) -> usize {
        (self.end.addr() - self.base.addr()) / size_of::<*mut u8>()
    }

    /// Blocks in it.
    fn held(&self) -> usize {
        (self.top.addr() - self.base.addr()) / size_of::<*mut u8>()
    }
}

const NO_BLOCKS: Bin = Bin { top: null_mut(), base: null_mut(), end: null_mut() };

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bins([Bin; CLASSES]);

// SAFETY: the statics of this type are never written: their bins are empty and full, so only the slow paths
// see them, which compare the address first.
unsafe impl Sync for Bins {}

/// The cache of a thread that has none yet.
pub(crate) static EMPTY: Bins = Bins([NO_BLOCKS; CLASSES]);
/// The cache of a thread that has ended.
static DEAD: Bins = Bins([NO_BLOCKS; CLASSES]);

/// A thread's cache. Lives in a run of the heap itself, so on huge pages where the heap is.
#[derive(Debug)]
#[repr(C)]
struct Cache {
    /// First, so that a pointer to the bins is one to the cache.
    bins: Bins,
    /// First unit of the run that holds this cache.
    run: u32,
    /// Bytes that bins may still be given room for.
    budget: usize,
    /// Bytes of room on loan from the heap.
    borrowed: usize,
    /// The heap's [`Heap::lives`] when that was last counted among what caches have on loan.
    life: u32,
    /// The class that is next to give room up.
    victim: usize,
    /// Slow calls so far.
    misses: u32,
    /// How many there were at the last scavenging, and how often the heap had grown.
    scavenged: u32,
    growths: u32,
    /// A bit for each class that has had one since the last scavenging.
    missed: u128,
    /// A bit for each class that has been given back: its central list is next, as soon as nobody uses it.
    given_up: u128,
    /// Blocks in each bin at the last scavenging.
    levels: [u16; CLASSES],
}

/// The slots lie behind the cache in its run, and apart from it: they are reached through the bins' pointers while
/// the cache itself is borrowed.
const SLOTS_OFFSET: usize = size_of::<Cache>().next_multiple_of(64);
const CACHE_UNITS: u32 = (SLOTS_OFFSET + SLOTS * size_of::<*mut u8>()).div_ceil(UNIT_BYTES) as u32;
const _: () = assert!(offset_of!(Cache, bins) == 0);

/// A block of `class` from this thread's cache, or null when it has none.
#[inline(always)]
pub(crate) fn pop(class: usize) -> *mut u8 {
    // SAFETY: the current cache is `EMPTY`, `DEAD` or this thread's own cache, all valid for reads; `class` is
    // in range at every caller (it compared with `CLASSES`). If `top` is above `base`, the bin is one of our
    // own cache and the slot below `top` holds a block, which is never null; only this thread writes it.
    unsafe {
        let bin = &raw mut (*current::get()).0[class];
        let top = (*bin).top;
        if top == (*bin).base {
            return null_mut();
        }
        let top = top.sub(1);
        (*bin).top = top;
        let block = *top;
        // Spares the caller, and its caller, a test.
        std::hint::assert_unchecked(!block.is_null());
        block
    }
}

/// Puts a block of `class` into this thread's cache, unless it is full.
#[inline(always)]
pub(crate) fn push(class: usize, block: *mut u8) -> bool {
    // SAFETY: as in `pop`; below `end`, the slot at `top` is one of this bin's.
    unsafe {
        let bin = &raw mut (*current::get()).0[class];
        let top = (*bin).top;
        if top == (*bin).end {
            return false;
        }
        *top = block;
        (*bin).top = top.add(1);
    }
    true
}

/// A block of `class` when the cache has none: refills it. Null when the heap is exhausted.
#[cold]
#[inline(never)]
pub(crate) fn alloc_slow(config: &HugeAlloc, class: usize) -> *mut u8 {
    keeping_errno(|| {
        if !HEAP.start(config) {
            return null_mut();
        }
        let block = take(class);
        if block.is_null() && HEAP.gather_more() { take(class) } else { block }
    })
}

/// A block of `class` for a cache that has none, or null.
fn take(class: usize) -> *mut u8 {
    match own_cache() {
        // SAFETY: this thread's own cache, and no other reference to it is live.
        Some(cache) => unsafe { (*cache).refill(class) },
        None => HEAP.take_block(class),
    }
}

/// Frees a block of `class` when the cache is full: makes room in it.
#[cold]
#[inline(never)]
pub(crate) fn dealloc_slow(class: usize, block: *mut u8) {
    keeping_errno(|| match own_cache() {
        // SAFETY: this thread's own cache, and no other reference to it is live.
        Some(cache) => unsafe { (*cache).make_room_for(class, block) },
        None => HEAP.give_block(class, block),
    });
}

/// Gives every block in this thread's cache back to the central lists.
pub(crate) fn flush() {
    let bins = current::get();
    if is_own(bins) {
        // SAFETY: this thread's own cache, and no other reference to it is live.
        unsafe { (*bins.cast::<Cache>()).flush() };
    }
}

fn is_own(bins: *mut Bins) -> bool {
    !ptr::eq(bins, &raw const EMPTY) && !ptr::eq(bins, &raw const DEAD)
}

/// This thread's cache, made now if it has none; `None` after the thread's end or when there is no memory.
fn own_cache() -> Option<*mut Cache> {
    let bins = current::get();
    if is_own(bins) {
        return Some(bins.cast());
    }
    if ptr::eq(bins, &raw const DEAD) {
        return None;
    }
    let cache = create()?;
    current::set(cache.cast());
    // Last: the call may allocate, from this heap, which now has its cache. Without the key the cache would
    // be lost at the thread's end, so the thread goes without.
    if !HEAP.call_at_thread_exit(cache.cast()) {
        current::set((&raw const DEAD).cast_mut());
        // SAFETY: just created, and no longer current.
        unsafe { destroy(cache) };
        return None;
    }
    Some(cache)
}

fn create() -> Option<*mut Cache> {
    let run = HEAP.take_run(CACHE_UNITS, 1)?;
    let space = HEAP.space()?;
    let cache = space.address(run).cast::<Cache>();
    // SAFETY: a run of our own, long and aligned enough. The slots may hold anything; every other field is
    // written.
    unsafe {
        (&raw mut (*cache).run).write(run);
        (&raw mut (*cache).budget).write(BUDGET_BYTES);
        (&raw mut (*cache).borrowed).write(0);
        (&raw mut (*cache).life).write(HEAP.lives());
        (&raw mut (*cache).victim).write(0);
        (&raw mut (*cache).misses).write(0);
        (&raw mut (*cache).scavenged).write(0);
        (&raw mut (*cache).growths).write(0);
        (&raw mut (*cache).missed).write(0);
        (&raw mut (*cache).given_up).write(0);
        (&raw mut (*cache).levels).write([0; CLASSES]);
        let slots = cache.byte_add(SLOTS_OFFSET).cast::<*mut u8>();
        let bins = (&raw mut (*cache).bins.0).cast::<Bin>();
        for (class, start) in SLOT_START.iter().enumerate().take(CLASSES) {
            let base = slots.add(*start as usize);
            bins.add(class).write(Bin { top: base, base, end: base });
        }
    }
    Some(cache)
}

/// # Safety
///
/// `cache` came from [`create`] and nobody uses it any more.
unsafe fn destroy(cache: *mut Cache) {
    // SAFETY: the caller's contract.
    let run = unsafe {
        (*cache).flush();
        (*cache).count_loans();
        HEAP.return_room((*cache).borrowed);
        (*cache).run
    };
    HEAP.give_run(run);
}

/// What the pthread key calls when a thread ends. Not a `Drop` guard: those run before the destructors of
/// thread-locals that were made earlier, which still free.
pub(crate) unsafe extern "C" fn at_thread_exit(cache: *mut std::ffi::c_void) {
    current::set((&raw const DEAD).cast_mut());
    // SAFETY: the value stored under the key is this thread's cache, which is no longer current.
    unsafe { destroy(cache.cast()) };
}

/// Runs when the program exits, or when it closes the shared object that this heap is part of: threads that end
/// afterwards must not call what is not there any more. Fork handlers go by themselves.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = forget_threads;

extern "C" fn forget_threads() {
    HEAP.forget_exit_key();
}

impl Cache {
    /// Fills half the bin of `class`, so that frees find room as well, and takes one block out of it.
    fn refill(&mut self, class: usize) -> *mut u8 {
        self.count_miss(class);
        self.widen(class);
        let bin = &mut self.bins.0[class];
        let room = bin.room();
        if room == 0 {
            return HEAP.take_block(class);
        }
        let wanted = room.div_ceil(2).min(CLASS[class].batch as usize);
        // SAFETY: the bin is empty and its first `wanted` slots are its own, referenced by nobody else: the
        // lists below know nothing of caches.
        let slots = unsafe { std::slice::from_raw_parts_mut(bin.base.cast::<MaybeUninit<*mut u8>>(), wanted) };
        let got = HEAP.take_blocks(class, slots);
        if got == 0 {
            return null_mut();
        }
        // SAFETY: `got` slots are filled; the last one is handed out.
        unsafe {
            bin.top = bin.base.add(got - 1);
            *bin.top
        }
    }

    /// Puts `block` into the full bin of `class`, whose older half goes to the central list unless the bin may
    /// be widened.
    fn make_room_for(&mut self, class: usize, block: *mut u8) {
        self.count_miss(class);
        self.widen(class);
        let bin = &self.bins.0[class];
        if bin.top == bin.end {
            let held = bin.held();
            if held == 0 {
                HEAP.give_block(class, block);
                return;
            }
            self.give_back(class, held.div_ceil(2));
        }
        let bin = &mut self.bins.0[class];
        // SAFETY: there is room below `end` now.
        unsafe {
            *bin.top = block;
            bin.top = bin.top.add(1);
        }
    }

    /// Gives the oldest `count` blocks of a bin that holds as many to the central list.
    fn give_back(&mut self, class: usize, count: usize) {
        let bin = &mut self.bins.0[class];
        // SAFETY: the bin's first slots hold blocks; `copy` moves the rest down within the bin.
        unsafe {
            HEAP.give_blocks(class, std::slice::from_raw_parts(bin.base, count));
            let rest = bin.top.offset_from_unsigned(bin.base) - count;
            ptr::copy(bin.base.add(count), bin.base, rest);
            bin.top = bin.base.add(rest);
        }
    }

    fn count_miss(&mut self, class: usize) {
        self.misses = self.misses.wrapping_add(1);
        self.missed |= 1 << class;
        self.count_loans();
        let since = self.misses.wrapping_sub(self.scavenged);
        let growths = HEAP.growths.load(Relaxed);
        if since >= SCAVENGING_PERIOD || (since >= SCAVENGING_PERIOD_IN_GROWTH && growths != self.growths) {
            (self.scavenged, self.growths) = (self.misses, growths);
            self.scavenge();
        }
    }

    /// In a child of fork(2), has the heap count what this cache borrowed before, which it has forgotten.
    fn count_loans(&mut self) {
        if self.life != HEAP.lives() {
            self.life = HEAP.lives();
            HEAP.count_loan(self.borrowed);
        }
    }

    /// Gives back the blocks and the room of classes that seem unused since the last time: no miss, and as many blocks
    /// as then. Their room goes to pay loans back.
    fn scavenge(&mut self) {
        let missed = std::mem::take(&mut self.missed);
        let budget_before = self.budget;
        for class in 0..CLASSES {
            let held = self.bins.0[class].held();
            let is_unused = missed & (1 << class) == 0 && held == usize::from(self.levels[class]);
            let is_given_up = self.given_up & (1 << class) != 0;
            if is_unused && !is_given_up && self.bins.0[class].room() > 0 {
                self.narrow(class, 0);
                self.given_up |= 1 << class;
            } else if is_given_up && (!is_unused || HEAP.scavenge(class)) {
                self.given_up &= !(1 << class);
            }
            self.levels[class] = self.bins.0[class].held() as u16;
        }
        let returned = self.borrowed.min(self.budget - budget_before);
        self.borrowed -= returned;
        self.budget -= returned;
        HEAP.return_room(returned);
    }

    /// Doubles the room of a bin, as far as its slots and the cache's budget go, which grows by loans.
    fn widen(&mut self, class: usize) {
        let (size, slots) = (CLASS[class].size as usize, CLASS[class].slots as usize);
        let room = self.bins.0[class].room();
        if room == slots {
            return;
        }
        let wanted = room.max((FIRST_ROOM_BYTES / size).max(1)).min(slots - room);
        if wanted * size > self.budget && self.misses.is_multiple_of(STEALING_PERIOD) {
            if HEAP.lend_room(wanted * size) {
                self.borrowed += wanted * size;
                self.budget += wanted * size;
            } else {
                self.steal((room + wanted) * size);
            }
        }
        let given = wanted.min(self.budget / size);
        self.budget -= given * size;
        let bin = &mut self.bins.0[class];
        // SAFETY: `room + given` is at most the slots of this class.
        bin.end = unsafe { bin.end.add(given) };
    }

    /// Halves the room of some bins that have more than the `bytes` somebody would like to have.
    fn steal(&mut self, bytes: usize) {
        for _ in 0..STEALING_TRIES {
            self.victim = (self.victim + 1) % CLASSES;
            if self.bins.0[self.victim].room() * CLASS[self.victim].size as usize > bytes {
                let kept = self.bins.0[self.victim].room() / 2;
                self.narrow(self.victim, kept);
            }
        }
    }

    /// Reduces the room of a bin to `kept` blocks.
    fn narrow(&mut self, class: usize, kept: usize) {
        let (room, held) = (self.bins.0[class].room(), self.bins.0[class].held());
        if held > kept {
            self.give_back(class, held - kept);
        }
        let bin = &mut self.bins.0[class];
        // SAFETY: `kept` slots are this bin's, and at most `kept` hold blocks.
        bin.end = unsafe { bin.base.add(kept) };
        self.budget += (room - kept) * CLASS[class].size as usize;
    }

    fn flush(&mut self) {
        for class in 0..CLASSES {
            let held = self.bins.0[class].held();
            if held > 0 {
                self.give_back(class, held);
            }
        }
    }
}
