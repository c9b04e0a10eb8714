//! What is known about a named arena's pages, kept beside the arena so that its next owner need not clear them.
//!
//! A file of 4 KiB of header and three bits per page, each kind in words of its own: 1 when the page holds zeroes; 1 when
//! the file has no page there, or need not have one (room to grow into); 1 while it is claimed, which only those who look
//! from outside want to know, or, where there is no page, about to come: a killed owner leaves reservations there, which
//! nothing else tells of. Everything is little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `HUGEAREN` |
//! | 8..12 | format version |
//! | 12..16 | mapping flags, see [`DUMP`], [`RESIZABLE`] |
//! | 16..32 | boot id: the pages are gone after a reboot, the record need not be |
//! | 32..40, 40..48 | device and inode of the arena's file |
//! | 48..56, 56..64 | when the file was made: seconds, nanoseconds |
//! | 64..72, 72..80 | page size in bytes, number of pages |
//! | 80..88 | FNV-1a of the header's words, this one taken as 0 |
//! | 88..96, 96.. | length of the path of the arena's file, the path, zeroes |
//!
//! The header is written once, before the file gets its name. The bits change while the arena is in use: by stores to
//! a shared mapping, so that they are as they should be however the process ends, and no system call is made.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::state::PageState;
use crate::page_size::PageSize;

/// The version that this build writes and reads.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"HUGEAREN";
pub(super) const HEADER: usize = 4096;
const PATH: usize = 96;
const CHECKSUM: usize = 80;
/// Bits for 2^29 pages; a longer file is none of ours.
pub(super) const LEN_MAX: u64 = HEADER as u64 + 3 * (1 << 26);

/// Mapping flag: the memory is in core dumps. Who shares page tables has to agree on it.
pub(super) const DUMP: u32 = 1;
/// Mapping flag: the file may lack pages, so mappings reserve none (`MAP_NORESERVE`) and populate only what there is.
pub(super) const RESIZABLE: u32 = 2;

/// Which file of which mount, and not another that got its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// hugetlbfs changes the time of modification when a file is made and when it is truncated, and not when it is
    /// written to, which only happens through mappings.
    made: (i64, i64),
}

impl Identity {
    pub(super) fn of(file: &Metadata) -> Identity {
        Identity { device: file.dev(), inode: file.ino(), made: (file.mtime(), file.mtime_nsec()) }
    }
}

/// A record, as it is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) boot_id: [u8; 16],
    pub(super) file: Identity,
    pub(super) page_size: PageSize,
    pub(super) pages: usize,
    pub(super) flags: u32,
    pub(super) path: PathBuf,
    /// One bit per page, 1 when it is known to hold zeroes.
    pub(super) zero: Vec<u64>,
    /// One bit per page, 1 when there is none, or none that may be used.
    pub(super) absent: Vec<u64>,
    /// One bit per page, 1 when the last owner held it, or was populating it.
    pub(super) claimed: Vec<u64>,
}

impl Record {
    /// The file's contents, or `None` when the path is too long for the header, or there are more pages than
    /// [`LEN_MAX`] has bits for.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        if (3 * self.zero.len() * 8 + HEADER) as u64 > LEN_MAX {
            return None;
        }
        let path = self.path.as_os_str().as_bytes();
        let mut bytes = vec![0; HEADER];
        bytes.get_mut(PATH..PATH + path.len())?.copy_from_slice(path);
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.boot_id);
        let Identity { device, inode, made } = self.file;
        let numbers = [device, inode, made.0 as u64, made.1 as u64, self.page_size.bytes() as u64, self.pages as u64];
        for (at, number) in (32..).step_by(8).zip(numbers) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[88..96].copy_from_slice(&(path.len() as u64).to_le_bytes());
        let sum = checksum(&bytes);
        bytes[CHECKSUM..][..8].copy_from_slice(&sum.to_le_bytes());
        for words in [&self.zero, &self.absent, &self.claimed] {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        Some(bytes)
    }

    /// # Errors
    ///
    /// What is wrong with it, as the end of a sentence that starts with the file's path.
    pub(super) fn decode(bytes: &[u8]) -> Result<Record, String> {
        if !bytes.starts_with(MAGIC) {
            return Err("is no record of an arena".into());
        }
        let short = || format!("is cut short: it has {} bytes", bytes.len());
        let header = bytes.get(..HEADER).ok_or_else(short)?;
        let version = u32::from_le_bytes(array(header, 8));
        if version > VERSION {
            return Err(format!("has format version {version}, and this build reads up to {VERSION}"));
        }
        if (1..VERSION).contains(&version) {
            return Err(format!("has format version {version}, and this build reads only {VERSION}"));
        }
        let number = |at| u64::from_le_bytes(array(header, at));
        if version == 0 || number(CHECKSUM) != checksum(header) {
            return Err("is damaged: its checksum is wrong".into());
        }
        let damaged = || "is damaged: its numbers contradict each other".to_string();
        let page_size = PageSize::from_bytes(number(64)).ok_or_else(damaged)?;
        let pages = usize::try_from(number(72)).ok().filter(|pages| page_size.pages_for(*pages).is_some());
        let pages = pages.filter(|pages| *pages > 0).ok_or_else(damaged)?;
        let path_end = usize::try_from(number(88)).ok().and_then(|len| PATH.checked_add(len));
        let path = path_end.and_then(|end| header.get(PATH..end)).ok_or_else(damaged)?;
        let (words, rest) = bytes[HEADER..].as_chunks::<8>();
        let len = pages.div_ceil(64);
        if words.len() != 3 * len || !rest.is_empty() {
            return Err(format!("is damaged: {} bytes do not fit {pages} pages", bytes.len()));
        }
        Ok(Record {
            boot_id: array(header, 16),
            file: Identity { device: number(32), inode: number(40), made: (number(48) as i64, number(56) as i64) },
            page_size,
            pages,
            flags: u32::from_le_bytes(array(header, 12)),
            path: PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())),
            zero: numbers(&words[..len]),
            absent: numbers(&words[len..2 * len]),
            claimed: numbers(&words[2 * len..]),
        })
    }

    /// Whether it speaks of that file, as it was left by a process of this boot.
    pub(super) fn describes(&self, file: Identity, page_size: PageSize, pages: usize) -> bool {
        let this_boot = boot_id().is_some_and(|now| now == self.boot_id);
        this_boot && (self.file, self.page_size, self.pages) == (file, page_size, pages)
    }

    /// The state of every page, as far as a record tells: not fresh from clean ones. What an owner had claimed when it was
    /// killed is claimed no more.
    pub(super) fn states(&self, owned: bool) -> Vec<PageState> {
        let is_set = |bits: &[u64], page: usize| bits[page / 64] >> (page % 64) & 1 != 0;
        let state = |page| match () {
            () if is_set(&self.absent, page) => PageState::Absent,
            () if owned && is_set(&self.claimed, page) => PageState::Claimed,
            () if is_set(&self.zero, page) => PageState::Clean,
            () => PageState::Dirty,
        };
        (0..self.pages).map(state).collect()
    }

    pub(super) fn is_resizable(&self) -> bool {
        self.flags & RESIZABLE != 0
    }

    pub(super) fn is_dumped(&self) -> bool {
        self.flags & DUMP != 0
    }
}

