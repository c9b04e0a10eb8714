//! What the heap holds, for people.

use std::fmt;

use super::Heap;
use super::space::{Backing, CHUNK_BYTES, Space, UNIT_BYTES};
use crate::page_size::PageSize;
use crate::supply;

/// A snapshot of the heap. Figures are bytes unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Memory that the heap holds, used or free.
    pub mapped_bytes: u64,
    /// Of that, on 2 MiB pages from the pool: populated, never swapped or split.
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

impl fmt::Display for HeapStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = (1 << 20) as f64;
        let mib = |bytes: u64| bytes as f64 / MIB;
        writeln!(f, "heap: {:.1} MiB mapped, {:.1} MiB live", mib(self.mapped_bytes), mib(self.live_bytes))?;
        writeln!(
            f,
            "pages: {:.1} MiB on 2 MiB pages, {:.1} MiB where THP was asked for ({:.1} MiB obtained), {:.1} MiB on base \
             pages",
            mib(self.huge_2m_bytes),
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
    let growth = heap.growth.lock();
    let free_units = heap.runs.lock().free_units();
    let bytes = |backing| u64::from(growth.chunks_on(backing)) * CHUNK_BYTES as u64;
    let mut stats = HeapStats {
        mapped_bytes: u64::from(growth.committed()) * CHUNK_BYTES as u64,
        huge_2m_bytes: bytes(Backing::Huge),
        transparent_bytes: bytes(Backing::Transparent),
        base_bytes: bytes(Backing::Base),
        ..HeapStats::default()
    };
    let (fallbacks, errno) = growth.fallbacks();
    let top = growth.top();
    drop(growth);
    stats.live_bytes = stats.mapped_bytes - free_units * UNIT_BYTES as u64;
    stats.fallbacks = fallbacks;
    if stats.transparent_bytes > 0 {
        stats.transparent_obtained_bytes = heap.space().map_or(0, |space| transparent_bytes(space, top));
    }
    if fallbacks > 0 {
        let missing = stats.transparent_bytes + stats.base_bytes;
        let limit = errno.and_then(|errno| supply::diagnose(errno, PageSize::HUGE_2M, missing, None));
        stats.last_fallback = errno.map(|errno| match &limit {
            Some(limit) => format!("{errno}: {}", limit.kind),
            None => errno.to_string(),
        });
        stats.remedy = limit.map(|limit| limit.remedy);
    }
    stats
}

/// Bytes below chunk `top` that transparent huge pages hold.
fn transparent_bytes(space: &Space, top: u32) -> u64 {
    let obtained = supply::obtained::obtained_page_size(space.address(0).addr(), top as usize * CHUNK_BYTES);
    obtained.map_or(0, |obtained| obtained.transparent_bytes)
}
