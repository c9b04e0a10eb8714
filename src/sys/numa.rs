//! Calls about NUMA nodes and CPUs: memory policy, where pages are, which CPUs a thread may use.
//!
//! All of them are safe: they choose where pages come from or where a thread runs, never what memory holds, and
//! the kernel checks every address.

use super::check;
use crate::error::Errno;

/// Nodes that a mask has room for: the largest `CONFIG_NODES_SHIFT` is 10.
pub const NODES_MAX: u32 = 1024;
/// CPUs that a set has room for: the largest `CONFIG_NR_CPUS` is 8192.
pub const CPUS_MAX: u32 = 8192;

const WORD_BITS: u32 = u64::BITS;

// Of <linux/mempolicy.h>; libc has the modes only.
const MPOL_F_NODE: libc::c_ulong = 1;
const MPOL_F_ADDR: libc::c_ulong = 2;

/// A set of node ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMask([u64; (NODES_MAX / WORD_BITS) as usize]);

impl NodeMask {
    /// The set of these ids; `None` when one is beyond [`NODES_MAX`].
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Option<NodeMask> {
        let mut mask = NodeMask::default();
        for node in nodes {
            *mask.0.get_mut((node / WORD_BITS) as usize)? |= 1 << (node % WORD_BITS);
        }
        Some(mask)
    }

    /// Words up to the last that is not 0, at least one: kernels refuse bits beyond the nodes they are built for, and
    /// some refuse long masks.
    fn words(&self) -> &[u64] {
        let used = self.0.iter().rposition(|word| *word != 0).map_or(1, |last| last + 1);
        &self.0[..used]
    }
}

/// A set of CPU numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet([u64; (CPUS_MAX / WORD_BITS) as usize]);

impl CpuSet {
    /// The set of these numbers, those beyond [`CPUS_MAX`] left out.
    pub fn of(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
        let mut set = CpuSet([0; (CPUS_MAX / WORD_BITS) as usize]);
        for cpu in cpus {
            if let Some(word) = set.0.get_mut((cpu / WORD_BITS) as usize) {
                *word |= 1 << (cpu % WORD_BITS);
            }
        }
        set
    }

    /// CPUs in both sets.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// A memory policy of mbind(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `MPOL_PREFERRED`: these nodes first, others when they are empty.
    Preferred,
    /// `MPOL_BIND`: these nodes only.
    Bind,
    /// `MPOL_INTERLEAVE`: in turns.
    Interleave,
}

/// mbind(2) without flags: where pages of `len` bytes at `at`, whole pages, will come from. Pages that are there
/// already stay where they are.
pub fn bind(at: usize, len: usize, policy: Policy, nodes: &NodeMask) -> Result<(), Errno> {
    let mode = match policy {
        Policy::Preferred => libc::MPOL_PREFERRED,
        Policy::Bind => libc::MPOL_BIND,
        Policy::Interleave => libc::MPOL_INTERLEAVE,
    };
    let words = nodes.words();
    // The kernel reads one bit less than it is told.
    let bits = words.len() as libc::c_ulong * libc::c_ulong::from(WORD_BITS) + 1;
    // SAFETY: the kernel reads that many bits of a live mask; a policy changes no contents.
    let result = unsafe { libc::syscall(libc::SYS_mbind, at, len, mode as libc::c_ulong, words.as_ptr(), bits, 0) };
    check(result as libc::c_int)
}

/// get_mempolicy(2) with `MPOL_F_NODE | MPOL_F_ADDR`: the node of the page at `at`, which is made present if it is not.
pub fn node_of(at: usize) -> Result<u32, Errno> {
    let mut node: libc::c_int = 0;
    let none = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the kernel writes the node into a live variable; it takes no mask, and checks the address.
    let result =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut node, none, 0, at, MPOL_F_NODE | MPOL_F_ADDR) };
    check(result as libc::c_int).map(|()| node as u32)
}

