//! Who holds huge pages: processes by their mappings and descriptors, and files on hugetlbfs mounts.
//!
//! `HugetlbPages` in `/proc/PID/status` is world-readable and incomplete: it leaves out what is open and not mapped,
//! and the kernel miscounts it where processes share page tables. The rest needs the right to trace the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::HugeMount;
use crate::page_size::PageSize;
use crate::supply::machine::{Machine, ThisMachine};
use crate::supply::mountinfo;

/// By what a process holds a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Via {
    /// A mapping that others can share: of a memfd, a hugetlbfs file or System V memory.
    SharedMapping,
    /// A private mapping.
    PrivateMapping,
    /// An open descriptor, not mapped.
    Descriptor,
}

/// A piece of huge-page memory that a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// As the kernel names it: a path, `/memfd:name (deleted)`, `/anon_hugepage (deleted)`.
    pub name: String,
    /// The size of its pages.
    pub page_size: PageSize,
    /// How.
    pub via: Via,
    /// Bytes of address space; 0 for a descriptor.
    pub mapped_bytes: u64,
    /// Bytes of pages. For what is shared: of the whole file, where that can be asked; else what this process has
    /// touched.
    pub bytes: u64,
    /// The number of the file; equal for processes that share it.
    pub inode: u64,
}

/// A process that holds huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its id.
    pub process: u32,
    /// Its name.
    pub command: String,
    /// `HugetlbPages` of its status.
    pub counted_bytes: u64,
    /// What it holds; empty where that may not be read.
    pub held: Vec<Held>,
    /// Whether mappings and descriptors could be read.
    pub is_readable: bool,
}

/// A file on a hugetlbfs mount of this process's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldFile {
    /// Where.
    pub path: PathBuf,
    /// The size of its pages.
    pub page_size: PageSize,
    /// Bytes of pages that it holds, whether or not a process has it open.
    pub bytes: u64,
    /// Its number.
    pub inode: u64,
}

/// Everybody who is seen to hold huge pages.
///
/// # Examples
///
/// ```
/// for holder in hugearena::doctor::Holders::find().processes {
///     println!("{} {}: {} bytes", holder.process, holder.command, holder.counted_bytes);
/// }
/// ```
///
/// # Sources
///
/// proc_pid_smaps(5), proc_pid_status(5), proc_pid_map_files(5); Linux, `Documentation/filesystems/proc.rst`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// Ascending by id.
    pub processes: Vec<Holder>,
    /// Files that hold pages.
    pub files: Vec<HeldFile>,
    /// Processes whose mappings and descriptors may not be read, holders or not.
    pub unreadable: usize,
}

impl Holders {
    /// Reads procfs and walks the hugetlbfs mounts. What cannot be read is counted in `unreadable`.
    #[must_use]
    pub fn find() -> Holders {
        Holders::of(&ThisMachine)
    }

    pub(super) fn of(machine: &dyn Machine) -> Holders {
        let names = machine.names(Path::new("/proc"));
        let mut ids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort_unstable();
        let mut found = Holders { files: files(machine), ..Holders::default() };
        for holder in ids.into_iter().filter_map(|id| Holder::read(machine, id)) {
            found.unreadable += usize::from(!holder.is_readable);
            if holder.counted_bytes > 0 || !holder.held.is_empty() {
                found.processes.push(holder);
            }
        }
        found
    }

    /// Processes that hold a file.
    pub fn of_file(&self, file: &HeldFile) -> impl Iterator<Item = u32> {
        let inode = file.inode;
        let holders = self.processes.iter();
        holders.filter(move |one| one.held.iter().any(|held| held.inode == inode)).map(|holder| holder.process)
    }

    /// Bytes of pages of that size whose holders were found, each shared file once.
    #[must_use]
    pub fn explained_bytes(&self, size: PageSize) -> u64 {
        let held = self.processes.iter().flat_map(|holder| &holder.held).filter(|held| held.page_size == size);
        let (private, shared): (Vec<&Held>, Vec<&Held>) = held.partition(|held| held.via == Via::PrivateMapping);
        let files = self.files.iter().filter(|file| file.page_size == size).map(|file| (file.inode, file.bytes));
        let mut distinct = BTreeMap::new();
        for (inode, bytes) in shared.iter().map(|held| (held.inode, held.bytes)).chain(files) {
            let most = distinct.entry(inode).or_insert(0u64);
            *most = bytes.max(*most);
        }
        let private = private.iter().map(|held| held.bytes);
        private.chain(distinct.into_values()).fold(0, u64::saturating_add)
    }
}

impl Holder {
    /// `None` for a process that has ended.
    fn read(machine: &dyn Machine, process: u32) -> Option<Holder> {
        let directory = Path::new("/proc").join(process.to_string());
        let status = machine.text(&directory.join("status"))?;
        let field =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
        // Nobody has waited for it yet; what it had is gone.
        if field("State").is_some_and(|state| state.starts_with('Z')) {
            return None;
        }
        let smaps = machine.text(&directory.join("smaps"));
        let mut held = smaps.as_deref().map_or_else(Vec::new, |smaps| mappings(machine, &directory, smaps));
        for open in descriptors(machine, &directory) {
            if held.iter().all(|known: &Held| known.inode != open.inode) {
                held.push(open);
            }
        }
        Some(Holder {
            process,
            command: field("Name").unwrap_or_default().into(),
            counted_bytes: field("HugetlbPages").and_then(kib).unwrap_or(0),
            held,
            is_readable: smaps.is_some(),
        })
    }
}

