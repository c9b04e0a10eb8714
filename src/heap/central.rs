//! The central list of one class: a depot of loose blocks, and the spans that have free blocks.
//!
//! Thread caches meet here, a batch at a time. The depot makes the common meeting (one thread frees what
//! another allocates) a copy of pointers; only what overflows goes back into its span's bitmap.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

use super::Heap;
use super::size_class::{CLASS, DEPOT_SLOTS};
use super::space::{NONE, Space};
use super::span;

/// A span all of whose blocks are free stays with its class if it is the only one and at most this long, so
/// that a program at the edge of a span does not make and unmake it with every block.
const KEPT_UNITS: u32 = 8;

/// The central list of a class.
#[derive(Debug)]
pub(crate) struct Central {
    /// First of the spans that have free blocks.
    spans: u32,
    /// Whether anybody has taken blocks since the last scavenging.
    is_used: bool,
    depot_len: u32,
    depot: [*mut u8; DEPOT_SLOTS],
}

// The pointers are to blocks that nobody uses; the lock around a `Central` hands them from thread to thread.
#[expect(unsafe_code)]
// SAFETY: as above; nothing here is tied to a thread.
unsafe impl Send for Central {}

impl Central {
    pub(crate) const fn new() -> Central {
        Central { spans: NONE, is_used: false, depot_len: 0, depot: [std::ptr::null_mut(); DEPOT_SLOTS] }
    }

    /// Moves free blocks into `out`, from the depot and then from spans; returns how many.
    pub(crate) fn take(&mut self, space: &Space, class_index: usize, out: &mut [MaybeUninit<*mut u8>]) -> usize {
        self.is_used = true;
        let loose = out.len().min(self.depot_len as usize);
        let rest = self.depot_len as usize - loose;
        out[..loose].write_copy_of_slice(&self.depot[rest..rest + loose]);
        self.depot_len = rest as u32;
        let mut taken = loose;
        while taken < out.len() && self.spans != NONE {
            let start = self.spans;
            taken += span::take(space, start, &CLASS[class_index], &mut out[taken..]);
            if space.unit(start).free.load(Relaxed) == 0 {
                self.unlist(space, start);
            }
        }
        taken
    }

    /// Adds a span with free blocks.
    pub(crate) fn list(&mut self, space: &Space, start: u32) {
        space.push_front(&mut self.spans, start);
        space.unit(start).set_listed(true);
    }

    fn unlist(&mut self, space: &Space, start: u32) {
        space.remove(&mut self.spans, start);
        space.unit(start).set_listed(false);
    }

    /// Takes blocks that nobody uses: into the depot while it has room, then into their spans.
    pub(crate) fn give(&mut self, heap: &Heap, space: &Space, class_index: usize, blocks: &[*mut u8]) {
        let room = (CLASS[class_index].depot - self.depot_len) as usize;
        let (loose, rest) = blocks.split_at(room.min(blocks.len()));
        let len = self.depot_len as usize;
        self.depot[len..len + loose.len()].copy_from_slice(loose);
        self.depot_len += loose.len() as u32;
        self.give_to_spans(heap, space, class_index, rest);
    }

    /// As [`trim`](Self::trim), unless somebody has taken blocks since the last time.
    pub(crate) fn scavenge(&mut self, heap: &Heap, space: &Space, class_index: usize) {
        if !std::mem::take(&mut self.is_used) {
            self.trim(heap, space, class_index);
        }
    }

    /// Gives back all that nobody uses: loose blocks to their spans, and spans to the runs.
    pub(crate) fn trim(&mut self, heap: &Heap, space: &Space, class_index: usize) {
        self.empty_depot(heap, space, class_index);
        let class = &CLASS[class_index];
        let mut start = self.spans;
        while start != NONE {
            let unit = space.unit(start);
            let next = unit.next.load(Relaxed);
            if unit.free.load(Relaxed) == class.capacity {
                self.unlist(space, start);
                heap.runs.lock().insert(space, start, class.units);
            }
            start = next;
        }
    }

    fn empty_depot(&mut self, heap: &Heap, space: &Space, class_index: usize) {
        while self.depot_len > 0 {
            let mut blocks = [std::ptr::null_mut(); 64];
            let count = blocks.len().min(self.depot_len as usize);
            let rest = self.depot_len as usize - count;
            blocks[..count].copy_from_slice(&self.depot[rest..rest + count]);
            self.depot_len = rest as u32;
            self.give_to_spans(heap, space, class_index, &blocks[..count]);
        }
    }

    /// Puts blocks back into their spans; a span that nobody uses any more goes back to the runs.
    pub(crate) fn give_to_spans(&mut self, heap: &Heap, space: &Space, class_index: usize, blocks: &[*mut u8]) {
        let class = &CLASS[class_index];
        let mut rest = blocks;
        while let Some(&block) = rest.first() {
            let start = span::holding(space, block, class_index);
            let given = span::give(space, start, class, rest);
            rest = &rest[given..];
            self.settle(heap, space, class_index, start);
        }
    }

    /// Puts a span that has got blocks back where it belongs now: on the list, or back to the runs.
    fn settle(&mut self, heap: &Heap, space: &Space, class_index: usize, start: u32) {
        let class = &CLASS[class_index];
        let unit = space.unit(start);
        if unit.free.load(Relaxed) < class.capacity {
            if !unit.is_listed() {
                self.list(space, start);
            }
            return;
        }
        if unit.is_listed() {
            self.unlist(space, start);
        }
        if self.spans == NONE && class.units <= KEPT_UNITS {
            self.list(space, start);
        } else {
            heap.runs.lock().insert(space, start, class.units);
        }
    }
}
