//! Opening an arena: which pages, how many, from where, and what to fall back to.

use std::fmt;

use super::Arena;
use crate::backing::{Backing, BackingKind, MemoryClass};
use crate::error::{Error, Operation, Result};
use crate::mapping::{self, Mapping, Options};
use crate::page_size::PageSize;
use crate::supply;

/// When an arena's pages are made present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Populate {
    /// All of them while the arena is opened: `claim` never asks the system.
    #[default]
    Eager,
    /// Each when it is claimed for the first time. Opening is fast; the first claim of a page pays a system
    /// call, and may fail where a limit binds that mmap does not see (a hugetlb cgroup).
    Lazy,
}

/// Options for [`Arena::builder`].
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, PageSize, Populate};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder()
///     .page_size(PageSize::HUGE_2M)
///     .capacity(4 << 20)
///     .populate(Populate::Lazy)
///     .open()?;
/// println!("{}", arena.obtained());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ArenaBuilder {
    page_size: PageSize,
    capacity_bytes: usize,
    backing: BackingKind,
    populate: Populate,
    strict: bool,
    dump: bool,
    zero_on_release: bool,
}

impl ArenaBuilder {
    pub(super) fn new() -> ArenaBuilder {
        ArenaBuilder {
            page_size: PageSize::HUGE_2M,
            capacity_bytes: 0,
            backing: BackingKind::default(),
            populate: Populate::default(),
            strict: false,
            dump: false,
            zero_on_release: false,
        }
    }

    /// The size of a page, the grain of claims. Default 2 MiB. Smaller pages may stand in for it, see
    /// [`strict`](Self::strict); the grain and the alignment stay.
    pub fn page_size(mut self, size: PageSize) -> ArenaBuilder {
        self.page_size = size;
        self
    }

    /// Bytes in all, rounded up to whole pages. Required.
    pub fn capacity(mut self, bytes: usize) -> ArenaBuilder {
        self.capacity_bytes = bytes;
        self
    }

    /// Where the pages come from. Default: a memfd.
    pub fn backing(mut self, kind: BackingKind) -> ArenaBuilder {
        self.backing = kind;
        self
    }

    /// When the pages are made present. Default: now.
    pub fn populate(mut self, populate: Populate) -> ArenaBuilder {
        self.populate = populate;
        self
    }

    /// Pages of exactly the size asked for, or an error. Without it smaller pages stand in, in this order: the
    /// smaller huge pages that the kernel has, largest first; transparent huge pages where the kernel gives
    /// them; base pages. [`Arena::obtained`] says which, and why nothing better was had.
    pub fn strict(mut self) -> ArenaBuilder {
        self.strict = true;
        self
    }

    /// Leaves the memory in core dumps, which leave out shared arenas by default.
    pub fn include_in_core_dumps(mut self) -> ArenaBuilder {
        self.dump = true;
        self
    }

    /// Zeroes every chunk the moment it is released, for memory that holds secrets; the pages are clean then. The
    /// release pays for it. Not optimized away; copies in caches, registers and swap are not its business.
    pub fn zero_on_release(mut self) -> ArenaBuilder {
        self.zero_on_release = true;
        self
    }

    /// Reserves, maps and populates.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] when the options contradict each other; else what kept the first choice of pages
    /// from being had, with the limit that bound, when nothing could stand in. Nothing is left behind.
    pub fn open(self) -> Result<Arena> {
        let pages = self.page_size.pages_for(self.capacity_bytes).filter(|pages| *pages > 0).ok_or_else(|| {
            let subject = format!("an arena of {} bytes: wanted 1 to isize::MAX", self.capacity_bytes);
            Error::new(Operation::Configure, subject)
        })?;
        let mut declined = Vec::new();
        for size in self.candidates() {
            match self.map(size, pages) {
                Ok(mapping) => return Ok(self.finish(mapping, pages, declined)),
                Err(error) if error.operation() == Operation::Configure && declined.is_empty() => return Err(error),
                Err(error) => declined.push(Declined { page_size: size, error }),
            }
        }
        // At least the first choice was declined.
        Err(declined.swap_remove(0).error)
    }

    /// Page sizes to try, best first.
    fn candidates(&self) -> Vec<PageSize> {
        let mut sizes = vec![self.page_size];
        if !self.strict {
            let mut smaller: Vec<_> =
                supply::page_sizes().into_iter().filter(|size| size.is_huge() && *size < self.page_size).collect();
            smaller.sort_unstable();
            sizes.extend(smaller.into_iter().rev());
            if self.page_size.is_huge() {
                sizes.push(PageSize::base());
            }
        }
        sizes
    }

    fn map(&self, size: PageSize, pages: usize) -> Result<Mapping> {
        // Smaller pages that stand in on hugetlbfs come from a mount of theirs; base pages from a memfd.
        let kind = match &self.backing {
            BackingKind::Hugetlbfs { .. } if !size.is_huge() && size != self.page_size => BackingKind::Memfd,
            BackingKind::Hugetlbfs { dir: Some(_) } if size != self.page_size => BackingKind::Hugetlbfs { dir: None },
            kind => kind.clone(),
        };
        let backing = Backing::create(&kind, size, pages * (self.page_size.bytes() / size.bytes()))?;
        let options = Options {
            align: self.page_size,
            eager: self.populate == Populate::Eager,
            transparent: !size.is_huge() && self.page_size.is_huge(),
            dump: self.dump,
        };
        Mapping::new(backing, options)
    }

    fn finish(self, mapping: Mapping, pages: usize, declined: Vec<Declined>) -> Arena {
        let page_size = mapping.backing().page_size();
        let stands_in = !page_size.is_huge() && self.page_size.is_huge();
        let obtained = Obtained {
            kind: if mapping.backing().fd().is_none() { BackingKind::Anonymous } else { self.kind_had(page_size) },
            page_size,
            transparent_bytes: if stands_in { mapping::transparent_bytes(&mapping) } else { 0 },
            capacity_bytes: mapping.len_bytes(),
            populated: self.populate == Populate::Eager,
            declined,
        };
        Arena::new(mapping, self.page_size, pages, obtained, self.zero_on_release)
    }

    fn kind_had(&self, page_size: PageSize) -> BackingKind {
        if page_size.is_huge() || page_size == self.page_size { self.backing.clone() } else { BackingKind::Memfd }
    }
}

/// A page size that was tried first and could not be had.
#[derive(Debug)]
#[non_exhaustive]
pub struct Declined {
    /// The size.
    pub page_size: PageSize,
    /// Why not: the call, the limit, the remedy.
    pub error: Error,
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
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let populated = if self.populated { "populated" } else { "populated when claimed" };
        write!(f, "{} bytes on {} pages ({}), {populated}", self.capacity_bytes, self.page_size, self.kind)?;
        if self.transparent_bytes > 0 {
            write!(f, ", {} bytes on transparent huge pages", self.transparent_bytes)?;
        }
        for declined in &self.declined {
            write!(f, "\n  not on {} pages: {}", declined.page_size, declined.error)?;
        }
        Ok(())
    }
}