/// `64 kB`
fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The entries of smaps that are hugetlb: transparent huge pages have the base page as theirs.
fn mappings(machine: &dyn Machine, process: &Path, smaps: &str) -> Vec<Held> {
    let mut found: Vec<(&str, Held)> = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(header) = parse_header(line) {
            found.extend(current.replace(header));
        } else if let (Some((_, held)), Some((key, value))) = (&mut current, line.split_once(':')) {
            match (key, kib(value)) {
                ("KernelPageSize", Some(bytes)) => {
                    held.page_size = PageSize::from_bytes(bytes).unwrap_or(held.page_size)
                }
                ("Shared_Hugetlb" | "Private_Hugetlb", Some(bytes)) => held.bytes = held.bytes.saturating_add(bytes),
                _ => {}
            }
        }
    }
    found.extend(current);
    found.retain(|(_, held)| held.page_size.is_huge());
    found.into_iter().map(|(addresses, held)| whole_file(machine, process, addresses, held)).collect()
}

/// `7f0000000000-7f0000200000 rw-s 00000000 00:0f 1037   /memfd:name (deleted)`
fn parse_header(line: &str) -> Option<(&str, Held)> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let mapped_bytes = address(end)?.checked_sub(address(start)?)?;
    let mut fields = rest.splitn(5, ' ');
    let is_shared = fields.next()?.ends_with('s');
    let (inode, name) = (fields.nth(2)?.parse().ok()?, fields.next().unwrap_or_default().trim());
    let via = if is_shared { Via::SharedMapping } else { Via::PrivateMapping };
    Some((addresses, Held { name: name.into(), page_size: PageSize::base(), via, mapped_bytes, bytes: 0, inode }))
}

/// What a shared file holds in all: others may have touched what this process has not.
fn whole_file(machine: &dyn Machine, process: &Path, addresses: &str, mut held: Held) -> Held {
    if held.via == Via::SharedMapping {
        // Named there without leading zeros.
        let plain = addresses.split('-').map(|address| address.trim_start_matches('0')).collect::<Vec<_>>().join("-");
        let stored = machine.stored(&process.join("map_files").join(plain));
        held.bytes = stored.filter(|stored| stored.inode == held.inode).map_or(held.bytes, |stored| stored.bytes);
    }
    held
}

/// Open hugetlb files. Only what may be one is asked: statfs(2) of a file on a dead network server never returns.
fn descriptors(machine: &dyn Machine, process: &Path) -> Vec<Held> {
    let directory = process.join("fd");
    let names = machine.names(&directory);
    if names.is_empty() {
        return Vec::new();
    }
    let mounts = mountinfo::read_of(machine, process);
    let points: Vec<_> =
        mounts.into_iter().filter(|mount| mount.kind == "hugetlbfs").map(|mount| mount.point).collect();
    let may_be_huge = |target: &Path| {
        target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:")
            || points.iter().any(|point| target.starts_with(point))
    };
    names.iter().filter_map(|name| open_file(machine, &directory.join(name), may_be_huge)).collect()
}

fn open_file(machine: &dyn Machine, descriptor: &Path, may_be_huge: impl Fn(&Path) -> bool) -> Option<Held> {
    let target = machine.link(descriptor).filter(|target| may_be_huge(target))?;
    let found = machine.file_system(descriptor).filter(|found| found.is_hugetlbfs)?;
    let stored = machine.stored(descriptor).filter(|stored| stored.bytes > 0)?;
    Some(Held {
        name: target.display().to_string(),
        page_size: PageSize::from_bytes(found.block_bytes)?,
        via: Via::Descriptor,
        mapped_bytes: 0,
        bytes: stored.bytes,
        inode: stored.inode,
    })
}

/// Files that hold pages on the mounts that this process sees.
fn files(machine: &dyn Machine) -> Vec<HeldFile> {
    let mut found: Vec<HeldFile> = Vec::new();
    for HugeMount { path, page_size, .. } in super::all_mounts(machine) {
        let mut files = Vec::new();
        walk(machine, &path, DEPTH, &mut files);
        // Two mounts may show one file system.
        files.retain(|(_, stored)| found.iter().all(|known| known.inode != stored.inode));
        found.extend(files.into_iter().map(|(path, stored)| HeldFile {
            path,
            page_size,
            bytes: stored.bytes,
            inode: stored.inode,
        }));
    }
    found
}

/// Directories in directories; a link could make a circle.
const DEPTH: usize = 8;

fn walk(
    machine: &dyn Machine,
    directory: &Path,
    depth: usize,
    found: &mut Vec<(PathBuf, crate::supply::machine::Stored)>,
) {
    for name in machine.names(directory) {
        let path = directory.join(name);
        if machine.link(&path).is_some() {
            continue;
        }
        // A directory holds no pages, a file has no names.
        found.extend(machine.stored(&path).filter(|stored| stored.bytes > 0).map(|stored| (path.clone(), stored)));
        if depth > 0 {
            walk(machine, &path, depth - 1, found);
        }
    }
}
