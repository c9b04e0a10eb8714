//! What the heap holds, for people.

use std::fmt;

use super::Heap;
use super::commit::Refusal;
use super::space::{Backing, CHUNK_BYTES, Space, UNIT_BYTES};
use crate::page_size::PageSize;
use crate::supply;

/// A snapshot of the heap. Figures are bytes unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Memory that the heap holds, used or free.
    pub mapped_bytes: u64,
    /// Of that, on pages from the kernel's pools (populated, never swapped or split), by the sizes asked for in their
    /// order.
    pub hugetlb: Vec<HeldPages>,
    /// Of that, on pages of 2 MiB.
    pub huge_2m_bytes: u64,
    /// Of that, where transparent huge pages were asked for.
    pub transparent_bytes: u64,
    /// What transparent huge pages really hold of those, as `/proc/self/smaps` counts them; 0 where it cannot be read.
    pub transparent_obtained_bytes: u64,
    /// Of that, on base pages.
    pub base_bytes: u64,
    /// Handed out: to the program, to thread caches, or lying in spans that are partly used.
    pub live_bytes: u64,
    /// Steps of growth that did not get the best page size.
    pub fallbacks: u64,
    /// Why the last of them did not, as the system said it.
    pub last_fallback: Option<String>,
    /// The one command or sentence that would improve things, when something would.
    pub remedy: Option<String>,
}

/// What the heap holds on pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldPages {
    /// The size.
    pub page_size: PageSize,
    /// Bytes on such pages, used or free.
    pub bytes: u64,
    /// Steps of growth that asked for such pages, or would have, and did not get them.
    pub refused: u64,
}

impl HeapStats {
    /// Bytes on pages of `size` from the pool.
    #[must_use]
    pub fn bytes_on(&self, size: PageSize) -> u64 {
        self.hugetlb.iter().filter(|held| held.page_size == size).map(|held| held.bytes).sum()
    }
}

impl fmt::Display for HeapStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = (1 << 20) as f64;
        let mib = |bytes: u64| bytes as f64 / MIB;
        writeln!(f, "heap: {:.1} MiB mapped, {:.1} MiB live", mib(self.mapped_bytes), mib(self.live_bytes))?;
        write!(f, "pages: ")?;
        for held in &self.hugetlb {
            write!(f, "{:.1} MiB on {} pages, ", mib(held.bytes), held.page_size)?;
        }
        writeln!(
            f,
            "{:.1} MiB where THP was asked for ({:.1} MiB obtained), {:.1} MiB on base pages",
            mib(self.transparent_bytes),
            mib(self.transparent_obtained_bytes),
            mib(self.base_bytes)
        )?;
        write!(f, "fallbacks: {}", self.fallbacks)?;
        if let Some(reason) = &self.last_fallback {
            write!(f, " (last: {reason})")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "\nto improve: {remedy}")?;
        }
        Ok(())
    }
}

/// Reads the counters, and then, with no lock held, the supply.
pub(crate) fn read(heap: &Heap) -> HeapStats {
    // What allocates does so before, or after: whoever holds the lock must not.
    let sizes = heap.growth.lock().pages.options().page_sizes;
    let mut hugetlb = Vec::with_capacity(sizes.len());
    let growth = heap.growth.lock();
    let free_units = heap.runs.lock().free_units();
    let bytes = |backing| u64::from(growth.chunks_on(backing)) * CHUNK_BYTES as u64;
    for size in growth.pages.options().page_sizes.iter().take(hugetlb.capacity()) {
        let refused = growth.pages.refused(*size);
        hugetlb.push(HeldPages { page_size: *size, bytes: bytes(Backing::Hugetlb(*size)), refused });
    }
    let mut stats = HeapStats {
        mapped_bytes: u64::from(growth.committed()) * CHUNK_BYTES as u64,
        huge_2m_bytes: bytes(Backing::Hugetlb(PageSize::HUGE_2M)),
        transparent_bytes: bytes(Backing::Transparent),
        base_bytes: bytes(Backing::Base),
        hugetlb,
        ..HeapStats::default()
    };
    stats.fallbacks = growth.pages.fallbacks();
    let (refusal, top) = (growth.pages.last_refusal(), growth.top());
    drop(growth);
    stats.live_bytes = stats.mapped_bytes - free_units * UNIT_BYTES as u64;
    if stats.transparent_bytes > 0 {
        stats.transparent_obtained_bytes = heap.space().map_or(0, |space| transparent_bytes(space, top));
    }
    if let Some((size, refusal)) = refusal.filter(|_| stats.fallbacks > 0) {
        (stats.last_fallback, stats.remedy) = explain(&stats, size, refusal);
    }
    stats
}

/// Why pages of `size` were refused, and what would help.
fn explain(stats: &HeapStats, size: PageSize, refusal: Refusal) -> (Option<String>, Option<String>) {
    let errno = match refusal {
        Refusal::System(errno) => errno,
        Refusal::Spare => return (Some(format!("{size} pages: the free ones are spare (spare_pages)")), None),
        Refusal::Range => {
            let reason =
                format!("{size} pages: under RLIMIT_AS the heap's range of addresses does not start at such a page");
            return (Some(reason), Some("a higher RLIMIT_AS (ulimit -v)".into()));
        }
        Refusal::ForkUnsafe => {
            let reason = format!("{size} pages: children of fork(2) may lose them, and fork_unsafe was not asked for");
            return (Some(reason), Some("HugeAlloc::fork_unsafe(), if this program does not fork".into()));
        }
    };
    let missing = (stats.transparent_bytes + stats.base_bytes).max(size.bytes() as u64);
    let limit = supply::diagnose(errno, size, missing, None);
    let reason = match &limit {
        Some(limit) => format!("{size} pages: {errno}: {}", limit.kind),
        None => format!("{size} pages: {errno}"),
    };
    (Some(reason), limit.map(|limit| limit.remedy))
}

/// Bytes below chunk `top` that transparent huge pages hold.
fn transparent_bytes(space: &Space, top: u32) -> u64 {
    let obtained = supply::obtained::obtained_page_size(space.address(0).addr(), top as usize * CHUNK_BYTES);
    obtained.map_or(0, |obtained| obtained.transparent_bytes)
}
