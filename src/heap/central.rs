//! The central list of one class: a depot of loose blocks, and the spans that have free blocks.
//!
//! Thread caches meet here, a batch at a time. The depot makes the common meeting (one thread frees what
//! another allocates, or frees many blocks to allocate them again) a copy of pointers; only what overflows goes back
//! into its span's bitmap.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

use super::size_class::{CLASS, CLASSES, DEPOT_SLOTS};
use super::space::{NONE, Space};
use super::{Heap, span, thread};

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
    /// Blocks that the depot may hold beyond what it may by right: room on loan from the heap.
    borrowed: u32,
    /// Whether the depot has run dry since it last overflowed.
    ran_dry: bool,
    /// Whether a span all of whose blocks were free has come to the list since the last trim.
    has_whole: bool,
    depot_len: u32,
    depot: [*mut u8; DEPOT_SLOTS],
}

// The pointers are to blocks that nobody uses; the lock around a `Central` hands them from thread to thread.
#[expect(unsafe_code)]
// SAFETY: as above; nothing here is tied to a thread.
unsafe impl Send for Central {}

impl Central {
    pub(crate) const fn new() -> Central {
        Central {
            spans: NONE,
            is_used: false,
            borrowed: 0,
            ran_dry: false,
            has_whole: false,
            depot_len: 0,
            depot: [std::ptr::null_mut(); DEPOT_SLOTS],
        }
    }

    /// Moves free blocks into `out`, from the depot and then from spans, so that the last in `out` should be used first;
    /// returns how many.
    pub(crate) fn take(&mut self, space: &Space, class_index: usize, out: &mut [MaybeUninit<*mut u8>]) -> usize {
        self.is_used = true;
        let loose = out.len().min(self.depot_len as usize);
        let rest = self.depot_len as usize - loose;
        out[..loose].write_copy_of_slice(&self.depot[rest..rest + loose]);
        self.depot_len = rest as u32;
        let mut taken = loose;
        self.ran_dry |= loose < out.len();
        while taken < out.len() && self.spans != NONE {
            let start = self.spans;
            taken += span::take(space, start, &CLASS[class_index], &mut out[taken..]);
            if space.unit(start).free.load(Relaxed) == 0 {
                self.unlist(space, start);
            }
        }
        // Of blocks from spans, the lowest address.
        out[loose..taken].reverse();
        taken
    }

    /// Adds a span with free blocks.
    pub(crate) fn list(&mut self, space: &Space, class_index: usize, start: u32) {
        self.has_whole |= space.unit(start).free.load(Relaxed) == CLASS[class_index].capacity;
        space.push_front(&mut self.spans, start);
        space.unit(start).set_listed(true);
    }

    fn unlist(&mut self, space: &Space, start: u32) {
        space.remove(&mut self.spans, start);
        space.unit(start).set_listed(false);
    }

    /// Takes blocks that nobody uses: into the depot while it has room, then into their spans.
    pub(crate) fn give(&mut self, heap: &Heap, space: &Space, class_index: usize, blocks: &[*mut u8]) {
        let mut room = self.depot_room(class_index);
        if room < blocks.len() {
            self.widen(heap, class_index);
            room = self.depot_room(class_index);
        }
        let (loose, rest) = blocks.split_at(room.min(blocks.len()));
        let len = self.depot_len as usize;
        self.depot[len..len + loose.len()].copy_from_slice(loose);
        self.depot_len += loose.len() as u32;
        self.give_to_spans(heap, space, class_index, rest);
    }

    /// Blocks that the depot has room for.
    fn depot_room(&self, class_index: usize) -> usize {
        (CLASS[class_index].depot + self.borrowed - self.depot_len) as usize
    }

    /// Called when the depot overflows: doubles what it may hold if it also ran dry since the last time, and if the heap
    /// lends the room. Whoever frees many blocks and then allocates as many again, over and over, is served by copies of
    /// pointers; of what is freed once and for all, spans get the most.
    fn widen(&mut self, heap: &Heap, class_index: usize) {
        let class = &CLASS[class_index];
        let room = class.depot + self.borrowed;
        let wanted = room.min(class.depot_most - room);
        let ran_dry = std::mem::take(&mut self.ran_dry);
        if ran_dry && wanted > 0 && heap.lend_to_depot((wanted * class.size) as usize) {
            self.borrowed += wanted;
        }
    }

