//! Blocks inside chunks: which chunk they are in, when one is claimed, and when it goes back.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::sleep;
use std::time::Duration;

use crossbeam::utils::Backoff;
use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use super::{Arena, Chunk};
use crate::sys::process::forks;

/// What talc takes of a heap for itself, at either end: a tag and what aligns blocks to 32 bytes, twice over.
const OVERHEAD: usize = 128;
/// What a thread sleeps that waits for one which does not get to run.
const NAP: Duration = Duration::from_micros(50);
/// Naps, at most, for others that are claiming: half a second, longer than a page takes to populate.
const NAPS: u32 = 10_000;
/// How often an allocation looks for room again, because others changed something meanwhile.
const LOOKS: u32 = 16;

/// Words for talc's lists of free blocks, apart from chunks, so that every chunk can go back.
const TABLE_WORDS: usize = talc::min_first_heap_size::<DefaultBinning>() / 8 + 1;
/// A block and its tag end within so many bytes behind what was asked for; a block behind it ends beyond.
const TAIL: usize = 40;

/// Blocks in chunks of one arena.
pub(super) struct Blocks {
    arena: Arena,
    /// Free: 0. Held: one more than the number of forks in the process of who holds it.
    owner: AtomicU64,
    /// Of who holds the lock.
    state: UnsafeCell<State>,
}

// SAFETY: the state is reached through the lock only, and nothing in it is tied to a thread.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

struct State {
    /// Before the memory that it keeps its notes in.
    talc: Talc<Manual, DefaultBinning>,
    /// By address.
    heaps: Vec<Heap>,
    /// Threads that are claiming pages, and have not brought them yet.
    claiming: usize,
    /// How often pages were brought or given back.
    changes: u64,
    /// Forks when `claiming` was counted: a child has none of those threads.
    forks: u64,
    _table: Vec<MaybeUninit<u64>>,
}

/// A chunk that blocks are cut from.
struct Heap {
    chunk: Chunk,
    /// Where talc says that the heap ends; what [`Talc::extend`] and [`Talc::truncate`] want to know.
    end: NonNull<u8>,
}

impl Heap {
    fn start(&self) -> usize {
        self.chunk.as_ptr().addr().get()
    }
}

impl Blocks {
    pub(super) fn new(arena: Arena) -> Blocks {
        let mut table = vec![MaybeUninit::uninit(); TABLE_WORDS];
        let mut talc = Talc::new(Manual);
        // SAFETY: the table is talc's alone, and lives as long: moving the vector does not move it. What is left of it
        // behind the lists would be a block outside the arena, so it is taken away again.
        unsafe {
            if let Some(end) = talc.claim(table.as_mut_ptr().cast(), size_of_val(&*table)) {
                talc.truncate(end, ptr::null_mut());
            }
        }
        // Counting forks starts here.
        let forks = forks();
        let state = State { talc, heaps: Vec::new(), claiming: 0, changes: 0, forks, _table: table };
        Blocks { arena, owner: AtomicU64::new(0), state: UnsafeCell::new(state) }
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// A block of at least one byte.
    pub(super) fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        debug_assert!(layout.size() > 0);
        for _ in 0..LOOKS {
            let mut state = self.lock()?;
            if let Some(found) = state.find(layout) {
                return Some(found);
            }
            let bytes = layout.size().checked_add(layout.align())?.checked_add(OVERHEAD)?;
            let pages = self.arena.page_size().pages_for(bytes)?;
            state.claiming += 1;
            let before = state.changes;
            drop(state);
            // Not under the lock: populating a lazy arena takes milliseconds. Others may claim at the same time; what is
            // too much then goes back when it is empty.
            let chunk = self.arena.claim(pages);
            let mut state = self.lock()?;
            state.claiming = state.claiming.saturating_sub(1);
            if let Some(chunk) = chunk {
                state.add(chunk)?;
                return state.find(layout);
            }
            // A page that is kept empty may be the one that was missing.
            state.give_back_all();
            drop(state);
            if !self.has_changed(before)? {
                return None;
            }
        }
        None
    }

