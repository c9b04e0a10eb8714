//! Mappings that get and give back pages while they are used: the addresses, and the length of the file, are there from
//! the start, the pages are not. How they come is in `growth.rs`.

#![allow(unsafe_code)]

use std::ops::Range;

use super::attach::{self, TABLE_BYTES};
use super::growth::{Failure, Growth};
use super::populate::Watch;
use super::reservation::Reservation;
use super::{Mapping, Memory, Options, placing};
use crate::backing::{Backing, MemoryClass};
use crate::error::{Errno, Error, Operation, Result};
use crate::numa::{Located, Placement, Topology};
use crate::page_size::PageSize;
use crate::supply::diagnosis::{Refusals, diagnose, diagnose_since};
use crate::sys;
use crate::sys::memory::{self, Anonymous};
use crate::sys::process::forks;
use crate::sys::shared::{self, Part};

/// How pages come that a mapping gets later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) placement: Placement,
    /// Threads that populate; `None`: as many as pay.
    pub(super) workers: Option<usize>,
    /// Ask for transparent huge pages.
    pub(super) transparent: bool,
    /// No two threads share one of these.
    pub(super) grain: PageSize,
}

impl Mapping {
    /// Maps room for all of `backing`, of which the first `initial` bytes, whole pages, have pages: present ones if
    /// `options.eager`, else reserved ones.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); [`Operation::ReserveAddresses`] when there is no address space for it.
    pub(crate) fn resizable(backing: Backing, options: Options<'_>, initial: usize) -> Result<Mapping> {
        let (size, len) = (backing.page_size(), backing.len_bytes());
        let range = map_room(&backing, options).map_err(|errno| {
            // Room has no pages, so that no limit on those counts.
            let limit = diagnose(errno, PageSize::base(), len as u64, None);
            let subject = format!("room for {} pages of {size}", backing.pages());
            Error::new(Operation::ReserveAddresses, subject).os(errno).limited_by(limit)
        })?;
        let Options { placement, workers, transparent, .. } = options;
        // Where base pages stand in, no two threads share what may become a transparent huge page.
        let grain = size.max(options.align.min(PageSize::HUGE_2M));
        let room = Some(Room { placement, workers, transparent, grain });
        let located = Located::Unknown("pages come when they are claimed".into());
        let only_node = placement.only_node();
        let memory = Memory::Placed(range);
        let mut mapping = Mapping { memory, backing, forks: forks(), located, only_node, dump: options.dump, room };
        let whole = 0..len;
        if mapping.backing.memory_class() == MemoryClass::Shared {
            mapping.keep_from_children(options.dump);
            if transparent {
                // SAFETY: our own mapping. A refusal is found out when the pages obtained are read.
                let _ = unsafe { memory::want_transparent_huge(mapping.start(), len) };
            }
            if let Some(denied) = placing::bind(mapping.part(whole), 0, placement, &Topology::read())? {
                mapping.located = Located::Unknown(denied);
            }
        }
        let first = 0..initial;
        let located = mapping.give_pages(&[first], options.eager, options.watch)?;
        if let Some(located) = located {
            mapping.located = located;
        }
        Ok(mapping)
    }

    /// Gives whole pages to ranges of bytes that have none, all of them or none: present, zeroed, where the placement
    /// says.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new). Everything is as it was.
    pub(crate) fn grow(&self, ranges: &[Range<usize>], watch: Option<&Watch<'_>>) -> Result<()> {
        self.give_pages(ranges, true, watch).map(drop)
    }

    /// Proves that pages which ranges of bytes had before are where the placement says, if no other node will do.
    ///
    /// # Errors
    ///
    /// [`Operation::Place`]: some are elsewhere, or it cannot be proved.
    pub(crate) fn prove_strict(&self, ranges: &[Range<usize>]) -> Result<()> {
        let strict = self.room.map(|room| room.placement).filter(|placement| placement.only_node().is_some());
        let Some(placement) = strict else { return Ok(()) };
        let topology = Topology::read();
        ranges.iter().try_for_each(|range| placing::prove(self.part(range.clone()), placement, &topology).map(drop))
    }

    /// Whether it can get and give back pages.
    pub(crate) fn is_resizable(&self) -> bool {
        self.room.is_some()
    }

