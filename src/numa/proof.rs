//! Where pages are, as the kernel tells it page by page.

use std::collections::BTreeMap;
use std::fmt;

use super::is_denied;
use crate::error::Errno;
use crate::sys;

/// Pages for one call of move_pages(2).
const BATCH: usize = 1024;

/// How many pages a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodePages {
    /// The node's number.
    pub node: u32,
    /// Pages on it.
    pub pages: usize,
}

/// Where pages are. `Display` is a phrase: `24 pages on node 0, 8 pages on node 1`.
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, PageSize, numa::Located};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// match &arena.obtained().nodes {
///     Located::Counted(counts) => {
///         let pages: usize = counts.iter().map(|count| count.pages).sum();
///         assert_eq!(pages, arena.stats().pages);
///     }
///     unknown => println!("{unknown}"), // the calls are denied
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Sources
///
/// get_mempolicy(2), move_pages(2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Located {
    /// Every page was asked about: nodes ascending, those without pages left out.
    Counted(Vec<NodePages>),
    /// It could not be found out, for this reason.
    Unknown(String),
}

impl Located {
    /// Pages that are on this node; `None` when that is unknown.
    #[must_use]
    pub fn on(&self, node: u32) -> Option<usize> {
        match self {
            Located::Counted(counts) => Some(counts.iter().find(|count| count.node == node).map_or(0, |one| one.pages)),
            Located::Unknown(_) => None,
        }
    }

    /// Pages that are not on this node; `None` when that is unknown.
    #[must_use]
    pub fn elsewhere_than(&self, node: u32) -> Option<usize> {
        match self {
            Located::Counted(counts) => {
                Some(counts.iter().filter(|count| count.node != node).map(|count| count.pages).sum())
            }
            Located::Unknown(_) => None,
        }
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Located::Counted(counts) => {
                for (index, NodePages { node, pages }) in counts.iter().enumerate() {
                    let separator = if index > 0 { ", " } else { "" };
                    write!(f, "{separator}{pages} pages on node {node}")?;
                }
                Ok(())
            }
            Located::Unknown(reason) => write!(f, "placement unknown: {reason}"),
        }
    }
}

/// What is asked of the kernel; made up in tests.
pub(super) trait Kernel {
    /// get_mempolicy(2).
    fn node_of(&self, at: usize) -> Result<u32, Errno>;
    /// move_pages(2): a node or a negative errno for each page.
    fn nodes_of(&self, pages: &[usize], nodes: &mut [i32]) -> Result<(), Errno>;
}

pub(super) struct ThisKernel;

impl Kernel for ThisKernel {
    fn node_of(&self, at: usize) -> Result<u32, Errno> {
        sys::numa::node_of(at)
    }

    fn nodes_of(&self, pages: &[usize], nodes: &mut [i32]) -> Result<(), Errno> {
        sys::numa::nodes_of(pages, nodes)
    }
}

/// Counts by get_mempolicy(2), and by move_pages(2) where that is denied. Both read only: the first would populate
/// a page that is missing, so all must be there.
pub(super) fn locate(at: usize, pages: usize, page_bytes: usize, kernel: &dyn Kernel) -> Located {
    let addresses = || (0..pages).map(|page| at + page * page_bytes);
    match count_one_by_one(addresses(), kernel) {
        Ok(counts) => counted(counts),
        Err(errno) if is_denied(errno) => match count_in_batches(addresses(), kernel) {
            Ok(counts) => counted(counts),
            Err(second) => Located::Unknown(format!("get_mempolicy: {errno}; move_pages: {second}")),
        },
        Err(errno) => Located::Unknown(format!("get_mempolicy: {errno}")),
    }
}

type Counts = BTreeMap<u32, usize>;

fn counted(counts: Counts) -> Located {
    Located::Counted(counts.into_iter().map(|(node, pages)| NodePages { node, pages }).collect())
}

fn count_one_by_one(addresses: impl Iterator<Item = usize>, kernel: &dyn Kernel) -> Result<Counts, Errno> {
    let mut counts = Counts::new();
    for at in addresses {
        *counts.entry(kernel.node_of(at)?).or_default() += 1;
    }
    Ok(counts)
}

