//! An arena's memory as other programs want it told: file, offset, length.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::{Arena, Chunk, PageState};
use crate::page_size::PageSize;

/// Contiguous memory of an arena of the shared class, as a file descriptor, an offset and a length: what vhost-user,
/// a peer of your own protocol or another mmap(2) wants to know of it. [`Arena::file_regions`] and
/// [`Chunk::file_region`] have them.
///
/// Whoever gets the descriptor can map the whole file, not this region alone. A memfd is sealed against shrinking; a
/// file on hugetlbfs can be truncated, and holes can be punched into both by whoever can write: such pages are taken
/// from the pool again at the next touch, or SIGBUS is sent if it has none. Give it to peers that you trust that far, or
/// open the arena with [`read_only_peers`](crate::ArenaBuilder::read_only_peers) if they need not write.
#[derive(Clone, Copy)]
pub struct FileRegion<'a> {
    /// Where the memory is, without a pointer: a region may go to other threads, as chunks may.
    arena: &'a Arena,
    fd: BorrowedFd<'a>,
    /// Whole pages of the arena.
    offset: usize,
    len: usize,
}

impl<'a> FileRegion<'a> {
    /// The file that the memory belongs to; one for all of an arena. Close-on-exec. It may be closed here once the
    /// peer has it: the pages live until the last mapping is gone.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'a> {
        self.fd
    }

    /// Bytes from the start of the file, a multiple of [`page_size`](Self::page_size).
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Where this process has the memory; valid as long as the arena (or the chunk) is there. A peer has it elsewhere.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.arena.address_of(self.offset / self.arena.page_size().bytes())
    }

    /// Bytes, whole pages, at least one page.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The pages that the file is on. Smaller than [`Arena::page_size`] where smaller pages stand in.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.arena.inner.mapping.backing().page_size()
    }
}

impl fmt::Debug for FileRegion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileRegion { fd, offset, len, .. } = self;
        let mut region = f.debug_struct("FileRegion");
        region.field("fd", fd).field("offset", offset).field("start", &self.as_ptr()).field("len", len);
        region.field("page_size", &self.page_size()).finish()
    }
}

impl Arena {
    /// All pages that the arena has, in as few regions as there are: one, however many they are, because they are in one
    /// file; more where an arena that [shrank](Self::shrink) has gaps, because a peer that touches a page there takes one
    /// from the pool. None for an arena on anonymous memory, which no descriptor stands for. Offsets of chunks are
    /// [offsets](Chunk::offset) into that file.
    ///
    /// As it is during the call: growing and shrinking change it. Pages of a chunk stay:
    /// [`Chunk::file_region`] is for peers that are to use those only.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
    /// let regions: Vec<_> = arena.file_regions().collect();
    /// assert_eq!((regions.len(), regions[0].offset(), regions[0].len()), (1, 0, 1 << 20));
    ///
    /// let chunk = arena.claim(2).expect("256 pages are free");
    /// let region = chunk.file_region().expect("a memfd has a descriptor");
    /// assert_eq!((region.offset(), region.as_ptr(), region.len()), (chunk.offset(), chunk.as_ptr(), chunk.len()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Sources
    ///
    /// memfd_create(2), fcntl(2) (`F_ADD_SEALS`); vhost-user protocol, "Memory region description".
    pub fn file_regions(&self) -> impl ExactSizeIterator<Item = FileRegion<'_>> {
        let states = self.page_states();
        let mut first = 0;
        let mut regions = Vec::new();
        for run in states.chunk_by(|one, next| (*one == PageState::Absent) == (*next == PageState::Absent)) {
            if run[0] != PageState::Absent {
                let (offset, len) = (first * self.page_size().bytes(), run.len() * self.page_size().bytes());
                regions.extend(self.file_region_of(offset, len));
            }
            first += run.len();
        }
        regions.into_iter()
    }

    fn file_region_of(&self, offset: usize, len: usize) -> Option<FileRegion<'_>> {
        let fd = self.inner.mapping.backing().fd()?;
        Some(FileRegion { arena: self, fd, offset, len })
    }
}

impl Chunk {
    /// The chunk's pages as a region; `None` on anonymous memory. See [`Arena::file_regions`] for an example.
    ///
    /// The chunk goes back to the arena when it is dropped, whoever still has the descriptor: hold it until the peer
    /// has said, or is known, to be done with it.
    #[must_use]
    pub fn file_region(&self) -> Option<FileRegion<'_>> {
        self.arena().file_region_of(self.offset(), self.len())
    }
}
