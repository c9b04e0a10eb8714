//! How pages come to a mapping that is used: all that were asked for, or none.
//!
//! A file is mapped once, whole and without reserving (`MAP_NORESERVE`): page tables can be shared then, and nothing is
//! mapped over anything. What makes a page safe to touch is not the mapping but the populating that was proved, and
//! that nobody but us takes it away again. So that two who want the last pages do not both fail half-way, pages are
//! reserved first, all at once, through a second mapping of the part that grows. Private memory is mapped elsewhere,
//! with reservation, populated, and moved into the reserved range.
//!
//! Verified on Linux 6.18: a page that is populated through the first mapping uses up a reservation that the second one
//! made; a punched page takes its reservation with it; a reservation without a page stays with the file until there is
//! a page to punch, so that it is drained page by page.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::populate::{self, Watch};
use super::reservation::{Reservation, prove_populated};
use super::resize::Room;
use super::{Mapping, Memory, crew, placing};
use crate::error::{Errno, Error, Operation};
use crate::numa::{Located, Topology};
use crate::page_size::PageSize;
use crate::sys;
use crate::sys::memory::{self, Anonymous};
use crate::sys::shared::{self, Part};

/// What stopped a growth; everything that it had got is back.
pub(super) enum Failure {
    Call(Operation, Errno),
    Said(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Said(error)
    }
}

type Outcome<T> = std::result::Result<T, Failure>;

fn call(operation: Operation) -> impl Fn(Errno) -> Failure {
    move |errno| Failure::Call(operation, errno)
}

/// One growth.
pub(super) struct Growth<'a> {
    pub(super) mapping: &'a Mapping,
    pub(super) room: Room,
    pub(super) eager: bool,
    pub(super) watch: Option<&'a Watch<'a>>,
    pub(super) topology: Topology,
    pub(super) bytes: usize,
}

