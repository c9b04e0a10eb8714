//! Arenas that grow and shrink while they are used.
//!
//! No lock: pages are taken by atomics on the bitmap, like chunks are, and belong to the call that takes them while the
//! system is asked. Others claim, release, scrub, grow and shrink meanwhile; only who takes room waits while a shrink
//! gives back what peers took of it.

#![allow(unsafe_code)]

use std::ops::Range;

use super::Arena;
use super::bitmap::Bitmap;
use super::open::is_cancelled;
use crate::backing::MemoryClass;
use crate::error::{Error, Operation, Result};
use crate::mapping::Mapping;
use crate::mapping::populate::Watch;

impl Arena {
    /// Gets `pages` more pages, all of them or none: present, zeroed, on the nodes and of the size that the arena was
    /// opened with. What is claimed stays where it is. Asks the system, and clears; holds no lock meanwhile.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] when the arena was not opened with
    /// [`max_capacity`](super::ArenaBuilder::max_capacity), when there is not so much room left in that, and in a child
    /// of fork(2) that has not the memory. [`Operation::Map`], [`Operation::Populate`] or [`Operation::Place`], with the
    /// limit that bound: the arena is as it was, and can be asked again.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let page = PageSize::base();
    /// let arena = Arena::builder().page_size(page).capacity(1 << 20).max_capacity(16 << 20).open()?;
    /// let chunk = arena.claim(1).expect("it is free");
    /// arena.grow(512)?;
    /// assert_eq!(arena.capacity(), (1 << 20) + 512 * page.bytes());
    /// arena.trim()?;
    /// assert_eq!(arena.stats().pages, 1); // the chunk's
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Sources
    ///
    /// mmap(2), mremap(2), madvise(2) (`MADV_POPULATE_WRITE`).
    pub fn grow(&self, pages: usize) -> Result<()> {
        self.check_resizable("grow")?;
        add_pages(&self.inner.mapping, &self.inner.pages, self.page_size().bytes(), pages, None)
    }

    /// Gives up to `pages` free pages back to the system, those with the highest addresses first, and says how many it
    /// gave: fewer where fewer are free, or would be left than
    /// [`spare_pages`](super::ArenaBuilder::spare_pages). The addresses stay the arena's, and a file keeps its length.
    ///
    /// Their contents are lost, for peers as well: nobody may use pages that no chunk holds. A
    /// [`View`](super::View) that touches one nevertheless takes a page from the pool, or is killed where there is none.
    /// A peer that attaches at that moment may take some too, to no purpose. Both are given back the next time that the
    /// arena shrinks.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] as for [`grow`](Self::grow). [`Operation::Unmap`] when the system refuses: pages that it
    /// has taken by then are gone, the others are free and dirty.
    ///
    /// # Sources
    ///
    /// fallocate(2) (`FALLOC_FL_PUNCH_HOLE`), mmap(2).
    pub fn shrink(&self, pages: usize) -> Result<usize> {
        self.check_resizable("shrink")?;
        let bitmap = &self.inner.pages;
        let mut taken = bitmap.take_free(pages, self.inner.spare_pages).into_iter();
        let mut given = 0;
        while let Some(run) = taken.next() {
            let bytes = self.bytes_of(&run);
            if self.memory_class() == MemoryClass::Shared && !self.populate_claimed(run.clone()) {
                // A page that is only promised cannot be given back by its file; see `mapping/resize.rs`.
                bitmap.release(run.start, run.len());
                continue;
            }
            bitmap.announce_absent(run.clone());
            // SAFETY: the pages are the arena's, and this call has taken them from those that are free.
            if let Err(errno) = unsafe { self.inner.mapping.give_back(bytes) } {
                let kept = run.len() + taken.as_slice().iter().map(Range::len).sum::<usize>();
                bitmap.keep_after_all(run);
                taken.for_each(|run| bitmap.release(run.start, run.len()));
                let size = self.page_size();
                let subject = format!("{kept} pages of {size} of an arena, which stay");
                return Err(Error::new(Operation::Unmap, subject).os(errno));
            }
            given += run.len();
            bitmap.remove(run);
        }
        self.take_back_strays();
        Ok(given)
    }

    /// Gives pages back that the file has where the arena has none: a peer that attached while pages went made some of
    /// them present again, or one touched what no chunk holds.
    fn take_back_strays(&self) {
        let counts = self.inner.pages.counts();
        let present = counts.fresh + counts.clean + counts.dirty + counts.claimed;
        // While others claim and grow it is not exact; looking in vain costs them nothing.
        let known = present.saturating_sub(counts.unpopulated);
        // A file that does not say how much it has is left to the next growth, which clears its place first.
        if self.inner.mapping.backing().allocated_pages().is_ok_and(|pages| pages > known) {
            self.inner.pages.for_each_absent(|run| {
                // SAFETY: the arena has no pages there, so that nobody uses them; and nobody takes room meanwhile.
                let _ = unsafe { self.inner.mapping.give_back(self.bytes_of(&run)) };
            });
        }
    }

