//! Opening an arena: the sizes of pages in their order, with a name or without.

use std::path::Path;

use super::bitmap::Bitmap;
use super::builder::{ArenaBuilder, Populate};
use super::obtained::{Declined, Obtained};
use super::progress::OnFallback;
use super::{Arena, Manners, named};
use crate::backing::{Backing, BackingKind};
use crate::error::{Error, Operation, Result};
use crate::mapping::{self, Mapping, Options};
use crate::page_size::PageSize;
use crate::supply;
use crate::sys;

impl ArenaBuilder {
    /// Reserves, maps and populates.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] when the options contradict each other or a node cannot be used; `ECANCELED` when a
    /// callback said so; else what kept the first choice of pages from being had, with the limit that bound, when
    /// nothing could stand in. [`Operation::Place`] when a strict placement is denied or cannot be proved. Nothing is
    /// left behind.
    ///
    /// For a named arena also [`Operation::Own`] when another process owns it, and [`Operation::Record`] when its
    /// record cannot be read or written, or is damaged, foreign or newer: it is left as it is then.
    ///
    /// # Panics
    ///
    /// When a callback panics; nothing is left behind then either.
    pub fn open(self) -> Result<Arena> {
        if self.name.is_some() {
            return self.open_named();
        }
        let pages = self.page_size.pages_for(self.capacity_bytes).filter(|pages| *pages > 0).ok_or_else(|| {
            let subject = format!("an arena of {} bytes: wanted 1 to isize::MAX", self.capacity_bytes);
            Error::new(Operation::Configure, subject)
        })?;
        let cannot_be_sealed = matches!(self.backing, BackingKind::Hugetlbfs { .. }) || self.max_bytes.is_some();
        if self.read_only_peers && cannot_be_sealed {
            let problem =
                "peers that only read, of a file on hugetlbfs or one that can be resized: it cannot be sealed";
            return Err(Error::new(Operation::Configure, problem));
        }
        let most = self.most_pages(pages)?;
        let mut declined: Vec<Declined> = Vec::new();
        for size in self.candidates() {
            if let (Some(last), Some(OnFallback(callback))) = (declined.last(), &self.on_fallback) {
                callback(last);
            }
            match self.map(size, pages, most) {
                Ok(mapping) => return self.finish(mapping, pages, declined),
                Err(error) if error.operation() == Operation::Configure && declined.is_empty() => return Err(error),
                Err(error) if is_cancelled(&error) => return Err(error),
                Err(error) => declined.push(Declined { page_size: size, error }),
            }
        }
        // At least the first choice was declined.
        Err(declined.swap_remove(0).error)
    }

    /// Pages of the page size that the arena may have, if it can be resized.
    fn most_pages(&self, pages: usize) -> Result<Option<usize>> {
        let Some(bytes) = self.max_bytes else { return Ok(None) };
        let most = self.page_size.pages_for(bytes).filter(|most| *most >= pages.max(1)).ok_or_else(|| {
            let subject = format!("an arena of {} bytes: max_capacity is {bytes} bytes", self.capacity_bytes);
            Error::new(Operation::Configure, subject)
        })?;
        Ok(Some(most))
    }

    fn open_named(self) -> Result<Arena> {
        let refuse = |problem: &str| Err(Error::new(Operation::Configure, format!("a named arena: {problem}")));
        let pages = self.page_size.pages_for(self.capacity_bytes);
        let Some(pages) = pages else {
            return refuse("more than isize::MAX bytes");
        };
        if self.read_only_peers {
            return refuse("its file cannot be sealed, so that peers could only read");
        }
        if self.populate != Populate::Eager {
            return refuse("it cannot be populated lazily or in the background: peers rely on its pages");
        }
        let request = named::Request {
            name: self.name.as_deref().unwrap_or_default(),
            record_dir: self.record_dir.as_deref(),
            kind: &self.backing,
            page_size: self.page_size,
            pages: (pages > 0).then_some(pages),
            most: self.most_pages(pages)?,
            dump: self.dump,
            share_tables: self.share_tables,
            workers: self.populate_threads,
            placement: self.placement,
            progress: self.progress.as_ref(),
        };
        let named::Parts { mapping, pages, named } = named::open(&request)?;
        let obtained = Obtained {
            kind: BackingKind::Hugetlbfs { dir: named.path().parent().map(Path::to_path_buf) },
            page_size: self.page_size,
            transparent_bytes: 0,
            capacity_bytes: pages.present_pages() * self.page_size.bytes(),
            populated: true,
            read_only_peers: false,
            placement: self.placement,
            nodes: mapping.located().clone(),
            declined: Vec::new(),
        };
        Ok(Arena::from_parts(mapping, self.page_size, pages, Some(named), obtained, self.manners()))
    }

