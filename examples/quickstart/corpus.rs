//! The input: which files there are, and what is in them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// No source or prose file is this large; a data file that is would drown the rest.
const LARGEST_FILE: u64 = 4 << 20;

/// Where to look for files, which of them, and how many bytes at most.
pub struct Source {
    pub root: PathBuf,
    /// Only names that end in this; `None` takes every file that turns out to be text.
    pub extension: Option<&'static str>,
    pub limit_bytes: u64,
}

/// What a [`Source`] yields.
pub struct Files {
    pub taken: Vec<PathBuf>,
    /// How many there would be without the limit.
    pub total: usize,
}

impl Source {
    /// Every text file under `root`.
    pub fn under(root: PathBuf, limit_bytes: u64) -> Source {
        Source { root, extension: None, limit_bytes }
    }

    /// The Rust sources of the crates that cargo unpacked on this machine, or this repository when there are none.
    pub fn found(limit_bytes: u64) -> Source {
        let home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
        let registry = home.map(|home| home.join("registry/src")).filter(|sources| sources.is_dir());
        let root = registry.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        Source { root, extension: Some("rs"), limit_bytes }
    }

    /// The files, in the order of their paths until the limit is reached: every process that asks gets the same.
    pub fn files(&self) -> io::Result<Files> {
        let mut found = Vec::new();
        self.walk(&self.root, &mut found)?;
        found.sort();
        let total = found.len();
        let mut room = self.limit_bytes;
        let fits = |(path, bytes): (PathBuf, u64)| {
            room = room.checked_sub(bytes)?;
            Some(path)
        };
        Ok(Files { taken: found.into_iter().map_while(fits).collect(), total })
    }

    fn walk(&self, directory: &Path, found: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() && !is_ignored(&path) {
                // A directory we may not read does not spoil the rest.
                let _ = self.walk(&path, found);
            } else if kind.is_file() && self.wants(&path) {
                let bytes = entry.metadata()?.len();
                if (1..=LARGEST_FILE).contains(&bytes) {
                    found.push((path, bytes));
                }
            }
        }
        Ok(())
    }

    fn wants(&self, path: &Path) -> bool {
        self.extension.is_none_or(|wanted| path.extension().is_some_and(|extension| extension == wanted))
    }
}

/// Version control and build output are not anybody's text.
fn is_ignored(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| name == "target" || name.as_encoded_bytes().starts_with(b"."))
}

/// The text of a file; `None` when it cannot be read or is not text.
pub fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().filter(|text| !text.contains('\0'))
}