    /// As [`trim`](Self::trim), unless somebody has taken blocks since the last time; whether nobody has.
    pub(crate) fn scavenge(&mut self, heap: &Heap, space: &Space, class_index: usize) -> bool {
        let is_unused = !std::mem::take(&mut self.is_used);
        if is_unused {
            self.trim(heap, space, class_index);
        }
        is_unused
    }

    /// Gives back all that nobody uses: loose blocks to their spans, and spans to the runs.
    pub(crate) fn trim(&mut self, heap: &Heap, space: &Space, class_index: usize) {
        self.empty_depot(heap, space, class_index);
        let class = &CLASS[class_index];
        heap.return_from_depot((std::mem::take(&mut self.borrowed) * class.size) as usize);
        if !std::mem::take(&mut self.has_whole) {
            return;
        }
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
                self.list(space, class_index, start);
            }
            return;
        }
        if unit.is_listed() {
            self.unlist(space, start);
        }
        if self.spans == NONE && class.units <= KEPT_UNITS {
            self.list(space, class_index, start);
        } else {
            heap.runs.lock().insert(space, start, class.units);
        }
    }
}

impl Heap {
    /// Has the central list of `class` give back what nobody uses, unless somebody took blocks from it since the last
    /// time, or does now. Whether it has.
    pub(crate) fn scavenge(&self, class: usize) -> bool {
        let Some((space, mut central)) = self.space().zip(self.centrals[class].try_lock()) else {
            return false;
        };
        central.scavenge(self, space, class)
    }

    /// The same for all classes, before the heap grows: threads that are gone, or have come to large blocks, look after
    /// none.
    pub(crate) fn scavenge_all(&self) {
        for class in 0..CLASSES {
            self.scavenge(class);
        }
    }

    /// Makes free runs of what nobody uses: loose blocks of this thread's cache and of the depots, which keep whole spans,
    /// and spans that wait for their class. What other threads have in their caches stays there.
    pub(crate) fn gather(&self, space: &Space) {
        thread::flush();
        for (class, central) in self.centrals.iter().enumerate() {
            central.lock().trim(self, space, class);
        }
    }

    /// As [`gather`](Self::gather), before somebody gets null; whether free runs have more now.
    pub(crate) fn gather_more(&self) -> bool {
        let Some(space) = self.space() else {
            return false;
        };
        let before = self.runs.lock().free_units();
        self.gather(space);
        self.runs.lock().free_units() > before
    }
}

#[cfg(test)]
#[expect(unsafe_code)]
mod tests {
    use std::alloc::Layout;

    use super::super::size_class::{self, Class};
    use super::super::space::{Backing, CHUNK_UNITS};
    use super::*;

    /// Takes a thousand blocks and gives them back; returns how many the depot then holds.
    fn cycle(central: &mut Central, heap: &Heap, space: &Space, class: usize) -> u32 {
        let mut taken = [MaybeUninit::uninit(); 1000];
        let mut count = 0;
        while count < taken.len() {
            count += central.take(space, class, &mut taken[count..]);
            if central.spans == NONE {
                let start = heap.runs.lock().take(space, CLASS[class].units, 1).unwrap();
                span::create(space, start, class);
                central.list(space, class, start);
            }
        }
        // SAFETY: all of them are written.
        let blocks = taken.map(|block| unsafe { block.assume_init() });
        blocks.chunks(64).for_each(|batch| central.give(heap, space, class, batch));
        central.depot_len
    }

    #[test]
    fn depots_borrow_when_they_overflow_and_run_dry_in_turns() {
        static HEAP: Heap = Heap::new();
        let space = Space::with_range(64 << 20).unwrap();
        // SAFETY: nobody else has this space, and all of it is vacant.
        unsafe { space.commit(0, 1, Backing::Base).unwrap() };
        let class = size_class::of(Layout::from_size_align(1024, 8).unwrap());
        let Class { depot, depot_most, .. } = CLASS[class];
        HEAP.runs.lock().insert(&space, 0, CHUNK_UNITS);
        let mut central = HEAP.centrals[class].lock();
        // Once for each time that it ran dry, however much is given back.
        for doubled in 1..=(depot_most / depot).ilog2() {
            assert_eq!(cycle(&mut central, &HEAP, &space, class), (depot << doubled).min(1000));
        }
        let lent = || HEAP.loans.to_depots.load(Relaxed);
        assert_eq!(lent(), u64::from((depot_most - depot) * CLASS[class].size));
        central.trim(&HEAP, &space, class);
        assert_eq!((lent(), central.depot_len, central.borrowed), (0, 0, 0));
    }
}
