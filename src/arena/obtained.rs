//! What an arena got, which may be less than it asked for.

use std::fmt;

use crate::backing::{BackingKind, MemoryClass};
use crate::error::Error;
use crate::numa::{Located, Placement};
use crate::page_size::PageSize;

/// A page size that was tried first and could not be had.
#[derive(Debug)]
#[non_exhaustive]
pub struct Declined {
    /// The size.
    pub page_size: PageSize,
    /// Why not: the call, the limit, the remedy.
    pub error: Error,
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not on {} pages: {}", self.page_size, self.error)
    }
}

/// What an arena got, which may be less than it asked for.
///
/// `Display` is one line for what was obtained and one for each page size that was not.
#[derive(Debug)]
#[non_exhaustive]
pub struct Obtained {
    /// Where the pages come from.
    pub kind: BackingKind,
    /// The page size of the mapping.
    pub page_size: PageSize,
    /// Bytes that transparent huge pages hold, when base pages stand in for huge ones: counted by the kernel
    /// (`smaps`) after the arena was populated, not assumed.
    pub transparent_bytes: u64,
    /// Bytes in all.
    pub capacity_bytes: usize,
    /// Whether every page was made present.
    pub populated: bool,
    /// Whether nobody but this process can write to it, though others may read.
    pub read_only_peers: bool,
    /// Which NUMA nodes were asked for.
    pub placement: Placement,
    /// How many pages, of [`page_size`](Self::page_size), each node gave.
    pub nodes: Located,
    /// What was tried before and could not be had, best first.
    pub declined: Vec<Declined>,
}

impl Obtained {
    /// Whether smaller pages stand in for those asked for.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        !self.declined.is_empty()
    }

    /// Who can see the memory.
    #[must_use]
    pub fn memory_class(&self) -> MemoryClass {
        self.kind.memory_class()
    }

    /// Pages that are not on the node that was named; `None` when none was named, or when it is unknown.
    #[must_use]
    pub fn misplaced_pages(&self) -> Option<usize> {
        self.nodes.elsewhere_than(self.placement.node()?)
    }

    fn fmt_nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.nodes, self.placement) {
            // Nothing was asked and nothing found out.
            (Located::Unknown(_), Placement::Any) => Ok(()),
            (nodes, Placement::Any) => write!(f, ", {nodes}"),
            (nodes, placement) => write!(f, ", {nodes} ({placement})"),
        }
    }
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let populated = if self.populated { "populated" } else { "populated when claimed" };
        write!(f, "{} bytes on {} pages ({}), {populated}", self.capacity_bytes, self.page_size, self.kind)?;
        if self.transparent_bytes > 0 {
            write!(f, ", {} bytes on transparent huge pages", self.transparent_bytes)?;
        }
        self.fmt_nodes(f)?;
        for declined in &self.declined {
            write!(f, "\n  {declined}")?;
        }
        Ok(())
    }
}
