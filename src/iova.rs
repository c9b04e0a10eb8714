//! What devices call a piece of memory: its I/O virtual addresses.
//!
//! A device behind an IOMMU is given addresses of the driver's choice, and the simplest choice is the addresses that
//! the process itself has ([`IovaMode::Virtual`]): one range for each chunk, no privileges. A device without an IOMMU
//! puts physical addresses on the bus ([`IovaMode::Physical`]), which differ from page to page and which only root may
//! know.
//!
//! # What keeps a physical address true
//!
//! Nothing that this crate does. hugetlb pages are neither swapped nor moved by compaction or NUMA balancing, which
//! is why physical addresses are given for them only. They *are* moved by migrate_pages(2), move_pages(2) and mbind(2)
//! with `MPOL_MF_MOVE`, by a cpuset with `memory_migrate`, when memory is taken offline or has errors, and when the
//! kernel makes room for a contiguous allocation: reserving pages of 1 GiB at run time moves pages of 2 MiB that are in
//! use. A page is pinned, and stays, while it is registered with a driver of the kernel: VFIO (with or without an
//! IOMMU), io_uring buffers, an AF_XDP UMEM, RDMA. Register first, ask for addresses afterwards; who drives a device
//! without registering (uio) has to keep the administrator from all of the above.
//!
//! # Sources
//!
//! Linux, `Documentation/admin-guide/mm/pagemap.rst`, `core-api/pin_user_pages.rst`; `mm/compaction.c`
//! (`isolate_migratepages_block`), `mm/hugetlb.c` (`isolate_or_dissolve_huge_folio`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Limit, LimitKind, Operation, Result};
use crate::page_size::PageSize;

const PAGEMAP: &str = "/proc/self/pagemap";

/// Which addresses a device uses for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IovaMode {
    /// Those of this process. For devices behind an IOMMU, whose driver has to map the same addresses
    /// (`VFIO_IOMMU_MAP_DMA` with `iova = vaddr`), and for the kernel itself.
    Virtual,
    /// Those on the memory bus. For devices without an IOMMU; needs `CAP_SYS_ADMIN`, and hugetlb pages that are shared.
    Physical,
}

/// Bytes of a chunk that follow each other for the device as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct IovaRange {
    /// Bytes from the start of the chunk.
    pub offset: usize,
    /// The device's address of the first byte.
    pub iova: u64,
    /// Bytes, whole pages.
    pub len: usize,
}

/// The device's addresses of all of a chunk, in as few ranges as they have: adjacent pages are one range.
///
/// Numbers only: they mean nothing once the chunk is gone, and see the [module](self) for what may change physical
/// ones.
///
/// # Examples
///
/// ```
/// use hugearena::iova::IovaMode;
/// use hugearena::{Arena, PageSize};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// let chunk = arena.claim(4).expect("256 pages are free");
/// let map = chunk.iova(IovaMode::Virtual)?;
/// assert_eq!(map.ranges().len(), 1);
/// assert_eq!(map.iova_of(100, 64), Some(chunk.as_ptr().addr().get() as u64 + 100));
///
/// match chunk.iova(IovaMode::Physical) {
///     Ok(map) => println!("{:x?}", map.ranges()),
///     Err(error) => println!("{error}"), // not root, or not on hugetlb pages
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IovaMap {
    /// Sorted by offset, without gaps from 0 on.
    ranges: Vec<IovaRange>,
}

impl IovaMap {
    /// The ranges, in the order of their offsets, from 0 to the end of the chunk without gaps.
    #[must_use]
    pub fn ranges(&self) -> &[IovaRange] {
        &self.ranges
    }

