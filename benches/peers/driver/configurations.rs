//! Which allocators, with which settings.

use std::path::{Path, PathBuf};

use crate::binaries::BINARIES;

/// An allocator with its settings.
pub struct Configuration {
    /// As in the table.
    pub name: &'static str,
    /// Whose it is; configurations of one family share a binary.
    pub family: Family,
    /// Environment variables that select the settings.
    pub environment: &'static [(&'static str, &'static str)],
    /// Whether callgrind can run it.
    pub runs_under_valgrind: bool,
}

/// An allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    HugeAlloc,
    Libc,
    Mimalloc,
    Jemalloc,
    Snmalloc,
    Rusty,
    /// No allocator: what memory itself takes. Nobody's peer.
    Bare,
}

/// Those that are compared.
pub const FAMILIES: [Family; 6] =
    [Family::HugeAlloc, Family::Libc, Family::Mimalloc, Family::Jemalloc, Family::Snmalloc, Family::Rusty];

impl Family {
    pub fn name(self) -> &'static str {
        ["HugeAlloc", "libc", "mimalloc", "jemalloc", "snmalloc", "rusty_alloc", "bare"][self as usize]
    }

    /// Where its binary is.
    pub fn binary(self) -> PathBuf {
        let path = match self {
            Family::Bare => env!("CARGO_BIN_EXE_peer-bare"),
            _ => BINARIES[self as usize],
        };
        Path::new(path).to_owned()
    }

    /// The packages whose versions say what was measured.
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Family::HugeAlloc => &["hugearena"],
            Family::Libc | Family::Bare => &[],
            Family::Mimalloc => &["mimalloc", "libmimalloc-sys"],
            Family::Jemalloc => &["tikv-jemallocator", "tikv-jemalloc-sys"],
            Family::Snmalloc => &["snmalloc-rs", "snmalloc-sys"],
            Family::Rusty => &["rusty_alloc-api", "rusty_alloc"],
        }
    }
}

const fn new(
    name: &'static str,
    family: Family,
    environment: &'static [(&'static str, &'static str)],
    runs_under_valgrind: bool,
) -> Configuration {
    Configuration { name, family, environment, runs_under_valgrind }
}

/// HugeAlloc first, libc with its defaults second: figures are in terms of these two.
pub const ALL: [Configuration; 10] = [
    new("HugeAlloc", Family::HugeAlloc, &[], true),
    new("libc", Family::Libc, &[], true),
    new("libc thp", Family::Libc, &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")], true),
    new("libc huge", Family::Libc, &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")], true),
    new("mimalloc", Family::Mimalloc, &[], true),
    new("mimalloc huge", Family::Mimalloc, &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")], true),
    new("jemalloc", Family::Jemalloc, &[], true),
    new("jemalloc thp", Family::Jemalloc, &[("_RJEM_MALLOC_CONF", "thp:always")], true),
    // Reserves more addresses than valgrind has, and aborts.
    new("snmalloc", Family::Snmalloc, &[], false),
    new("rusty_alloc", Family::Rusty, &[], true),
];

/// What memory itself takes, for the workloads in which an allocator has little to do.
pub const BARE: [Configuration; 2] = [
    new("bare 2M", Family::Bare, &[("BARE_PAGE", "2M")], false),
    new("bare 1G", Family::Bare, &[("BARE_PAGE", "1G")], false),
];

/// Variables that would change what a peer does: removed, whoever set them.
pub const FOREIGN_VARIABLES: [&str; 5] =
    ["GLIBC_TUNABLES", "MIMALLOC_ALLOW_LARGE_OS_PAGES", "_RJEM_MALLOC_CONF", "MALLOC_CONF", "LD_PRELOAD"];

/// Names the binaries that are not there.
pub fn missing() -> Vec<String> {
    let binaries = FAMILIES.iter().chain([&Family::Bare]).map(|family| (family, family.binary()));
    binaries
        .filter(|(_, path)| !path.is_file())
        .map(|(family, path)| format!("{family:?}: {}", path.display()))
        .collect()
}
