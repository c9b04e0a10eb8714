//! Arenas: mapped pages that are claimed and released, one or a contiguous run at a time.

#![allow(unsafe_code)]

#[cfg(feature = "allocator-api2")]
mod allocator;
mod bitmap;
#[cfg(feature = "allocator-api2")]
mod blocks;
mod builder;
#[cfg(feature = "bytes")]
mod bytes;
mod chunk;
mod file_region;
mod idlers;
mod inspect;
mod named;
mod obtained;
mod open;
mod progress;
mod record;
mod records;
mod regions;
mod remove;
mod resize;
mod scrub;
mod share;
mod state;
mod stats;
mod view;
mod worker;
mod zeroing;

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::backing::MemoryClass;
use crate::error::{Error, Operation};
use crate::iova;
use crate::mapping::Mapping;
pub use crate::mapping::attach::{Attachment, NotShared};
use crate::page_size::PageSize;
#[cfg(feature = "allocator-api2")]
pub use allocator::ArenaAlloc;
use bitmap::{Bitmap, Claimer, Prefer};
pub use builder::{ArenaBuilder, Populate};
pub use chunk::Chunk;
pub use file_region::FileRegion;
use idlers::Idlers;
pub use inspect::{Inspection, Owner, RecordState, inspect, inspect_from, list, list_from};
pub use named::{Named, Restart};
pub use obtained::{Declined, Obtained};
pub use progress::PopulateProgress;
pub use regions::Regions;
pub use remove::{remove, remove_from};
pub use state::PageState;
pub use stats::ArenaStats;
pub use view::{Attach, View};
pub use worker::Worker;
pub use zeroing::ZeroingChunk;

/// Pages of one size, mapped once and handed out in [`Chunk`]s. A handle: clones share the arena, which is
/// unmapped when the last handle and the last chunk are gone.
///
/// A child of fork(2) has none of a shared arena's memory: it claims nothing there, and must not use pointers into
/// chunks that it inherited. A private arena is copied, page by page, when either side writes, and so is what is known of
/// its pages: both sides claim and release on their own, without waiting for threads that only the other has. Pages that
/// another thread was claiming when the process was copied stay claimed in the child. The child's copies come from the
/// pool: what it claims it can write to, but chunks that it inherited are a SIGBUS for it where the pool is empty. A
/// private arena on pages of 1 GiB is for its children as a shared one, because Linux 6.18 loses some of those pages at
/// fork.
///
/// `claim` and `release` are atomics on a bitmap: no lock for a single page, no system call on an eager arena.
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, FirstTouch, PageSize};
///
/// # fn main() -> hugearena::Result<()> {
/// // Base pages, so that this runs anywhere; PageSize::HUGE_2M is the default.
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// let chunk = arena.claim_zeroed(4, FirstTouch::unknown()).expect("256 pages are free");
/// // SAFETY: our own chunk, at least one byte long.
/// assert_eq!(unsafe { chunk.as_ptr().read() }, 0);
/// drop(chunk);
/// assert_eq!(arena.stats().dirty, 4);
/// # Ok(())
/// # }
/// ```
///
/// # Sources
///
/// mmap(2), madvise(2); Linux, `Documentation/admin-guide/mm/hugetlbpage.rst`.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

/// How long a lock that is held for nanoseconds is waited for.
const A_MOMENT: Duration = Duration::from_millis(20);

struct Inner {
    /// Const.
    mapping: Mapping,
    page_size: PageSize,
    obtained: Obtained,
    zero_on_release: bool,
    spare_pages: usize,
    /// Shared.
    pages: Bitmap,
    cleared_bytes: AtomicU64,
    /// Populates what is promised.
    background: OnceLock<Worker>,
    /// Who scrubs only while a CPU is idle.
    idlers: Idlers,
    /// Why a lazy page could not be populated, the last time.
    last_error: Mutex<Option<Error>>,
    /// Const. Last: whoever comes next may own the arena when this is dropped.
    named: Option<Named>,
}

