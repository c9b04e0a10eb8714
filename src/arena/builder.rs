//! What to say of an arena before it is opened: which pages, how many, from where, and whether others may stand in.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(doc)]
use super::Arena;
use super::obtained::Declined;
#[cfg(doc)]
use super::obtained::Obtained;
use super::progress::{Callback, OnFallback, PopulateProgress};
use crate::backing::BackingKind;
#[cfg(doc)]
use crate::error::Operation;
use crate::numa::Placement;
use crate::page_size::PageSize;

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
    /// By a thread of the arena's own, first to last, 2 MiB or a page at a time: opening reserves and returns, and pages
    /// that are there are claimed first. A claim that finds none populates what it needs, as in lazy arenas.
    /// [`ArenaStats::unpopulated`](super::ArenaStats::unpopulated) tells how far it has come; it ends when all is there,
    /// [when told](Arena::cancel_populating), and, within a step, with the last handle.
    Background,
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
    pub(super) page_size: PageSize,
    pub(super) capacity_bytes: usize,
    pub(super) max_bytes: Option<usize>,
    pub(super) spare_pages: usize,
    pub(super) backing: BackingKind,
    pub(super) populate: Populate,
    pub(super) strict: bool,
    pub(super) dump: bool,
    pub(super) zero_on_release: bool,
    pub(super) read_only_peers: bool,
    pub(super) placement: Placement,
    pub(super) populate_threads: Option<usize>,
    pub(super) progress: Option<Callback>,
    pub(super) on_fallback: Option<OnFallback>,
    pub(super) name: Option<String>,
    pub(super) record_dir: Option<PathBuf>,
    pub(super) share_tables: bool,
}