    /// The device's address of the `len` bytes at `offset` of the chunk; `None` when they are not all inside, or do
    /// not follow each other for the device, so that they need several descriptors.
    #[must_use]
    pub fn iova_of(&self, offset: usize, len: usize) -> Option<u64> {
        let after = self.ranges.partition_point(|range| range.offset <= offset);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        let inside = offset - range.offset;
        let fits = inside.checked_add(len).is_some_and(|end| end <= range.len) && inside < range.len;
        fits.then(|| range.iova + inside as u64)
    }

    /// One range for each run of pages whose addresses, in the order of the pages, follow each other.
    fn of_pages(page_bytes: usize, addresses: impl Iterator<Item = io::Result<u64>>) -> io::Result<IovaMap> {
        let mut ranges: Vec<IovaRange> = Vec::new();
        for (page, iova) in addresses.enumerate() {
            let iova = iova?;
            match ranges.last_mut() {
                Some(last) if last.iova.checked_add(last.len as u64) == Some(iova) => last.len += page_bytes,
                _ => ranges.push(IovaRange { offset: page * page_bytes, iova, len: page_bytes }),
            }
        }
        Ok(IovaMap { ranges })
    }
}

/// Mapped memory as this module sees it.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// Where it is, in whole pages.
    pub(crate) addresses: Range<usize>,
    /// The pages that it is on.
    pub(crate) page_size: PageSize,
    /// A write after fork(2) gives this process another page.
    pub(crate) copied_on_write: bool,
    /// Not in a child of fork(2) that has none of it, and may have something else at these addresses.
    pub(crate) is_here: bool,
}

impl Memory {
    /// The device's addresses, in the order of ours.
    ///
    /// # Errors
    ///
    /// [`Operation::Translate`]: the physical address is hidden from this process ([`LimitKind::Permission`]), or
    /// would not stay true.
    pub(crate) fn iova(&self, mode: IovaMode) -> Result<IovaMap> {
        match mode {
            IovaMode::Virtual => {
                let (iova, len) = (self.addresses.start as u64, self.addresses.len());
                Ok(IovaMap { ranges: vec![IovaRange { offset: 0, iova, len }] })
            }
            IovaMode::Physical => self.physical(),
        }
    }

    fn physical(&self) -> Result<IovaMap> {
        if !self.is_here {
            return Err(self.failed(": a child of fork(2) does not have them"));
        }
        if !self.page_size.is_huge() {
            return Err(self.failed(": base pages move; open the arena `strict`, or use IovaMode::Virtual"));
        }
        if self.copied_on_write {
            return Err(self.failed(": private pages are replaced after fork; use a memfd or hugetlbfs"));
        }
        let denied = |error: io::Error| {
            let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
            self.failed("").os(error).limited_by(is_denied.then(|| self.permission()))
        };
        let pagemap = File::open(PAGEMAP).map_err(denied)?;
        // One look a page, at its first base page: a hugetlb page is contiguous.
        let pages = self.addresses.clone().step_by(self.page_size.bytes());
        IovaMap::of_pages(self.page_size.bytes(), pages.map(|at| physical_address(&pagemap, at, self.page_size)))
            .map_err(denied)
    }

    fn failed(&self, problem: &str) -> Error {
        let pages = self.addresses.len() / self.page_size.bytes();
        Error::new(Operation::Translate, format!("{pages} pages of {} to physical ones{problem}", self.page_size))
    }

    fn permission(&self) -> Limit {
        Limit {
            kind: LimitKind::Permission,
            needed_bytes: self.addresses.len() as u64,
            available_bytes: 0,
            source: PAGEMAP.into(),
            remedy: "run as root or with CAP_SYS_ADMIN, or use IovaMode::Virtual with an IOMMU".into(),
        }
    }
}

fn physical_address(pagemap: &File, at: usize, size: PageSize) -> io::Result<u64> {
    let base_bytes = PageSize::base().bytes();
    let mut entry = [0; 8];
    let position = at / base_bytes * size_of_val(&entry);
    pagemap.read_exact_at(&mut entry, position as u64)?;
    let address = decode(u64::from_ne_bytes(entry))? * base_bytes as u64;
    if address.is_multiple_of(size.bytes() as u64) {
        return Ok(address);
    }
    Err(io::Error::other(format!("physical address {address:#x} is not that of a page of {size}")))
}

