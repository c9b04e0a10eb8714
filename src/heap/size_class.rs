//! Size classes: which blocks a span holds. Pure arithmetic, all of it known at compile time.
//!
//! Sizes go up in steps of 8 bytes to 128 and then in eight steps per doubling to [`SMALL_MAX`], so a block
//! wastes at most an eighth of itself. Rounding a size up to its alignment lands on a class whose size is a
//! multiple of that alignment, for every alignment up to a [unit](super::space::UNIT_BYTES).
//!
//! Blocks above [`ALIGNED_MAX`] are coloured: no two neighbours start at the same place of a page. What programs touch
//! most, the first line of each page and of each block, would otherwise share a few sets of every cache. They are
//! aligned to a cache line; what wants more is a run of its own.
//!
//! Source: Bonwick, "The Slab Allocator: An Object-Caching Kernel Memory Allocator", 1994, section 4.

use std::alloc::Layout;

use super::space::{UNIT_BYTES, UNIT_WORDS};

/// Classes in all.
pub(crate) const CLASSES: usize = 104;
/// The largest size that has a class: 256 KiB. Above it blocks are runs of units.
pub(crate) const SMALL_MAX: usize = 256 << 10;

/// The largest size whose blocks lie at every alignment that divides it. Longer ones lie at multiples of [`LINE`].
pub(crate) const ALIGNED_MAX: usize = 32 << 10;
/// Bytes in a cache line: a colour's step.
const LINE: usize = 64;
/// The least that coloured spans have to spare for their colour: of a page in which each line is as good as another.
const COLOUR_BYTES: usize = 4 << 10;
/// About as many bytes of coloured blocks as a span has: what one block that stays may keep from other classes.
const COLOURED_BYTES: usize = SMALL_MAX;

const FINE_MAX: usize = 128;
const FINE_CLASSES: usize = FINE_MAX / 8;

/// What the slow paths need to know about one class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    /// Bytes in a block.
    pub(crate) size: u32,
    /// Bytes from the start of a block to that of the next.
    pub(crate) stride: u32,
    /// Lines into the span at which its first block may start: below this.
    colours: u32,
    /// Units in a span.
    pub(crate) units: u32,
    /// Blocks in a span.
    pub(crate) capacity: u32,
    /// Where the bitmap lies in the span when blocks are too small for the unit entries to hold it: behind the
    /// blocks. 0 when the unit entries hold it.
    pub(crate) bitmap_offset: u32,
    /// `ceil(2^40 / stride)`: a block's index is `offset * reciprocal >> 40`, exact for every offset in a span.
    reciprocal: u64,
    /// Blocks moved between a thread cache and the central list at a time.
    pub(crate) batch: u32,
    /// Blocks that a thread cache may hold.
    pub(crate) slots: u32,
    /// Blocks that the central depot may hold outside their spans by right.
    pub(crate) depot: u32,
    /// Blocks that the depot may hold at most, with room on loan.
    pub(crate) depot_most: u32,
}

impl Class {
    /// Bytes into a span from unit `start` on at which its first block is to start: other places in other spans.
    pub(crate) fn colour(&self, start: u32) -> u32 {
        // Fibonacci hashing: what is equally far apart is spread evenly (Knuth, TAOCP 3, 6.4).
        let hash = u64::from(start.wrapping_mul(0x9e37_79b9));
        ((hash * u64::from(self.colours)) >> 32) as u32 * LINE as u32
    }

    /// Words in a span's bitmap.
    pub(crate) const fn words(&self) -> usize {
        self.capacity.div_ceil(64) as usize
    }

    /// Index of the block that starts `offset` bytes into its span; `None` where no block starts.
    #[inline]
    pub(crate) fn index_at(&self, offset: usize) -> Option<u32> {
        let quotient = offset as u64 * self.reciprocal;
        // What is behind the point is less than 2^19 at a block's start, and from the reciprocal up, at least 2^21,
        // elsewhere.
        (quotient % (1 << 40) < self.reciprocal).then_some((quotient >> 40) as u32)
    }
}

/// Every class by index.
pub(crate) static CLASS: [Class; CLASSES] = {
    let mut table = [describe(0); CLASSES];
    let mut index = 0;
    while index < CLASSES {
        table[index] = describe(index);
        index += 1;
    }
    table
};

/// Pointer slots in the largest depot: the length of every depot's array.
pub(crate) const DEPOT_SLOTS: usize = 1024;

