//! Named arenas: files on hugetlbfs that outlive their owner, who is one process at a time.
//!
//! What has to hold however the owner ends: a page that is not zero is never recorded as zero. So the record is
//! written before the first page can be claimed; a page's bit is cleared before a claim returns, and set when the page
//! has been cleared (both in `bitmap.rs`); and the record speaks of one file of one boot (`record.rs`).

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::bitmap::Bitmap;
use super::progress::Callback;
use super::record::{self, Identity, Record};
use super::records::Place;
use super::resize::{add_lacking, bring_up};
use crate::backing::lock::{self, Taken};
use crate::backing::{Backing, BackingKind, named};
use crate::error::{Operation, Result};
use crate::mapping::attach::{AttachOptions, Attachment};
use crate::mapping::{Mapping, resize};
use crate::numa::Placement;
use crate::page_size::PageSize;
use crate::sys::process::forks;

/// What a named arena is asked to be.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) record_dir: Option<&'a Path>,
    pub(super) kind: &'a BackingKind,
    pub(super) page_size: PageSize,
    /// `None`: as many as there are.
    pub(super) pages: Option<usize>,
    /// As many as there may be, if it is to be one that can be resized.
    pub(super) most: Option<usize>,
    pub(super) dump: bool,
    pub(super) share_tables: bool,
    /// Threads that populate what is not there; `None`: as many as pay.
    pub(super) workers: Option<usize>,
    /// Of pages that are not there.
    pub(super) placement: Placement,
    pub(super) progress: Option<&'a Callback>,
}

/// What a named arena adds to others. Dropped last: with it goes the right to own the arena.
#[derive(Debug)]
pub struct Named {
    place: Place,
    path: PathBuf,
    restart: Restart,
    attachment: Attachment,
    /// Held for their locks.
    locks: [File; 2],
    /// [`forks`] when they were taken.
    forks: u64,
}

impl Drop for Named {
    /// Gives the locks up although a child that is just being started may have the descriptors still. A forked child
    /// must not: the locks are its parent's as well.
    fn drop(&mut self) {
        if forks() == self.forks {
            self.locks.iter().for_each(lock::give_up);
        }
    }
}

/// What an owner found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restart {
    /// Nothing: the arena is new.
    Created,
    /// Pages of an earlier owner, of which this many are known to hold zeroes.
    Known {
        /// Pages that need no clearing.
        clean: usize,
    },
    /// Pages of an earlier owner without a record that fits them: all are dirty.
    Unknown,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Restart::Created => f.write_str("created"),
            Restart::Known { clean } => write!(f, "restarted, {clean} pages known to be zero"),
            Restart::Unknown => f.write_str("restarted without a record that fits, all pages dirty"),
        }
    }
}

impl Named {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.place.name()
    }

    /// The file on hugetlbfs that holds the pages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record of what is zero.
    #[must_use]
    pub fn record_path(&self) -> PathBuf {
        self.place.record_path()
    }

    /// What this owner found.
    #[must_use]
    pub fn restart(&self) -> &Restart {
        &self.restart
    }

    /// How the pages came into this process.
    #[must_use]
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}: {}; {}", self.name(), self.path.display(), self.restart, self.attachment)
    }
}

/// A named arena's parts, ready to be put together.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) mapping: Mapping,
    pub(super) pages: Bitmap,
    pub(super) named: Named,
}

/// Creates the arena, or becomes its owner.
pub(super) fn open(request: &Request<'_>) -> Result<Parts> {
    let place = Place::new(request.name, request.record_dir)?;
    let directory = request.directory(&place)?;
    place.make_directory()?;
    let name_lock = place.lock()?;
    let unlocked = LeaveNoLock(&place);
    let (path, data_lock, (mapping, pages, restart, attachment)) = open_locked(request, &place, directory)?;
    drop(unlocked);
    let named = Named { place, path, restart, attachment, locks: [data_lock, name_lock], forks: forks() };
    Ok(Parts { mapping, pages, named })
}

/// Dropped before the lock of the name: takes its file away when nothing else is there, however opening ended.
struct LeaveNoLock<'a>(&'a Place);

impl Drop for LeaveNoLock<'_> {
    fn drop(&mut self) {
        if !self.0.record_path().exists() {
            let _ = self.0.delete();
        }
    }
}

type Restarted = (Mapping, Bitmap, Restart, Attachment);

fn open_locked(request: &Request<'_>, place: &Place, directory: Option<&Path>) -> Result<(PathBuf, File, Restarted)> {
    let old = place.read()?;
    let paths = request.find(place, old.as_ref(), directory)?;
    let (path, data_lock) = request.take_file(place, paths)?;
    let is_new = length(&data_lock, &path, request)? == 0;
    let made = is_new.then(|| Made { place, path: &path, file: &data_lock });
    let restarted = request.restart(place, &path, &data_lock, old, is_new)?;
    // Kept from here on.
    std::mem::forget(made);
    Ok((path, data_lock, restarted))
}