impl Growth<'_> {
    /// Where the pages are, if they are there and that was found out.
    pub(super) fn run(&self, ranges: &[Range<usize>]) -> Outcome<Option<Located>> {
        let mapping = self.mapping;
        let denied = match (mapping.backing.fd(), mapping.backing.page_size().is_huge(), &mapping.memory) {
            (Some(file), is_huge, _) => self.fill_file(file, ranges, is_huge).map(|()| None),
            (None, true, Memory::Placed(reserved)) => self.move_in(reserved, ranges),
            (None, false, Memory::Placed(reserved)) => self.commit_base(reserved, ranges),
            (None, _, Memory::Anywhere(_)) => Err(Failure::Call(Operation::Map, sys::EINVAL)),
        }?;
        if let Some(reason) = denied {
            return Ok(Some(Located::Unknown(reason)));
        }
        let is_first = ranges.len() == 1 && ranges[0].start == 0;
        if !self.eager || (mapping.only_node.is_none() && !is_first) {
            return Ok(None);
        }
        let mut located = None;
        for range in ranges {
            match placing::prove(mapping.part(range.clone()), self.room.placement, &self.topology) {
                Ok(found) => located = Some(found),
                Err(error) => {
                    // SAFETY: the pages have come just now, and nobody knows of them.
                    unsafe { self.undo(ranges) };
                    return Err(error.into());
                }
            }
        }
        Ok(located)
    }

    /// Fills holes of a file that is mapped.
    fn fill_file(&self, file: BorrowedFd<'_>, ranges: &[Range<usize>], is_huge: bool) -> Outcome<()> {
        for range in ranges {
            // What touched a hole, against the rules (or by mlockall(2)), left a page there that may not be zero.
            // SAFETY: the arena has no pages there, so that nobody uses them.
            unsafe { shared::punch(file, range.start, range.len()) }.map_err(call(Operation::Map))?;
        }
        if !is_huge {
            self.check_ordinary_memory()?;
        }
        let mut unfinished = Unfinished { growth: self, file, ranges, held: Vec::new() };
        self.reserve_and_populate(file, ranges, is_huge, &mut unfinished.held)?;
        unfinished.ranges = &[];
        unfinished.held.clear();
        Ok(())
    }

    fn reserve_and_populate(
        &self,
        file: BorrowedFd<'_>,
        ranges: &[Range<usize>],
        is_huge: bool,
        held: &mut Vec<Held>,
    ) -> Outcome<()> {
        let populate = |range: Range<usize>| self.mapping.populate(range.start, range.len());
        let (size, page) = (self.mapping.backing.page_size(), self.mapping.backing.page_size().bytes());
        if is_huge {
            let mut first = ranges.first().filter(|_| self.eager).map(|range| range.start..range.start + page);
            // One page before any is reserved: a limit that refuses all of them leaves nothing to drain, and one that
            // refuses some leaves room for one to drain the others with.
            if first.is_some() && is_limited(file) {
                self.try_elsewhere()?;
                first = None;
            } else if let Some(first) = &first {
                populate(first.clone()).map_err(call(Operation::Populate))?;
            }
            if reserve_all(file, ranges, held).is_err() {
                // Somebody else may be as far, and each have the page that the other lacks. The one that looks last
                // finds what there was.
                // SAFETY: the pages have come just now, and nobody knows of them.
                unsafe {
                    for held in held.drain(..) {
                        let _ = held.drain(file, size);
                    }
                    first
                        .map_or(Ok(()), |first| shared::punch(file, first.start, page))
                        .map_err(call(Operation::Map))?;
                }
                reserve_all(file, ranges, held).map_err(call(Operation::Map))?;
            }
        }
        if self.eager {
            let mut done = 0;
            for range in ranges {
                let step = |part: Range<usize>| populate(range.start + part.start..range.start + part.end);
                self.populate_by_crew(done, range.len(), &step)?;
                done += range.len();
            }
        }
        Ok(())
    }

    /// Takes a page of no file, and gives it back: the error that one of the file's would be. Of a file whose mount has a
    /// `size=` none is tried that is not reserved, see [`is_limited`].
    fn try_elsewhere(&self) -> Outcome<()> {
        let size = self.mapping.backing.page_size();
        let len = size.bytes();
        let at = memory::map_anonymous(len, Anonymous::HugeLazy(size)).map_err(call(Operation::Map))?;
        let _page = Staged(Some(Reservation::adopt(at, len)));
        placing::bind(placing::Part { at: at.as_ptr().addr(), len, size }, 0, self.room.placement, &self.topology)?;
        // SAFETY: a page of a fresh mapping that nobody else knows.
        unsafe { prove_populated(at, len, size) }.map_err(call(Operation::Populate))
    }

    /// Private huge pages: mapped and populated elsewhere, and moved in when all are there.
    fn move_in(&self, reserved: &Reservation, ranges: &[Range<usize>]) -> Outcome<Option<String>> {
        let size = self.mapping.backing.page_size();
        let (mut staged, mut denied): (Vec<Staged>, _) = (Vec::new(), None);
        for range in ranges {
            let at = memory::map_anonymous(range.len(), Anonymous::HugeLazy(size)).map_err(call(Operation::Map))?;
            staged.push(Staged(Some(Reservation::adopt(at, range.len()))));
            if !self.mapping.backing.is_inherited() {
                // SAFETY: the whole of a fresh mapping. It only fails on addresses that are not mapped.
                let _ = unsafe { memory::dont_fork(at, range.len()) };
            }
        }
        for part in staged.iter().filter_map(|part| part.0.as_ref()) {
            let (at, len) = (part.base(), part.len());
            let policy = placing::Part { at: at.as_ptr().addr(), len, size };
            denied = placing::bind(policy, 0, self.room.placement, &self.topology)?.or(denied);
            if self.eager {
                // SAFETY: whole pages of a fresh mapping that only this growth knows.
                let step =
                    |range: Range<usize>| unsafe { prove_populated(part.base().add(range.start), range.len(), size) };
                self.populate_by_crew(0, len, &step)?;
            }
        }
        for (index, part) in staged.iter_mut().enumerate() {
            let Some(part) = part.0.take() else { continue };
            let range = &ranges[index];
            // SAFETY: the arena has no pages in the range and lets nobody else change it; what moves in is ours, of that
            // length, and unused.
            if let Err(errno) = unsafe { reserved.take_in(range.start, part.base(), range.len(), size) } {
                // SAFETY: moved in just now, and nobody knows of them.
                unsafe { self.undo(&ranges[..index]) };
                return Err(Failure::Call(Operation::Map, errno));
            }
        }
        Ok(denied)
    }

    /// Private base pages.
    fn commit_base(&self, reserved: &Reservation, ranges: &[Range<usize>]) -> Outcome<Option<String>> {
        self.check_ordinary_memory()?;
        let mut denied = None;
        for (index, range) in ranges.iter().enumerate() {
            let committed = self.commit_base_range(reserved, range.clone());
            match committed {
                Ok(reason) => denied = reason.or(denied),
                Err(failure) => {
                    // SAFETY: committed just now, and nobody knows of them; the last of them may be so in part.
                    unsafe { self.undo(&ranges[..=index]) };
                    return Err(failure);
                }
            }
        }
        Ok(denied)
    }

    fn commit_base_range(&self, reserved: &Reservation, range: Range<usize>) -> Outcome<Option<String>> {
        let part = self.mapping.part(range.clone());
        // SAFETY: whole base pages of the range that the arena has no pages in and lets nobody else change.
        unsafe {
            reserved.commit_ordinary(range.start, range.len()).map_err(call(Operation::Map))?;
            if self.room.transparent {
                // A refusal is found out when the pages obtained are read.
                let _ = memory::want_transparent_huge(reserved.base().add(range.start), range.len());
            }
        }
        let denied = placing::bind(part, 0, self.room.placement, &self.topology)?;
        if self.eager {
            let populate = |part: Range<usize>| self.mapping.populate(range.start + part.start, part.len());
            self.populate_by_crew(0, range.len(), &populate)?;
        }
        Ok(denied)
    }

    /// Gives back what has come so far. A page that the system does not take stays, unused, as long as the arena.
    ///
    /// # Safety
    ///
    /// Nobody uses the pages.
    unsafe fn undo(&self, ranges: &[Range<usize>]) {
        for range in ranges {
            // SAFETY: the caller's contract.
            unsafe {
                match &self.mapping.memory {
                    // What has come may be less than the range.
                    Memory::Placed(reserved) if self.mapping.backing.fd().is_none() => {
                        reserved.abandon(range.start, range.len());
                    }
                    _ => drop(self.mapping.give_back(range.clone())),
                }
            }
        }
    }

    fn check_ordinary_memory(&self) -> Outcome<()> {
        let part = placing::Part { at: 0, len: self.bytes, size: self.mapping.backing.page_size() };
        Ok(placing::check_ordinary_memory(part, self.bytes, self.room.placement)?)
    }

    /// `before`: bytes of earlier ranges, which who watches is told of as well.
    fn populate_by_crew(&self, before: usize, len: usize, step: &populate::Step<'_>) -> Outcome<()> {
        let grain = if len.is_multiple_of(self.room.grain.bytes()) {
            self.room.grain
        } else {
            self.mapping.backing.page_size()
        };
        let Room { placement, workers, .. } = self.room;
        let watch = self.watch.map(|watch| move |done| watch(before + done));
        let watch = watch.as_ref().map(|watch| watch as &Watch<'_>);
        let crew = crew(placement, workers, watch, len, grain, &self.topology);
        populate::run(len, grain.bytes(), &crew, step).map_err(call(Operation::Populate))
    }
}