    /// Page sizes to try, best first.
    fn candidates(&self) -> Vec<PageSize> {
        let mut sizes = vec![self.page_size];
        if !self.strict {
            let mut smaller: Vec<_> =
                supply::page_sizes().into_iter().filter(|size| size.is_huge() && *size < self.page_size).collect();
            smaller.sort_unstable();
            sizes.extend(smaller.into_iter().rev());
            if self.page_size.is_huge() {
                sizes.push(PageSize::base());
            }
        }
        sizes
    }

    fn manners(&self) -> Manners {
        Manners { zero_on_release: self.zero_on_release, spare_pages: self.spare_pages }
    }

    fn map(&self, size: PageSize, pages: usize, most: Option<usize>) -> Result<Mapping> {
        // Smaller pages that stand in on hugetlbfs come from a mount of theirs; base pages from a memfd.
        let kind = match &self.backing {
            BackingKind::Hugetlbfs { .. } if !size.is_huge() && size != self.page_size => BackingKind::Memfd,
            BackingKind::Hugetlbfs { dir: Some(_) } if size != self.page_size => BackingKind::Hugetlbfs { dir: None },
            kind => kind.clone(),
        };
        let in_all = most.unwrap_or(pages) * (self.page_size.bytes() / size.bytes());
        let backing = Backing::create(&kind, size, in_all)?;
        let total_bytes = pages * self.page_size.bytes();
        let progress = self.progress.as_ref();
        let watch = progress.map(|callback| move |done_bytes| callback.call(size, done_bytes, total_bytes));
        let options = Options {
            align: self.page_size,
            eager: self.populate == Populate::Eager,
            transparent: !size.is_huge() && self.page_size.is_huge(),
            dump: self.dump,
            share_tables: self.share_tables,
            placement: self.placement,
            workers: self.populate_threads,
            watch: watch.as_ref().map(|watch| watch as _),
        };
        let mapping = match most {
            Some(_) => Mapping::resizable(backing, options, total_bytes),
            None => Mapping::new(backing, options),
        }?;
        if self.read_only_peers {
            mapping.backing().seal_writes()?;
        }
        Ok(mapping)
    }

    fn finish(self, mapping: Mapping, pages: usize, declined: Vec<Declined>) -> Result<Arena> {
        let page_size = mapping.backing().page_size();
        let stands_in = !page_size.is_huge() && self.page_size.is_huge();
        let obtained = Obtained {
            kind: if mapping.backing().fd().is_none() { BackingKind::Anonymous } else { self.kind_had(page_size) },
            page_size,
            transparent_bytes: if stands_in { mapping::transparent_bytes(&mapping) } else { 0 },
            capacity_bytes: pages * self.page_size.bytes(),
            populated: self.populate == Populate::Eager,
            read_only_peers: self.read_only_peers,
            placement: self.placement,
            nodes: mapping.located().clone(),
            declined,
        };
        let in_all = mapping.len_bytes() / self.page_size.bytes();
        let mut bitmap = Bitmap::new(in_all);
        if !obtained.populated {
            bitmap = bitmap.unpopulated();
        }
        let arena = Arena::from_parts(mapping, self.page_size, bitmap.with_room(pages), None, obtained, self.manners());
        if self.populate == Populate::Background {
            arena.populate_in_background()?;
        }
        Ok(arena)
    }

    fn kind_had(&self, page_size: PageSize) -> BackingKind {
        if page_size.is_huge() || page_size == self.page_size { self.backing.clone() } else { BackingKind::Memfd }
    }
}

pub(super) fn is_cancelled(error: &Error) -> bool {
    error.os_error().and_then(std::io::Error::raw_os_error) == Some(sys::ECANCELED.raw())
}