    /// Whether somebody brought or gave back pages, who may be in the middle of it: then there may be room now, or may
    /// have been all the time, in pages that were claimed and had no blocks yet. `None` where there is no lock to be had.
    fn has_changed(&self, before: u64) -> Option<bool> {
        for _ in 0..NAPS {
            let state = self.lock()?;
            if state.changes != before || state.claiming == 0 {
                return Some(state.changes != before);
            }
            drop(state);
            sleep(NAP);
        }
        Some(false)
    }

    /// # Safety
    ///
    /// `block` was allocated here with that layout, and nobody uses it any more.
    pub(super) unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if let Some(mut state) = self.lock() {
            // SAFETY: the caller's contract.
            unsafe { state.talc.deallocate(block.as_ptr(), layout) };
            state.give_back(block);
        }
    }

    /// Makes a block longer where it is; returns whether it did.
    ///
    /// # Safety
    ///
    /// `block` was allocated here with that layout; `new_size` is at least its size.
    pub(super) unsafe fn grow_in_place(&self, block: NonNull<u8>, layout: Layout, new_size: usize) -> bool {
        let Some(mut state) = self.lock() else {
            return false;
        };
        // SAFETY: the caller's contract.
        unsafe {
            if state.talc.try_grow_in_place(block.as_ptr(), layout, new_size) {
                return true;
            }
            // Pages of a lazy arena would be populated under the lock.
            let may_extend = self.arena.obtained().populated;
            may_extend
                && state.extend(block, layout.size(), new_size)
                && state.talc.try_grow_in_place(block.as_ptr(), layout, new_size)
        }
    }

    /// Makes a block shorter where it is; returns whether it did.
    ///
    /// # Safety
    ///
    /// `block` was allocated here with that layout; `new_size` is above 0 and at most its size.
    pub(super) unsafe fn shrink(&self, block: NonNull<u8>, layout: Layout, new_size: usize) -> bool {
        let Some(mut state) = self.lock() else {
            return false;
        };
        // SAFETY: the caller's contract.
        unsafe { state.talc.shrink(block.as_ptr(), layout, new_size) };
        state.give_back(block);
        true
    }

    /// Waits for the lock. `None` in a child of fork(2) that has not the memory, or where a thread of the parent had
    /// the lock: that thread does not exist here, and what it was doing is half done.
    fn lock(&self) -> Option<Locked<'_>> {
        if !self.arena.inner.mapping.is_here() {
            return None;
        }
        let ours = forks() + 1;
        let backoff = Backoff::new();
        loop {
            match self.owner.compare_exchange_weak(0, ours, Acquire, Relaxed) {
                Ok(_) => {
                    let mut locked = Locked { blocks: self };
                    locked.forget_others(ours - 1);
                    return Some(locked);
                }
                Err(owner) if owner != 0 && owner != ours => return None,
                Err(_) if backoff.is_completed() => sleep(NAP),
                Err(_) => backoff.snooze(),
            }
        }
    }
}

/// The state, until dropped.
struct Locked<'a> {
    blocks: &'a Blocks,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: we hold the lock.
        unsafe { &*self.blocks.state.get() }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: we hold the lock, and are borrowed mutably.
        unsafe { &mut *self.blocks.state.get() }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.blocks.owner.store(0, Release);
    }
}

impl State {
    /// A block, if a heap has room for it.
    fn find(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the size is above 0.
        unsafe { self.talc.try_allocate(layout) }
    }

    /// In a child of fork(2): nobody claims who did so in the parent. This thread does not, for it is here.
    fn forget_others(&mut self, forks: u64) {
        if self.forks != forks {
            (self.claiming, self.forks) = (0, forks);
        }
    }

    /// Cuts blocks from `chunk` too. `None` when there is no memory for the note of it.
    fn add(&mut self, chunk: Chunk) -> Option<()> {
        self.heaps.try_reserve(1).ok()?;
        // SAFETY: the chunk is ours alone until it is dropped, which is after talc has been told.
        let end = unsafe { self.talc.claim(chunk.as_ptr().as_ptr(), chunk.len())? };
        let heap = Heap { chunk, end };
        let at = self.heaps.partition_point(|other| other.start() < heap.start());
        self.heaps.insert(at, heap);
        self.changes += 1;
        Some(())
    }

