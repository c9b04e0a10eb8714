//! A mapping's NUMA policy, set before its first page is there, and the proof afterwards.

use super::Mapping;
use crate::error::{Error, Operation, Result};
use crate::numa::{self, Located, Placement, Topology};
use crate::supply::{diagnose, diagnosis::ordinary_memory_of};
use crate::sys;

/// Sets the policy. Where that is denied and can be done without, the answer is why.
///
/// # Errors
///
/// [`Operation::Configure`]: a node that cannot be used. [`Operation::Place`]: a strict placement that is denied, or
/// that the node's ordinary memory cannot hold.
pub(super) fn bind(mapping: &Mapping, placement: Placement, topology: &Topology) -> Result<Option<String>> {
    let (at, len) = (mapping.start().as_ptr().addr(), mapping.len_bytes());
    let size = mapping.backing().page_size();
    if let Some(node) = placement.only_node()
        && !size.is_huge()
        && let Some(limit) = ordinary_memory_of(node, size, len as u64)
    {
        return Err(Error::new(Operation::Place, subject(mapping, placement)).limited_by(Some(limit)));
    }
    if placement == Placement::Interleave && topology.nodes_with_memory().is_empty() {
        return Ok(Some("the kernel shows no nodes in /sys/devices/system/node".into()));
    }
    match numa::bind(at, len, placement, topology) {
        Ok(()) => Ok(None),
        Err(sys::EINVAL) => Err(unusable(mapping, placement, topology)),
        Err(errno) if numa::is_denied(errno) && placement.only_node().is_none() => Ok(Some(format!("mbind: {errno}"))),
        Err(errno) => {
            let limit = diagnose(errno, size, len as u64, None);
            Err(Error::new(Operation::Place, subject(mapping, placement)).os(errno).limited_by(limit))
        }
    }
}

/// Counts the pages, all present, by node.
///
/// # Errors
///
/// [`Operation::Place`]: a strict placement that was not met, or cannot be proved.
pub(super) fn prove(mapping: &Mapping, placement: Placement, topology: &Topology) -> Result<Located> {
    let (at, pages) = (mapping.start().as_ptr().addr(), mapping.backing().pages());
    let located = numa::locate(at, pages, mapping.backing().page_size(), placement, topology);
    match placement.only_node() {
        Some(node) if located.elsewhere_than(node) != Some(0) => {
            Err(Error::new(Operation::Place, format!("{}: {located}", subject(mapping, placement))))
        }
        _ => Ok(located),
    }
}

fn subject(mapping: &Mapping, placement: Placement) -> String {
    format!("{} pages of {} ({placement})", mapping.backing().pages(), mapping.backing().page_size())
}

fn unusable(mapping: &Mapping, placement: Placement, topology: &Topology) -> Error {
    let subject = format!(
        "{}: no such node, or it has no memory, or the cpuset of this process leaves it out (Mems_allowed_list in \
         /proc/self/status); nodes with memory: {:?}",
        subject(mapping, placement),
        topology.nodes_with_memory()
    );
    Error::new(Operation::Configure, subject).os(sys::EINVAL)
}
