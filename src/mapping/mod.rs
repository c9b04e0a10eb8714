//! A backing in our address space: mapped, populated, proved.
//!
//! `MAP_POPULATE` is the fast path and reports nothing, so every eager mapping is followed by
//! `MADV_POPULATE_WRITE`, which answers with an error where a touch would raise SIGBUS. No signal handler is
//! ever installed. Source: mmap(2), madvise(2).

#![allow(unsafe_code)]

pub(crate) mod attach;
mod growth;
mod placing;
pub(crate) mod populate;
pub(crate) mod reservation;
pub(crate) mod resize;
pub(crate) mod words;

use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use crate::backing::{Backing, MemoryClass};
use crate::error::{Errno, Error, Limit, Operation, Result};
use crate::numa::{self, Located, Placement, Topology};
use crate::page_size::PageSize;
use crate::supply;
use crate::supply::diagnosis::{Refusals, diagnose_since};
use crate::sys::memory::Anonymous;
use crate::sys::process::forks;
use crate::sys::shared::Part;
use crate::sys::{self, memory};
use populate::{Crew, Watch};
use reservation::{Reservation, prove_populated};
use resize::Room;

/// How a backing is to be mapped.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    /// The mapping starts at a multiple of this.
    pub(crate) align: PageSize,
    /// Every page is there before the call returns.
    pub(crate) eager: bool,
    /// Ask for transparent huge pages; for base pages only.
    pub(crate) transparent: bool,
    /// Leave shared memory in core dumps.
    pub(crate) dump: bool,
    /// Map where peers can share page tables.
    pub(crate) share_tables: bool,
    /// Which nodes the pages come from.
    pub(crate) placement: Placement,
    /// Threads that populate; `None`: as many as pay.
    pub(crate) workers: Option<usize>,
    /// Told while pages are populated.
    pub(crate) watch: Option<&'a Watch<'a>>,
}

/// Who populates `len` bytes, a multiple of `grain`.
fn crew<'a>(
    placement: Placement,
    workers: Option<usize>,
    watch: Option<&'a Watch<'a>>,
    len: usize,
    grain: PageSize,
    topology: &Topology,
) -> Crew<'a> {
    let cpus = numa::cpus(placement, topology);
    // A quota of CPU time (cgroup) allows fewer than there are CPUs to run on.
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let count = cpus.map_or(at_once, |cpus| cpus.count().min(at_once));
    let workers = populate::workers(workers, count, len, grain.bytes());
    Crew { workers, cpus: cpus.filter(|_| placement.node().is_some()), watch }
}

/// Mapped pages, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: Memory,
    /// Keeps the file, and with it the name of what is mapped.
    backing: Backing,
    /// [`forks`] when it was mapped: a forked child has none of a shared mapping, and the same addresses may be
    /// something else there.
    forks: u64,
    /// Where the pages are, as far as it was found out.
    located: Located,
    /// The only node whose pages will do.
    only_node: Option<u32>,
    dump: bool,
    /// It can get and give back pages.
    room: Option<Room>,
}

#[derive(Debug)]
enum Memory {
    /// The kernel aligns to the page; whole pages are what memmap2 gets and unmaps.
    Anywhere(ManuallyDrop<MmapRaw>),
    /// Pages at an address that is aligned like the larger ones they stand in for.
    Placed(Reservation),
}

