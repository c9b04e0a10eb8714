//! What went wrong on the control plane: the call, its subject, the errno, the limit that bound, a remedy.
//!
//! The data plane (claim, allocate, get) never builds an [`Error`]: it answers with `Option` or null.

use std::fmt;
use std::io;

/// A result of the control plane.
pub type Result<T> = std::result::Result<T, Error>;

/// An errno as the kernel returned it. Costs nothing, so it is what code below the heap passes around.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The number, as in errno(3).
    pub(crate) const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

/// What was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// The options contradict each other or are out of range; nothing was attempted.
    Configure,
    /// Reading what the machine offers (sysfs, procfs, cgroups, mounts).
    Discover,
    /// Creating or opening the file that owns the pages.
    CreateBacking,
    /// Reserving address space.
    ReserveAddresses,
    /// Mapping pages.
    Map,
    /// Making sure that every page is there.
    Populate,
    /// Having pages on the NUMA nodes asked for, or proving that they are there.
    Place,
    /// Giving pages or addresses back.
    Unmap,
    /// Becoming the owner of a named arena: another process owns it.
    Own,
    /// Reading or writing the record of a named arena.
    Record,
    /// Mapping an arena that another process owns.
    Attach,
    /// Looking at a named arena from outside.
    Inspect,
    /// Removing a named arena.
    Remove,
    /// Passing an arena to another process.
    Share,
    /// Finding the addresses that a device uses.
    Translate,
    /// Starting a thread.
    StartThread,
    /// Having pages of an arena for something larger than a chunk of the caller's own: a pool.
    Claim,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Configure => "configure",
            Operation::Discover => "discover",
            Operation::CreateBacking => "create the backing of",
            Operation::ReserveAddresses => "reserve addresses for",
            Operation::Map => "map",
            Operation::Populate => "populate",
            Operation::Place => "place",
            Operation::Unmap => "unmap",
            Operation::Own => "own",
            Operation::Record => "use the record of",
            Operation::Attach => "attach",
            Operation::Inspect => "inspect",
            Operation::Remove => "remove",
            Operation::Share => "share",
            Operation::Translate => "translate the addresses of",
            Operation::StartThread => "start the thread of",
            Operation::Claim => "claim pages for",
        })
    }
}

/// Which limit stopped an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitKind {
    /// The kernel's pool of free, unreserved huge pages of that size, overcommit included.
    Pool,
    /// The pages or the memory of the NUMA nodes that may be used: those of a strict placement, or of this process's
    /// cpuset.
    Node,
    /// The kernel does not offer that page size at all.
    PageSizeMissing,
    /// `hugetlb.<size>.max` (v2) or `limit_in_bytes` (v1): pages in use by a cgroup.
    CgroupMax,
    /// `hugetlb.<size>.rsvd.max` (v2) or `rsvd.limit_in_bytes` (v1): pages reserved by a cgroup.
    CgroupReserved,
    /// The `size=` of a hugetlbfs mount.
    MountSize,
    /// No hugetlbfs with pages of that size is mounted, or not in the directory that was named.
    MountMissing,
    /// The file that holds the pages was truncated by somebody else.
    FileLength,
    /// RLIMIT_AS, the address space of this process.
    AddressSpace,
    /// RLIMIT_MEMLOCK.
    LockedMemory,
    /// RLIMIT_FSIZE, which counts for files on hugetlbfs and for memfds as well.
    FileSize,
    /// Ordinary memory: free memory, overcommit or `vm.max_map_count`.
    Memory,
    /// File permissions, a read-only mount, or a call that is denied.
    Permission,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitKind::Pool => "the huge page pool",
            LimitKind::Node => "a NUMA node",
            LimitKind::PageSizeMissing => "the page sizes of this kernel",
            LimitKind::CgroupMax => "a hugetlb cgroup limit",
            LimitKind::CgroupReserved => "a hugetlb cgroup reservation limit",
            LimitKind::MountSize => "the size of the hugetlbfs mount",
            LimitKind::MountMissing => "the hugetlbfs mounts",
            LimitKind::FileLength => "the length of the file",
            LimitKind::AddressSpace => "RLIMIT_AS",
            LimitKind::LockedMemory => "RLIMIT_MEMLOCK",
            LimitKind::FileSize => "RLIMIT_FSIZE",
            LimitKind::Memory => "ordinary memory",
            LimitKind::Permission => "permissions",
        })
    }
}

/// A limit, with the figures that show that it is the one that bound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// Which one.
    pub kind: LimitKind,
    /// Bytes the operation needed.
    pub needed_bytes: u64,
    /// Bytes the limit still allowed when it was read, after the failure.
    pub available_bytes: u64,
    /// The file or call that the figure was read from.
    pub source: String,
    /// What to do about it: one command or one sentence.
    pub remedy: String,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "limited by {}: {} bytes needed, {} available ({}); {}",
            self.kind, self.needed_bytes, self.available_bytes, self.source, self.remedy
        )
    }
}

/// A control-plane failure. Nothing that the failed call started is left behind.
///
/// Its `Display` is one line: the operation, the subject, the system's error, the limit with figures and the
/// file they were read from, and the remedy. The system's error is a part of that and of [`os_error`](Self::os_error),
/// so it is no [`source`](std::error::Error::source): those who print chains of errors would print it twice.
///
/// # Examples
///
/// ```
/// use hugearena::Arena;
/// use hugearena::error::LimitKind;
///
/// // A thousand tebibytes of 2 MiB pages.
/// let error = Arena::builder().capacity(1 << 50).strict().open().unwrap_err();
/// println!("{error}"); // cannot map ...; limited by the huge page pool: ... needed, ... available (...); echo ...
/// if let Some(limit) = error.limit().filter(|limit| limit.kind == LimitKind::Pool) {
///     eprintln!("{} bytes are missing: {}", limit.needed_bytes - limit.available_bytes, limit.remedy);
/// }
/// ```
#[derive(Debug)]
pub struct Error {
    operation: Operation,
    subject: String,
    os: Option<io::Error>,
    limit: Option<Limit>,
}

impl Error {
    pub(crate) fn new(operation: Operation, subject: impl Into<String>) -> Error {
        Error { operation, subject: subject.into(), os: None, limit: None }
    }

    pub(crate) fn os(mut self, error: impl Into<io::Error>) -> Error {
        self.os = Some(error.into());
        self
    }

    pub(crate) fn limited_by(mut self, limit: Option<Limit>) -> Error {
        self.limit = limit;
        self
    }

    /// What was attempted.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// On what: page size and length, a path, or a sentence about the options.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The system's error, when a system call failed.
    #[must_use]
    pub fn os_error(&self) -> Option<&io::Error> {
        self.os.as_ref()
    }

    /// The limit that bound, when it could be found out.
    #[must_use]
    pub fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.operation, self.subject)?;
        if let Some(os) = &self.os {
            write!(f, ": {os}")?;
        }
        if let Some(limit) = &self.limit {
            write!(f, "; {limit}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
