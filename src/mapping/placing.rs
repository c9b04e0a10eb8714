//! A mapping's NUMA policy, set before its first page is there, and the proof afterwards.

use crate::error::{Error, Operation, Result};
use crate::numa::{self, Located, Placement, Topology};
use crate::page_size::PageSize;
use crate::supply::{diagnose, diagnosis::ordinary_memory_of};
use crate::sys;

/// Whole pages of a mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) size: PageSize,
}

/// Sets the policy, under which `needed` bytes are about to be populated. Where that is denied and can be done without, the answer is why.
///
/// # Errors
///
/// [`Operation::Configure`]: a node that cannot be used. [`Operation::Place`]: a strict placement that is denied, or
/// that the node's ordinary memory cannot hold.
pub(super) fn bind(part: Part, needed: usize, placement: Placement, topology: &Topology) -> Result<Option<String>> {
    let Part { at, len, size } = part;
    check_ordinary_memory(part, needed, placement)?;
    if placement == Placement::Interleave && topology.nodes_with_memory().is_empty() {
        return Ok(Some("the kernel shows no nodes in /sys/devices/system/node".into()));
    }
    match numa::bind(at, len, placement, topology) {
        Ok(()) => Ok(None),
        Err(sys::EINVAL) => Err(unusable(part, placement, topology)),
        Err(errno) if numa::is_denied(errno) && placement.only_node().is_none() => Ok(Some(format!("mbind: {errno}"))),
        Err(errno) => {
            let limit = diagnose(errno, size, len as u64, None);
            Err(Error::new(Operation::Place, subject(part, placement)).os(errno).limited_by(limit))
        }
    }
}

/// Looks whether a node's ordinary memory can hold `needed` bytes, where they may come from no other.
///
/// # Errors
///
/// [`Operation::Place`] when it cannot.
pub(super) fn check_ordinary_memory(part: Part, needed: usize, placement: Placement) -> Result<()> {
    match placement.only_node().filter(|_| !part.size.is_huge() && needed > 0) {
        Some(node) => match ordinary_memory_of(node, part.size, needed as u64) {
            Some(limit) => Err(Error::new(Operation::Place, subject(part, placement)).limited_by(Some(limit))),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

/// Counts the pages, all present, by node.
///
/// # Errors
///
/// [`Operation::Place`]: a strict placement that was not met, or cannot be proved.
pub(super) fn prove(part: Part, placement: Placement, topology: &Topology) -> Result<Located> {
    let located = numa::locate(part.at, part.len / part.size.bytes(), part.size, placement, topology);
    match placement.only_node() {
        Some(node) if located.elsewhere_than(node) != Some(0) => {
            Err(Error::new(Operation::Place, format!("{}: {located}", subject(part, placement))))
        }
        _ => Ok(located),
    }
}

fn subject(part: Part, placement: Placement) -> String {
    format!("{} pages of {} ({placement})", part.len / part.size.bytes(), part.size)
}

fn unusable(part: Part, placement: Placement, topology: &Topology) -> Error {
    let subject = format!(
        "{}: no such node, or it has no memory, or the cpuset of this process leaves it out (Mems_allowed_list in \
         /proc/self/status); nodes with memory: {:?}",
        subject(part, placement),
        topology.nodes_with_memory()
    );
    Error::new(Operation::Configure, subject).os(sys::EINVAL)
}