/// How an arena treats pages that nobody holds.
#[derive(Clone, Copy, Debug)]
struct Manners {
    zero_on_release: bool,
    /// How many free pages giving back leaves.
    spare_pages: usize,
}

impl Arena {
    /// Options for a new arena. Only the capacity is required.
    pub fn builder() -> ArenaBuilder {
        ArenaBuilder::new()
    }

    fn from_parts(
        mapping: Mapping,
        page_size: PageSize,
        pages: Bitmap,
        named: Option<Named>,
        obtained: Obtained,
        manners: Manners,
    ) -> Arena {
        let Manners { zero_on_release, spare_pages } = manners;
        let inner = Inner {
            mapping,
            page_size,
            obtained,
            zero_on_release,
            spare_pages,
            pages,
            cleared_bytes: AtomicU64::new(0),
            background: OnceLock::new(),
            idlers: Idlers::default(),
            last_error: Mutex::new(None),
            named,
        };
        Arena { inner: Arc::new(inner) }
    }

    /// Claims `pages` contiguous pages, at least one, contents unknown: what their last holder left, or zeroes.
    /// Dirty pages go first, so that zeroed ones are left for [`claim_zeroed`](Self::claim_zeroed).
    ///
    /// `None` when no such run is free, or when a page of a lazy arena could not be populated
    /// ([`last_error`](Self::last_error) says why).
    #[must_use]
    pub fn claim(&self, pages: usize) -> Option<Chunk> {
        let chunk = self.claim_preferring(pages, Prefer::Dirty)?;
        for page in 0..pages {
            chunk.take_contents(page);
        }
        Some(chunk)
    }