    /// Gives all free pages back to the system but [`spare_pages`](super::ArenaBuilder::spare_pages), and says how many.
    ///
    /// # Errors
    ///
    /// As for [`shrink`](Self::shrink).
    pub fn trim(&self) -> Result<usize> {
        self.shrink(usize::MAX)
    }

    /// Bytes that the arena may have at most: its capacity, unless it was opened with
    /// [`max_capacity`](super::ArenaBuilder::max_capacity).
    #[must_use]
    pub fn max_capacity(&self) -> usize {
        self.inner.mapping.len_bytes()
    }

    fn check_resizable(&self, what: &str) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(Operation::Configure, format!("to {what} an arena: {why}")));
        if !self.inner.mapping.is_resizable() {
            return refuse("it was not opened with max_capacity");
        }
        if !self.inner.mapping.is_here() {
            return refuse("a forked child has none of a shared arena's memory");
        }
        Ok(())
    }

    fn bytes_of(&self, pages: &Range<usize>) -> Range<usize> {
        let page = self.page_size().bytes();
        pages.start * page..pages.end * page
    }
}

/// Populates `pages` absent pages and makes them free, or leaves everything as it is.
pub(super) fn add_pages(
    mapping: &Mapping,
    bitmap: &Bitmap,
    page_bytes: usize,
    pages: usize,
    watch: Option<&Watch<'_>>,
) -> Result<()> {
    let taken = bitmap.take_absent(pages).map_err(|room| {
        let subject = format!("to grow an arena by {pages} pages: max_capacity has room for {room} more");
        Error::new(Operation::Configure, subject)
    })?;
    let taken = Taken { bitmap, runs: taken };
    let bytes: Vec<_> = taken.runs.iter().map(|run| run.start * page_bytes..run.end * page_bytes).collect();
    mapping.grow(&bytes, watch)?;
    taken.into_runs().into_iter().for_each(|run| bitmap.add(run));
    Ok(())
}

/// Makes the file of a named arena what its record says, before anybody uses it; `complete` if it has all its pages.
///
/// # Errors
///
/// [`Operation::Unmap`], [`Operation::Populate`]; [`Operation::Place`] when a strict placement is not met by what is there.
pub(super) fn bring_up(mapping: &Mapping, bitmap: &Bitmap, page_bytes: usize, complete: bool) -> Result<()> {
    let bytes = |pages: &Range<usize>| pages.start * page_bytes..pages.end * page_bytes;
    for pages in bitmap.runs(true) {
        // An owner that was killed while it grew or shrank left pages there, of which nobody knows whether they are zero.
        // SAFETY: the arena has no pages there, and nobody has a chunk yet.
        let gone = unsafe { mapping.give_back(bytes(&pages)) };
        let subject = || format!("{} pages that an earlier owner may have left", pages.len());
        gone.map_err(|errno| Error::new(Operation::Unmap, subject()).os(errno))?;
    }
    let there: Vec<_> = bitmap.runs(false).iter().map(bytes).collect();
    if !complete {
        there.iter().try_for_each(|bytes| mapping.touch(bytes.clone(), true))?;
    }
    mapping.prove_strict(&there)
}

/// As [`add_pages`], before anybody uses the arena. What a killed owner has left reserved in the file goes back, but for
/// what comes now: and before that where it is in the way.
pub(super) fn add_lacking(
    mapping: &Mapping,
    bitmap: &Bitmap,
    page_bytes: usize,
    pages: usize,
    watch: Option<&Watch<'_>>,
) -> Result<()> {
    let left = bitmap.unfinished();
    let mut added = add_pages(mapping, bitmap, page_bytes, pages, watch);
    if added.as_ref().is_err_and(|error| !is_cancelled(error)) && !left.is_empty() {
        give_up_reservations(mapping, bitmap, page_bytes, left);
        added = add_pages(mapping, bitmap, page_bytes, pages, watch);
    }
    give_up_reservations(mapping, bitmap, page_bytes, bitmap.unfinished());
    added
}

/// Takes out of absent pages what is reserved for them.
fn give_up_reservations(mapping: &Mapping, bitmap: &Bitmap, page_bytes: usize, runs: Vec<Range<usize>>) {
    for page in runs.into_iter().flatten() {
        // SAFETY: the arena has no page there, and nobody has a chunk yet.
        if unsafe { mapping.give_up_reservation(page * page_bytes..(page + 1) * page_bytes) } {
            bitmap.put_absent(page..page + 1);
        }
    }
}

/// Absent pages that are about to come; absent again when dropped, also by a callback that panics.
struct Taken<'a> {
    bitmap: &'a Bitmap,
    runs: Vec<Range<usize>>,
}

impl Taken<'_> {
    fn into_runs(mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.runs)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.bitmap.put_absent(run));
    }
}
