//! Where an arena's pages come from: a memfd, a file on hugetlbfs, or anonymous memory.

pub(crate) mod lock;
pub(crate) mod mounts;
pub(crate) mod named;

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Errno, Error, Operation, Result};
use crate::page_size::PageSize;
use crate::supply;
use crate::supply::machine::ThisMachine;
use crate::sys::{self, memory};
use mounts::HugeDirectory;

/// Where an arena's pages come from.
///
/// # Examples
///
/// ```
/// use hugearena::backing::{BackingKind, MemoryClass};
///
/// let default = BackingKind::default();
/// assert_eq!(default, BackingKind::Memfd);
/// assert_eq!(default.memory_class(), MemoryClass::Shared);
/// assert_eq!(BackingKind::Hugetlbfs { dir: None }.to_string(), "hugetlbfs");
/// ```
///
/// # Sources
///
/// memfd_create(2), open(2) (`O_TMPFILE`), mmap(2) (`MAP_HUGETLB`); Linux,
/// `Documentation/admin-guide/mm/hugetlbpage.rst`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackingKind {
    /// A file that exists only as a descriptor. Needs no mount and no privileges; can be passed to another process;
    /// nothing is left behind, however this process ends. Sealed: nobody can shrink it.
    #[default]
    Memfd,
    /// A file without a name on a hugetlbfs mount, which counts against the `size=` of that mount. It cannot be
    /// sealed: whoever gets the descriptor can truncate it under everybody's feet.
    Hugetlbfs {
        /// A directory on a hugetlbfs with pages of the size asked for: the mount point, or anything below it.
        /// `None`: whichever mount can be written to, the one with the most room first.
        dir: Option<PathBuf>,
    },
    /// No file: private memory, copied on write after fork(2). What an allocator needs.
    Anonymous,
}

impl BackingKind {
    /// Who can see the memory.
    #[must_use]
    pub fn memory_class(&self) -> MemoryClass {
        match self {
            BackingKind::Memfd | BackingKind::Hugetlbfs { .. } => MemoryClass::Shared,
            BackingKind::Anonymous => MemoryClass::Private,
        }
    }
}

impl std::fmt::Display for BackingKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackingKind::Memfd => f.write_str("memfd"),
            BackingKind::Hugetlbfs { dir: None } => f.write_str("hugetlbfs"),
            BackingKind::Hugetlbfs { dir: Some(dir) } => write!(f, "hugetlbfs in {}", dir.display()),
            BackingKind::Anonymous => f.write_str("anonymous memory"),
        }
    }
}

/// Who can see a mapping's memory, and what fork(2) makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// This process only; a forked child gets a copy, page by page, when either side writes. Pages of 1 GiB are the
    /// exception: Linux loses some of them at fork, so the child of an arena on such pages gets none of it.
    Private,
    /// Whoever maps the same file. A forked child would write to the same memory, so it gets none of it.
    Shared,
}

/// The owner of an arena's pages before they are mapped: a length, and the descriptor when there is one.
///
/// Pages are reserved and taken by mapping, not by creating; dropping the backing gives them back once the last
/// mapping is gone, for none of the files has a name.
#[derive(Debug)]
pub(crate) struct Backing {
    file: Option<File>,
    directory: Option<PathBuf>,
    page_size: PageSize,
    pages: usize,
}

impl Backing {
    /// Makes a backing of `pages` pages of `page_size`; for the base page, one without hugetlb.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`]: no pages, more than `isize::MAX` bytes, hugetlbfs with base pages, or a directory that
    /// is not on a hugetlbfs with pages of that size. [`Operation::CreateBacking`]: the kernel refused; or no mount can
    /// be used.
    pub(crate) fn create(kind: &BackingKind, page_size: PageSize, pages: usize) -> Result<Backing> {
        let request = Request::new(kind, page_size, pages)?;
        let (file, directory) = match kind {
            BackingKind::Memfd => (Some(request.memfd()?), None),
            BackingKind::Hugetlbfs { dir } => {
                let (file, directory) = request.unnamed_file(dir.as_deref())?;
                (Some(file), Some(directory))
            }
            BackingKind::Anonymous => (None, None),
        };
        Ok(Backing { file, directory, page_size, pages })
    }

    /// Takes away everybody's right to map the file for writing, where there is one; mappings that are there stay.
    ///
    /// # Errors
    ///
    /// [`Operation::CreateBacking`]: the kernel is older than that seal (5.1), or the file cannot be sealed.
    pub(crate) fn seal_writes(&self) -> Result<()> {
        self.fd().map_or(Ok(()), memory::seal_future_writes).map_err(|errno| {
            let subject = format!("{} pages of {} that peers can only read", self.pages, self.page_size);
            Error::new(Operation::CreateBacking, subject).os(errno)
        })
    }

