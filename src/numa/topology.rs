//! Nodes, their CPUs, and which of them have memory: text in, numbers out.

use std::path::Path;

use crate::supply::list;
use crate::supply::machine::{Machine, ThisMachine};
use crate::supply::nodes::{self, NODES};

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its CPUs, ascending; a node may have none.
    pub cpus: Vec<u32>,
    /// Whether it has memory; a node may have none.
    pub has_memory: bool,
}

/// The nodes of this machine.
///
/// # Examples
///
/// ```
/// for node in hugearena::numa::Topology::read().nodes {
///     println!("node {}: {} CPUs", node.id, node.cpus.len());
/// }
/// ```
///
/// # Sources
///
/// Linux, `Documentation/ABI/stable/sysfs-devices-node`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// Ascending by number. Empty where the kernel shows none: without NUMA, or without sysfs.
    pub nodes: Vec<Node>,
    with_memory: Vec<u32>,
}

impl Topology {
    /// Reads sysfs. What cannot be read is left out, so this never fails.
    #[must_use]
    pub fn read() -> Topology {
        Topology::of(&ThisMachine)
    }

    fn of(machine: &dyn Machine) -> Topology {
        let listed = |file: &Path| list::parse(&machine.text(file)?);
        let memory = listed(&Path::new(NODES).join("has_memory"));
        let node = |id| Node {
            id,
            cpus: listed(&nodes::directory(id).join("cpulist")).unwrap_or_default(),
            // Where the list cannot be read, the kernel itself sorts out nodes without memory.
            has_memory: memory.as_ref().is_none_or(|memory| memory.contains(&id)),
        };
        Topology::new(nodes::ids(machine).into_iter().map(node).collect())
    }

    fn new(nodes: Vec<Node>) -> Topology {
        let with_memory = nodes.iter().filter(|node| node.has_memory).map(|node| node.id).collect();
        Topology { nodes, with_memory }
    }

    /// The node with this number.
    #[must_use]
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Numbers of the nodes that have memory, ascending.
    #[must_use]
    pub fn nodes_with_memory(&self) -> &[u32] {
        &self.with_memory
    }
}

#[cfg(test)]
impl Topology {
    /// Nodes without CPUs: number, and whether it has memory.
    pub(super) fn made_of(nodes: &[(u32, bool)]) -> Topology {
        Topology::new(nodes.iter().map(|&(id, has_memory)| Node { id, cpus: Vec::new(), has_memory }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supply::machine::fake::FakeMachine;

    #[test]
    fn nodes_have_cpus_and_memory_or_neither() {
        let machine = FakeMachine::default()
            .with("/sys/devices/system/node/has_memory", "0,1023\n")
            .with("/sys/devices/system/node/has_cpu", "0-1\n")
            .with("/sys/devices/system/node/node0/cpulist", "0-2,8\n")
            .with("/sys/devices/system/node/node1/cpulist", "3\n")
            .with("/sys/devices/system/node/node1023/cpulist", "\n");
        let topology = Topology::of(&machine);
        let ids: Vec<_> = topology.nodes.iter().map(|node| node.id).collect();
        assert_eq!(ids, [0, 1, 1023]);
        assert_eq!(topology.node(0).unwrap().cpus, [0, 1, 2, 8]);
        assert!(!topology.node(1).unwrap().has_memory);
        assert!(topology.node(1023).unwrap().cpus.is_empty());
        assert_eq!(topology.nodes_with_memory(), [0, 1023]);
        assert_eq!(topology.node(2), None);
        assert_eq!(Topology::of(&FakeMachine::default()).nodes, []);
    }

    #[test]
    fn this_machine_has_memory_somewhere() {
        let topology = Topology::read();
        assert!(topology.nodes.is_empty() || !topology.nodes_with_memory().is_empty());
    }
}