/// Where each class's slots start in a thread cache, and behind the last, the slots of all classes.
pub(crate) static SLOT_START: [u32; CLASSES + 1] = {
    let mut starts = [0; CLASSES + 1];
    let mut index = 0;
    while index < CLASSES {
        starts[index + 1] = starts[index] + describe(index).slots;
        index += 1;
    }
    starts
};

/// Slots of all classes in a thread cache.
pub(crate) const SLOTS: usize = {
    let mut sum = 0;
    let mut index = 0;
    while index < CLASSES {
        sum += describe(index).slots as usize;
        index += 1;
    }
    sum
};

/// The class that serves `layout`, or `CLASSES` or more when none does.
///
/// Folds to a constant where the layout is one.
#[inline(always)]
pub(crate) const fn of(layout: Layout) -> usize {
    // Cannot overflow: a `Layout` rounded up to its alignment is at most `isize::MAX`.
    let size = (layout.size() + layout.align() - 1) & !(layout.align() - 1);
    if layout.align() > UNIT_BYTES || (layout.align() > LINE && size > ALIGNED_MAX) {
        return CLASSES;
    }
    of_size(size)
}

/// The class for `size` bytes, `CLASSES` above [`SMALL_MAX`]; size 0 is served as 1.
#[inline(always)]
const fn of_size(size: usize) -> usize {
    // The longest sizes are looked at behind the first test, so that short ones take one.
    if size > TABLE_MAX {
        return if size > SMALL_MAX { CLASSES } else { compute(size) };
    }
    TABLE[size.div_ceil(8)] as usize
}

/// Up to here the table has an entry for each 8 bytes.
const TABLE_MAX: usize = 32 << 10;

/// Classes by size: a look-up is faster than counting leading zeros where the compiler does not know the size. One step
/// for all sizes, although classes need it only to `FINE_MAX`: a second one would be a test that mispredicts.
static TABLE: [u8; TABLE_MAX / 8 + 1] = {
    let mut table = [0; TABLE_MAX / 8 + 1];
    let mut index = 0;
    while index < table.len() {
        table[index] = compute(index * 8) as u8;
        index += 1;
    }
    table
};

/// The class for `size` bytes by arithmetic.
const fn compute(size: usize) -> usize {
    let last = size.saturating_sub(1);
    if last < FINE_MAX {
        return last / 8;
    }
    let log2 = usize::BITS - 1 - last.leading_zeros();
    let step = (last >> (log2 - 3)) & 7;
    FINE_CLASSES + (log2 as usize - 7) * 8 + step
}

/// Bytes in a block of class `index`.
const fn size_of_class(index: usize) -> usize {
    if index < FINE_CLASSES {
        return (index + 1) * 8;
    }
    let coarse = index - FINE_CLASSES;
    (8 + coarse % 8 + 1) << (coarse / 8 + 4)
}

const fn describe(index: usize) -> Class {
    let size = size_of_class(index);
    let is_coloured = size > ALIGNED_MAX;
    let stride = if is_coloured { size + LINE } else { size };
    let units = if is_coloured { coloured_units(size) } else { span_units(size) };
    // Two at a time would mean a lock for each of the longest; what a cache holds of them is mostly on loan.
    let cached = if is_coloured { 512 << 10 } else { 128 << 10 };
    let slots = clamp(cached, size, 2, 160);
    let bytes = units * UNIT_BYTES;
    // A block below 32 bytes costs an eighth of a byte more for its bit.
    let in_span = size < UNIT_BYTES / (UNIT_WORDS * 64);
    let capacity = if is_coloured {
        COLOURED_BYTES / size
    } else if in_span {
        (bytes - 8) * 8 / (size * 8 + 1)
    } else {
        bytes / size
    };
    let bitmap_offset = if in_span { (bytes - capacity.div_ceil(64) * 8) / 8 * 8 } else { 0 };
    Class {
        size: size as u32,
        stride: stride as u32,
        colours: if is_coloured { (bytes - capacity * stride) / LINE + 1 } else { 1 } as u32,
        units: units as u32,
        capacity: capacity as u32,
        bitmap_offset: bitmap_offset as u32,
        reciprocal: (1u64 << 40).div_ceil(stride as u64),
        batch: clamp(cached / 2, size, 1, 64) as u32,
        slots: slots as u32,
        depot: clamp(if size > 1 << 10 { 32 << 10 } else { 64 << 10 }, size, 0, DEPOT_SLOTS) as u32,
        depot_most: clamp(1 << 20, size, 0, DEPOT_SLOTS) as u32,
    }
}

