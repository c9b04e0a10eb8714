//! A small file in memory as words that are changed atomically: what is stored outlives a process that is killed,
//! because it is the page cache that holds it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

use crate::sys::memory;

/// Words of 64 bits of a file, shared with whoever maps it.
///
/// The file's blocks have been written, so that storing needs no space; whoever truncates it meanwhile breaks it, which
/// only its user and root can.
#[derive(Debug)]
pub(crate) struct Words {
    mapped: MmapRaw,
    /// Bytes before the first word, whole words.
    offset: usize,
}

impl Words {
    /// Maps the words of `file` behind the first `offset` bytes, a multiple of 8 less than its length. They are
    /// present when this returns, so that storing to them asks the system for nothing.
    pub(crate) fn map(file: &File, offset: usize) -> io::Result<Words> {
        let mapped = MmapOptions::new().map_raw(file)?;
        if !offset.is_multiple_of(8) || offset > mapped.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(start) = NonNull::new(mapped.as_mut_ptr()) {
            // SAFETY: the whole of our own writable mapping. On kernels that cannot, the first store is a fault.
            let _ = unsafe { memory::populate_write(start, mapped.len()) };
        }
        Ok(Words { mapped, offset })
    }

    /// The words.
    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: mapped readable and writable for as long as we are borrowed; a mapping starts at a page and the
        // offset is a multiple of 8, so the words are aligned; any bytes are a word, and all who map the file change
        // it atomically.
        unsafe {
            let start = self.mapped.as_mut_ptr().add(self.offset).cast();
            std::slice::from_raw_parts(start, (self.mapped.len() - self.offset) / 8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn stores_are_in_the_file() {
        let path = std::env::temp_dir().join(format!("hugearena-words-{}", std::process::id()));
        std::fs::write(&path, [1u8; 32]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let words = Words::map(&file, 16).unwrap();
        assert_eq!(words.as_slice().len(), 2);
        words.as_slice()[1].store(u64::from_le_bytes(*b"later on"), Relaxed);
        assert_eq!(std::fs::read(&path).unwrap()[16..], *b"\x01\x01\x01\x01\x01\x01\x01\x01later on");
        assert!(Words::map(&file, 4).is_err() && Words::map(&file, 40).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
