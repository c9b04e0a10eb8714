//! Programs that the loader keeps apart from their environment.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::{file, process};

/// Whether a program gains capabilities from its file when this process runs it: the loader ignores `LD_PRELOAD` then, as
/// for setuid programs. Not for root, whose programs gain nothing by it.
///
/// # Examples
///
/// ```
/// assert!(!hugearena::doctor::gains_capabilities("/proc/self/exe".as_ref()));
/// ```
///
/// # Sources
///
/// capabilities(7), ld.so(8); Linux, `security/commoncap.c`, `cap_bprm_creds_from_file`.
#[must_use]
pub fn gains_capabilities(program: &Path) -> bool {
    let Ok(program) = CString::new(program.as_os_str().as_bytes()) else { return false };
    process::real_user() != 0 && file::has_attribute(&program, c"security.capability")
}
