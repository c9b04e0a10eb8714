//! Where the objects of a pool are: number to offset and back.

use crate::error::{Error, Operation, Result};

/// What one line of the cache holds, on the CPUs that this crate runs on.
pub(super) const LINE: usize = 64;

/// Division by a number that is known late, without a division: one multiplication, whose upper half is the quotient.
/// Exact for 32 bits.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    divisor: u32,
    /// 2^64 / divisor, rounded up; 0 stands for 2^64.
    reciprocal: u64,
}

impl Divisor {
    fn new(divisor: u32) -> Divisor {
        Divisor { divisor, reciprocal: (u64::MAX / u64::from(divisor)).wrapping_add(1) }
    }

    /// Quotient and remainder.
    #[inline]
    fn divide(self, number: u32) -> (u32, u32) {
        if self.reciprocal == 0 {
            return (number, 0);
        }
        let quotient = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u32;
        (quotient, number - quotient * self.divisor)
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of an object, headroom included.
    pub bytes: usize,
    pub align: usize,
    pub count: usize,
    /// Objects do not cross multiples of this.
    pub within: Option<usize>,
    /// Objects start in different sets of the cache, and in different memory channels.
    pub spread: bool,
}

/// Blocks of equal length, which no object crosses, and in each the same number of objects at a stride. One block is the
/// whole pool when objects may cross pages.
///
/// ```text
/// |colour|object 0 |pad|object 1 |pad|   rest   |colour  |object 2 |pad|...
/// |<---------------- block ------------------->|
/// ```
///
/// All offsets count in units of the alignment, so that 32 bits reach far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    count: u32,
    unit_bytes_log: u32,
    object_bytes: usize,
    stride: Divisor,
    per_block: Divisor,
    block_units: Divisor,
    /// Blocks start with so many different numbers of free units, one after the other, so that the first objects of
    /// pages do not all meet in one set.
    colours: Divisor,
    total_bytes: usize,
}

impl Geometry {
    pub(super) fn new(shape: Shape) -> Result<Geometry> {
        check(&shape).map_err(|problem| Error::new(Operation::Configure, problem))?;
        let unit = shape.align;
        let stride = stride(&shape);
        let per_block = shape.within.map_or(shape.count, |block| block / stride);
        let block_bytes = shape.within.unwrap_or(stride * per_block);
        let colours = if shape.spread { (block_bytes - per_block * stride) / unit + 1 } else { 1 };
        let total_bytes = shape.count.div_ceil(per_block).checked_mul(block_bytes).filter(|total| *total >> 63 == 0);
        let too_large = || Error::new(Operation::Configure, format!("a pool of {} objects: too large", shape.count));
        let total_bytes = total_bytes.ok_or_else(too_large)?;
        let units = |bytes: usize| u32::try_from(bytes / unit).map(Divisor::new).map_err(|_| too_large());
        u32::try_from(total_bytes / unit).map_err(|_| too_large())?;
        Ok(Geometry {
            count: u32::try_from(shape.count).map_err(|_| too_large())?,
            unit_bytes_log: unit.trailing_zeros(),
            object_bytes: shape.bytes,
            stride: units(stride)?,
            per_block: Divisor::new(u32::try_from(per_block.min(shape.count)).map_err(|_| too_large())?),
            block_units: units(block_bytes)?,
            colours: Divisor::new(u32::try_from(colours).map_err(|_| too_large())?),
            total_bytes,
        })
    }

    /// Bytes from the first block's start to the last one's end.
    pub(super) fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes from one object to the next of a block.
    pub(super) fn stride_bytes(&self) -> usize {
        (self.stride.divisor as usize) << self.unit_bytes_log
    }

    /// Where an object starts. The number is below the count.
    #[inline]
    pub(super) fn offset_of(&self, index: u32) -> usize {
        debug_assert!(index < self.count);
        let (block, slot) = self.per_block.divide(index);
        let (_, colour) = self.colours.divide(block);
        let units = block * self.block_units.divisor + colour + slot * self.stride.divisor;
        (units as usize) << self.unit_bytes_log
    }

    /// The object that has a byte at this offset, and which of its bytes that is.
    #[inline]
    pub(super) fn object_at(&self, offset: usize) -> Option<(u32, usize)> {
        if offset >= self.total_bytes {
            return None;
        }
        let units = (offset >> self.unit_bytes_log) as u32;
        let (block, within) = self.block_units.divide(units);
        let (_, colour) = self.colours.divide(block);
        let (slot, units_inside) = self.stride.divide(within.checked_sub(colour)?);
        let inside = ((units_inside as usize) << self.unit_bytes_log) | (offset & ((1 << self.unit_bytes_log) - 1));
        let index = block * self.per_block.divisor + slot;
        let exists = slot < self.per_block.divisor && index < self.count && inside < self.object_bytes;
        exists.then_some((index, inside))
    }
}

