//! Views: an arena that another process owns, as offsets into memory of ours.

use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::record::Identity;
use super::records::Place;
use super::{Arena, iova_memory};
use crate::backing::{Backing, named};
use crate::error::{Error, Operation, Result};
use crate::iova::{IovaMap, IovaMode};
use crate::mapping::Mapping;
use crate::mapping::attach::{AttachOptions, Attachment};
use crate::page_size::PageSize;

/// Options for [`Arena::attach`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Attach {
    name: String,
    record_dir: Option<PathBuf>,
    writable: bool,
    share_tables: bool,
}

impl Arena {
    /// Options for a view of the named arena that another process owns, or owned until it ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::Arena;
    ///
    /// match Arena::attach("packets").read_only().open() {
    ///     Ok(view) => println!("{} bytes, {}", view.len(), view.attachment()),
    ///     Err(error) => println!("{error}"), // there is no such arena here
    /// }
    /// ```
    pub fn attach(name: impl Into<String>) -> Attach {
        Attach { name: name.into(), record_dir: None, writable: true, share_tables: true }
    }
}

impl Attach {
    /// A view that can only be read: writing to it is a SIGSEGV. Its pages are populated one by one, because page
    /// tables are shared between equal mappings only.
    pub fn read_only(mut self) -> Attach {
        self.writable = false;
        self
    }

    /// Where the record is. Default: `/run/hugearena` for root, `$XDG_RUNTIME_DIR/hugearena` for others.
    pub fn record_dir(mut self, directory: impl Into<PathBuf>) -> Attach {
        self.record_dir = Some(directory.into());
        self
    }

    /// Whether page tables are shared with other processes where that is possible. Default: they are. Shared tables
    /// make `HugetlbPages` in `/proc/PID/status` too small, even negative, because the kernel counts each page once
    /// for all who share it.
    pub fn share_tables(mut self, share: bool) -> Attach {
        self.share_tables = share;
        self
    }

    /// Maps the arena; every page is present when this returns.
    ///
    /// # Errors
    ///
    /// [`Operation::Attach`] when there is no such arena, or its record speaks of another file;
    /// [`Operation::Record`] for a record that is none; [`Operation::Map`] and [`Operation::Populate`], with the
    /// limit that bound.
    pub fn open(self) -> Result<View> {
        let place = Place::new(&self.name, self.record_dir.as_deref())?;
        let Some(record) = place.read()? else {
            let problem = format!("{} does not exist", place.record_path().display());
            return Err(place.error(Operation::Attach, problem));
        };
        let failed = |error| place.error(Operation::Attach, record.path.display()).os(error);
        let file = named::open(&record.path, self.writable).map_err(failed)?;
        let identity = Identity::of(&file.metadata().map_err(failed)?);
        let backing = Backing::from_file(file, record.path.parent().map(Path::to_path_buf), record.page_size)?;
        if !record.describes(identity, record.page_size, backing.pages()) {
            let problem = format!("its record speaks of another file than {}", record.path.display());
            return Err(place.error(Operation::Attach, problem));
        }
        View::new(
            backing,
            AttachOptions::of_peer(self.writable, record.is_dumped(), self.share_tables, record.is_resizable()),
        )
    }
}

