//! What the benches do with an allocator. Each workload checks what it wrote, so that a broken allocator cannot win.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

/// The stride of a touch: no kernel has smaller pages, so every page is reached.
const TOUCH_STRIDE: usize = 4096;

/// Blocks in a batch that is allocated before any of them is freed.
pub const BATCH: usize = 1000;

/// Enough words for `size` bytes, which must not be 0.
pub fn words(size: usize) -> Layout {
    Layout::array::<u64>(size.div_ceil(8)).expect("a benchmark's size fits a layout")
}

/// A block with `stamp` in its first word. The compiler must assume that somebody looked at it.
#[inline]
pub fn stamped(allocator: &impl GlobalAlloc, layout: Layout, stamp: u64) -> *mut u64 {
    // SAFETY: `words` and the callers never make an empty layout.
    let block = black_box(unsafe { allocator.alloc(layout) }.cast::<u64>());
    assert!(!block.is_null(), "out of memory: {layout:?}");
    // SAFETY: the block holds a word at least, and words are aligned in it.
    unsafe { block.write(stamp) };
    block
}

/// Frees a block from [`stamped`] and returns its stamp.
#[inline]
pub fn unstamped(allocator: &impl GlobalAlloc, layout: Layout, block: *mut u64) -> u64 {
    // SAFETY: the block came from `stamped` with this allocator and layout, and is not used again.
    unsafe {
        let stamp = black_box(block).read();
        allocator.dealloc(block.cast(), layout);
        stamp
    }
}

/// Allocates and frees one block of `size` bytes, `count` times.
pub fn churn_pairs(allocator: &impl GlobalAlloc, size: usize, count: u64) {
    let layout = words(size);
    let mut sum = 0;
    for stamp in 0..count {
        let block = stamped(allocator, layout, stamp);
        sum += unstamped(allocator, layout, block);
    }
    assert_eq!(sum, count * count.saturating_sub(1) / 2);
}

/// Allocates [`BATCH`] blocks of `size` bytes and frees them, last first, `rounds` times.
pub fn churn_batches(allocator: &impl GlobalAlloc, size: usize, rounds: u64) {
    let layout = words(size);
    let mut blocks = Vec::with_capacity(BATCH);
    for round in 0..rounds {
        blocks.extend((0..BATCH as u64).map(|number| stamped(allocator, layout, round + number)));
        let mut sum = 0;
        while let Some(block) = blocks.pop() {
            sum += unstamped(allocator, layout, block);
        }
        assert_eq!(sum, BATCH as u64 * round + (BATCH * (BATCH - 1) / 2) as u64);
    }
}

/// Allocates zeroed memory, touches every page, and frees it.
///
/// A touch writes first: reading first would cost libc malloc a second page fault. What it then reads is a word that
/// the touch before left dirty.
pub fn zeroed_and_touched(allocator: &impl GlobalAlloc, bytes: usize) {
    let layout = Layout::from_size_align(bytes, 64).expect("a benchmark's size fits a layout");
    // SAFETY: the layout is not empty.
    let block = black_box(unsafe { allocator.alloc_zeroed(layout) });
    assert!(!block.is_null(), "out of memory: {layout:?}");
    let mut seen = 0;
    assert!(bytes.is_multiple_of(TOUCH_STRIDE));
    for offset in (0..bytes).step_by(TOUCH_STRIDE) {
        // SAFETY: two words from `offset` on are inside the block, which is made of whole strides, and aligned.
        unsafe {
            let page = block.add(offset).cast::<u64>();
            page.write(!0);
            seen |= page.add(1).read();
            page.add(1).write(!0);
        }
    }
    assert_eq!(seen, 0, "memory that was to be zero was not");
    // SAFETY: allocated above with this layout, and not used again.
    unsafe { allocator.dealloc(block, layout) };
}

/// Grows a block from 4 KiB to `bytes` by doubling and fills each new part, as a `Vec` that is pushed to does.
pub fn growth(allocator: &impl GlobalAlloc, bytes: usize) {
    let mut layout = words(TOUCH_STRIDE);
    let mut block = stamped(allocator, layout, 0);
    let mut filled = 0;
    loop {
        let count = layout.size() / 8;
        // SAFETY: the block holds `count` words, and `filled` is not more.
        unsafe { fill(block, filled, count) };
        filled = count;
        if layout.size() >= bytes {
            break;
        }
        let larger = words(2 * layout.size());
        // SAFETY: the block came from this allocator with `layout`; the new size is not 0 and fits a layout.
        block = black_box(unsafe { allocator.realloc(block.cast(), layout, larger.size()) }.cast());
        assert!(!block.is_null(), "out of memory: {larger:?}");
        layout = larger;
    }
    // SAFETY: all `filled` words are initialised.
    let is_whole = (0..filled).step_by(TOUCH_STRIDE / 8).all(|at| unsafe { block.add(at).read() } == at as u64);
    assert!(is_whole, "contents were lost while growing");
    unstamped(allocator, layout, block);
}

/// Writes its own number into each word from `from` to `to`.
///
/// # Safety
///
/// `block` points to at least `to` words that may be written.
unsafe fn fill(block: *mut u64, from: usize, to: usize) {
    for at in from..to {
        // SAFETY: `at` is below `to`, so inside the block by the caller's promise.
        unsafe { block.add(at).write(at as u64) };
    }
}