/// The number of the page that an entry of pagemap tells: never 0, which stands for "hidden".
fn decode(entry: u64) -> io::Result<u64> {
    const PRESENT: u64 = 1 << 63;
    const PAGE_NUMBER: u64 = (1 << 55) - 1;
    if entry & PRESENT == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "a page is not there, or is being moved right now"));
    }
    match entry & PAGE_NUMBER {
        0 => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the kernel hides physical addresses here")),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map_of(page_bytes: usize, addresses: &[u64]) -> IovaMap {
        IovaMap::of_pages(page_bytes, addresses.iter().map(|address| Ok(*address))).unwrap()
    }

    #[test]
    fn adjacent_pages_are_one_range() {
        let map = map_of(10, &[100, 110, 120, 50, 60, 40]);
        let range = |offset, iova, len| IovaRange { offset, iova, len };
        assert_eq!(map.ranges(), [range(0, 100, 30), range(30, 50, 20), range(50, 40, 10)]);
        assert_eq!(map.iova_of(0, 30), Some(100));
        assert_eq!(map.iova_of(29, 1), Some(129));
        assert_eq!(map.iova_of(29, 2), None, "not contiguous");
        assert_eq!(map.iova_of(59, 1), Some(49));
        assert_eq!(map.iova_of(60, 0), None, "one past the end");
        assert_eq!(map.iova_of(usize::MAX, 1), None);
        assert_eq!(map.iova_of(5, usize::MAX), None);
        assert_eq!(map_of(10, &[u64::MAX - 9, 0]).ranges().len(), 2, "addresses do not wrap");
    }

    #[test]
    fn hidden_and_missing_are_errors_and_never_zero() {
        assert_eq!(decode(0xa100_0000_001d_c200).unwrap(), 0x1d_c200);
        assert_eq!(decode(0xa100_0000_0000_0000).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(decode(0).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(decode(1 << 62 | 5).unwrap_err().kind(), io::ErrorKind::NotFound, "swapped or in migration");
    }

    #[test]
    fn what_would_not_stay_true_is_refused() {
        let base = PageSize::base();
        let memory = |page_size, copied_on_write| Memory {
            addresses: 0..page_size,
            page_size: base,
            copied_on_write,
            is_here: true,
        };
        let error = memory(base.bytes(), false).iova(IovaMode::Physical).unwrap_err();
        assert!(error.to_string().contains("base pages move"), "{error}");
        let private =
            Memory { addresses: 0..2 << 20, page_size: PageSize::HUGE_2M, copied_on_write: true, is_here: true };
        let error = private.iova(IovaMode::Physical).unwrap_err();
        assert!(error.to_string().contains("fork"), "{error}");
        assert_eq!(private.iova(IovaMode::Virtual).unwrap().iova_of(0, 2 << 20), Some(0));
    }

    proptest! {
        /// Against the page-by-page answer.
        #[test]
        fn ranges_agree_with_pages(pages in proptest::collection::vec(1u64..12, 1..40), at in 0usize..400, len in 1usize..40) {
            let addresses: Vec<u64> = pages.iter().map(|page| page * 10).collect();
            let map = map_of(10, &addresses);
            let of = |at: usize| addresses.get(at / 10).map(|address| address + at as u64 % 10);
            let bytes: Option<Vec<u64>> = (at..at + len).map(of).collect();
            let expected = bytes.filter(|all| all.windows(2).all(|pair| pair[0] + 1 == pair[1])).map(|all| all[0]);
            prop_assert_eq!(map.iova_of(at, len), expected);
            prop_assert_eq!(map.ranges().iter().map(|range| range.len).sum::<usize>(), pages.len() * 10);
        }
    }
}