    /// Which heap a block is in.
    fn heap_of(&self, block: NonNull<u8>) -> Option<usize> {
        let after = self.heaps.partition_point(|heap| heap.start() <= block.addr().get());
        after.checked_sub(1)
    }

    /// Makes room behind the last block of a heap for it to grow from `old_size` to `new_size`, out of pages that
    /// follow; whether there is.
    fn extend(&mut self, block: NonNull<u8>, old_size: usize, new_size: usize) -> bool {
        let Some(heap) = self.heap_of(block).and_then(|at| self.heaps.get_mut(at)) else {
            return false;
        };
        // SAFETY: the end of one of talc's heaps.
        let used = unsafe { self.talc.reserved(heap.end) };
        let is_last = used.up_to.addr().get() - block.addr().get() < old_size.saturating_add(TAIL);
        let missing = new_size.saturating_add(OVERHEAD).saturating_sub(heap.end.addr().get() - block.addr().get());
        let pages = heap.chunk.arena().page_size().pages_for(missing);
        if !is_last || !pages.is_some_and(|pages| pages > 0 && heap.chunk.grow_in_place(pages)) {
            return false;
        }
        // SAFETY: the end of one of talc's heaps, and behind it pages that are ours alone.
        heap.end = unsafe { self.talc.extend(heap.end, heap.chunk.as_ptr().add(heap.chunk.len()).as_ptr()) };
        true
    }

    /// Gives pages at the end of the heap that `block` is in back to the arena when nothing is in them. One is kept, so
    /// that a block that comes and goes does not claim and release: but not where another heap is empty too.
    fn give_back(&mut self, block: NonNull<u8>) {
        let Some(at) = self.heap_of(block) else {
            return;
        };
        let used = self.used_pages(at);
        match used {
            0 if self.heaps[at].chunk.pages() > 1 || self.is_another_empty(at) => self.remove(at),
            _ => self.keep(at, used + 1),
        }
    }

    /// Gives back all pages at the ends of heaps that nothing is in.
    fn give_back_all(&mut self) {
        for at in (0..self.heaps.len()).rev() {
            match self.used_pages(at) {
                0 => self.remove(at),
                used => self.keep(at, used),
            }
        }
    }

    /// Pages up to the last one that has a part of a block.
    fn used_pages(&self, at: usize) -> usize {
        let heap = &self.heaps[at];
        // SAFETY: the end of one of talc's heaps.
        let used = unsafe { self.talc.reserved(heap.end) };
        let used_bytes = if used.any { used.up_to.addr().get() - heap.start() } else { 0 };
        used_bytes.div_ceil(heap.chunk.arena().page_size().bytes())
    }

    /// Gives back all pages of a heap in which nothing is.
    fn remove(&mut self, at: usize) {
        let heap = self.heaps.remove(at);
        // SAFETY: the end of one of talc's heaps, in which nothing is; it is forgotten before the chunk goes.
        let left = unsafe { self.talc.truncate(heap.end, ptr::null_mut()) };
        debug_assert!(left.is_none(), "an empty heap is deleted");
        self.changes += 1;
    }

    /// Gives back all pages of a heap but the first `keep`, in which all its blocks are.
    fn keep(&mut self, at: usize, keep: usize) {
        let heap = &mut self.heaps[at];
        if keep >= heap.chunk.pages() {
            return;
        }
        let page_bytes = heap.chunk.arena().page_size().bytes();
        // SAFETY: the end of one of talc's heaps; the new one is inside the chunk and above all that is in use.
        let left = unsafe { self.talc.truncate(heap.end, heap.chunk.as_ptr().add(keep * page_bytes).as_ptr()) };
        if let Some(end) = left {
            heap.end = end;
            heap.chunk.truncate(keep);
            self.changes += 1;
        }
    }

    fn is_another_empty(&self, than: usize) -> bool {
        // SAFETY: the ends of talc's heaps.
        let is_empty = |heap: &Heap| unsafe { !self.talc.reserved(heap.end).any };
        self.heaps.iter().enumerate().any(|(at, heap)| at != than && is_empty(heap))
    }
}