/// `/proc/sys/kernel/random/boot_id`, another one after every boot. Read each time: a child that is forked while another
/// thread fills a cell would wait for that for ever.
pub(super) fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().split('-').collect();
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

fn numbers(words: &[[u8; 8]]) -> Vec<u64> {
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

/// FNV-1a over words of eight bytes: finds damage, not malice. Source: Fowler, Noll, Vo; draft-eastlake-fnv.
fn checksum(header: &[u8]) -> u64 {
    let (words, _) = header.as_chunks::<8>();
    let words =
        words.iter().enumerate().map(|(at, word)| if at * 8 == CHECKSUM { 0 } else { u64::from_le_bytes(*word) });
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// Reads at most what a record may have.
pub(super) fn read(file: &File, len: u64) -> std::io::Result<Vec<u8>> {
    // One byte more than there should be, so that the end is seen without asking again.
    let mut bytes = Vec::with_capacity(len.min(LEN_MAX) as usize + 1);
    file.take(LEN_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(pages: usize, factor: u64) -> Vec<u64> {
        (0..pages.div_ceil(64) as u64).map(|word| word.wrapping_mul(factor)).collect()
    }

    fn record(pages: usize) -> Record {
        Record {
            boot_id: boot_id().unwrap(),
            file: Identity { device: 7, inode: u64::MAX, made: (-1, 999_999_999) },
            page_size: PageSize::HUGE_2M,
            pages,
            flags: DUMP,
            path: "/mnt/huge/hugearena.x".into(),
            zero: words(pages, 0x9e37_79b9_7f4a_7c15),
            absent: words(pages, 0xbf58_476d_1ce4_e5b9),
            claimed: words(pages, 0x94d0_49bb_1331_11eb),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for pages in [1, 63, 64, 65, 70_000] {
            let bytes = record(pages).encode().unwrap();
            assert_eq!(bytes.len(), HEADER + 3 * pages.div_ceil(64) * 8);
            assert_eq!(Record::decode(&bytes), Ok(record(pages)));
        }
        let long = Record { path: "/".repeat(HEADER - PATH).into(), ..record(1) };
        assert_eq!(Record::decode(&long.encode().unwrap()), Ok(long));
        assert_eq!(Record { path: "/".repeat(HEADER - PATH + 1).into(), ..record(1) }.encode(), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = record(100).encode().unwrap();
        let reason = |bytes: &[u8]| Record::decode(bytes).unwrap_err();
        for len in [0, 7, 8, 95, HEADER - 1, HEADER, good.len() - 1] {
            assert!(Record::decode(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(reason(&good[..20]).contains("cut short"));
        assert!(reason(b"#!/bin/sh").contains("no record"));
        assert!(reason(&[&good[..], b"x"].concat()).contains("do not fit"));
        let mut newer = good.clone();
        newer[8] = 3;
        assert!(reason(&newer).contains("format version 3"));
        newer[8] = 1;
        assert!(reason(&newer).contains("reads only 2"));
    }

    #[test]
    fn another_file_or_boot_is_not_described() {
        let record = record(100);
        let describes = |record: &Record| record.describes(record.file, record.page_size, 100);
        assert!(describes(&record));
        assert!(!record.describes(record.file, record.page_size, 99));
        assert!(!record.describes(record.file, PageSize::HUGE_1G, 100));
        assert!(!record.describes(Identity { inode: 8, ..record.file }, record.page_size, 100));
        assert!(!describes(&Record { boot_id: [0; 16], ..record.clone() }));
    }

    proptest! {
        #[test]
        fn any_change_of_the_header_is_seen(at in 0..HEADER, change in 1u8..) {
            let mut bytes = record(100).encode().unwrap();
            bytes[at] ^= change;
            prop_assert!(Record::decode(&bytes).is_err());
        }

        #[test]
        fn no_bytes_are_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..5000), with_sum: bool) {
            if with_sum && bytes.len() >= HEADER {
                bytes[..12].copy_from_slice(b"HUGEAREN\x02\0\0\0");
                let sum = checksum(&bytes[..HEADER]);
                bytes[CHECKSUM..][..8].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = Record::decode(&bytes);
        }
    }
}
