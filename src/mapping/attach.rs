//! Mapping a file that has its pages already: without a fault per page where another process has them mapped.
//!
//! The kernel keeps the 512 entries of a gigabyte of 2 MiB pages in one page table, and lets mappings of one file
//! share that table: `MAP_SHARED`, address and offset congruent modulo 1 GiB, a mapping that covers the whole
//! gigabyte, equal flags. One fault then brings all 512 pages. Source: Linux, `mm/hugetlb.c`, `huge_pmd_share`.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;

use super::populate::{self, Watch};
use super::reservation::Reservation;
use super::resize::Room;
use super::{Mapping, Memory, crew, placing};
use crate::backing::Backing;
use crate::error::{Errno, Error, Operation, Result};
use crate::numa::{Located, Placement, Topology};
use crate::page_size::PageSize;
use crate::supply::diagnosis::{Refusals, diagnose_since};
use crate::sys::memory::{self, Anonymous};
use crate::sys::process::{self, forks};
use crate::sys::shared::Part;
use crate::sys::{self, shared};

/// What one shareable page table maps: 512 pages of 2 MiB.
pub(super) const TABLE_BYTES: usize = 1 << 30;

/// Tries to find a place that another thread does not take at the same moment.
const PLACES: usize = 16;

/// How a file is to be mapped.
#[derive(Clone, Copy)]
pub(crate) struct AttachOptions<'a> {
    pub(crate) writable: bool,
    /// Leave the memory in core dumps: equal in all who share tables.
    pub(crate) dump: bool,
    pub(crate) share_tables: bool,
    /// Threads that populate a file that lacks pages; `None`: as many as pay.
    pub(crate) workers: Option<usize>,
    /// Which nodes the pages that the file lacks come from; those that it has stay where they are.
    pub(crate) placement: Placement,
    /// The file may lack pages, which are not taken: only what is there is ever touched. Equal in all who map it.
    pub(crate) resizable: bool,
    /// Told while pages are populated.
    pub(crate) watch: Option<&'a Watch<'a>>,
}

impl AttachOptions<'_> {
    /// A peer's: it populates on its own thread what its owner has not, from anywhere.
    pub(crate) fn of_peer(writable: bool, dump: bool, share_tables: bool, resizable: bool) -> AttachOptions<'static> {
        let (workers, placement) = (Some(1), Placement::Any);
        AttachOptions { writable, dump, share_tables, workers, placement, resizable, watch: None }
    }
}

/// Why page tables were not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotShared {
    /// `share_tables(false)`.
    OptedOut,
    /// A read-only mapping has other flags than its holder's.
    ReadOnly,
    /// Only pages of 2 MiB have tables that can be shared.
    PageSize,
    /// The arena is shorter than the GiB that one table maps.
    TooShort,
    /// Not every page of the file was there yet, so that all had to be populated.
    NotAllocated,
    /// There was no address space to choose a multiple of 1 GiB in.
    Addresses,
    /// The arena can be resized and lacks pages: what there is comes when it is touched, and tables are shared then.
    Room,
    /// No other process has the pages mapped in the same way.
    NoHolder,
}

impl std::fmt::Display for NotShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NotShared::OptedOut => "not wanted",
            NotShared::ReadOnly => "read-only",
            NotShared::PageSize => "pages of another size than 2M",
            NotShared::TooShort => "shorter than 1 GiB",
            NotShared::NotAllocated => "some pages were new",
            NotShared::Addresses => "no address space for it",
            NotShared::Room => "the arena has room to grow, and its pages come when they are touched",
            NotShared::NoHolder => "nobody else holds the pages",
        })
    }
}

/// How the pages of a file came into the address space, and what that cost.
///
/// # Examples
///
/// ```
/// fn report(view: &hugearena::arena::View) {
///     println!("{}", view.attachment()); // 8 of 8 page tables shared, 8 page faults
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attachment {
    /// Page tables of 1 GiB that could have been shared.
    pub tables: usize,
    /// Those that another process's tables filled.
    pub shared_tables: usize,
    /// Why not all were, if so.
    pub not_shared: Option<NotShared>,
    /// Page faults of the calling thread that it took, those of populating included; not those of other threads that
    /// helped to populate what was new.
    pub page_faults: u64,
}

impl std::fmt::Display for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.not_shared {
            Some(why) if self.shared_tables == 0 => write!(f, "populated, no page tables shared ({why})")?,
            _ => write!(f, "{} of {} page tables shared", self.shared_tables, self.tables)?,
        }
        write!(f, ", {} page faults", self.page_faults)
    }
}