/// A new arena's file, and a record of it: gone again when dropped, also by a callback that panics.
struct Made<'a> {
    place: &'a Place,
    path: &'a Path,
    file: &'a File,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // Not what somebody has put in its place.
        if lock::is_at(self.path, self.file) {
            let _ = fs::remove_file(self.path);
        }
        let _ = fs::remove_file(self.place.record_path());
    }
}

impl Request<'_> {
    fn directory(&self, place: &Place) -> Result<Option<&Path>> {
        let refuse = |problem: &str| Err(place.error(Operation::Configure, problem));
        match self.kind {
            _ if !self.page_size.is_huge() => refuse("only huge pages have a file system that keeps them by name"),
            // The default, which says nothing.
            BackingKind::Memfd => Ok(None),
            BackingKind::Hugetlbfs { dir } => Ok(dir.as_deref()),
            BackingKind::Anonymous => refuse("anonymous memory cannot have a name"),
        }
    }

    /// Where the file is, or where it may be made, best first.
    fn find(&self, place: &Place, old: Option<&Record>, directory: Option<&Path>) -> Result<Vec<PathBuf>> {
        let known = old.map(|record| record.path.clone()).filter(|path| path.exists());
        let Some(path) = known.or_else(|| if directory.is_none() { named::find(self.name) } else { None }) else {
            let directories = named::directories(directory, self.page_size, self.pages.unwrap_or(1))?;
            return Ok(directories.into_iter().map(|path| path.join(named::file_name(self.name))).collect());
        };
        if let Some(directory) = directory
            && !is_same(directory, path.parent())
        {
            let problem = format!("it exists, as {}, not in {}", path.display(), directory.display());
            return Err(place.error(Operation::Configure, problem));
        }
        match named::page_size_at(&path) {
            Some(size) if size == self.page_size => Ok(vec![path]),
            Some(size) => {
                let problem =
                    format!("it exists, as {}, on pages of {size}, not of {}", path.display(), self.page_size);
                Err(place.error(Operation::Configure, problem))
            }
            None => {
                let problem = format!("{} is not on a hugetlbfs any more", path.display());
                Err(place.error(Operation::Configure, problem))
            }
        }
    }

    /// Opens or makes the first of `paths` that can be, and takes its lock.
    fn take_file(&self, place: &Place, paths: Vec<PathBuf>) -> Result<(PathBuf, File)> {
        let mut first_refusal = None;
        for path in paths {
            match lock::take(&path, true) {
                Ok(Taken::Ours(file)) if named::is_on_hugetlbfs(&file) => return Ok((path, file)),
                Ok(Taken::Ours(_)) => {
                    let problem = format!("{} is not on a hugetlbfs any more", path.display());
                    return Err(place.error(Operation::Configure, problem));
                }
                Ok(Taken::Held) => return Err(place.is_owned(&path)),
                Err(error) => {
                    let pages = self.pages.unwrap_or(1);
                    let refused = || named::refused(&error, &path, self.page_size, pages);
                    first_refusal.get_or_insert_with(refused);
                }
            }
        }
        Err(first_refusal.unwrap_or_else(|| place.error(Operation::CreateBacking, "there is no place for its file")))
    }

    /// Gives a new file its length, writes the record, maps.
    fn restart(&self, place: &Place, path: &Path, file: &File, old: Option<Record>, is_new: bool) -> Result<Restarted> {
        if is_new {
            self.set_length(place, path, file)?;
        }
        let backing = self.second_backing(place, path, file)?;
        let pages = backing.pages();
        let refused = |error| named::refused(&error, path, self.page_size, pages);
        let identify = || file.metadata().map(|metadata| Identity::of(&metadata)).map_err(refused);
        let found = identify()?;
        let known = old.filter(|record| !is_new && record.describes(found, self.page_size, pages));
        let resizable = self.is_resizable(place, pages, known.as_ref())?;
        if known.is_none() {
            // A record in another directory, of an owner before the last, would speak of this file as it was then:
            // it must not fit any more. Killed between this and the writing of ours, no record fits, and all is dirty.
            file.set_modified(SystemTime::now()).map_err(refused)?;
        }
        let (mut record, restart) = self.record(path, identify()?, pages, known, is_new);
        if resizable {
            record.flags |= record::RESIZABLE;
            match restart {
                // Each page comes when the arena grows to what it is asked to have.
                Restart::Created => (record.zero, record.absent) = (record.claimed.clone(), record.zero),
                Restart::Known { .. } => {}
                Restart::Unknown => record.absent = resize::holes(&backing).map_err(refused)?,
            }
        }
        let words = place.write(&record)?;
        let watch = |total| self.progress.map(|callback| move |done| callback.call(self.page_size, done, total));
        let watch_all = watch(backing.len_bytes());
        let options = AttachOptions {
            writable: true,
            dump: self.dump,
            share_tables: self.share_tables,
            workers: self.workers,
            placement: self.placement,
            resizable,
            watch: watch_all.as_ref().map(|watch| watch as _),
        };
        let allocated = backing.is_allocated();
        let (mapping, attachment) = Mapping::attach(backing, options)?;
        let bitmap = Bitmap::recorded(pages, words, is_new);
        if resizable {
            let size = self.page_size.bytes();
            bring_up(&mapping, &bitmap, size, allocated)?;
            let lacking = self.pages.unwrap_or(0).saturating_sub(bitmap.present_pages());
            let watch = watch(lacking * size);
            add_lacking(&mapping, &bitmap, size, lacking, watch.as_ref().map(|watch| watch as _))?;
        }
        Ok((mapping, bitmap, restart, attachment))
    }

    /// Whether the arena can be resized: an old one, if it could be before.
    fn is_resizable(&self, place: &Place, pages: usize, known: Option<&Record>) -> Result<bool> {
        let refuse = |problem: String| Err(place.error(Operation::Configure, problem + "; remove it first"));
        let size = self.page_size;
        let resizable = known.map_or(self.most.is_some(), Record::is_resizable);
        match (resizable, self.most, self.pages) {
            (true, Some(most), _) if most != pages => {
                refuse(format!("it exists with room for {pages} pages of {size}, not {most}"))
            }
            (true, None, Some(wanted)) if wanted > pages => {
                refuse(format!("it exists with room for {pages} pages of {size}, less than {wanted}"))
            }
            (false, None, Some(wanted)) if wanted != pages => {
                refuse(format!("it exists with {pages} pages of {size}, not {wanted}"))
            }
            (false, Some(_), _) => refuse(format!("it exists with {pages} pages of {size}, and cannot be resized")),
            _ => Ok(resizable),
        }
    }

    fn set_length(&self, place: &Place, path: &Path, file: &File) -> Result<()> {
        let pages = self
            .most
            .or(self.pages)
            .ok_or_else(|| place.error(Operation::Configure, "it is new: wanted a capacity"))?;
        named::set_length(file, path, self.page_size, pages)
    }

    /// The record to start with: what one that speaks of this file knows.
    fn record(
        &self,
        path: &Path,
        file: Identity,
        pages: usize,
        known: Option<Record>,
        is_new: bool,
    ) -> (Record, Restart) {
        let none = vec![0; pages.div_ceil(64)];
        let (zero, absent, claimed, restart) = match (known, is_new) {
            // Pages that the kernel has not given yet, and will zero.
            (_, true) => (vec![u64::MAX; pages.div_ceil(64)], none.clone(), none, Restart::Created),
            (Some(record), false) => {
                let there: Vec<_> =
                    record.zero.iter().zip(&record.absent).map(|(zero, absent)| zero & !absent).collect();
                let clean = count(&there, pages);
                // Nobody holds a page any more; what was about to come has still to be looked after.
                let coming = record.claimed.iter().zip(&record.absent).map(|(claimed, absent)| claimed & absent);
                (there, record.absent.clone(), coming.collect(), Restart::Known { clean })
            }
            (None, false) => (none.clone(), none.clone(), none, Restart::Unknown),
        };
        let record = Record {
            boot_id: record::boot_id().unwrap_or_default(),
            file,
            page_size: self.page_size,
            pages,
            flags: if self.dump { record::DUMP } else { 0 },
            path: path.into(),
            zero,
            absent,
            claimed,
        };
        (record, restart)
    }

    /// The file once more, by a descriptor that can be passed on: who gets it does not get the lock.
    fn second_backing(&self, place: &Place, path: &Path, locked: &File) -> Result<Backing> {
        let failed = |error: io::Error| named::refused(&error, path, self.page_size, self.pages.unwrap_or(1));
        let file = named::open(path, true).map_err(failed)?;
        let same = |file: &File| file.metadata().map(|metadata| Identity::of(&metadata)).map_err(failed);
        if same(&file)? != same(locked)? {
            return Err(place.error(Operation::Own, format!("{} was replaced meanwhile", path.display())));
        }
        Backing::from_file(file, path.parent().map(Path::to_path_buf), self.page_size)
    }
}

fn length(file: &File, path: &Path, request: &Request<'_>) -> Result<u64> {
    let refused = |error| named::refused(&error, path, request.page_size, request.pages.unwrap_or(1));
    Ok(file.metadata().map_err(refused)?.len())
}

fn is_same(directory: &Path, other: Option<&Path>) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    other.is_some_and(|other| directory == other || real(directory).is_some_and(|path| real(other) == Some(path)))
}

/// How many of the first `pages` bits are set.
fn count(zero: &[u64], pages: usize) -> usize {
    (0..pages).filter(|page| zero[page / 64] >> (page % 64) & 1 != 0).count()
}