impl ArenaBuilder {
    pub(super) fn new() -> ArenaBuilder {
        ArenaBuilder {
            page_size: PageSize::HUGE_2M,
            capacity_bytes: 0,
            max_bytes: None,
            spare_pages: 0,
            backing: BackingKind::default(),
            populate: Populate::default(),
            strict: false,
            dump: false,
            zero_on_release: false,
            read_only_peers: false,
            placement: Placement::default(),
            populate_threads: None,
            progress: None,
            on_fallback: None,
            name: None,
            record_dir: None,
            share_tables: true,
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

    /// The most bytes that the arena may ever have, rounded up to whole pages, at least its
    /// [`capacity`](Self::capacity): address space, and 5 bytes of books for each page of it (2.5 MiB for 1 TiB of
    /// 2 MiB pages). With it the arena can [`grow`](Arena::grow) and [`shrink`](Arena::shrink); addresses never change.
    ///
    /// Peers map all of it, and what pages there are come to them when they touch them: [`View`](super::View). Room has
    /// no pages that mlockall(2) should find: it takes what it can get from the pool, which stays taken until the arena
    /// grows there or is gone.
    ///
    /// # Examples
    ///
    /// See [`Arena::grow`].
    pub fn max_capacity(mut self, bytes: usize) -> ArenaBuilder {
        self.max_bytes = Some(bytes);
        self
    }

    /// How many free pages [`shrink`](Arena::shrink) and [`trim`](Arena::trim) leave, populated, for the next claims.
    /// Default: none.
    ///
    /// They do not help private arenas with what is copied on write after fork(2): the kernel takes those pages from the
    /// pool, not from the arena. To bound that, leave pages in the pool.
    pub fn spare_pages(mut self, pages: usize) -> ArenaBuilder {
        self.spare_pages = pages;
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

    /// Nobody but this process can ever write to the memory of a memfd (Linux 5.1), nor take pages out of it: the file is
    /// sealed once it is mapped here. Peers get views that are read-only. Chunks give safe slices then
    /// ([`Chunk::as_slice`](super::Chunk::as_slice)), as those of private memory do.
    ///
    /// An error for files on hugetlbfs, which cannot be sealed, and with [`max_capacity`](Self::max_capacity): pages can
    /// neither come nor go.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).read_only_peers().open()?;
    /// let mut chunk = arena.claim(1).expect("256 pages are free");
    /// chunk.as_mut_slice().expect("nobody else writes")[0] = 1;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Sources
    ///
    /// fcntl(2), `F_SEAL_FUTURE_WRITE`.
    pub fn read_only_peers(mut self) -> ArenaBuilder {
        self.read_only_peers = true;
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

    /// Calls `callback` on the thread that opens the arena, for each page size that could not be had and that smaller
    /// pages are about to be tried for: where logs and metrics hear of it. [`Obtained::declined`] and
    /// [`ArenaStats::fallbacks`](super::ArenaStats::fallbacks) keep it.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> hugearena::Result<()> {
    /// let builder = hugearena::Arena::builder().capacity(4 << 20);
    /// let arena = builder.on_fallback(|declined| eprintln!("not on {}: {}", declined.page_size, declined.error)).open()?;
    /// assert_eq!(arena.stats().fallbacks > 0, arena.obtained().is_fallback());
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_fallback(mut self, callback: impl Fn(&Declined) + Send + Sync + 'static) -> ArenaBuilder {
        self.on_fallback = Some(OnFallback(Arc::new(callback)));
        self
    }

    /// A named arena: its pages are a file `hugearena.NAME` on hugetlbfs, of mode 0600, which stays when this process
    /// ends. [`open`](Self::open) creates it, or becomes the next owner of what an earlier one left: every page is
    /// free then, with its contents, and those that were zero are known to be. One owner at a time;
    /// others [`attach`](Arena::attach). [`remove`](super::remove) gives the pages back.
    ///
    /// 1 to 64 letters, digits, `-`, `_`, `.`. [`backing`](Self::backing) with a directory says where: a mount, or
    /// anything below it; without, whichever mount has pages of the size. Always [`strict`](Self::strict) and
    /// populated at once. The [`capacity`](Self::capacity) of an arena that exists may be left out, and its pages stay on
    /// the nodes that they are on: a [`placement`](Self::placement) is for those that it lacks, and
    /// [`Placement::Strict`] an error, which changes nothing, if some are elsewhere.
    ///
    /// A child of fork(2) that does not execute another program keeps the arena owned as long as it lives.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize, arena};
    ///
    /// let records = std::env::temp_dir().join(format!("hugearena-doc-{}", std::process::id()));
    /// let builder = Arena::builder().name("doc-example").record_dir(&records).page_size(PageSize::HUGE_2M);
    /// match builder.capacity(4 << 20).open() {
    ///     Ok(owned) => {
    ///         println!("{}", owned.named().expect("it has a name"));
    ///         drop(owned); // the pages stay
    ///         arena::remove_from(&records, "doc-example").expect("nobody owns it");
    ///     }
    ///     Err(error) => println!("{error}"), // no mount, or no pages
    /// }
    /// # let _ = std::fs::remove_dir_all(&records);
    /// ```
    ///
    /// # Sources
    ///
    /// flock(2); Linux, `Documentation/admin-guide/mm/hugetlbpage.rst`.
    pub fn name(mut self, name: impl Into<String>) -> ArenaBuilder {
        self.name = Some(name.into());
        self
    }

    /// Where the record of a named arena is kept: which pages are zero, and of which file. A file of 4 KiB and a bit
    /// per page; not on hugetlbfs. Default: `/run/hugearena` for root, `$XDG_RUNTIME_DIR/hugearena` for others.
    ///
    /// Keep it in memory (tmpfs). On a disk a store to it may wait; and on a file system that needs space to change a
    /// block it has (btrfs, zfs, reflinked xfs), or over a network, a full or failing disk is a SIGBUS when a page is
    /// claimed. The same goes for whoever truncates the record.
    pub fn record_dir(mut self, directory: impl Into<PathBuf>) -> ArenaBuilder {
        self.record_dir = Some(directory.into());
        self
    }

    /// Whether an arena of 1 GiB or more on pages of 2 MiB shares page tables with its peers, which attach to it by name
    /// or by descriptor; see [`Attach::share_tables`](super::Attach).
    /// Default: it does.
    pub fn share_tables(mut self, share: bool) -> ArenaBuilder {
        self.share_tables = share;
        self
    }
}
