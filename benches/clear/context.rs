//! What the parts of the bench share: how much to measure, and where results go.

use std::fs;

use crate::table::Table;
use crate::verdicts::Verdicts;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Under three minutes.
    Quick,
    /// About five.
    Usual,
    /// Every cell.
    Full,
}

pub struct Context {
    pub extent: Extent,
    pub table: Table,
    pub verdicts: Verdicts,
    pub gaps: crate::gaps::Gaps,
}

impl Context {
    pub fn new(extent: Extent) -> Context {
        Context { extent, table: Table::default(), verdicts: Verdicts::default(), gaps: crate::gaps::Gaps::default() }
    }

    /// Fewer rounds when time is short.
    pub fn rounds(&self, usual: usize) -> usize {
        if self.extent == Extent::Quick { usual.div_ceil(2) } else { usual }
    }

    /// Free pages of 1 GiB.
    pub fn gigantic_pages(&self) -> usize {
        let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages");
        free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}
