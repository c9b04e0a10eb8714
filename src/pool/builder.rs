//! What a pool is made of.

use super::Pool;
use super::geometry::{Geometry, LINE, Shape};
use super::store::Store;
use crate::arena::{Arena, Chunk};
use crate::error::{Error, Operation, Result};
use crate::page_size::PageSize;

/// Options for [`Pool::builder`]. Required: [`object_size`](Self::object_size) and [`count`](Self::count).
///
/// # Examples
///
/// ```
/// use hugearena::pool::Pool;
/// use hugearena::{Arena, PageSize};
///
/// # fn main() -> hugearena::Result<()> {
/// // Frames for an AF_XDP socket: 2048 bytes each, at multiples of 2048, none across a page.
/// let frames = Pool::builder().object_size(2048 - 256).headroom(256).align(2048).count(1024);
/// let frames = frames.within_page(PageSize::base());
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(frames.bytes_needed()?).open()?;
/// let pool = frames.build(&arena)?;
/// assert_eq!(pool.stride(), 2048);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    object_bytes: usize,
    headroom: usize,
    align: usize,
    count: usize,
    within: Option<PageSize>,
    spread: bool,
}

impl PoolBuilder {
    pub(super) fn new() -> PoolBuilder {
        PoolBuilder { object_bytes: 0, headroom: 0, align: LINE, count: 0, within: None, spread: true }
    }

    /// Bytes of an object, behind its headroom. Required.
    pub fn object_size(mut self, bytes: usize) -> PoolBuilder {
        self.object_bytes = bytes;
        self
    }

    /// Bytes before an object's data, for headers that are put in front later. Default: none.
    pub fn headroom(mut self, bytes: usize) -> PoolBuilder {
        self.headroom = bytes;
        self
    }

    /// The [start](super::PoolBox::start) of every object is a multiple of this: a power of two up to the arena's page
    /// size. Default: 64, a line of the cache.
    pub fn align(mut self, bytes: usize) -> PoolBuilder {
        self.align = bytes;
        self
    }

    /// How many objects. Required. Everything is made at once; a pool does not grow.
    pub fn count(mut self, objects: usize) -> PoolBuilder {
        self.count = objects;
        self
    }

    /// No object, headroom included, crosses a page of this size: for devices that take physical addresses, and for
    /// AF_XDP. Up to the size that the arena [obtained](crate::arena::Obtained::page_size), which is what is contiguous:
    /// an arena that fell back to smaller pages is refused.
    pub fn within_page(mut self, size: PageSize) -> PoolBuilder {
        self.within = Some(size);
        self
    }

    /// Objects without gaps between them but for the alignment. By default the distance between them is an odd number of
    /// lines, so that their headers are not all in the same few sets of the cache, or on one memory channel: a pool of
    /// 2048-byte objects has all its first lines in 2 of 64 sets otherwise.
    pub fn packed(mut self) -> PoolBuilder {
        self.spread = false;
        self
    }

    /// Bytes of an arena that the pool takes, before rounding up to its pages.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`]: a size or count of 0, an alignment that is no power of two, objects larger than the page
    /// that they may not cross, or more bytes than 2^32 times the alignment.
    pub fn bytes_needed(&self) -> Result<usize> {
        self.geometry().map(|geometry| geometry.total_bytes())
    }

    /// Claims pages of `arena`, one contiguous run, and makes the pool in them. The contents of the objects are unknown;
    /// [`build_in`](Self::build_in) takes a chunk that is zeroed.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] as for [`build_in`](Self::build_in); [`Operation::Claim`] when the arena has no
    /// such run free.
    pub fn build(&self, arena: &Arena) -> Result<Pool> {
        let pages = self.bytes_needed()?.div_ceil(arena.page_size().bytes());
        let chunk = arena.claim(pages).ok_or_else(|| {
            let stats = arena.stats();
            let free = stats.pages - stats.claimed;
            let subject = format!("a pool: no {pages} pages in a row ({free} of {} are free)", stats.pages);
            arena.last_error().unwrap_or_else(|| Error::new(Operation::Claim, subject))
        })?;
        self.build_in(chunk)
    }

    /// Makes the pool in a chunk of the caller's.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] as for [`bytes_needed`](Self::bytes_needed), and when the chunk is too short, the
    /// arena's pages are smaller than the alignment, or those that it obtained smaller than the page that no object may
    /// cross.
    pub fn build_in(&self, chunk: Chunk) -> Result<Pool> {
        let geometry = self.geometry()?;
        let page_bytes = chunk.arena().page_size().bytes();
        // Smaller pages stand in for the arena's where those could not be had.
        let obtained = chunk.arena().obtained().page_size;
        let (needed, len) = (geometry.total_bytes(), chunk.len());
        let problem = if needed > len {
            Some(format!("a pool that needs {needed} bytes, in {len}"))
        } else if self.align > page_bytes {
            Some(format!("a pool: its alignment is larger than the arena's pages of {page_bytes} bytes"))
        } else {
            let too_large = self.within.filter(|within| *within > obtained);
            too_large
                .map(|page| format!("a pool of objects within pages of {page}: the arena is on pages of {obtained}"))
        };
        match problem {
            Some(problem) => Err(Error::new(Operation::Configure, problem)),
            None => Ok(Pool { store: Store::all_at_home(geometry, self.headroom, self.object_bytes, chunk) }),
        }
    }

    fn geometry(&self) -> Result<Geometry> {
        let bytes = if self.object_bytes == 0 { 0 } else { self.object_bytes.saturating_add(self.headroom) };
        let within = self.within.map(|page| page.bytes());
        Geometry::new(Shape { bytes, align: self.align, count: self.count, within, spread: self.spread })
    }
}
