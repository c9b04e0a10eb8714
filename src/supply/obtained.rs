//! What page size a mapping really has, from `/proc/self/smaps`.
//!
//! `MADV_HUGEPAGE` succeeds whether or not a huge page follows, so this is the only answer to "did I get them".

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

use crate::page_size::PageSize;

/// The pages behind a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Obtained {
    /// The page size of the mapping: that of hugetlb, or the base page. The smallest one when the range spans
    /// several mappings.
    pub page_size: PageSize,
    /// Bytes of the range that are mapped by transparent huge pages, at least: the kernel counts by mapping, and a
    /// mapping of base pages may have been merged with a neighbour outside the range.
    pub transparent_bytes: u64,
}

/// Reads what is behind `len` bytes at address `at`; `None` unless all of it is mapped and smaps can be read.
pub(crate) fn obtained_page_size(at: usize, len: usize) -> Option<Obtained> {
    let range = at as u64..(at as u64).checked_add(len as u64)?;
    let lines = BufReader::new(File::open("/proc/self/smaps").ok()?).split(b'\n').map_while(Result::ok);
    obtained(lines.map(|line| String::from_utf8_lossy(&line).into_owned()), range)
}

/// One mapping of smaps, as far as it matters here.
struct Vma {
    addresses: Range<u64>,
    page_bytes: u64,
    transparent_bytes: u64,
}

impl Vma {
    /// `7f0000000000-7f0000200000 rw-p 00000000 00:00 0   [name]`
    fn parse_header(line: &str) -> Option<Vma> {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let addresses = address(start)?..address(end)?;
        (!addresses.is_empty()).then_some(Vma { addresses, page_bytes: 0, transparent_bytes: 0 })
    }

    /// `KernelPageSize:     2048 kB`
    fn add_field(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(':') else { return };
        let bytes = || value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024);
        match key {
            "KernelPageSize" => self.page_bytes = bytes().unwrap_or(0),
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => {
                self.transparent_bytes = self.transparent_bytes.saturating_add(bytes().unwrap_or(0));
            }
            _ => {}
        }
    }
}

fn obtained(lines: impl IntoIterator<Item = impl AsRef<str>>, range: Range<u64>) -> Option<Obtained> {
    let mut inside: Vec<Vma> = Vec::new();
    let mut current = None;
    for line in lines {
        match (Vma::parse_header(line.as_ref()), &mut current) {
            // Mappings come in the order of their addresses: reading on costs a walk of page tables each.
            (Some(vma), _) if vma.addresses.start >= range.end => break,
            (Some(vma), _) => inside.extend(current.replace(vma)),
            (None, Some(vma)) => vma.add_field(line.as_ref()),
            (None, None) => {}
        }
    }
    inside.extend(current);
    summarise(&inside, &range)
}

fn summarise(vmas: &[Vma], range: &Range<u64>) -> Option<Obtained> {
    let mut covered = 0u64;
    let mut transparent_bytes = 0u64;
    let mut page_size: Option<PageSize> = None;
    for vma in vmas {
        let start = vma.addresses.start.max(range.start);
        let end = vma.addresses.end.min(range.end);
        let Some(overlap) = end.checked_sub(start).filter(|&overlap| overlap > 0) else { continue };
        let outside = vma.addresses.end - vma.addresses.start - overlap;
        let size = PageSize::from_bytes(vma.page_bytes)?;
        covered = covered.saturating_add(overlap);
        let surely_inside = vma.transparent_bytes.saturating_sub(outside);
        transparent_bytes = transparent_bytes.saturating_add(surely_inside.min(overlap));
        page_size = page_size.map_or(Some(size), |least| Some(least.min(size)));
    }
    let all = range.end.checked_sub(range.start) == Some(covered);
    page_size.filter(|_| all).map(|page_size| Obtained { page_size, transparent_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn vma(start: u64, end: u64, page_kib: u64, transparent_kib: [u64; 3]) -> String {
        let [anonymous, shared, file] = transparent_kib;
        format!(
            "{start:x}-{end:x} rw-s 00000000 00:0f 1037   /memfd:a: 1-2 (deleted)\nSize: {} kB\n\
             KernelPageSize: {page_kib:8} kB\nMMUPageSize: {page_kib:8} kB\nAnonHugePages: {anonymous:8} kB\n\
             ShmemPmdMapped: {shared:8} kB\nFilePmdMapped: {file:8} kB\nVmFlags: rd wr mr mw me ac \n",
            (end - start) / 1024
        )
    }

    fn of(text: &str, range: Range<u64>) -> Option<(PageSize, u64)> {
        obtained(text.lines(), range).map(|got| (got.page_size, got.transparent_bytes))
    }

    #[test]
    fn hugetlb_shows_its_page_size_and_thp_its_bytes() {
        let base = PageSize::from_bytes(4096).unwrap();
        let text = vma(0x1000, 0x3000, 4, [0; 3])
            + &vma(2 * MIB, 8 * MIB, 2048, [0; 3])
            + &vma(8 * MIB, 16 * MIB, 4, [2048, 4096, 0])
            + &vma(32 * MIB, 34 * MIB, 4, [0, 0, 2048]);
        assert_eq!(of(&text, 2 * MIB..8 * MIB), Some((PageSize::HUGE_2M, 0)));
        assert_eq!(of(&text, 4 * MIB..6 * MIB), Some((PageSize::HUGE_2M, 0)));
        assert_eq!(of(&text, 8 * MIB..16 * MIB), Some((base, 6 * MIB)));
        assert_eq!(of(&text, 6 * MIB..16 * MIB), Some((base, 6 * MIB)), "two mappings");
        assert_eq!(of(&text, 8 * MIB..12 * MIB), Some((base, 2 * MIB)), "4 of 6 MiB may lie outside");
        assert_eq!(of(&text, 32 * MIB..34 * MIB), Some((base, 2 * MIB)));
        assert_eq!(of(&text, 16 * MIB..34 * MIB), None, "a hole");
        assert_eq!(of(&text, 64 * MIB..66 * MIB), None);
        assert_eq!(of("", 0..1), None);
    }

    #[test]
    fn memory_of_this_process_is_found() {
        let page = PageSize::base().bytes();
        let memory = vec![1u8; 64 * page];
        let inside = (memory.as_ptr() as usize).next_multiple_of(page);
        let got = obtained_page_size(inside, 32 * page).unwrap();
        assert_eq!(got.page_size, PageSize::base());
        assert!(got.transparent_bytes <= 32 * page as u64);
        assert_eq!(obtained_page_size(usize::MAX, 2), None);
        assert_eq!(obtained_page_size(0, page), None, "the null page");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: String, words in "[-0-9a-f :kBPKernelSizg\n]{0,300}", range: Range<u64>) {
            of(&text, range.clone());
            of(&words, range);
        }

        #[test]
        fn a_covered_range_is_found_and_no_more_than_it_is_transparent(
            start in 1u64..1000, pages in 1u64..100, from in 0u64..100, len in 1u64..100, huge in 0u64..100,
        ) {
            let (first, last) = (start * 2 * MIB, (start + pages) * 2 * MIB);
            let text = vma(first, last, 4, [huge.min(pages) * 2048, 0, 0]);
            let range = first + from * 2 * MIB..first + (from + len) * 2 * MIB;
            let got = of(&text, range);
            prop_assert_eq!(got.is_some(), from + len <= pages);
            if let Some((_, transparent)) = got {
                prop_assert!(transparent <= len * 2 * MIB);
                prop_assert!(len < pages || transparent == huge.min(pages) * 2 * MIB);
            }
        }
    }
}