impl Mapping {
    /// Maps all of `backing`.
    ///
    /// # Errors
    ///
    /// [`Operation::Map`], [`Operation::Place`] or [`Operation::Populate`], with the limit that bound;
    /// [`Operation::Configure`] for a node that cannot be used. Nothing stays mapped.
    pub(crate) fn new(backing: Backing, options: Options<'_>) -> Result<Mapping> {
        let (size, pages) = (backing.page_size(), backing.pages());
        let (needed, directory) = (backing.len_bytes() as u64, backing.directory().map(Path::to_path_buf));
        let refusals = Refusals::read(size);
        // Called when the pages are given back, so that the figures are what others left.
        let failed = |operation, errno| {
            let limit =
                diagnose_since(&refusals, errno, size, needed, directory.as_deref(), options.placement.only_node());
            Error::new(operation, format!("{pages} pages of {size}")).os(errno).limited_by(limit)
        };
        let topology = Topology::read();
        // Where base pages stand in, no two threads share what may become a transparent huge page.
        let grain = size.max(options.align.min(PageSize::HUGE_2M));
        let Options { placement, workers, watch, .. } = options;
        let crew = crew(placement, workers, watch, backing.len_bytes(), grain, &topology);
        // With a policy to set first, several threads, or somebody who wants to be told, mapping comes before.
        let is_plain = options.placement == Placement::Any && crew.workers == 1 && crew.watch.is_none();
        let first = Options { eager: options.eager && is_plain, ..options };
        // The kernel aligns pages to themselves.
        let stands_in = options.align > size;
        let mapped = match stands_in {
            true => map_placed(&backing, first),
            false => map_to_share(&backing, first).map_or_else(|| map_anywhere(&backing, first), Ok),
        };
        let memory = match mapped {
            Ok(memory) => memory,
            Err(errno) => return Err(failed(Operation::Map, errno)),
        };
        let only_node = options.placement.only_node();
        let located = Located::Unknown("pages come when they are claimed".into());
        let mut mapping =
            Mapping { memory, backing, forks: forks(), located, only_node, dump: options.dump, room: None };
        if !mapping.backing.is_inherited() {
            mapping.keep_from_children(options.dump);
        }
        let denied = placing::bind(mapping.whole(), mapping.len_bytes(), options.placement, &topology)?;
        if options.eager {
            if let Err(errno) = mapping.populate_all(&crew, grain) {
                drop(mapping);
                return Err(failed(Operation::Populate, errno));
            }
            if denied.is_none() {
                mapping.located = placing::prove(mapping.whole(), options.placement, &topology)?;
            }
        }
        if let Some(reason) = denied {
            mapping.located = Located::Unknown(reason);
        }
        Ok(mapping)
    }

    fn populate_all(&self, crew: &Crew<'_>, grain: PageSize) -> std::result::Result<(), Errno> {
        let step = |range: std::ops::Range<usize>| self.populate(range.start, range.len());
        populate::run(self.len_bytes(), grain.bytes(), crew, &step)
    }

    fn whole(&self) -> placing::Part {
        self.part(0..self.len_bytes())
    }

    /// Where the pages are, by node.
    pub(crate) fn located(&self) -> &Located {
        &self.located
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        match &self.memory {
            // SAFETY: mmap never returns null for a mapping.
            Memory::Anywhere(mapped) => unsafe { NonNull::new_unchecked(mapped.as_mut_ptr()) },
            Memory::Placed(range) => range.base(),
        }
    }

    /// Bytes, whole pages.
    pub(crate) fn len_bytes(&self) -> usize {
        self.backing.len_bytes()
    }

    /// Whether this process has the memory: not if children get none and this is one, forked since.
    pub(crate) fn is_here(&self) -> bool {
        self.forks == forks() || self.backing.is_inherited()
    }

    /// Whether this process has the pages in common with the one that it was forked from, so that writing to one takes
    /// another from a pool, and is a SIGBUS where there is none.
    pub(crate) fn is_copied_on_write(&self) -> bool {
        self.forks != forks()
            && self.backing.memory_class() == MemoryClass::Private
            && self.backing.page_size().is_huge()
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Whether shared memory was left in core dumps.
    pub(crate) fn is_dumped(&self) -> bool {
        self.dump
    }

    /// Makes pages present and proves it. Only pages that nobody has written to: kernels before 5.14 are
    /// helped by writing a zero into each.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> std::result::Result<(), Errno> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len_bytes()), "populate out of range");
        let size = self.backing.page_size();
        // SAFETY: inside our mapping, in whole pages (callers pass multiples of the arena's page).
        unsafe { prove_populated(self.start().add(offset), len, size) }
    }

    /// Names the limit that made populating `needed` more bytes fail.
    pub(crate) fn diagnose(&self, errno: Errno, needed: u64) -> Option<Limit> {
        let (size, directory) = (self.backing.page_size(), self.backing.directory());
        if let Some(len) = self.backing.truncated_bytes().filter(|_| errno == sys::EFAULT) {
            return Some(supply::truncated(self.len_bytes() as u64, len));
        }
        diagnose_since(&Refusals::default(), errno, size, needed, directory, self.only_node)
    }

