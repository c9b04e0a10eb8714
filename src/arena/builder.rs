//! Opening an arena: which pages, how many, from where, and what to fall back to.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::Arena;
use super::progress::{Callback, PopulateProgress};
use crate::backing::{Backing, BackingKind, MemoryClass};
use crate::error::{Error, Operation, Result};
use crate::mapping::{self, Mapping, Options};
use crate::numa::{Located, Placement};
use crate::page_size::PageSize;
use crate::supply;
use crate::sys;

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
    placement: Placement,
    populate_threads: Option<usize>,
    progress: Option<Callback>,
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
            placement: Placement::default(),
            populate_threads: None,
            progress: None,
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

    /// Which NUMA nodes the pages come from. Default: any. Set on the mapping before its first page is there, never
    /// on a thread; [`Obtained::nodes`] tells how many pages each node gave. Pages of a lazy arena come under the
    /// same policy and are not counted.
    ///
    /// Where the calls are denied (mbind(2) needs `CAP_SYS_NICE` in most containers), placement is unknown, which
    /// [`Obtained::nodes`] states; [`Placement::Strict`] is an error then. Counting takes a call for each page, 0.4
    /// to 0.6 us on Zen 4.
    pub fn placement(mut self, placement: Placement) -> ArenaBuilder {
        self.placement = placement;
        self
    }

    /// How many threads populate an eager arena, 1 (the caller's own) to one a page; 0 counts as 1. Default: one for
    /// each CPU that this thread may run on (of the node, when one is named), but for at least 32 MiB each: that
    /// much takes milliseconds to clear, a thread a tenth of one to start and end.
    ///
    /// Several threads take pages in no order; with one, a fresh pool gives them in the order that it has them in.
    pub fn populate_threads(mut self, threads: usize) -> ArenaBuilder {
        self.populate_threads = Some(threads);
        self
    }

    /// Calls `callback` while the arena is populated by [`open`](Self::open), on the thread that opens it, every few
    /// milliseconds (every page of 1 GiB) and at the end. `Break` cancels: `open` gives everything back and fails
    /// with `ECANCELED`. Where smaller pages stand in, they start again from 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let builder = hugearena::Arena::builder().capacity(64 << 20).on_progress(|progress| {
    ///     eprint!("\r{progress}");
    ///     ControlFlow::Continue(())
    /// });
    /// let arena = builder.open()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_progress<F>(mut self, callback: F) -> ArenaBuilder
    where
        F: Fn(PopulateProgress) -> ControlFlow<()> + Send + Sync + 'static,
    {
        self.progress = Some(Callback(Arc::new(callback)));
        self
    }

    /// Reserves, maps and populates.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] when the options contradict each other or a node cannot be used; `ECANCELED` when a
    /// callback said so; else what kept the first choice of pages from being had, with the limit that bound, when
    /// nothing could stand in. [`Operation::Place`] when a strict placement is denied or cannot be proved. Nothing is
    /// left behind.
    ///
    /// # Panics
    ///
    /// When a callback panics; nothing is left behind then either.
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
                Err(error) if is_cancelled(&error) => return Err(error),
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
        let total_bytes = backing.len_bytes();
        let progress = self.progress.as_ref();
        let watch = progress.map(|callback| move |done_bytes| callback.call(size, done_bytes, total_bytes));
        let options = Options {
            align: self.page_size,
            eager: self.populate == Populate::Eager,
            transparent: !size.is_huge() && self.page_size.is_huge(),
            dump: self.dump,
            placement: self.placement,
            workers: self.populate_threads,
            watch: watch.as_ref().map(|watch| watch as _),
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
            placement: self.placement,
            nodes: mapping.located().clone(),
            declined,
        };
        Arena::new(mapping, self.page_size, pages, obtained, self.zero_on_release)
    }

    fn kind_had(&self, page_size: PageSize) -> BackingKind {
        if page_size.is_huge() || page_size == self.page_size { self.backing.clone() } else { BackingKind::Memfd }
    }
}

fn is_cancelled(error: &Error) -> bool {
    error.os_error().and_then(std::io::Error::raw_os_error) == Some(sys::ECANCELED.raw())
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
            write!(f, "\n  not on {} pages: {}", declined.page_size, declined.error)?;
        }
        Ok(())
    }
}