/// An arena that another process owns, mapped here: at an address of its own, so that both sides name memory by
/// offset and length. Peers never claim; the owner tells them which bytes they may use, and has to hold the chunk
/// until they are done. Its death leaves views as they are; the next owner hands out every page anew.
///
/// The view of an arena that can be [resized](super::ArenaBuilder::max_capacity) covers the room that it may grow into.
/// Pages that the owner has claimed are there, also those that came later; the rest may have none, and touching it is
/// against the rules: it takes a page from the pool, and is a SIGBUS where there is none. Numbers that are not to be
/// trusted go through [`make_present`](Self::make_present) first.
///
/// Whoever can write to the file can also take pages out of it (truncation, except where it is sealed, and holes), which
/// is a SIGBUS for all who touch them: hand write access to processes that you trust with that.
///
/// # Examples
///
/// Both sides in one process:
///
/// ```
/// use hugearena::arena::View;
/// use hugearena::{Arena, PageSize};
/// use std::os::unix::net::UnixStream;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// let (ours, theirs) = UnixStream::pair()?;
/// arena.share(&ours)?;
/// let view = View::receive(&theirs)?;
///
/// let chunk = arena.claim(1).expect("256 pages are free");
/// // SAFETY: our own chunk, which nobody else has been told of.
/// unsafe { chunk.as_ptr().write(7) };
/// // Offset and length go to the peer, in a message of your own.
/// let bytes = view.get(chunk.offset(), chunk.len()).expect("inside the arena");
/// // SAFETY: at least a byte, which nobody writes to now.
/// assert_eq!(unsafe { bytes.cast::<u8>().read() }, 7);
/// # Ok(())
/// # }
/// ```
///
/// # Sources
///
/// mmap(2), memfd_create(2); Linux, `mm/hugetlb.c`, `huge_pmd_share`.
#[must_use = "it is unmapped when it is dropped"]
pub struct View {
    mapping: Mapping,
    writable: bool,
    attachment: Attachment,
}

impl View {
    pub(super) fn new(backing: Backing, options: AttachOptions<'_>) -> Result<View> {
        let (mapping, attachment) = Mapping::attach(backing, options)?;
        Ok(View { mapping, writable: options.writable, attachment })
    }

    /// Bytes in all.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len_bytes()
    }

    /// The size of the pages that the memory is on.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.mapping.backing().page_size()
    }

    /// Whether the memory can be written to.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// How the pages came into this process, and at what cost.
    #[must_use]
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The `len` bytes at `offset`, as the owner counts ([`Chunk::offset`](super::Chunk::offset)); `None` when they
    /// are not all inside, so that numbers from another process need no other check; and in a child of fork(2), which
    /// has not the memory.
    ///
    /// The pointer is valid as long as the view, for reading, and for writing if the view
    /// [is writable](Self::is_writable). Others may change the bytes at any time.
    #[must_use]
    pub fn get(&self, offset: usize, len: usize) -> Option<NonNull<[u8]>> {
        let end = offset.checked_add(len)?;
        if end > self.len() || !self.mapping.is_here() {
            return None;
        }
        let start = self.mapping.start().as_ptr().wrapping_add(offset);
        NonNull::new(start).map(|start| NonNull::slice_from_raw_parts(start, len))
    }
}

impl View {
    /// What a device calls the bytes of this view; see [`Chunk::iova`](super::Chunk::iova).
    ///
    /// # Errors
    ///
    /// As for [`Chunk::iova`](super::Chunk::iova).
    pub fn iova(&self, mode: IovaMode) -> Result<IovaMap> {
        iova_memory(&self.mapping, self.mapping.start(), self.len()).iova(mode)
    }

    /// Makes sure that the pages of these bytes are there: an error where touching them would be a SIGBUS. Only views of
    /// arenas that can be [resized](super::ArenaBuilder::max_capacity) may lack pages, and none that the owner has
    /// claimed; asked for anyhow, they are taken from the pool.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] when the bytes are not all inside, or in a child of fork(2), which has not the memory;
    /// [`Operation::Populate`], with the limit that bound.
    ///
    /// # Sources
    ///
    /// madvise(2), `MADV_POPULATE_WRITE`, `MADV_POPULATE_READ`.
    pub fn make_present(&self, offset: usize, len: usize) -> Result<()> {
        if self.get(offset, len).is_none() {
            let subject = format!("{len} bytes at {offset}: a view of {} bytes", self.len());
            return Err(Error::new(Operation::Configure, subject));
        }
        let page = self.page_size().bytes();
        let (start, end) = (offset / page * page, (offset + len).next_multiple_of(page));
        if start == end { Ok(()) } else { self.mapping.touch(start..end, self.writable) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("len", &self.len())
            .field("page_size", &self.page_size())
            .field("is_writable", &self.writable)
            .field("attachment", &self.attachment)
            .finish()
    }
}
