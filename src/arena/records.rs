//! Where records are, and who may write them.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::record::{self, HEADER, Record};
use crate::backing::lock::{self, Taken};
use crate::backing::named;
use crate::error::{Error, Operation, Result};
use crate::mapping::words::Words;
use crate::sys::process;

/// The record of one named arena, in a directory of records.
#[derive(Clone, Debug)]
pub(super) struct Place {
    name: String,
    directory: PathBuf,
}

impl Place {
    /// `directory`: `None` for the usual one.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`]: not a name; or no directory is given, and the user has none for such files.
    pub(super) fn new(name: &str, directory: Option<&Path>) -> Result<Place> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(allowed) {
            let rule = "wanted 1 to 64 letters, digits, '-', '_' and '.', the first no '.'";
            return Err(Error::new(Operation::Configure, format!("the name {name:?}: {rule}")));
        }
        let directory = directory.map(Path::to_path_buf).or_else(usual_directory).ok_or_else(|| {
            let why = "XDG_RUNTIME_DIR is not set; name a directory (record_dir, --record-dir)";
            Error::new(Operation::Configure, format!("named arena {name}: there is no place for its record: {why}"))
        })?;
        Ok(Place { name: name.into(), directory })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn record_path(&self) -> PathBuf {
        self.file("record")
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}.{kind}", self.name))
    }

    /// An error about this arena.
    pub(super) fn error(&self, operation: Operation, problem: impl std::fmt::Display) -> Error {
        Error::new(operation, format!("named arena {}: {problem}", self.name))
    }

    fn io_error(&self, path: &Path, error: io::Error) -> Error {
        self.error(Operation::Record, path.display()).os(error)
    }

    /// Makes the directory, for this user only.
    ///
    /// # Errors
    ///
    /// [`Operation::Record`]; also for a directory on hugetlbfs, where a record would cost a huge page.
    pub(super) fn make_directory(&self) -> Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|error| self.io_error(&self.directory, error))?;
        let metadata = std::fs::metadata(&self.directory).map_err(|error| self.io_error(&self.directory, error))?;
        lock::check_directory(&metadata).map_err(|error| self.io_error(&self.directory, error))?;
        match named::page_size_at(&self.record_path()) {
            None => Ok(()),
            Some(_) => Err(self.error(Operation::Configure, "its record cannot be kept on hugetlbfs")),
        }
    }

    /// Takes the right to own the arena of this name; it goes when the file is closed.
    pub(super) fn lock(&self) -> Result<File> {
        let path = self.file("lock");
        match lock::take(&path, true) {
            Ok(Taken::Ours(file)) => Ok(file),
            Ok(Taken::Held) => Err(self.is_owned(&path)),
            Err(error) => Err(self.io_error(&path, error)),
        }
    }

    /// The error for who is not the first.
    pub(super) fn is_owned(&self, locked: &Path) -> Error {
        let subject = format!("another owner lives, who has locked {}; attach to it instead", locked.display());
        self.error(Operation::Own, subject)
    }

    /// The record, if there is one.
    ///
    /// # Errors
    ///
    /// [`Operation::Record`]: it is short, damaged, foreign, newer, or cannot be read. It is left as it is.
    pub(super) fn read(&self) -> Result<Option<Record>> {
        self.read_if(lock::check_owner)
    }

    /// As [`read`](Self::read), whoever owns it: for who only reports what it says.
    pub(super) fn read_of_anybody(&self) -> Result<Option<Record>> {
        self.read_if(|_| Ok(()))
    }

    fn read_if(&self, check: impl Fn(&Metadata) -> io::Result<()>) -> Result<Option<Record>> {
        let path = self.record_path();
        let file = match named::open(&path, false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io_error(&path, error)),
        };
        let metadata = file.metadata().map_err(|error| self.io_error(&path, error))?;
        check(&metadata).map_err(|error| self.io_error(&path, error))?;
        let bytes = record::read(&file, metadata.len()).map_err(|error| self.io_error(&path, error))?;
        let refused = |reason| {
            let remedy = "it is left as it is; if nobody needs it, delete it, and the arena starts with dirty pages";
            self.error(Operation::Record, format!("{} {reason}; {remedy}", path.display()))
        };
        let record = Record::decode(&bytes).map_err(refused)?;
        if record.path.file_name() != Some(named::file_name(&self.name).as_ref()) {
            return Err(refused(format!("is the record of {}", record.path.display())));
        }
        Ok(Some(record))
    }

    /// Whether it has an owner, and which process that is, if it can be seen. Takes no lock.
    pub(super) fn owner(&self) -> Option<Option<u32>> {
        owner_of(&self.file("lock"))
    }

    /// The names of all that have files in this directory.
    pub(super) fn names_in(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_suffix(".record").map(str::to_owned)).collect()
    }

    /// Writes a record in place of the one there is, at once or not at all, and returns its words. Only for who holds
    /// the lock.
    pub(super) fn write(&self, record: &Record) -> Result<Words> {
        let (path, new) = (self.record_path(), self.file("record.new"));
        let bytes = record.encode();
        let bytes = bytes.ok_or_else(|| {
            self.error(
                Operation::Configure,
                "the path of its file is too long for a record, or it has more than 2^29 pages",
            )
        })?;
        let written = write_new(&new, &bytes).and_then(|file| {
            let words = Words::map(&file, HEADER)?;
            fs::rename(&new, &path)?;
            Ok(words)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&new);
            self.io_error(&path, error)
        })
    }

    /// Deletes the record and the lock. Only for who holds the lock.
    pub(super) fn delete(&self) -> Result<()> {
        for path in [self.file("record.new"), self.record_path(), self.file("lock")] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.io_error(&path, error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The process that holds the lock of the file, if somebody does.
pub(super) fn owner_of(path: &Path) -> Option<Option<u32>> {
    let file = named::open(path, false).ok()?;
    let is_held = lock::is_held(&file).ok()?;
    is_held.then(|| lock::holder(&file.metadata().ok()?))
}

/// `/run/hugearena` for root, `$XDG_RUNTIME_DIR/hugearena` for others.
pub(super) fn usual_directory() -> Option<PathBuf> {
    if process::effective_user() == 0 {
        return Some("/run/hugearena".into());
    }
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime.is_absolute().then(|| runtime.join("hugearena"))
}

/// Writes every byte, so that the file has its blocks and a store to it never lacks one.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    // What a killed writer left.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}