    /// Children of fork(2) get none of the memory, which they would share or find incomplete; core dumps leave shared
    /// memory out unless wanted.
    fn keep_from_children(&self, dump: bool) {
        let (start, len) = (self.start(), self.len_bytes());
        // SAFETY: the whole of our mapping. Both only fail on addresses that are not mapped.
        unsafe {
            let _ = memory::dont_fork(start, len);
            if !dump && self.backing.memory_class() == MemoryClass::Shared {
                let _ = memory::dont_dump(start, len);
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        // SAFETY: whoever drops the mapping says that nobody uses it; its memory is dropped once, here.
        unsafe {
            match &mut self.memory {
                Memory::Anywhere(mapped) => ManuallyDrop::drop(mapped),
                Memory::Placed(range) => range.unmap(),
            }
        }
    }
}

/// At a multiple of what one page table maps, so that the peers of a large file share its tables: a favour, which is
/// not done where there are no addresses for it.
fn map_to_share(backing: &Backing, options: Options<'_>) -> Option<Memory> {
    let (file, len) = (backing.fd()?, backing.len_bytes());
    let part = Part { offset: 0, len, writable: true, reserve: true };
    let is_large = options.share_tables && backing.page_size() == PageSize::HUGE_2M && len >= attach::TABLE_BYTES;
    let mapped = is_large.then(|| attach::map_aligned(file, part, Some(attach::TABLE_BYTES)))?;
    mapped.ok().map(Memory::Placed)
}

fn map_anywhere(backing: &Backing, options: Options<'_>) -> std::result::Result<Memory, Errno> {
    let mut request = MmapOptions::new();
    request.len(backing.len_bytes());
    if options.eager {
        request.populate();
    }
    let mapped = match backing.fd() {
        Some(file) => request.map_raw(&file),
        None if backing.page_size().is_huge() => {
            request.huge(Some(backing.page_size().log2() as u8)).map_anon().map(MmapRaw::from)
        }
        None => request.map_anon().map(MmapRaw::from),
    };
    match mapped {
        Ok(mapped) => Ok(Memory::Anywhere(ManuallyDrop::new(mapped))),
        Err(error) => Err(error.raw_os_error().map_or(sys::EINVAL, Errno)),
    }
}

/// Where pages stand in for larger ones: at an address that is aligned like those.
fn map_placed(backing: &Backing, options: Options<'_>) -> std::result::Result<Memory, Errno> {
    let range = Reservation::new(backing.len_bytes(), options.align.bytes())?;
    if let Err(errno) = fill(&range, backing, options) {
        // SAFETY: nobody has seen the range.
        unsafe { range.unmap() };
        return Err(errno);
    }
    Ok(Memory::Placed(range))
}

fn fill(range: &Reservation, backing: &Backing, options: Options<'_>) -> std::result::Result<(), Errno> {
    let len = backing.len_bytes();
    // SAFETY: the range was reserved for this and holds nothing; what moves in is fresh, ours and of that length.
    unsafe {
        match stage(backing, options.eager)? {
            None => range.commit_ordinary(0, len)?,
            Some(staged) => range.move_in(0, staged, len)?,
        }
    }
    if options.transparent {
        // SAFETY: our own mapping. A refusal is found out when the pages obtained are read.
        let _ = unsafe { memory::want_transparent_huge(range.base(), len) };
    }
    Ok(())
}

/// Maps the backing somewhere; `None` for base pages without a file, which can be had in place.
fn stage(backing: &Backing, eager: bool) -> std::result::Result<Option<NonNull<u8>>, Errno> {
    let (len, size) = (backing.len_bytes(), backing.page_size());
    let anonymous = if eager { Anonymous::Huge(size) } else { Anonymous::HugeLazy(size) };
    match backing.fd() {
        Some(file) => memory::map_shared(file, len, eager && size.is_huge()).map(Some),
        None if size.is_huge() => memory::map_anonymous(len, anonymous).map(Some),
        None => Ok(None),
    }
}

/// The page size that the mapped bytes really have, if smaller pages stand in for larger ones.
pub(crate) fn transparent_bytes(mapping: &Mapping) -> u64 {
    let obtained = crate::supply::obtained::obtained_page_size(mapping.start().as_ptr().addr(), mapping.len_bytes());
    obtained.map_or(0, |obtained| obtained.transparent_bytes)
}
