//! Programs that the loader keeps apart from their environment.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::{file, process};

/// Whether a program gains capabilities from its file when this process runs it: the loader ignores `LD_PRELOAD` then, as
/// for setuid programs. Not for root, whose programs gain nothing by it; not on a mount that is `nosuid`; and not by a set
/// of none, or of none that the process may have.
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
    if process::real_user() == 0 || file::is_nosuid(&program) {
        return false;
    }
    let mut buffer = [0; ATTRIBUTE_LEN];
    let attribute = file::attribute(&program, c"security.capability", &mut buffer);
    attribute
        .is_some_and(|attribute| grants(attribute, &std::fs::read_to_string("/proc/self/status").unwrap_or_default()))
}

/// `struct vfs_ns_cap_data` of linux/capability.h: what it is and one flag, what is permitted and what is inherited (the
/// first 32 capabilities, then the others, but in the first version), and whose.
const ATTRIBUTE_LEN: usize = 24;
const EFFECTIVE: u32 = 1;

/// Whether a program with this attribute has capabilities by it, when a process of this status runs it.
fn grants(attribute: &[u8], status: &str) -> bool {
    let words: Vec<_> = attribute.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let set = |low: usize| {
        let word = |at: usize| u64::from(words.get(at).copied().unwrap_or(0));
        word(low) | word(low + 2) << 32
    };
    // What cannot be read may be anything.
    let own = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key))?.trim();
        u64::from_str_radix(value, 16).ok()
    };
    let gained = set(1) & own("CapBnd:").unwrap_or(u64::MAX) | set(2) & own("CapInh:").unwrap_or(u64::MAX);
    words.first().is_some_and(|head| head & EFFECTIVE != 0) || gained != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_2: u32 = 0x0200_0000;
    const STATUS: &str = "Name:\tx\nCapInh:\t0000000000000004\nCapPrm:\t0\nCapBnd:\t0000010000002000\n";

    fn is_granted(words: &[u32]) -> bool {
        grants(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(), STATUS)
    }

    #[test]
    fn only_what_the_process_may_have_is_gained() {
        assert!(!is_granted(&[VERSION_2, 0, 0, 0, 0]), "a set of none");
        assert!(is_granted(&[VERSION_2, 1 << 13, 0, 0, 0]));
        assert!(is_granted(&[VERSION_2, 0, 0, 1 << 8, 0]), "capability 40");
        assert!(is_granted(&[VERSION_2, 0, 1 << 2, 0, 0]), "inherited");
        assert!(!is_granted(&[VERSION_2, 1 << 12, 1 << 13, 0, 1 << 2]), "bounded, and not inherited");
        assert!(is_granted(&[VERSION_2 | EFFECTIVE, 0, 0, 0, 0]), "the loader is told so, whatever it is");
        assert!(is_granted(&[0x0100_0000, 1 << 13, 0]), "the first version");
        assert!(!grants(&[], STATUS));
    }
}
