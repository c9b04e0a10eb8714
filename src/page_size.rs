//! Kernel page sizes, and the arithmetic that keeps every length whole.
//!
//! `munmap` of a part of a huge page fails with `EINVAL` and leaks the page, so no length in this crate is
//! rounded at the call: it is a number of pages of some [`PageSize`] from the start.

use std::fmt;
use std::str::FromStr;

/// The size of one kernel page: a power of two between 4 KiB and 16 GiB.
///
/// Which sizes a machine has is discovered (see [`supply`](crate::supply)), not assumed; the constants name
/// the ones that x86-64 and AArch64 with 4 KiB base pages share.
///
/// # Examples
///
/// ```
/// use hugearena::PageSize;
///
/// assert_eq!(PageSize::HUGE_2M.bytes(), 2 << 20);
/// assert_eq!(PageSize::HUGE_2M.pages_for(5000), Some(1));
/// assert_eq!("1G".parse(), Ok(PageSize::HUGE_1G));
/// assert_eq!(PageSize::HUGE_2M.to_string(), "2M");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    log2: u8,
}

impl PageSize {
    /// 2 MiB, the huge page of x86-64 and of AArch64 with 4 KiB base pages.
    pub const HUGE_2M: PageSize = PageSize { log2: 21 };
    /// 1 GiB, the gigantic page of the same machines.
    pub const HUGE_1G: PageSize = PageSize { log2: 30 };

    /// 4 KiB, the smallest there is.
    pub(crate) const SMALLEST: PageSize = PageSize { log2: Self::LOG2_MIN };

    const LOG2_MIN: u8 = 12;
    const LOG2_MAX: u8 = 34;

    /// The page size of `bytes`, or `None` unless it is a power of two from 4 KiB to 16 GiB.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<PageSize> {
        if !bytes.is_power_of_two() {
            return None;
        }
        let log2 = bytes.trailing_zeros() as u8;
        if log2 < Self::LOG2_MIN || log2 > Self::LOG2_MAX { None } else { Some(PageSize { log2 }) }
    }

    /// Bytes in one page.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.log2
    }

    /// log2 of [`bytes`](Self::bytes): what `MAP_HUGETLB` and `MFD_HUGETLB` encode in their flags.
    #[must_use]
    pub const fn log2(self) -> u32 {
        self.log2 as u32
    }

    /// Whether this is larger than the base page, so that hugetlb has to provide it.
    #[must_use]
    pub fn is_huge(self) -> bool {
        self > PageSize::base()
    }

    /// How many pages hold `bytes`, or `None` when those pages exceed `isize::MAX` bytes.
    #[must_use]
    pub const fn pages_for(self, bytes: usize) -> Option<usize> {
        let pages = bytes.div_ceil(self.bytes());
        if pages > (isize::MAX as usize) >> self.log2 { None } else { Some(pages) }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.log2 {
            0..20 => (1u64 << (self.log2 - 10), 'K'),
            20..30 => (1 << (self.log2 - 20), 'M'),
            _ => (1 << (self.log2 - 30), 'G'),
        };
        write!(f, "{number}{unit}")
    }
}

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not a page size; see [`PageSize::from_str`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsePageSizeError;

impl fmt::Display for ParsePageSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a page size: want a power of two from 4K to 16G, such as 2M or 1G")
    }
}

impl std::error::Error for ParsePageSizeError {}

impl FromStr for PageSize {
    type Err = ParsePageSizeError;

    /// Reads `4K`, `2M`, `1G` (any case, an optional `B` or `iB` behind) or a number of bytes.
    ///
    /// # Errors
    ///
    /// [`ParsePageSizeError`] for anything that is not a power of two from 4 KiB to 16 GiB.
    fn from_str(text: &str) -> Result<PageSize, ParsePageSizeError> {
        let text = text.trim().to_ascii_uppercase();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| ParsePageSizeError)?;
        let shift = match &text[digits..] {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            _ => return Err(ParsePageSizeError),
        };
        number.checked_mul(1 << shift).and_then(PageSize::from_bytes).ok_or(ParsePageSizeError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_for_every_size() {
        for log2 in PageSize::LOG2_MIN..=PageSize::LOG2_MAX {
            let size = PageSize { log2 };
            assert_eq!(size.to_string().parse(), Ok(size));
            assert_eq!(size.bytes().to_string().parse(), Ok(size));
            assert_eq!(PageSize::from_bytes(size.bytes() as u64), Some(size));
        }
    }

    #[test]
    fn odd_sizes_are_refused() {
        for bytes in [0, 1, 2048, 4097, 3 << 20, 1 << 35] {
            assert_eq!(PageSize::from_bytes(bytes), None, "{bytes}");
        }
        for text in ["", "M", "3M", "2X", "-2M", "18446744073709551615G", "2M2"] {
            assert_eq!(text.parse::<PageSize>(), Err(ParsePageSizeError), "{text}");
        }
    }

    #[test]
    fn page_counts_round_up_and_refuse_overflow() {
        let size = PageSize::HUGE_2M;
        for (bytes, pages) in [(0, 0), (1, 1), (2 << 20, 1), ((2 << 20) + 1, 2)] {
            assert_eq!(size.pages_for(bytes), Some(pages));
        }
        assert_eq!(size.pages_for(usize::MAX), None);
        assert_eq!(size.pages_for(isize::MAX as usize), None);
        assert_eq!(size.pages_for(isize::MAX as usize - size.bytes() + 1), Some((1 << 42) - 1));
    }
}
