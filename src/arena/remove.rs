//! Removing named arenas. The file first, then its record: whoever is killed in between leaves what `remove` finds again.

use std::fs;
use std::io;
use std::path::Path;

use super::record;
use super::records::Place;
use crate::backing::lock::{self, Taken};
use crate::backing::named;
use crate::error::{Operation, Result};

/// Removes the named arena of this user and its record: no new owner and no new peer finds it. The pages go back to
/// the pool when the last peer that has them mapped is gone.
///
/// # Errors
///
/// [`Operation::Own`] while it has an owner; [`Operation::Record`] when the record is not one, which is left as it
/// is; [`Operation::Remove`] when there is no such arena, or a file cannot be deleted.
///
/// # Examples
///
/// ```
/// let error = hugearena::arena::remove("no-such-arena").unwrap_err();
/// println!("{error}");
/// ```
///
/// # Sources
///
/// unlink(2), flock(2).
pub fn remove(name: &str) -> Result<()> {
    remove_place(&Place::new(name, None)?)
}

/// As [`remove`], for an arena whose record is in `record_dir`.
///
/// # Errors
///
/// As for [`remove`].
pub fn remove_from(record_dir: impl AsRef<Path>, name: &str) -> Result<()> {
    remove_place(&Place::new(name, Some(record_dir.as_ref()))?)
}

fn remove_place(place: &Place) -> Result<()> {
    place.make_directory()?;
    let _name_lock = place.lock()?;
    let old = place.read()?;
    let path = old.as_ref().map(|record| record.path.clone()).filter(|path| path.exists());
    let path = path.or_else(|| named::find(place.name()));
    if let (None, Some(record)) = (&path, &old)
        && record.boot_id == record::boot_id().unwrap_or_default()
        && named::page_size_at(&record.path).is_none()
    {
        // Another mount namespace, or unmounted: the pages may be there still, and the record is what finds them.
        let problem = format!("its file {} is out of reach: no hugetlbfs is mounted there", record.path.display());
        return Err(place.error(Operation::Remove, problem));
    }
    if let Some(path) = &path {
        remove_file(place, path)?;
    }
    place.delete()?;
    match (path, old) {
        (None, None) => Err(place.error(Operation::Remove, "there is none")),
        _ => Ok(()),
    }
}

fn remove_file(place: &Place, path: &Path) -> Result<()> {
    let failed = |error: io::Error| Err(place.error(Operation::Remove, path.display()).os(error));
    if named::page_size_at(path).is_none() {
        return Err(place.error(Operation::Remove, format!("{} is not on a hugetlbfs", path.display())));
    }
    let data_lock = match lock::take(path, false) {
        Ok(Taken::Ours(file)) => file,
        Ok(Taken::Held) => return Err(place.is_owned(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return failed(error),
    };
    if !lock::is_at(path, &data_lock) {
        return Err(place.error(Operation::Own, format!("{} was replaced meanwhile", path.display())));
    }
    fs::remove_file(path).or_else(failed)
}
