//! NUMA: which nodes a machine has, where an arena's pages are to come from, and proof of where they are.
//!
//! A policy is set on the mapping before its first page is there; the thread's own policy is never touched. mmap
//! reserves pages without regard to nodes, so only populating under the policy shows whether they can be had, and
//! only asking the kernel page by page shows where they are. Where the calls are denied (containers deny them to
//! processes without `CAP_SYS_NICE`) placement is unknown and said to be.

mod proof;
mod topology;

use std::fmt;

pub use proof::{Located, NodePages};
pub use topology::{Node, Topology};

use crate::error::Errno;
use crate::page_size::PageSize;
use crate::sys;
use crate::sys::numa::{CpuSet, NodeMask, Policy};

/// Which NUMA nodes an arena's pages come from.
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, PageSize, Placement};
///
/// # fn main() -> hugearena::Result<()> {
/// let builder = Arena::builder().page_size(PageSize::base()).capacity(1 << 20);
/// let arena = builder.placement(Placement::Preferred(0)).open()?;
/// println!("{}", arena.obtained()); // ... 256 pages on node 0 (preferred: node 0)
/// # Ok(())
/// # }
/// ```
///
/// # Sources
///
/// mbind(2), get_mempolicy(2); Linux, `Documentation/admin-guide/mm/numa_memory_policy.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// Wherever the kernel takes them from: the node of the thread that populates, while it has some.
    #[default]
    Any,
    /// From this node while it has some, then from others, which is stated and no error.
    Preferred(u32),
    /// From this node, all of them, proved; or an error.
    Strict(u32),
    /// From all nodes in turns, as far as each has some.
    Interleave,
}

impl Placement {
    /// The node that is named.
    #[must_use]
    pub fn node(self) -> Option<u32> {
        match self {
            Placement::Preferred(node) | Placement::Strict(node) => Some(node),
            Placement::Any | Placement::Interleave => None,
        }
    }

    /// The only node that will do.
    pub(crate) fn only_node(self) -> Option<u32> {
        self.node().filter(|_| matches!(self, Placement::Strict(_)))
    }

    /// Policy and nodes for mbind(2); `None` when no policy is wanted.
    fn policy(self, topology: &Topology) -> Option<Result<(Policy, NodeMask), Errno>> {
        let (policy, nodes) = match self {
            Placement::Any => return None,
            Placement::Preferred(node) => (Policy::Preferred, NodeMask::of([node])),
            Placement::Strict(node) => (Policy::Bind, NodeMask::of([node])),
            Placement::Interleave => (Policy::Interleave, NodeMask::of(topology.nodes_with_memory().iter().copied())),
        };
        Some(nodes.map(|nodes| (policy, nodes)).ok_or(sys::EINVAL))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Any => f.write_str("any node"),
            Placement::Preferred(node) => write!(f, "preferred: node {node}"),
            Placement::Strict(node) => write!(f, "strict: node {node}"),
            Placement::Interleave => f.write_str("interleaved"),
        }
    }
}

/// Sets the policy of a mapping of `len` bytes at `at` that has no pages yet.
///
/// `EINVAL`: a node that does not exist, has no memory, or is not in this process's cpuset.
pub(crate) fn bind(at: usize, len: usize, placement: Placement, topology: &Topology) -> Result<(), Errno> {
    match placement.policy(topology) {
        None => Ok(()),
        Some(Err(errno)) => Err(errno),
        Some(Ok((policy, nodes))) => sys::numa::bind(at, len, policy, &nodes),
    }
}

/// Whether the errno says that the call itself is not to be had here: denied, or not part of this kernel.
pub(crate) fn is_denied(errno: Errno) -> bool {
    [sys::EPERM, sys::ENOSYS, sys::EACCES].contains(&errno)
}

/// CPUs that threads which populate may use: the allowed ones, and of these the named node's if it has any.
pub(crate) fn cpus(placement: Placement, topology: &Topology) -> Option<CpuSet> {
    let allowed = sys::numa::allowed_cpus().ok()?;
    let node = placement.node().and_then(|node| topology.node(node));
    let near = node.map(|node| allowed.and(&CpuSet::of(node.cpus.iter().copied())));
    Some(near.filter(|near| near.count() > 0).unwrap_or(allowed))
}

/// Where `pages` present pages of `size` from `at` on are.
///
/// Where only one node has memory and nothing was asked, that is the answer. Base pages are counted only where a
/// placement was asked for: there are many, and each costs a call.
pub(crate) fn locate(at: usize, pages: usize, size: PageSize, placement: Placement, topology: &Topology) -> Located {
    if placement == Placement::Any {
        if let &[only] = topology.nodes_with_memory() {
            return Located::Counted(vec![NodePages { node: only, pages }]);
        }
        if !size.is_huge() {
            return Located::Unknown("base pages are counted only where a placement is asked for".into());
        }
    }
    proof::locate(at, pages, size.bytes(), &proof::ThisKernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Experiments: 36.
    #[test]
    fn a_policy_names_the_nodes_asked_for() {
        let topology = Topology::made_of(&[(0, true), (1, false), (64, true)]);
        let mask = |nodes: &[u32]| NodeMask::of(nodes.iter().copied()).unwrap();
        let policy = |placement: Placement| placement.policy(&topology);
        assert_eq!(policy(Placement::Any), None);
        assert_eq!(policy(Placement::Strict(1023)), Some(Ok((Policy::Bind, mask(&[1023])))));
        assert_eq!(policy(Placement::Preferred(63)), Some(Ok((Policy::Preferred, mask(&[63])))));
        assert_eq!(policy(Placement::Interleave), Some(Ok((Policy::Interleave, mask(&[0, 64])))));
        assert_eq!(policy(Placement::Strict(1024)), Some(Err(sys::EINVAL)));
    }

    #[test]
    fn one_node_is_the_answer_where_nothing_was_asked() {
        let at = 0;
        let one = Topology::made_of(&[(0, false), (3, true)]);
        let located = locate(at, 7, PageSize::HUGE_2M, Placement::Any, &one);
        assert_eq!(located, Located::Counted(vec![NodePages { node: 3, pages: 7 }]));
        let two = Topology::made_of(&[(0, true), (1, true)]);
        assert!(matches!(locate(at, 7, PageSize::base(), Placement::Any, &two), Located::Unknown(_)));
    }
}
