//! One holder at a time of a path: flock(2), which the kernel gives back however the holder ends.
//!
//! Not fcntl(2)'s locks of processes: those vanish when the process closes any descriptor of the file. The holder also
//! has fcntl's lock of the open file, which goes with flock's and can be asked about without being taken.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::sys::{EACCES, EAGAIN, fd, file, process};

/// What [`take`] found.
#[derive(Debug)]
pub(crate) enum Taken {
    /// We hold it, until the file is closed.
    Ours(File),
    /// Another process, or this one, holds it.
    Held,
}

/// Opens the regular file at `path`, which is or becomes this user's, and takes its lock. Does not wait.
///
/// What is locked is what the path names when this returns: a holder may have removed the file meanwhile.
///
/// # Errors
///
/// open(2)'s and flock(2)'s; `NotFound` without `create`; `PermissionDenied` for a file of another user, or one that
/// others can write to.
pub(crate) fn take(path: &Path, create: bool) -> io::Result<Taken> {
    loop {
        let file = open(path, create)?;
        check_owner(&file.metadata()?)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Taken::Held),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        match fd::announce(file.as_fd()) {
            Ok(()) => {}
            // Somebody who is none of ours.
            Err(EAGAIN | EACCES) => return Ok(Taken::Held),
            Err(errno) => return Err(errno.into()),
        }
        if is_same(path, &file.metadata()?)? {
            return Ok(Taken::Ours(file));
        }
    }
}

/// Gives the lock up although other processes may have the description of the file still.
pub(crate) fn give_up(file: &File) {
    // A failure leaves what closing does.
    let _ = fd::retract(file.as_fd());
    let _ = file.unlock();
}

/// Whether somebody holds the lock of an open file; takes nothing.
pub(crate) fn is_held(file: &File) -> io::Result<bool> {
    Ok(fd::is_announced(file.as_fd())?)
}

/// The process that took the lock of that file, as far as this process may see it; it may have ended since, if it has
/// left children that hold the lock.
pub(crate) fn holder(file: &Metadata) -> Option<u32> {
    let text = fs::read_to_string("/proc/locks").ok()?;
    holder_in(&text, file::device_numbers(file.dev()), file.ino())
}

/// `7: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF`; a second word `->` is one that waits.
fn holder_in(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, "WRITE", process, file, ..] if file == wanted => process.parse().ok().filter(|id| *id > 0),
        _ => None,
    })
}

/// Opens a file for reading and writing, not through a link.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let open = |create| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false).mode(0o600).custom_flags(file::NO_FOLLOW);
        options.open(path)
    };
    match open(false) {
        Err(error) if create && error.kind() == io::ErrorKind::NotFound => open(true),
        done => done,
    }
}

/// Refuses what others could have made or could change: another user's file, or one whose mode lets them write.
pub(crate) fn check_owner(metadata: &Metadata) -> io::Result<()> {
    let owner = metadata.uid();
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    if !metadata.is_file() {
        return refuse("not a regular file".into());
    }
    if owner != process::effective_user() {
        return refuse(format!("the file belongs to user {owner}"));
    }
    match metadata.mode() & 0o022 {
        0 => Ok(()),
        _ => refuse(format!("others may write to the file (mode {:04o})", metadata.mode() & 0o7777)),
    }
}

/// Refuses a directory in which others could put files in the place of ours: another user's, unless root's, or one in
/// which they may delete what is not theirs.
pub(crate) fn check_directory(metadata: &Metadata) -> io::Result<()> {
    const STICKY: u32 = 0o1000;
    let (owner, mode) = (metadata.uid(), metadata.mode());
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    if owner != process::effective_user() && owner != 0 {
        return refuse(format!("the directory belongs to user {owner}"));
    }
    if mode & 0o022 != 0 && mode & STICKY == 0 {
        return refuse(format!("others may replace files in the directory (mode {:04o})", mode & 0o7777));
    }
    Ok(())
}

/// Whether the open file is what the path names.
pub(crate) fn is_at(path: &Path, held: &File) -> bool {
    held.metadata().is_ok_and(|held| is_same(path, &held).unwrap_or(false))
}

fn is_same(path: &Path, held: &Metadata) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("hugearena-lock-{name}-{}", std::process::id()))
    }

    fn is_held(path: &Path) -> bool {
        let file = File::open(path).unwrap();
        let seen = super::is_held(&file).unwrap();
        // Nothing was taken by asking.
        assert_eq!(matches!(take(path, false).unwrap(), Taken::Held), seen);
        assert_eq!(holder(&file.metadata().unwrap()).is_some_and(|process| process == std::process::id()), seen);
        seen
    }

    #[test]
    fn the_holder_is_named_by_device_and_inode() {
        let text = "1: POSIX  ADVISORY  WRITE 7 00:1a:5678 0 EOF\n2: OFDLCK ADVISORY  WRITE -1 00:1a:5678 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 8 00:1a:5679 0 EOF\n4: FLOCK  ADVISORY  WRITE 9 00:1a:5678 0 EOF\n\
            4: -> FLOCK  ADVISORY  WRITE 10 00:1a:5678 0 EOF\nnonsense\n";
        assert_eq!(holder_in(text, (0, 0x1a), 5678), Some(9));
        assert_eq!(holder_in(text, (8, 0x1a), 5678), None);
    }

    /// Experiments: 18.
    #[test]
    fn one_holds_it_until_the_file_is_closed() {
        let path = path("one");
        assert_eq!(take(&path, false).unwrap_err().kind(), io::ErrorKind::NotFound);
        let first = take(&path, true).unwrap();
        assert!(is_held(&path));
        // Other descriptors of the file come and go without the lock.
        drop(fs::read(&path).unwrap());
        drop(File::open(&path).unwrap());
        assert!(is_held(&path));
        drop(first);
        assert!(!is_held(&path));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_was_removed_is_not_what_is_locked() {
        let path = path("removed");
        let Taken::Ours(old) = take(&path, true).unwrap() else { panic!("nobody holds it") };
        fs::remove_file(&path).unwrap();
        let Taken::Ours(new) = take(&path, true).unwrap() else { panic!("nobody holds the new one") };
        assert_ne!(old.metadata().unwrap().ino(), new.metadata().unwrap().ino());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn files_that_others_may_write_and_links_are_refused() {
        let path = path("open");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(take(&path, true).unwrap_err().to_string().contains("mode 0666"));
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(take(&link, true).is_err());
        fs::remove_file(&link).unwrap();
        fs::remove_file(&path).unwrap();
    }
}