fn check(shape: &Shape) -> std::result::Result<(), String> {
    let Shape { bytes, align, count, within, .. } = *shape;
    if bytes == 0 || count == 0 {
        return Err("a pool: wanted an object size and a count from 1 up".into());
    }
    if !align.is_power_of_two() {
        return Err(format!("a pool of objects aligned to {align}: wanted a power of two"));
    }
    let longest_stride = bytes.checked_next_multiple_of(align).and_then(|tight| tight.checked_add(2 * LINE));
    if longest_stride.and_then(|stride| stride.checked_mul(count)).is_none() {
        return Err(format!("a pool of {count} objects of {bytes} bytes: more bytes than addresses"));
    }
    match within {
        Some(block) if !block.is_power_of_two() || block < bytes || block < align => Err(format!(
            "a pool of objects of {bytes} bytes, aligned to {align}, none of which crosses a page of {block}"
        )),
        _ => Ok(()),
    }
}

/// Bytes from object to object. An odd number of lines takes every set and every channel in turn; it is not had at the
/// price of an object per page, and not where the alignment is coarser.
fn stride(shape: &Shape) -> usize {
    let tight = shape.bytes.next_multiple_of(shape.align);
    if !shape.spread || shape.align > LINE || tight <= LINE {
        return tight;
    }
    let lines = tight.div_ceil(LINE) | 1;
    let odd = lines * LINE;
    match shape.within {
        Some(block) if block / odd < block / tight => tight,
        _ => odd,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn divisors_divide(divisor in 1..=u32::MAX, number: u32) {
            prop_assert_eq!(Divisor::new(divisor).divide(number), (number / divisor, number % divisor));
            prop_assert_eq!(Divisor::new(divisor % 100 + 1).divide(number), (number / (divisor % 100 + 1), number % (divisor % 100 + 1)));
        }

        #[test]
        fn objects_do_not_overlap_and_are_found(
            bytes in 1..5000_usize, align_log in 3..13_u32, count in 1..300_usize, page_log in prop::option::of(12..22_u32), spread: bool,
        ) {
            let (align, within) = (1 << align_log, page_log.map(|log| 1 << log));
            let shape = Shape { bytes, align, count, within, spread };
            let Ok(geometry) = Geometry::new(shape) else {
                prop_assert!(within.is_some_and(|page| page < bytes || page < align));
                return Ok(());
            };
            let mut end = 0;
            for index in 0..count as u32 {
                let at = geometry.offset_of(index);
                prop_assert!(at >= end && at % align == 0);
                end = at + bytes;
                prop_assert!(end <= geometry.total_bytes());
                if let Some(page) = within {
                    prop_assert_eq!(at / page, (end - 1) / page);
                }
                prop_assert_eq!(geometry.object_at(at), Some((index, 0)));
                prop_assert_eq!(geometry.object_at(end - 1), Some((index, bytes - 1)));
                prop_assert!(geometry.object_at(end).is_none_or(|(next, inside)| (next, inside) == (index + 1, 0)));
            }
            for beyond in [geometry.total_bytes(), geometry.total_bytes() + 1, usize::MAX] {
                prop_assert_eq!(geometry.object_at(beyond), None);
            }
        }
    }

    fn first_lines(shape: Shape) -> std::collections::BTreeSet<usize> {
        let geometry = Geometry::new(shape).unwrap();
        // 64 sets of a line each: what a level-1 cache of 32 KiB and 8 ways has.
        (0..geometry.count()).map(|index| geometry.offset_of(index) / LINE % 64).collect()
    }

    #[test]
    fn headers_are_in_different_sets() {
        for bytes in [2048, 2176, 1024, 4096] {
            let shape = Shape { bytes, align: LINE, count: 64, within: None, spread: true };
            assert_eq!(first_lines(shape).len(), 64, "{bytes}");
            assert!(first_lines(Shape { spread: false, ..shape }).len() <= 32, "{bytes}");
        }
        // One object a page, with room to move it about.
        let shape = Shape { bytes: 3000, align: LINE, count: 64, within: Some(4096), spread: true };
        assert!(first_lines(shape).len() > 16);
        // Two a page, exactly: no room, and nothing is wasted for it.
        let shape = Shape { bytes: 2048, align: LINE, count: 64, within: Some(4096), spread: true };
        assert_eq!(Geometry::new(shape).unwrap().total_bytes(), 64 * 2048);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let shape = Shape { bytes: 64, align: 64, count: 1, within: None, spread: true };
        assert!(Geometry::new(shape).is_ok());
        for shape in [
            Shape { bytes: 0, ..shape },
            Shape { count: 0, ..shape },
            Shape { align: 0, ..shape },
            Shape { align: 48, ..shape },
            Shape { within: Some(32), ..shape },
            Shape { within: Some(96), ..shape },
            Shape { count: usize::MAX, ..shape },
            Shape { bytes: usize::MAX, ..shape },
            // Whose stride would go round, and the object be longer than its pool.
            Shape { bytes: usize::MAX, align: 1, ..shape },
            Shape { bytes: usize::MAX - 31, align: 32, ..shape },
            Shape { bytes: usize::MAX - 63, ..shape },
            Shape { count: 1 << 33, ..shape },
            Shape { bytes: 1 << 50, count: 2, ..shape },
        ] {
            assert_eq!(Geometry::new(shape).unwrap_err().operation(), Operation::Configure, "{shape:?}");
        }
    }
}