    /// As [`grow`](Self::grow); reserves only, unless `eager`. Says where the pages are, as far as that was found out.
    fn give_pages(&self, ranges: &[Range<usize>], eager: bool, watch: Option<&Watch<'_>>) -> Result<Option<Located>> {
        let ranges: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
        let (size, bytes) = (self.backing.page_size(), ranges.iter().map(Range::len).sum::<usize>());
        let refusals = Refusals::read(size);
        let grown = self.room.ok_or(Failure::Call(Operation::Configure, sys::EINVAL)).and_then(|room| {
            let growth = Growth { mapping: self, room, eager, watch, topology: Topology::read(), bytes };
            growth.run(&ranges)
        });
        grown.map_err(|failure| match failure {
            Failure::Said(error) => error,
            Failure::Call(operation, errno) => {
                let limit = |errno| {
                    let directory = self.backing.directory();
                    diagnose_since(&refusals, errno, size, bytes as u64, directory, self.only_node)
                };
                // Pages that are populated without having been reserved are refused by what refuses reservations, too.
                let limit = match errno {
                    sys::EFAULT if !can_reserve(size) => limit(sys::ENOMEM),
                    sys::EFAULT => limit(errno).or_else(|| limit(sys::ENOMEM)),
                    _ => limit(errno),
                };
                let pages = bytes / size.bytes();
                Error::new(operation, format!("{pages} pages of {size}")).os(errno).limited_by(limit)
            }
        })
    }

    /// Gives the pages of a range of bytes back to the system; the addresses stay ours.
    ///
    /// # Safety
    ///
    /// The range is whole pages that the mapping has, and nobody uses them.
    pub(crate) unsafe fn give_back(&self, range: Range<usize>) -> std::result::Result<(), Errno> {
        match (self.backing.fd(), &self.memory) {
            // SAFETY: the caller's contract.
            (Some(file), _) => unsafe { shared::punch(file, range.start, range.len()) },
            // SAFETY: as above; resizable private memory is always placed.
            (None, Memory::Placed(reserved)) => unsafe { reserved.decommit(range.start, range.len()) },
            (None, Memory::Anywhere(_)) => Err(sys::EINVAL),
        }
    }

    /// A part of the mapping, for policies.
    pub(super) fn part(&self, range: Range<usize>) -> placing::Part {
        let size = self.backing.page_size();
        placing::Part { at: self.start().as_ptr().addr() + range.start, len: range.len(), size }
    }
}

/// Whether a page could be reserved at this moment.
fn can_reserve(size: PageSize) -> bool {
    match memory::map_anonymous(size.bytes(), Anonymous::HugeLazy(size)) {
        Ok(at) => {
            // SAFETY: the mapping just made, whole pages, which nobody has seen.
            unsafe { Reservation::adopt(at, size.bytes()).unmap() };
            true
        }
        Err(_) => false,
    }
}

/// Room without pages.
fn map_room(backing: &Backing, options: Options<'_>) -> std::result::Result<Reservation, Errno> {
    let (size, len) = (backing.page_size(), backing.len_bytes());
    let Some(file) = backing.fd() else {
        return Reservation::new(len, options.align.max(size).bytes());
    };
    let part = Part { offset: 0, len, writable: true, reserve: false };
    let own = (options.align > size).then(|| options.align.bytes());
    if options.share_tables && size == PageSize::HUGE_2M && len >= TABLE_BYTES {
        // So that peers can share our page tables. A favour: where there are no addresses for it, others will do.
        match attach::map_aligned(file, part, Some(TABLE_BYTES)) {
            Err(sys::ENOMEM | sys::EEXIST) => {}
            mapped => return mapped,
        }
    }
    attach::map_aligned(file, part, own)
}

/// One bit for each page that a file lacks: asked for by taking each, for nothing else tells. A page that cannot be had
/// is not there.
///
/// # Errors
///
/// When the file cannot be asked; pages that it lacked may be there then.
pub(crate) fn holes(backing: &Backing) -> std::io::Result<Vec<u64>> {
    let (pages, page) = (backing.pages(), backing.page_size().bytes());
    let mut holes = vec![0; pages.div_ceil(64)];
    let mut present = backing.allocated_pages()?;
    if present == pages {
        return Ok(holes);
    }
    let Some(file) = backing.fd() else { return Err(sys::EINVAL.into()) };
    for at in 0..pages {
        if present > 0 && shared::allocate(file, at * page, page).is_ok() {
            let now = backing.allocated_pages()?;
            if now == present {
                continue;
            }
            present = now;
            // SAFETY: the page came just now, so that nobody uses it.
            unsafe { shared::punch(file, at * page, page)? };
            present -= 1;
        }
        holes[at / 64] |= 1 << (at % 64);
    }
    Ok(holes)
}
