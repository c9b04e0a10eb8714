//! Blocks without their layout: usable sizes that are usable to the last byte, frees and reallocations by address.

#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;

use hugearena::HugeAlloc;
use support::is_filled;

static HEAP: HugeAlloc = HugeAlloc::new();

/// Sizes around every border: of 16 bytes, of classes, of units, of the largest class, of pages.
fn sizes() -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=1024).collect();
    for log2 in 10..=18 {
        for eighth in 8..16 {
            let border = eighth << (log2 - 3);
            sizes.extend([border - 1, border, border + 1]);
        }
    }
    for border in [256 << 10, 1 << 20, 2 << 20, 3 << 20, 16 << 20] {
        sizes.extend([border - 8192, border - 1, border, border + 1, border + 8193]);
    }
    sizes
}

/// Blocks that are used to the last usable byte, each filled with a value of its own.
#[derive(Default)]
struct Blocks {
    by_address: BTreeMap<usize, (usize, u8, Option<Layout>)>,
    next: u8,
}

impl Blocks {
    /// Takes in a block of at least `size` bytes, with its layout if it has one.
    fn add(&mut self, block: *mut u8, size: usize, layout: Option<Layout>) {
        assert!(!block.is_null(), "{size}");
        // SAFETY: a live block; every usable byte may be written.
        let usable = unsafe { HEAP.usable_size(block) };
        assert!(usable >= size, "{usable} of {size}");
        // An eighth, a unit behind a run, or what a long block that moved got: whole pages of 2 MiB.
        assert!(usable <= (size + size / 8 + 16).max((size + 8192).next_multiple_of(2 << 20)) || layout.is_none());
        let (start, end) = (block.addr(), block.addr() + usable);
        if let Some((below, (len, ..))) = self.by_address.range(..end).next_back() {
            assert!(below + len <= start, "{start:#x}+{usable:#x} overlaps {below:#x}+{len:#x}");
        }
        self.next = self.next.wrapping_add(1);
        // SAFETY: as above.
        unsafe { block.write_bytes(self.next, usable) };
        self.by_address.insert(start, (usable, self.next, layout));
    }

    /// Frees every other one by its layout, if it has one, the rest without.
    fn free(self) {
        for (turn, (address, (usable, fill, layout))) in self.by_address.into_iter().enumerate() {
            let block = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: a live block, freed once, with the layout it has, if with one.
            unsafe {
                assert!(is_filled(std::slice::from_raw_parts(block, usable), fill));
                assert_eq!(HEAP.usable_size(block), usable);
                match layout {
                    Some(layout) if turn % 2 == 0 => HEAP.dealloc(block, layout),
                    _ => assert!(HEAP.dealloc_unsized(block)),
                }
            }
        }
    }
}

fn alloc(layout: Layout) -> *mut u8 {
    // SAFETY: no size of this test is 0.
    let block = unsafe { HEAP.alloc(layout) };
    block.expose_provenance();
    block
}

#[test]
fn every_usable_byte_is_usable() {
    for log2 in [0, 3, 4, 6, 10, 12, 13, 14, 16, 21] {
        let mut blocks = Blocks::default();
        let reached = if log2 > 16 { 64 } else { usize::MAX };
        for size in sizes().into_iter().take(reached) {
            let layout = Layout::from_size_align(size, 1 << log2).unwrap();
            let block = alloc(layout);
            assert!(block.addr().is_multiple_of(1 << log2));
            blocks.add(block, size, None);
        }
        blocks.free();
    }
}

#[test]
fn a_block_may_be_freed_either_way() {
    for _ in 0..3 {
        let mut blocks = Blocks::default();
        for size in sizes() {
            let layout = Layout::from_size_align(size, 16).unwrap();
            blocks.add(alloc(layout), size, Some(layout));
        }
        blocks.free();
    }
}