impl Mapping {
    /// Maps all of a file that others may have mapped, keeping what is in it; every page is there when this returns.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new). A strict placement is also not met by pages that were there before, on other nodes.
    pub(crate) fn attach(backing: Backing, options: AttachOptions<'_>) -> Result<(Mapping, Attachment)> {
        let faults = process::minor_faults();
        let (size, pages, needed) = (backing.page_size(), backing.pages(), backing.len_bytes() as u64);
        let directory = backing.directory().map(Path::to_path_buf);
        let (allocated, only_node) = (backing.is_allocated(), options.placement.only_node());
        // Reading them takes longer than attaching; where every page is there, nothing can refuse one.
        let refusals = (!allocated).then(|| Refusals::read(size));
        let failed = |operation, errno| {
            let refusals = refusals.unwrap_or_else(|| Refusals::read(size));
            let limit = diagnose_since(&refusals, errno, size, needed, directory.as_deref(), only_node);
            Error::new(operation, format!("{pages} pages of {size}")).os(errno).limited_by(limit)
        };
        let (tables, not_shared) = shareable(&backing, options, allocated);
        let congruent = map(&backing, options, tables > 0);
        // Sharing is a favour: where there are no addresses for it, any will do.
        let (range, tables, not_shared) = match congruent {
            Ok(range) => (range, tables, not_shared),
            Err(sys::ENOMEM | sys::EEXIST) if tables > 0 => match map(&backing, options, false) {
                Ok(range) => (range, 0, Some(NotShared::Addresses)),
                Err(errno) => return Err(failed(Operation::Map, errno)),
            },
            Err(errno) => return Err(failed(Operation::Map, errno)),
        };
        let memory = Memory::Placed(range);
        let located = Located::Unknown("shared pages are where their first owner got them".into());
        let AttachOptions { placement, workers, .. } = options;
        let room = options.resizable.then_some(Room { placement, workers, transparent: false, grain: size });
        let mut mapping = Mapping { memory, backing, forks: forks(), located, only_node, dump: options.dump, room };
        // Before the first fault: tables are shared between equal flags only.
        mapping.keep_from_children(options.dump);
        let topology = (!allocated || options.placement != Placement::Any).then(Topology::read).unwrap_or_default();
        let denied = placing::bind(mapping.whole(), 0, options.placement, &topology)?;
        let probed = if not_shared.is_none() { tables } else { 0 };
        let filled = match allocated {
            true => mapping.fill(probed, options.writable, allocated),
            false if options.resizable => Ok(0),
            false => mapping.take_pages(options, &topology).map(|()| 0),
        };
        match filled {
            Ok(shared_tables) => {
                let not_shared = not_shared.or((shared_tables < tables).then_some(NotShared::NoHolder));
                let page_faults = process::minor_faults() - faults;
                match denied {
                    Some(reason) => mapping.located = Located::Unknown(reason),
                    // Asking about every page takes longer than attaching to all.
                    None if options.placement == Placement::Any || (options.resizable && !allocated) => {}
                    None => mapping.located = placing::prove(mapping.whole(), options.placement, &topology)?,
                }
                Ok((mapping, Attachment { tables, shared_tables, not_shared, page_faults }))
            }
            Err(errno) => {
                drop(mapping);
                Err(failed(Operation::Populate, errno))
            }
        }
    }

    /// Populates what the first `tables` GiB do not get from another process; returns how many of them did.
    fn fill(&self, tables: usize, writable: bool, allocated: bool) -> std::result::Result<usize, Errno> {
        let mut shared_tables = 0;
        let mut rest = 0;
        for table in (0..tables).map(|table| table * TABLE_BYTES) {
            self.make_present(table, self.backing.page_size().bytes(), writable, allocated)?;
            if self.is_filled(table) {
                if rest < table {
                    self.make_present(rest, table - rest, writable, allocated)?;
                }
                rest = table + TABLE_BYTES;
                shared_tables += 1;
            }
        }
        if rest < self.len_bytes() {
            self.make_present(rest, self.len_bytes() - rest, writable, allocated)?;
        }
        Ok(shared_tables)
    }

    /// Populates a file that lacks pages, which have to be cleared: by several threads where that pays.
    fn take_pages(&self, options: AttachOptions<'_>, topology: &Topology) -> std::result::Result<(), Errno> {
        let (len, page) = (self.len_bytes(), self.backing.page_size());
        let crew = crew(options.placement, options.workers, options.watch, len, page, topology);
        let step = |range: std::ops::Range<usize>| self.make_present(range.start, range.len(), options.writable, false);
        populate::run(len, page.bytes(), &crew, &step)
    }