/// move_pages(2) that moves nothing: writes the node of each page, or a negative errno, into `nodes`.
///
/// Kernels from 5.19 on may answer `-ENOENT` for huge pages that are there.
pub fn nodes_of(pages: &[usize], nodes: &mut [i32]) -> Result<(), Errno> {
    assert_eq!(pages.len(), nodes.len(), "a node for each page");
    let this_process = 0;
    let nowhere = std::ptr::null::<libc::c_int>();
    // SAFETY: both arrays live through the call and have that many elements; the kernel reads the first, writes the
    // second, and touches no page.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, this_process, pages.len(), pages.as_ptr(), nowhere, nodes.as_mut_ptr(), 0)
    };
    check(result as libc::c_int)
}

/// sched_getaffinity(2): the CPUs that this thread may run on.
pub fn allowed_cpus() -> Result<CpuSet, Errno> {
    let mut set = CpuSet::of([]);
    let this_thread = 0;
    // The call itself: what the C library calls by that name wants its own, shorter type.
    // SAFETY: the kernel writes at most that many bytes into a live set.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, this_thread, size_of_val(&set.0), set.0.as_mut_ptr()) };
    check(result as libc::c_int).map(|()| set)
}

/// sched_setaffinity(2) for this thread.
pub fn run_on(cpus: &CpuSet) -> Result<(), Errno> {
    let this_thread = 0;
    // SAFETY: the kernel reads that many bytes of a live set.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, this_thread, size_of_val(&cpus.0), cpus.0.as_ptr()) };
    check(result as libc::c_int)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size::PageSize;

    #[test]
    fn masks_hold_the_first_and_the_last_of_a_word() {
        for node in [0, 63, 64, 1023] {
            let mask = NodeMask::of([node]).unwrap();
            let words = mask.words();
            assert_eq!(words.len(), node as usize / 64 + 1, "{node}");
            assert_eq!(words.last(), Some(&(1 << (node % 64))), "{node}");
        }
        assert_eq!(NodeMask::of([NODES_MAX]), None);
        assert_eq!(NodeMask::of([u32::MAX]), None);
        assert_eq!(NodeMask::default().words(), [0]);
    }

    #[test]
    fn cpu_sets_are_sets() {
        let set = CpuSet::of([0, 63, 64, 8191, 8192, u32::MAX, 0]);
        assert_eq!(set.count(), 4);
        assert_eq!(set.and(&CpuSet::of([64, 65])), CpuSet::of([64]));
    }

    /// Experiments: 36.
    #[test]
    fn every_node_id_is_taken_or_refused_cleanly() {
        let memory = vec![0u8; 3 * PageSize::base().bytes()];
        let page = (memory.as_ptr() as usize).next_multiple_of(PageSize::base().bytes());
        for node in [63, 64, 1023] {
            let mask = NodeMask::of([node]).unwrap();
            let result = bind(page, PageSize::base().bytes(), Policy::Preferred, &mask);
            // A machine with that many nodes may take it.
            let refusals = [crate::sys::EINVAL, crate::sys::EPERM, crate::sys::ENOSYS];
            assert!(result.is_ok() || result.is_err_and(|errno| refusals.contains(&errno)), "{node}: {result:?}");
        }
    }

    #[test]
    fn a_thread_can_be_kept_on_its_cpus() {
        let Ok(allowed) = allowed_cpus() else { return };
        assert!(allowed.count() >= 1);
        let first = (0..CPUS_MAX).find(|cpu| CpuSet::of([*cpu]).and(&allowed).count() == 1).unwrap();
        let alone = CpuSet::of([first]);
        let seen = std::thread::spawn(move || run_on(&alone).and_then(|()| allowed_cpus())).join().unwrap();
        assert!(seen.is_err() || seen == Ok(alone));
        assert_eq!(allowed_cpus(), Ok(allowed), "other threads are left alone");
    }
}
