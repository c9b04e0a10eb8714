//! A chunk in regions of limited length: what interfaces want that take memory piece by piece.

use std::ptr::NonNull;

use super::Chunk;

/// A chunk cut into regions of equal length, but for the last: see [`Chunk::regions`].
#[derive(Clone, Copy, Debug)]
pub struct Regions<'a> {
    chunk: &'a Chunk,
    region_bytes: usize,
}

impl Chunk {
    /// As few regions as there can be of at most `max_bytes` each, rounded down to whole pages (at least one).
    ///
    /// io_uring takes at most 1 GiB a buffer, VFIO 65,535 mappings: register what [`iter`](Regions::iter) gives, in
    /// that order, and name bytes by [`locate`](Regions::locate).
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let page = PageSize::base();
    /// let arena = Arena::builder().page_size(page).capacity(1 << 20).open()?;
    /// let chunk = arena.claim(5).expect("256 pages are free");
    /// let regions = chunk.regions(2 * page.bytes());
    /// assert_eq!(regions.iter().map(|region| region.len() / page.bytes()).collect::<Vec<_>>(), [2, 2, 1]);
    /// assert_eq!(regions.locate(2 * page.bytes() + 7, 100).map(|(index, _)| index), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn regions(&self, max_bytes: usize) -> Regions<'_> {
        let page_bytes = self.arena().page_size().bytes();
        Regions { chunk: self, region_bytes: (max_bytes / page_bytes).max(1) * page_bytes }
    }
}

impl Regions<'_> {
    /// The regions, which follow each other; valid like [`Chunk::as_ptr`].
    pub fn iter(&self) -> impl ExactSizeIterator<Item = NonNull<[u8]>> {
        let (start, len, step) = (self.chunk.as_ptr(), self.chunk.len(), self.region_bytes);
        (0..len.div_ceil(step)).map(move |index| {
            let offset = index * step;
            NonNull::slice_from_raw_parts(at(start, offset), step.min(len - offset))
        })
    }

    /// The number of the region that holds the `len` bytes at `offset` of the chunk, and where they are; `None` when
    /// they are not all inside one region.
    #[must_use]
    pub fn locate(&self, offset: usize, len: usize) -> Option<(usize, NonNull<u8>)> {
        let end = offset.checked_add(len).filter(|end| *end <= self.chunk.len())?;
        let index = offset / self.region_bytes;
        let is_inside = offset < self.chunk.len() && end - index * self.region_bytes <= self.region_bytes;
        is_inside.then(|| (index, at(self.chunk.as_ptr(), offset)))
    }
}

/// `offset` lies inside the chunk, so the address does not wrap.
fn at(start: NonNull<u8>, offset: usize) -> NonNull<u8> {
    NonNull::new(start.as_ptr().wrapping_add(offset)).unwrap_or(start)
}
