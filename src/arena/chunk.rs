//! Chunks: pages of an arena that somebody holds.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use super::{Arena, iova_memory};
use crate::error::Result;
use crate::iova::{IovaMap, IovaMode};

/// One or more contiguous pages of an arena, held until dropped. May be dropped by any thread, and keeps the
/// arena alive.
///
/// Memory of the shared class may be written by peers and devices at any time, so it is reached by pointer only;
/// safe slices are for arenas that nobody else can write to: private ones
/// ([`BackingKind::Anonymous`](crate::backing::BackingKind::Anonymous)), and shared ones with
/// [`read_only_peers`](crate::ArenaBuilder::read_only_peers).
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, PageSize, backing::BackingKind};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).backing(BackingKind::Anonymous).open()?;
/// let mut chunk = arena.claim(2).expect("256 pages are free");
/// assert_eq!(chunk.len(), 2 * PageSize::base().bytes());
/// chunk.as_mut_slice().expect("anonymous memory is private")[0] = 1;
/// # Ok(())
/// # }
/// ```
#[must_use = "its pages are released when it is dropped"]
pub struct Chunk {
    arena: Arena,
    first: usize,
    pages: usize,
    start: NonNull<u8>,
}

// SAFETY: a chunk is the only owner of its pages, which are not tied to a thread.
unsafe impl Send for Chunk {}
// SAFETY: through a shared reference only numbers and, for private memory, shared slices come out.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// The caller has claimed the pages `first..first + pages` of `arena` for this chunk.
    pub(super) fn new(arena: Arena, first: usize, pages: usize) -> Chunk {
        let start = arena.address_of(first);
        Chunk { arena, first, pages, start }
    }

    /// The first byte: a multiple of the arena's page size, valid for reads and writes of [`len`](Self::len)
    /// bytes as long as the chunk lives.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes, whole pages, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a chunk is never empty")]
    pub fn len(&self) -> usize {
        self.pages * self.arena.page_size().bytes()
    }

    /// Pages of the arena's page size.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Number of the first page.
    pub(super) fn first_page(&self) -> usize {
        self.first
    }

    /// Bytes from the start of the arena: what another process that maps the arena's file uses for an address.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.first * self.arena.page_size().bytes()
    }

    /// What a device calls these bytes; see [`iova`](crate::iova). One look at `/proc/self/pagemap` for each page in
    /// physical mode, about a microsecond; not for hot paths.
    ///
    /// # Errors
    ///
    /// [`Operation::Translate`](crate::error::Operation::Translate), in physical mode only: without `CAP_SYS_ADMIN`
    /// (never an address that is not one); on base pages and on private memory, whose addresses change; in a child of
    /// fork(2), which has nothing of a shared arena.
    pub fn iova(&self, mode: IovaMode) -> Result<IovaMap> {
        iova_memory(&self.arena.inner.mapping, self.start, self.len()).iova(mode)
    }

    /// The arena that the pages go back to.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The bytes, when nobody else [can write](Arena::peers_can_write) to the memory; contents unknown unless the chunk was claimed
    /// zeroed.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        // SAFETY: nobody but us can write it, and we are borrowed.
        self.is_ours_alone().then(|| unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) })
    }

    /// The bytes for writing, when nobody else [can write](Arena::peers_can_write) to the memory. Peers that read may
    /// see what is half written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: nobody but us can write it, and we are borrowed mutably.
        self.is_ours_alone().then(|| unsafe { self.slice_mut() })
    }

    /// The bytes for writing, of whatever class.
    ///
    /// # Safety
    ///
    /// No peer and no device reads or writes them while the slice lives.
    #[must_use]
    pub unsafe fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped and ours; the caller vouches for the others. Every byte of a mapping is initialized.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }

    /// Claims `pages` more, right behind the last one, if they are free; the bytes stay where they are. Contents of the
    /// new pages are unknown. Whether it did; when a page of a lazy arena could not be populated,
    /// [`Arena::last_error`] says why.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(8 * PageSize::base().bytes()).open()?;
    /// let mut chunk = arena.claim(2).expect("8 pages are free");
    /// assert!(chunk.grow_in_place(6) && !chunk.grow_in_place(1));
    /// chunk.truncate(3);
    /// assert_eq!((chunk.pages(), arena.stats().claimed), (3, 3));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn grow_in_place(&mut self, pages: usize) -> bool {
        let has_grown = self.arena.claim_at(self.first + self.pages, pages);
        if has_grown {
            self.pages += pages;
        }
        has_grown
    }

    /// Gives all pages back but the first `pages`; at least one stays. Nothing happens when there are no more.
    pub fn truncate(&mut self, pages: usize) {
        let keep = pages.max(1);
        if keep < self.pages {
            self.arena.release(self.first + keep, self.pages - keep);
            self.pages = keep;
        }
    }

    /// Whether nobody else writes the bytes, and this process has them: a forked child has none of a shared arena.
    fn is_ours_alone(&self) -> bool {
        !self.arena.peers_can_write() && self.arena.inner.mapping.is_here()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.arena.release(self.first, self.pages);
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("first", &self.first)
            .field("pages", &self.pages)
            .field("page_size", &self.arena.page_size())
            .finish()
    }
}
