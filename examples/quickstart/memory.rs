//! What a process takes from the kernel, as the kernel counts it.
#![allow(unsafe_code)]

use std::fs;
use std::mem::MaybeUninit;

/// Minor page faults of this process so far.
pub fn page_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole `rusage` that the call may write.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: all zero bits are a valid `rusage`, whether or not the call filled it.
    unsafe { usage.assume_init() }.ru_minflt as u64
}

/// The bytes that `/proc/self/<file>` gives for `field` in kB; 0 when there is no such line.
pub fn proc_bytes(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = value.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
