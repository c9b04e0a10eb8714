//! What each NUMA node has: huge pages by size, and ordinary memory.

use std::path::{Path, PathBuf};

use super::machine::Machine;
use super::{list, size_of_pool};
use crate::page_size::PageSize;

pub(crate) const NODES: &str = "/sys/devices/system/node";

/// One node's share of a pool of huge pages.
///
/// Reservations are not counted by node: a free page of a node may be promised to a mapping that is bound to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodePool {
    /// The node's number.
    pub node: u32,
    /// The size of one page.
    pub page_size: PageSize,
    /// Pages that the node has, surplus included.
    pub total: u64,
    /// Pages that hold nothing.
    pub free: u64,
    /// Pages beyond the configured number, taken from the node's ordinary memory until they are freed.
    pub surplus: u64,
}

/// Nodes that the kernel shows, ascending; empty where it shows none.
pub(crate) fn ids(machine: &dyn Machine) -> Vec<u32> {
    let names = machine.names(Path::new(NODES));
    let mut ids: Vec<_> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn directory(node: u32) -> PathBuf {
    Path::new(NODES).join(format!("node{node}"))
}

/// Every node's pools: nodes ascending, the largest page size first.
pub(super) fn pools(machine: &dyn Machine) -> Vec<NodePool> {
    ids(machine).into_iter().flat_map(|node| pools_of(machine, node)).collect()
}

fn pools_of(machine: &dyn Machine, node: u32) -> Vec<NodePool> {
    let names = machine.names(&directory(node).join("hugepages"));
    let mut sizes: Vec<_> = names.iter().filter_map(|name| size_of_pool(name)).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().filter_map(|size| pool(machine, node, size)).collect()
}

/// One node's pool of one size.
pub(super) fn pool(machine: &dyn Machine, node: u32, page_size: PageSize) -> Option<NodePool> {
    let count = |name| machine.number(&file(node, page_size, name));
    Some(NodePool {
        node,
        page_size,
        total: count("nr_hugepages")?,
        free: count("free_hugepages")?,
        surplus: count("surplus_hugepages").unwrap_or(0),
    })
}

pub(super) fn file(node: u32, size: PageSize, name: &str) -> PathBuf {
    directory(node).join(format!("hugepages/hugepages-{}kB", size.bytes() / 1024)).join(name)
}

/// Bytes of ordinary memory that a node can give: what is free, and the page cache, which can be dropped.
pub(super) fn ordinary_bytes(machine: &dyn Machine, node: u32) -> Option<u64> {
    let text = machine.text(&meminfo(node))?;
    // `Node 0 MemFree:   123 kB`
    let kib = |key: &str| {
        let mut values = text.lines().filter_map(|line| line.split_once(key)?.1.strip_prefix(':'));
        values.next()?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let cache = kib("FilePages").unwrap_or(0).saturating_sub(kib("Shmem").unwrap_or(0));
    kib("MemFree")?.checked_add(cache)?.checked_mul(1024)
}

pub(super) fn meminfo(node: u32) -> PathBuf {
    directory(node).join("meminfo")
}

/// Nodes that this process's cpuset allows; `None` where that cannot be read.
pub(super) fn allowed(machine: &dyn Machine) -> Option<Vec<u32>> {
    let status = machine.text(Path::new("/proc/self/status"))?;
    list::parse(status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)
}

#[cfg(test)]
mod tests {
    use super::super::machine::fake::FakeMachine;
    use super::*;

    #[test]
    fn each_node_has_its_own_figures() {
        let machine = FakeMachine::default()
            .with_node_pool(0, 2048, [8, 3, 0])
            .with_node_pool(0, 1 << 20, [1, 1, 0])
            .with_node_pool(1023, 2048, [0, 0, 0])
            .with("/sys/devices/system/node/possible", "0-1023\n");
        let read: Vec<_> =
            pools(&machine).iter().map(|pool| (pool.node, pool.page_size, pool.total, pool.free)).collect();
        let (small, large) = (PageSize::HUGE_2M, PageSize::HUGE_1G);
        assert_eq!(read, [(0, large, 1, 1), (0, small, 8, 3), (1023, small, 0, 0)]);
        assert!(pools(&FakeMachine::default()).is_empty());
    }

    #[test]
    fn ordinary_memory_is_what_is_free_or_can_be_dropped() {
        let text = "Node 1 MemTotal: 900 kB\nNode 1 MemFree:  100 kB\nNode 1 FilePages: 50 kB\nNode 1 Shmem: 20 kB\n\
                    Node 1 ShmemHugePages: 7 kB\n";
        let machine = FakeMachine::default().with("/sys/devices/system/node/node1/meminfo", text);
        assert_eq!(ordinary_bytes(&machine, 1), Some(130 << 10));
        assert_eq!(ordinary_bytes(&machine, 0), None);
    }

    #[test]
    fn a_cpuset_says_which_nodes_are_allowed() {
        let machine = |text: &str| FakeMachine::default().with("/proc/self/status", text);
        assert_eq!(allowed(&machine("Mems_allowed:\t3\nMems_allowed_list:\t0-1\n")), Some(vec![0, 1]));
        assert_eq!(allowed(&machine("VmPeak: 1 kB\n")), None);
    }
}