/// `bytes / size`, kept between `least` and `most`.
const fn clamp(bytes: usize, size: usize, least: usize, most: usize) -> usize {
    let count = bytes / size;
    if count < least {
        least
    } else if count > most {
        most
    } else {
        count
    }
}

/// Units in a span of coloured blocks.
const fn coloured_units(size: usize) -> usize {
    let blocks = COLOURED_BYTES / size * (size + LINE);
    (blocks + COLOUR_BYTES - LINE).div_ceil(UNIT_BYTES)
}

/// Units in a span: four for small blocks; enough for eight blocks with little left over up to [`ALIGNED_MAX`].
const fn span_units(size: usize) -> usize {
    let mut units = 4;
    while units < 32 {
        let bytes = units * UNIT_BYTES;
        if bytes / size >= 8 && (bytes % size) * 16 <= bytes {
            break;
        }
        units += 1;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for size in 1..=SMALL_MAX {
            let index = of_size(size);
            assert!(CLASS[index].size as usize >= size, "{size}");
            assert!(index == 0 || (CLASS[index - 1].size as usize) < size, "{size}");
        }
        assert_eq!(of_size(0), 0);
        assert_eq!(CLASS[CLASSES - 1].size as usize, SMALL_MAX);
    }

    #[test]
    fn waste_is_bounded() {
        for pair in CLASS.windows(2).skip(FINE_CLASSES) {
            assert!((pair[1].size - pair[0].size) * 8 <= pair[0].size, "{pair:?}");
        }
        for class in &CLASS {
            let left = class.units as usize * UNIT_BYTES - (class.capacity * class.size) as usize;
            let bytes = class.units as usize * UNIT_BYTES;
            assert!(left * 16 <= bytes, "{class:?}");
            let bitmap_end = class.bitmap_offset as usize + class.capacity.div_ceil(64) as usize * 8;
            assert!(class.bitmap_offset == 0 || class.bitmap_offset >= class.capacity * class.size, "{class:?}");
            assert!(class.bitmap_offset == 0 || bitmap_end <= bytes, "{class:?}");
            let entry_words = class.units as usize * UNIT_WORDS;
            assert!(class.bitmap_offset != 0 || class.capacity as usize <= entry_words * 64, "{class:?}");
            assert!(
                class.batch <= class.slots
                    && class.depot <= class.depot_most
                    && class.depot_most as usize <= DEPOT_SLOTS,
                "{class:?}"
            );
        }
    }

    #[test]
    fn block_indices_are_exact_for_every_offset() {
        for class in &CLASS {
            for offset in 0..(class.capacity * class.stride) as usize {
                let index = offset as u32 / class.stride;
                let expected = (index * class.stride == offset as u32).then_some(index);
                assert_eq!(class.index_at(offset), expected, "{class:?} at {offset}");
            }
        }
    }

    #[test]
    fn classes_keep_every_alignment() {
        for log2 in 0..=13 {
            let align = 1 << log2;
            for size in (1..4096).chain((4096..=SMALL_MAX).step_by(509)) {
                let index = of(Layout::from_size_align(size, align).unwrap());
                if index < CLASSES {
                    let class = &CLASS[index];
                    assert_eq!(class.stride as usize % align, 0, "{size} align {align}");
                    assert_eq!(class.colour(size as u32) as usize % align, 0, "{size} align {align}");
                }
            }
        }
    }

    #[test]
    fn colours_are_many_and_stay_in_the_span() {
        for class in CLASS.iter().filter(|class| class.size as usize > ALIGNED_MAX) {
            let colours: HashSet<u32> = (0..400).map(|span| class.colour(span * class.units)).collect();
            let end = colours.iter().max().unwrap() + class.capacity * class.stride;
            assert!(colours.len() * LINE * 8 >= COLOUR_BYTES * 7, "{class:?}: {}", colours.len());
            assert!(end as usize <= class.units as usize * UNIT_BYTES, "{class:?}");
        }
        assert!(CLASS.iter().all(|class| class.size as usize > ALIGNED_MAX || class.colour(1234) == 0));
    }

    proptest! {
        #[test]
        fn no_layout_overflows(size in 0..=isize::MAX as usize, log2 in 0u32..62) {
            if let Ok(layout) = Layout::from_size_align(size, 1 << log2) {
                let index = of(layout);
                prop_assert!(index >= CLASSES || CLASS[index].size as usize >= size);
            }
        }
    }
}