    /// The grain of claims and the alignment of chunks.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.inner.page_size
    }

    /// Bytes that it has now, which [`grow`](Self::grow) and [`shrink`](Self::shrink) change.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.pages.present_pages() * self.inner.page_size.bytes()
    }

    /// What was obtained, and why nothing better was.
    #[must_use]
    pub fn obtained(&self) -> &Obtained {
        &self.inner.obtained
    }

    /// What a named arena adds: its files, what its owner found, how its pages came in. `None` without a name.
    #[must_use]
    pub fn named(&self) -> Option<&Named> {
        self.inner.named.as_ref()
    }

    /// Who can see the memory.
    #[must_use]
    pub fn memory_class(&self) -> MemoryClass {
        self.inner.mapping.backing().memory_class()
    }

    /// Whether somebody else may write to the memory: it is shared, and was not opened with
    /// [`read_only_peers`](ArenaBuilder::read_only_peers).
    #[must_use]
    pub fn peers_can_write(&self) -> bool {
        self.memory_class() == MemoryClass::Shared && !self.inner.obtained.read_only_peers
    }

    /// Whether children of fork(2) get a copy of the memory.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inner.mapping.backing().is_inherited()
    }

    /// Counts the pages by state.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        let cleared = self.inner.cleared_bytes.load(Relaxed);
        ArenaStats::new(self.inner.page_size, self.inner.pages.counts(), cleared, self.inner.obtained.declined.len())
    }

    /// The state of every page, first to last: exact while nobody claims or releases.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize, arena::PageState};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(3 * PageSize::base().bytes()).open()?;
    /// let chunk = arena.claim(1);
    /// assert_eq!(arena.page_states(), [PageState::Claimed, PageState::Fresh, PageState::Fresh]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn page_states(&self) -> Vec<PageState> {
        self.inner.pages.states()
    }

    /// Takes the error of the last claim, or step in the background, that could not populate its pages; none for eager
    /// arenas, but in a child of fork(2) that cannot have copies of its own.
    pub fn last_error(&self) -> Option<Error> {
        // In a child of fork(2) another thread of the parent may hold it, for ever.
        self.inner.last_error.try_lock_for(A_MOMENT)?.take()
    }

    /// Claims pages and makes them present; their contents are still to be taken.
    fn claim_preferring(&self, pages: usize, prefer: Prefer) -> Option<Chunk> {
        if !self.inner.mapping.is_here() {
            return None;
        }
        let first = self.inner.pages.claim_waiting(pages, prefer, &*self.inner)?;
        self.make_present(first, pages).then(|| Chunk::new(self.clone(), first, pages))
    }

    /// Claims the pages `first..first + pages`, if they are free, and makes them present; contents unknown.
    fn claim_at(&self, first: usize, pages: usize) -> bool {
        let is_had =
            self.inner.mapping.is_here() && self.inner.pages.claim_at(first, pages) && self.make_present(first, pages);
        if is_had {
            for page in first..first + pages {
                self.inner.pages.take_contents(page);
            }
        }
        is_had
    }

    /// Populates claimed pages of a lazy arena, and a child's own copies of its parent's, or gives them back.
    fn make_present(&self, first: usize, pages: usize) -> bool {
        let claimed = first..first + pages;
        let is_present = match self.inner.mapping.is_copied_on_write() {
            true => self.populate_pages(claimed),
            false => self.inner.obtained.populated || self.populate_claimed(claimed),
        };
        if !is_present {
            self.inner.pages.release(first, pages);
        }
        is_present
    }

    /// Whether present pages that the caller holds can be written to: a forked child may not get its own copies.
    fn may_write(&self, pages: Range<usize>) -> bool {
        !self.inner.mapping.is_copied_on_write() || self.populate_pages(pages)
    }

    /// Makes those of the claimed pages present that are not yet.
    fn populate_claimed(&self, pages: Range<usize>) -> bool {
        let bitmap = &self.inner.pages;
        pages.filter(|page| !bitmap.is_populated(*page)).all(|page| self.populate_pages(page..page + 1))
    }

    /// Populates pages that the caller holds; the error is kept for [`last_error`](Self::last_error).
    fn populate_pages(&self, pages: Range<usize>) -> bool {
        let page = self.inner.page_size.bytes();
        let bytes = pages.len() * page;
        match self.inner.mapping.populate(pages.start * page, bytes) {
            Ok(()) => {
                self.inner.pages.mark_populated(pages);
                true
            }
            Err(errno) => {
                let subject = format!("page {} of an arena", pages.start);
                let error = Error::new(Operation::Populate, subject).os(errno);
                let limit = self.inner.mapping.diagnose(errno, bytes as u64);
                // Who finds it locked leaves it to the one that has it. Nobody waits: a child of fork(2) would for ever, if
                // a thread that it has not was here.
                if let Some(mut last) = self.inner.last_error.try_lock() {
                    *last = Some(error.limited_by(limit));
                }
                false
            }
        }
    }

    fn address_of(&self, page: usize) -> NonNull<u8> {
        // SAFETY: every page of the bitmap lies inside the mapping.
        unsafe { self.inner.mapping.start().add(page * self.inner.page_size.bytes()) }
    }

    /// Gives the pages of a chunk back.
    fn release(&self, first: usize, pages: usize) {
        if !self.inner.mapping.is_here() {
            // A forked child drops what is its parent's, and so is the record.
            return;
        }
        if self.inner.zero_on_release {
            if !self.may_write(first..first + pages) {
                // Nobody gets to see what cannot be zeroed.
                return;
            }
            self.zero_now(first, pages);
        }
        self.inner.pages.release(first, pages);
    }
}

impl Claimer for Inner {
    fn scrubs(&self) -> usize {
        scrub::in_own_hands(self)
    }

    fn urge(&self) {
        self.idlers.lift();
    }
}

/// Bytes of a mapping as [`iova`] wants them.
fn iova_memory(mapping: &Mapping, start: NonNull<u8>, len: usize) -> iova::Memory {
    let start = start.addr().get();
    let backing = mapping.backing();
    let copied_on_write = backing.memory_class() == MemoryClass::Private;
    let is_here = mapping.is_here();
    iova::Memory { addresses: start..start + len, page_size: backing.page_size(), copied_on_write, is_here }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("obtained", &self.inner.obtained).field("stats", &self.stats()).finish()
    }
}