#[test]
fn resized_by_layout_then_without() {
    let mut blocks = Blocks::default();
    let sizes = sizes();
    for (index, &size) in sizes.iter().enumerate() {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let new_size = sizes[(index * 37 + 11) % sizes.len()];
        // SAFETY: the old pointers are not used after each call; the first resize gives the layout that it has.
        unsafe {
            let block = HEAP.alloc(layout);
            assert!(!block.is_null());
            block.write_bytes(7, size);
            let block = HEAP.realloc(block, layout, new_size);
            assert!(!block.is_null());
            let kept = size.min(new_size);
            assert!(is_filled(std::slice::from_raw_parts(block, kept), 7), "{size} to {new_size}");
            let usable = HEAP.usable_size(block);
            block.write_bytes(9, usable);
            let last = sizes[(index * 101 + 3) % sizes.len()];
            let block = HEAP.realloc_unsized(block, 16, last);
            block.expose_provenance();
            assert!(is_filled(std::slice::from_raw_parts(block, usable.min(last)), 9), "{new_size} to {last}");
            assert!(block.addr().is_multiple_of(16));
            blocks.add(block, last, None);
        }
    }
    blocks.free();
}

#[test]
fn growing_step_by_step_keeps_what_is_there() {
    let mut block = alloc(Layout::from_size_align(1, 16).unwrap());
    let mut size = 1usize;
    while size < 100 << 20 {
        // SAFETY: a live block; the old pointer is not used after the resize.
        unsafe {
            block.add(size - 1).write(size as u8);
            let larger = size + 1 + size / 16;
            block = HEAP.realloc_unsized(block, 16, larger);
            assert!(!block.is_null());
            assert_eq!(block.add(size - 1).read(), size as u8, "{size}");
            assert!(HEAP.usable_size(block) >= larger);
            // The room that a long block keeps behind it is not usable before it is asked for.
            block.add(HEAP.usable_size(block) - 1).write(1);
            size = larger;
        }
    }
    // SAFETY: a live block that shrinks, and is freed once.
    unsafe {
        while size > 1 {
            size /= 3;
            block = HEAP.realloc_unsized(block, 16, size);
            let usable = HEAP.usable_size(block);
            assert!(usable >= size && usable <= (2 * size.max(8)).next_multiple_of(8192), "{usable} of {size}");
        }
        HEAP.dealloc_unsized(block);
    }
}

#[test]
fn others_addresses_are_left_alone() {
    let here = 5u64;
    for other in [std::ptr::null_mut(), (&raw const here).cast_mut().cast::<u8>(), std::ptr::without_provenance_mut(16)]
    {
        // SAFETY: not from this heap, which is what is tested.
        unsafe {
            assert_eq!(HEAP.usable_size(other), 0);
            assert!(!HEAP.dealloc_unsized(other));
            assert!(HEAP.realloc_unsized(other, 16, 100).is_null());
        }
    }
    assert_eq!(here, 5);
}

#[test]
fn what_cannot_be_had_changes_nothing() {
    let layout = Layout::from_size_align(1000, 16).unwrap();
    let block = alloc(layout);
    // SAFETY: a live block, freed once.
    unsafe {
        block.write_bytes(3, 1000);
        for (size, align) in [(isize::MAX as usize - 16, 16), (usize::MAX, 16), (1, 3), (1 << 60, 1 << 40)] {
            assert!(HEAP.realloc_unsized(block, align, size).is_null(), "{size} {align}");
        }
        assert!(is_filled(std::slice::from_raw_parts(block, 1000), 3));
        assert!(HEAP.dealloc_unsized(block));
    }
}

#[test]
fn threads_free_by_address_what_others_allocate() {
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<usize>>();
    let freeing = std::thread::spawn(move || {
        for batch in receiver {
            for address in batch {
                // SAFETY: each block is sent once, and filled with its size's low byte.
                unsafe {
                    let block = std::ptr::with_exposed_provenance_mut::<u8>(address);
                    let first = block.read();
                    assert!(is_filled(std::slice::from_raw_parts(block, HEAP.usable_size(block)), first));
                    assert!(HEAP.dealloc_unsized(block));
                }
            }
        }
    });
    for round in 0..200 {
        let blocks = (0..100).map(|index| {
            let size = 1 + (round * 131 + index * 977) % 300_000 / (1 + index % 7 * 40);
            let block = alloc(Layout::from_size_align(size, 16).unwrap());
            // SAFETY: a live block.
            unsafe { block.write_bytes(size as u8, HEAP.usable_size(block)) };
            block.addr()
        });
        sender.send(blocks.collect()).unwrap();
    }
    drop(sender);
    freeing.join().unwrap();
}
