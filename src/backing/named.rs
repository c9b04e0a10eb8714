//! Files with names on hugetlbfs: where they are, how they are found again, and a backing made of one.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::mounts::{self, HugeDirectory};
use super::{Backing, BackingKind, Request, errno_of};
use crate::error::{Error, Operation, Result};
use crate::page_size::PageSize;
use crate::supply::machine::ThisMachine;
use crate::sys::{file, process};

/// What every file of ours on hugetlbfs starts with.
const PREFIX: &str = "hugearena.";

/// The name of an arena's file.
pub(crate) fn file_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The file of arena `name`, in whichever mount has one that belongs to this user.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let sizes = crate::supply::page_sizes();
    let mounts = sizes.into_iter().filter(|size| size.is_huge()).flat_map(|size| mounts::find(&ThisMachine, size));
    let mut paths = mounts.map(|mount| mount.path.join(file_name(name)));
    paths.find(|path| {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.uid() == process::effective_user())
    })
}

/// The names of this user's arenas whose files are in some mount, in no order.
pub(crate) fn names() -> Vec<String> {
    let sizes = crate::supply::page_sizes();
    let mounts = sizes.into_iter().filter(|size| size.is_huge()).flat_map(|size| mounts::find(&ThisMachine, size));
    let files = mounts.flat_map(|mount| fs::read_dir(mount.path).into_iter().flatten().flatten());
    let own = files
        .filter(|file| file.metadata().is_ok_and(|found| found.is_file() && found.uid() == process::effective_user()));
    own.filter_map(|file| file.file_name().to_str()?.strip_prefix(PREFIX).map(str::to_owned)).collect()
}

/// The directories in which a new file of pages of `page_size` may be made, best first.
///
/// # Errors
///
/// [`Operation::Configure`] for a directory that has no such pages, [`Operation::CreateBacking`] without a mount.
pub(crate) fn directories(directory: Option<&Path>, page_size: PageSize, pages: usize) -> Result<Vec<PathBuf>> {
    let kind = BackingKind::Hugetlbfs { dir: directory.map(Path::to_path_buf) };
    let request = Request::new(&kind, page_size, pages)?;
    let found = match directory {
        Some(directory) => vec![request.confirm(directory)?],
        None => mounts::find(&ThisMachine, page_size),
    };
    if found.is_empty() {
        return Err(request.no_mount());
    }
    // The path goes into a record, which processes with other working directories read.
    Ok(found.into_iter().map(|directory| directory.path.canonicalize().unwrap_or(directory.path)).collect())
}

/// What kept the file at `path` from being made or opened, with the limit that bound.
pub(crate) fn refused(error: &std::io::Error, path: &Path, page_size: PageSize, pages: usize) -> Error {
    let kind = BackingKind::Hugetlbfs { dir: path.parent().map(Path::to_path_buf) };
    match Request::new(&kind, page_size, pages) {
        // An error of ours has no errno, and says more than one would.
        Ok(request) if error.raw_os_error().is_none() => {
            Error::new(Operation::CreateBacking, format!("{}: {}: {error}", request.subject(), path.display()))
        }
        Ok(request) => request.refused(errno_of(error), path.parent()),
        Err(error) => error,
    }
}

/// Gives the file at `path` its length.
///
/// # Errors
///
/// [`Operation::CreateBacking`], with the limit that bound.
pub(crate) fn set_length(file: &File, path: &Path, page_size: PageSize, pages: usize) -> Result<()> {
    let kind = BackingKind::Hugetlbfs { dir: path.parent().map(Path::to_path_buf) };
    let request = Request::new(&kind, page_size, pages)?;
    request.check_length()?;
    file.set_len(request.bytes).map_err(|error| refused(&error, path, page_size, pages))
}

/// The page size of the hugetlbfs directory that holds `path`; `None` when it is on another file system.
pub(crate) fn page_size_at(path: &Path) -> Option<PageSize> {
    HugeDirectory::confirm(&ThisMachine, path.parent()?).map(|directory| directory.page_size)
}

/// Whether an open file is on a hugetlbfs.
pub(crate) fn is_on_hugetlbfs(file: &File) -> bool {
    file::file_system_of(file.as_fd()).is_ok_and(|system| system.is_hugetlbfs)
}

/// Opens the file at `path` once more, not through a link: a description of its own, which holds no lock.
pub(crate) fn open(path: &Path, writable: bool) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(writable).custom_flags(file::NO_FOLLOW).open(path)
}

impl Backing {
    /// A backing of `pages` pages of `page_size` in a file that has that length.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`]: the numbers are out of range, or are not the file's.
    pub(crate) fn from_file(file: File, directory: Option<PathBuf>, page_size: PageSize) -> Result<Backing> {
        let kind = BackingKind::Hugetlbfs { dir: directory.clone() };
        let len = file.metadata().map_err(|error| refused(&error, Path::new(""), page_size, 1))?.len();
        let grain = page_size.bytes() as u64;
        let pages = usize::try_from(len / grain).unwrap_or(usize::MAX);
        if !len.is_multiple_of(grain) {
            let subject = format!("a file of {len} bytes: these are no whole pages of {page_size}");
            return Err(Error::new(Operation::Configure, subject));
        }
        Request::new(&kind, page_size, pages)?;
        Ok(Backing { file: Some(file), directory, page_size, pages })
    }

    /// Whether the file has all its pages, so that touching one takes none from the pool.
    pub(crate) fn is_allocated(&self) -> bool {
        self.allocated_pages().is_ok_and(|pages| pages == self.pages)
    }

    /// How many pages the file has.
    pub(crate) fn allocated_pages(&self) -> std::io::Result<usize> {
        let blocks = self.file.as_ref().map_or(Ok(0), |file| file.metadata().map(|found| found.blocks()))?;
        Ok(usize::try_from(blocks.saturating_mul(512) / self.page_size.bytes() as u64).unwrap_or(usize::MAX))
    }
}