    /// The file, unless the memory is anonymous.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(File::as_fd)
    }

    /// Who can see the memory.
    pub(crate) fn memory_class(&self) -> MemoryClass {
        if self.file.is_some() { MemoryClass::Shared } else { MemoryClass::Private }
    }

    /// Whether children of fork(2) get the memory. Pages of 1 GiB are kept from them even where they would be copied on
    /// write: Linux 6.18 loses some on the way (`heap/fork.rs` has the evidence), and a child would read zeroes.
    pub(crate) fn is_inherited(&self) -> bool {
        self.memory_class() == MemoryClass::Private && self.page_size < PageSize::HUGE_1G
    }

    /// The file's length, where somebody has made it shorter than the pages that it is to hold.
    pub(crate) fn truncated_bytes(&self) -> Option<u64> {
        let len = self.file.as_ref()?.metadata().ok()?.len();
        (len < self.len_bytes() as u64).then_some(len)
    }

    /// The hugetlbfs directory whose mount holds the file: what [`supply::diagnose`] wants to know.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    pub(crate) fn page_size(&self) -> PageSize {
        self.page_size
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Length in bytes, whole pages, at most `isize::MAX`.
    pub(crate) fn len_bytes(&self) -> usize {
        self.pages * self.page_size.bytes()
    }
}

/// A request whose numbers are sound.
struct Request<'a> {
    kind: &'a BackingKind,
    page_size: PageSize,
    pages: usize,
    bytes: u64,
}

impl Request<'_> {
    fn new(kind: &BackingKind, page_size: PageSize, pages: usize) -> Result<Request<'_>> {
        let sound = |bytes: &usize| (1..=isize::MAX as usize).contains(bytes);
        let bytes = pages.checked_mul(page_size.bytes()).filter(sound).ok_or_else(|| {
            let subject = format!("{pages} pages of {page_size}: wanted at least one, and at most isize::MAX bytes");
            Error::new(Operation::Configure, subject)
        })?;
        Ok(Request { kind, page_size, pages, bytes: bytes as u64 })
    }

    fn memfd(&self) -> Result<File> {
        let fd = memory::memfd(c"hugearena", self.page_size).map_err(|errno| self.refused(errno, None))?;
        let file = self.with_length(fd, None)?;
        memory::seal_shrink(file.as_fd()).map_err(|errno| self.refused(errno, None))?;
        // Reachable through /proc/self/fd, where the mode of the file counts.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| self.refused(errno_of(&error), None))?;
        Ok(file)
    }

    fn unnamed_file(&self, directory: Option<&Path>) -> Result<(File, PathBuf)> {
        if !self.page_size.is_huge() {
            let subject = format!("hugetlbfs with pages of {}: these are the base pages", self.page_size);
            return Err(Error::new(Operation::Configure, subject));
        }
        let candidates = match directory {
            Some(directory) => vec![self.confirm(directory)?],
            None => mounts::find(&ThisMachine, self.page_size),
        };
        let mut first_refusal = None;
        for candidate in candidates {
            match candidate.create_unnamed() {
                Ok(fd) => return Ok((self.with_length(fd, Some(&candidate.path))?, candidate.path)),
                Err(errno) => first_refusal = first_refusal.or(Some((errno, candidate.path))),
            }
        }
        Err(match first_refusal {
            Some((errno, path)) => self.refused(errno, Some(&path)),
            None => self.no_mount(),
        })
    }

    fn confirm(&self, directory: &Path) -> Result<HugeDirectory> {
        // Opening says better than statfs why a directory cannot be reached.
        std::fs::metadata(directory).map_err(|error| self.refused(errno_of(&error), Some(directory)))?;
        let problem = match HugeDirectory::confirm(&ThisMachine, directory) {
            Some(found) if found.page_size == self.page_size => return Ok(found),
            Some(found) => format!("has pages of {}, not of {}", found.page_size, self.page_size),
            None => "is not on a hugetlbfs".into(),
        };
        Err(Error::new(Operation::Configure, format!("{}: the directory {problem}", self.kind)))
    }

    fn with_length(&self, fd: OwnedFd, directory: Option<&Path>) -> Result<File> {
        let file = File::from(fd);
        self.check_length()?;
        file.set_len(self.bytes).map_err(|error| self.refused(errno_of(&error), directory))?;
        Ok(file)
    }

    fn check_length(&self) -> Result<()> {
        match supply::diagnosis::file_size(self.bytes) {
            None => Ok(()),
            limit => Err(Error::new(Operation::CreateBacking, self.subject()).os(sys::EFBIG).limited_by(limit)),
        }
    }

    fn no_mount(&self) -> Error {
        let missing = supply::no_mount(self.page_size, self.bytes);
        Error::new(Operation::CreateBacking, self.subject()).limited_by(Some(missing))
    }

    fn refused(&self, errno: Errno, directory: Option<&Path>) -> Error {
        let limit = supply::diagnose(errno, self.page_size, self.bytes, directory);
        Error::new(Operation::CreateBacking, self.subject()).os(errno).limited_by(limit)
    }

    fn subject(&self) -> String {
        format!("{} pages of {} ({})", self.pages, self.page_size, self.kind)
    }
}

/// std keeps the number of the system's error; an error without one is std's own about an argument.
fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(sys::EINVAL, Errno)
}

#[cfg(test)]
mod tests;