/// A growth of a file that has not come to its end: dropped, also by a callback that panics, it leaves nothing.
struct Unfinished<'a> {
    growth: &'a Growth<'a>,
    file: BorrowedFd<'a>,
    ranges: &'a [Range<usize>],
    held: Vec<Held>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let size = self.growth.mapping.backing.page_size();
        // SAFETY: the pages have come just now, and nobody knows of them.
        unsafe {
            for held in &self.held {
                let _ = held.drain(self.file, size);
            }
            self.growth.undo(self.ranges);
        }
    }
}

fn reserve_all(file: BorrowedFd<'_>, ranges: &[Range<usize>], held: &mut Vec<Held>) -> std::result::Result<(), Errno> {
    for range in ranges {
        held.push(Held::reserve(file, range.clone())?);
    }
    Ok(())
}

/// Whether the file is on a mount with a `size=`. Linux 6.18 forgets there to give back what it took of that for a page
/// which is not reserved and then cannot be had, for the pool is empty or a cgroup refuses it: until the mount is gone,
/// not the file. Its `alloc_hugetlb_folio`, `out_subpool_put`; to be seen in statfs(2).
fn is_limited(file: BorrowedFd<'_>) -> bool {
    sys::file::file_system_of(file).is_ok_and(|system| system.is_hugetlbfs && system.blocks > 0)
}

impl Mapping {
    /// Takes the reservation out of a page of the file that is not there; whether there is none any more.
    ///
    /// # Safety
    ///
    /// Nobody uses the page.
    pub(crate) unsafe fn give_up_reservation(&self, page: Range<usize>) -> bool {
        let Some(file) = self.backing.fd() else { return true };
        // Reserved before it is populated, see `is_limited`. One that is reserved can always be so once more.
        let Ok(held) = Held::reserve(file, page) else { return true };
        // SAFETY: the caller's contract.
        unsafe { held.drain(file, self.backing.page_size()) }
    }
}

/// A part of a file, mapped a second time to reserve the pages that it lacks; unmapped when dropped. The reservation is
/// the file's and stays.
struct Held {
    mapped: Reservation,
    offset: usize,
}

impl Held {
    fn reserve(file: BorrowedFd<'_>, range: Range<usize>) -> std::result::Result<Held, Errno> {
        let part = Part { offset: range.start, len: range.len(), writable: true, reserve: true };
        let start = shared::map(file, None, part)?;
        let mapped = Reservation::adopt(start, range.len());
        // SAFETY: the whole of a mapping of our own. Children have none of the arena; a failure costs them nothing.
        let _ = unsafe { memory::dont_fork(start, range.len()) };
        Ok(Held { mapped, offset: range.start })
    }

    /// Takes pages and reservations out of the file. A page that cannot be had leaves its reservation; whether there was
    /// none.
    ///
    /// # Safety
    ///
    /// Nobody uses the pages.
    unsafe fn drain(&self, file: BorrowedFd<'_>, size: PageSize) -> bool {
        let page = size.bytes();
        let mut is_drained = true;
        for offset in (0..self.mapped.len()).step_by(page) {
            // SAFETY: a page of our own mapping, which is about to go; the rest is the caller's contract.
            unsafe {
                is_drained &= prove_populated(self.mapped.base().add(offset), page, size).is_ok();
                is_drained &= shared::punch(file, self.offset + offset, page).is_ok();
            }
        }
        is_drained
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whole pages, which nobody else has seen.
        unsafe { self.mapped.unmap() };
    }
}

/// Pages that are mapped elsewhere and have not moved in yet; unmapped when dropped.
struct Staged(Option<Reservation>);

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(part) = &self.0 {
            // SAFETY: our own mapping, whole pages, which nobody else has seen.
            unsafe { part.unmap() };
        }
    }
}
