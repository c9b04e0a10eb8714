//! What a program may ask of its heap, const on the static.

use super::HugeAlloc;
use super::space::{LARGEST_PAGE_LOG2, SMALLEST_PAGE_LOG2};
use crate::page_size::PageSize;

/// The options of a heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Page sizes to take from the pools, in this order.
    pub(crate) page_sizes: &'static [PageSize],
    pub(crate) limit_bytes: u64,
    /// Memory that is there from the first allocation on.
    pub(crate) initial_bytes: u64,
    /// Pages of each size that growth leaves in the pool.
    pub(crate) spare_pages: u64,
    /// Pages of those sizes or nothing.
    pub(crate) strict: bool,
    /// Page sizes that children of fork may lose are allowed.
    pub(crate) fork_unsafe: bool,
}

impl Options {
    pub(crate) const DEFAULT: Options = Options {
        page_sizes: &[PageSize::HUGE_2M],
        limit_bytes: u64::MAX,
        initial_bytes: 0,
        spare_pages: 0,
        strict: false,
        fork_unsafe: false,
    };
}

impl HugeAlloc {
    /// The defaults: 2 MiB pages while the pool has them, no limit, fallback allowed.
    #[must_use]
    pub const fn new() -> HugeAlloc {
        HugeAlloc { options: Options::DEFAULT }
    }

    /// The page sizes to take from the kernel's pools, largest first. When a pool is exhausted, memory comes from
    /// that of the next size, then from transparent huge pages, then from base pages, unless [`strict`](Self::strict)
    /// was asked for; [`stats`](Self::stats) counts each and says why a larger one was not had. An empty list asks for
    /// none from the pools. The default is `[2M]`.
    ///
    /// The heap grows by whole pages of the first size that has any: by a gibibyte, which takes a fifth of a second
    /// to populate, even if a kilobyte is wanted. What lies before the alignment of a larger page is used by smaller
    /// ones. Pages of 1 GiB are taken only with [`fork_unsafe`](Self::fork_unsafe), which says why.
    ///
    /// # Panics
    ///
    /// If a size is not from 2 MiB to 1 GiB, or not smaller than the one before: when the program is compiled, if the
    /// heap is a static.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{HugeAlloc, PageSize};
    ///
    /// // 1 GiB, then 2 MiB, then transparent huge pages, then base pages.
    /// #[global_allocator]
    /// static GLOBAL: HugeAlloc =
    ///     HugeAlloc::new().page_sizes(&[PageSize::HUGE_1G, PageSize::HUGE_2M]).fork_unsafe().limit(8 << 30);
    ///
    /// println!("{}", GLOBAL.stats());
    /// ```
    #[must_use]
    pub const fn page_sizes(mut self, sizes: &'static [PageSize]) -> HugeAlloc {
        let mut above = LARGEST_PAGE_LOG2 + 1;
        let mut at = 0;
        while at < sizes.len() {
            let log2 = sizes[at].log2();
            assert!(log2 >= SMALLEST_PAGE_LOG2, "the heap takes pages from 2 MiB on");
            assert!(log2 <= LARGEST_PAGE_LOG2, "the heap takes pages up to 1 GiB");
            assert!(log2 < above, "page sizes go from the largest to the smallest");
            above = log2;
            at += 1;
        }
        self.options.page_sizes = sizes;
        self
    }

    /// Has so many bytes, rounded up to pages, there and populated when the first allocation returns, before `main`:
    /// the stall of growing is paid then (about 0.2 s a GiB), and the pages are this process's from the start.
    ///
    /// The pages are taken in the order of [`page_sizes`](Self::page_sizes), as many of each as there are. Of memory
    /// that is not from a pool, at most half of this machine's is populated. A shortage is a fallback like any other,
    /// and with [`strict`](Self::strict) less than asked for: a service that insists compares
    /// [`HeapStats::mapped_bytes`](crate::HeapStats) when it starts.
    #[must_use]
    pub const fn initial(mut self, bytes: u64) -> HugeAlloc {
        self.options.initial_bytes = bytes;
        self
    }

    /// Never holds more than `bytes` of memory, rounded down to 2 MiB: an allocation that needs more gets null, and a
    /// page size that would exceed it is passed over. The heap's tables, a hundredth of that in ordinary memory, are
    /// not counted.
    #[must_use]
    pub const fn limit(mut self, bytes: u64) -> HugeAlloc {
        self.options.limit_bytes = bytes;
        self
    }

    /// Pages of the [sizes](Self::page_sizes) asked for or nothing: null instead of transparent huge pages or base
    /// pages.
    #[must_use]
    pub const fn strict(mut self) -> HugeAlloc {
        self.options.strict = true;
        self
    }

    /// Leaves at least `pages` pages of each size in the pool when the heap grows: for children of fork(2), which need
    /// a page of their own for each huge page that they, or their parent meanwhile, write to, and are killed by the
    /// kernel where there is none. Other processes may still take them. The default is 0.
    #[must_use]
    pub const fn spare_pages(mut self, pages: u64) -> HugeAlloc {
        self.options.spare_pages = pages;
        self
    }

    /// Allows pages of 1 GiB, for programs that do not fork(2), or can do without the child.
    ///
    /// Linux 6.18 was seen to lose pages of 1 GiB in fork: in a third to a half of the children the whole page reads as zeroes, in
    /// plain C as well (it takes a stale count beside a page table for one of sharers; pages of 2 MiB are not
    /// affected). Nothing a process can do prevents it. A child of fork(2) in which a page of this heap is missing
    /// says so and aborts before fork(2) returns in it: nothing is ever read as zero that was not. On every
    /// kernel, after fork one write copies a gibibyte, or kills the child if the pool has no page for that.
    ///
    /// `std::process::Command` forks if it is given a user, a group, a hook (`pre_exec`), or a `PATH` for a program
    /// without a slash; without these it uses posix_spawn(3), which is not affected, as are threads. Without this
    /// option pages of 1 GiB are passed over, and [`stats`](Self::stats) says so.
    #[must_use]
    pub const fn fork_unsafe(mut self) -> HugeAlloc {
        self.options.fork_unsafe = true;
        self
    }
}