fn count_in_batches(mut addresses: impl Iterator<Item = usize>, kernel: &dyn Kernel) -> Result<Counts, Errno> {
    let mut counts = Counts::new();
    loop {
        let batch: Vec<_> = addresses.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            return Ok(counts);
        }
        let mut nodes = vec![0; batch.len()];
        kernel.nodes_of(&batch, &mut nodes)?;
        for node in nodes {
            // Kernels that cannot look at huge pages this way say so page by page.
            let node = u32::try_from(node).map_err(|_| Errno(-node))?;
            *counts.entry(node).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size::PageSize;
    use proptest::prelude::*;

    /// A kernel that answers with the node in the page's number, or refuses.
    struct Made {
        one: Option<Errno>,
        batch: Option<Errno>,
        nodes: Vec<u32>,
    }

    impl Kernel for Made {
        fn node_of(&self, at: usize) -> Result<u32, Errno> {
            self.one.map_or(Ok(self.nodes[at / 4096]), Err)
        }

        fn nodes_of(&self, pages: &[usize], nodes: &mut [i32]) -> Result<(), Errno> {
            for (page, node) in pages.iter().zip(nodes) {
                *node = self.nodes[page / 4096] as i32;
            }
            self.batch.map_or(Ok(()), Err)
        }
    }

    fn ask(one: Option<Errno>, batch: Option<Errno>, nodes: &[u32]) -> Located {
        locate(0, nodes.len(), 4096, &Made { one, batch, nodes: nodes.to_vec() })
    }

    /// Experiments: 29, 34.
    #[test]
    fn a_denied_call_is_replaced_by_the_other_or_stated() {
        let counts = Located::Counted(vec![NodePages { node: 0, pages: 1 }, NodePages { node: 64, pages: 2 }]);
        assert_eq!(ask(None, Some(sys::EPERM), &[64, 0, 64]), counts);
        assert_eq!(ask(Some(sys::EPERM), None, &[64, 0, 64]), counts);
        let unknown = ask(Some(sys::EPERM), Some(sys::ENOSYS), &[0]);
        assert!(unknown.to_string().starts_with("placement unknown: get_mempolicy: "), "{unknown}");
        assert!(unknown.to_string().contains("move_pages: ") && unknown.on(0).is_none(), "{unknown}");
        assert!(matches!(ask(Some(sys::EFAULT), None, &[0]), Located::Unknown(_)), "a broken answer is no denial");
        let missing = -sys::EFAULT.raw() as u32;
        assert!(matches!(ask(Some(sys::EPERM), None, &[0, missing]), Located::Unknown(_)));
        assert_eq!(counts.to_string(), "1 pages on node 0, 2 pages on node 64");
        assert_eq!((counts.on(64), counts.on(1), counts.elsewhere_than(64)), (Some(2), Some(0), Some(1)));
    }

    #[test]
    fn both_ways_agree_on_this_machine() {
        let page = PageSize::base().bytes();
        let memory = vec![1u8; 65 * page];
        let at = (memory.as_ptr() as usize).next_multiple_of(page);
        let addresses = || (0..64).map(|index| at + index * page);
        let (one, batch) = (count_one_by_one(addresses(), &ThisKernel), count_in_batches(addresses(), &ThisKernel));
        if let (Ok(one), Ok(batch)) = (one, batch) {
            assert_eq!(one, batch);
            assert_eq!(one.values().sum::<usize>(), 64);
        }
    }

    proptest! {
        #[test]
        fn every_page_is_counted_once(nodes in proptest::collection::vec(0u32..4, 0..3000)) {
            let expected = (0..4).map(|node| nodes.iter().filter(|one| **one == node).count());
            for located in [ask(None, None, &nodes), ask(Some(sys::EPERM), None, &nodes)] {
                for (node, pages) in expected.clone().enumerate() {
                    prop_assert_eq!(located.on(node as u32), Some(pages));
                    prop_assert_eq!(located.elsewhere_than(node as u32), Some(nodes.len() - pages));
                }
            }
        }
    }
}