    /// Whether a table whose first page has just been touched came with other pages: in the middle and at the end,
    /// for who is populating it at this moment has begun at the start. A page that is missing nevertheless costs a
    /// fault when it is touched, and nothing else, because the file has it.
    fn is_filled(&self, table: usize) -> bool {
        let page = self.backing.page_size().bytes();
        [TABLE_BYTES / 2, TABLE_BYTES - page].into_iter().all(|offset| {
            // SAFETY: the start of a page inside our mapping: `table` is one of the whole GiB in it.
            unsafe { shared::is_present(self.start().add(table + offset)) }
        })
    }

    /// Makes whole pages present without changing them; those that the file has cost nothing.
    ///
    /// # Errors
    ///
    /// [`Operation::Populate`], with the limit that bound.
    pub(crate) fn touch(&self, range: std::ops::Range<usize>, writable: bool) -> Result<()> {
        self.make_present(range.start, range.len(), writable, false).map_err(|errno| {
            let (size, len) = (self.backing.page_size(), range.len());
            let limit = self.diagnose(errno, len as u64);
            Error::new(Operation::Populate, format!("{} pages of {size}", len / size.bytes()))
                .os(errno)
                .limited_by(limit)
        })
    }

    /// Makes whole pages present without changing them.
    fn make_present(
        &self,
        offset: usize,
        len: usize,
        writable: bool,
        allocated: bool,
    ) -> std::result::Result<(), Errno> {
        debug_assert!(offset + len <= self.len_bytes());
        // SAFETY: inside our mapping, in whole pages.
        let populated = unsafe {
            let at = self.start().add(offset);
            if writable { memory::populate_write(at, len) } else { shared::populate_read(at, len) }
        };
        match (populated, self.backing.fd()) {
            // Before Linux 5.14. Reading a zero into each page, as for fresh ones, would change what is there; a file
            // that has its pages needs no proof, and one that is given them by fallocate(2) needs none either.
            (Err(sys::EINVAL), _) if allocated => Ok(()),
            (Err(sys::EINVAL), Some(file)) if writable => shared::allocate(file, offset, len),
            (done, _) => done,
        }
    }
}

/// How many page tables may be shared, and why none can be, if so.
fn shareable(backing: &Backing, options: AttachOptions<'_>, allocated: bool) -> (usize, Option<NotShared>) {
    let tables = backing.len_bytes() / TABLE_BYTES;
    if backing.page_size() != PageSize::HUGE_2M {
        (0, Some(NotShared::PageSize))
    } else if tables == 0 {
        (0, Some(NotShared::TooShort))
    } else if !options.writable {
        (0, Some(NotShared::ReadOnly))
    } else if !options.share_tables {
        (0, Some(NotShared::OptedOut))
    } else {
        let lacking = if options.resizable { NotShared::Room } else { NotShared::NotAllocated };
        (tables, (!allocated).then_some(lacking))
    }
}

fn map(backing: &Backing, options: AttachOptions<'_>, congruent: bool) -> std::result::Result<Reservation, Errno> {
    let (file, len) = (backing.fd().ok_or(sys::EINVAL)?, backing.len_bytes());
    let part = Part { offset: 0, len, writable: options.writable, reserve: !options.resizable };
    map_aligned(file, part, congruent.then_some(TABLE_BYTES))
}

/// Maps a part of a file, at a multiple of `align` if that is more than its page. A place is found by reserving one and
/// giving it back: mapping over the reservation would leave a hole if it failed, into which another thread may map
/// something.
pub(super) fn map_aligned(
    file: BorrowedFd<'_>,
    part: Part,
    align: Option<usize>,
) -> std::result::Result<Reservation, Errno> {
    let adopt = |start| Reservation::adopt(start, part.len);
    let Some(align) = align else { return shared::map(file, None, part).map(adopt) };
    let mut last = sys::EEXIST;
    for _ in 0..PLACES {
        let padded = part.len.checked_add(align).ok_or(sys::ENOMEM)?;
        let place = memory::map_anonymous(padded, Anonymous::Reserved)?;
        // SAFETY: at most `align` into the range reserved just now, which nobody uses, so that it can go again.
        let at: NonNull<u8> = unsafe {
            let at = place.add(place.align_offset(align));
            memory::unmap(place, padded)?;
            at
        };
        match shared::map(file, Some(at), part) {
            Ok(start) => return Ok(adopt(start)),
            Err(errno @ sys::EEXIST) => last = errno,
            Err(errno) => return Err(errno),
        }
    }
    Err(last)
}
