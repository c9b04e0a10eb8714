//! Page sizes in their order in one heap: 1 GiB, 2 MiB, transparent, base; each step seen in the heap's own figures
//! and in smaps.

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::support::machine::limit_resource;
use crate::support::{Child, fork, smaps_of};
use hugearena::HugeAlloc;
use hugearena::supply::Supply;

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;
const BOTH: &[PageSize] = &[PageSize::HUGE_1G, PageSize::HUGE_2M];

/// The heap of every test here but those that name another.
static HEAP: HugeAlloc = HugeAlloc::new().page_sizes(BOTH).fork_unsafe();

/// A child for which so many pages of each size are available.
fn with_pages(gigantic: usize, huge: u64) -> Child {
    Child::new().needs_pages(PageSize::HUGE_1G, gigantic).pool_of(huge)
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).unwrap()
}

/// A block that is written to at every base page.
fn block(heap: &HugeAlloc, size: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    let block = unsafe { heap.alloc(layout(size)) };
    assert!(!block.is_null(), "{size} bytes\n{}", heap.stats());
    for at in (0..size).step_by(4096) {
        // SAFETY: inside the live block.
        unsafe { block.add(at).write(at as u8 | 1) };
    }
    block
}

fn free(heap: &HugeAlloc, block: *mut u8, size: usize) {
    // SAFETY: a live block of that layout.
    unsafe { heap.dealloc(block, layout(size)) }
}

/// The page size of the mapping that holds a block, in KiB, as smaps has it.
fn kernel_page_kib(block: *mut u8) -> u64 {
    let entry = smaps_of(block.addr()).expect("the block is mapped");
    let line = entry.lines().find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
}

/// All that is available of 1 GiB pages, held until dropped.
struct Gigantic(Vec<*mut libc::c_void>);

impl Gigantic {
    fn take() -> Gigantic {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_1GB;
        let one = || {
            // SAFETY: a new mapping at an address of the kernel's choice; shared memory is reserved at once.
            let at = unsafe {
                libc::mmap(std::ptr::null_mut(), GIB as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
            };
            (at != libc::MAP_FAILED).then_some(at)
        };
        Gigantic(std::iter::from_fn(one).collect())
    }
}

impl Drop for Gigantic {
    fn drop(&mut self) {
        for at in self.0.drain(..) {
            // SAFETY: our own mapping, never touched.
            unsafe { libc::munmap(at, GIB as usize) };
        }
    }
}

#[test]
fn sizes_are_taken_in_their_order_down_to_base_pages() {
    with_pages(2, 8).run(|| {
        let first = block(&HEAP, 100);
        assert_eq!((HEAP.stats().bytes_on(PageSize::HUGE_1G), kernel_page_kib(first)), (GIB, 1 << 20));
        for _ in 0..2 {
            assert_eq!(kernel_page_kib(block(&HEAP, 700 * MIB)), 1 << 20);
        }
        let stats = HEAP.stats();
        assert_eq!((stats.bytes_on(PageSize::HUGE_1G), stats.mapped_bytes, stats.fallbacks), (2 * GIB, 2 * GIB, 0));

        // What is left of them is used before anything else is asked for.
        for _ in 0..2 {
            assert_eq!(kernel_page_kib(block(&HEAP, 300 * MIB)), 1 << 20);
        }
        let mut last = first;
        while HEAP.stats().transparent_bytes == 0 {
            last = block(&HEAP, 3 * MIB);
        }
        let stats = HEAP.stats();
        assert_eq!((stats.bytes_on(PageSize::HUGE_1G), stats.huge_2m_bytes), (2 * GIB, 8 * HUGE as u64), "{stats}");
        assert!(stats.hugetlb.iter().all(|held| held.refused > 0) && stats.fallbacks > 0, "{stats}");
        assert!(stats.last_fallback.is_some() && stats.remedy.is_some(), "{stats}");
        // Its start may lie in what was left of a huge page.
        let end = last.wrapping_add(3 * MIB - 1);
        assert_eq!(kernel_page_kib(end), PageSize::base().bytes() as u64 >> 10);
        assert!(stats.transparent_obtained_bytes > 0 || !support::gives_transparent_pages(), "{stats}");

        // SAFETY: no preconditions.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        for _ in 0..10 {
            block(&HEAP, 8 * MIB);
        }
        let after = HEAP.stats();
        assert!(after.transparent_bytes >= stats.transparent_bytes + (60 << 20), "{after}");
        let obtained = after.transparent_obtained_bytes.saturating_sub(stats.transparent_obtained_bytes);
        assert!(obtained <= 8 << 20, "on base pages, and the figures say so: {after}");
    });
}

#[test]
fn without_transparent_huge_pages_the_last_step_is_base_pages() {
    with_pages(0, 0).in_mount_namespace().run(|| {
        let gigantic = Gigantic::take();
        let never = std::env::temp_dir().join(format!("hugearena-never-{}", std::process::id()));
        std::fs::write(&never, "always madvise [never]\n").unwrap();
        let source = std::ffi::CString::new(never.to_str().unwrap()).unwrap();
        let target = c"/sys/kernel/mm/transparent_hugepage/enabled";
        // SAFETY: C strings; the mount is seen by this process alone.
        let bound =
            unsafe { libc::mount(source.as_ptr(), target.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null()) };
        assert_eq!(bound, 0);
        for _ in 0..10 {
            block(&HEAP, 3 * MIB);
        }
        std::fs::remove_file(never).unwrap();
        let stats = HEAP.stats();
        assert!(stats.base_bytes >= 30 << 20 && stats.base_bytes == stats.mapped_bytes, "{stats}");
        drop(gigantic);
    });
}

#[test]
fn transparent_huge_pages_are_asked_for_where_nobody_can_see_whether_they_are_on() {
    with_pages(0, 0).run(|| {
        let gigantic = Gigantic::take();
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return support::skip("transparent huge pages", "this kernel has none");
        }
        // Standard input, output and error, and no more.
        support::machine::limit_resource(libc::RLIMIT_NOFILE, 3);
        for _ in 0..10 {
            block(&HEAP, 3 * MIB);
        }
        let stats = HEAP.stats();
        support::machine::limit_resource(libc::RLIMIT_NOFILE, 1024);
        assert!(stats.transparent_bytes >= 30 << 20 && stats.base_bytes == 0, "{stats}");
        drop(gigantic);
    });
}

#[test]
fn what_lies_before_a_larger_page_is_used() {
    with_pages(2, 64).run(|| {
        let gigantic = Gigantic::take();
        let small = block(&HEAP, 3 * MIB);
        assert_eq!(kernel_page_kib(small), 2048);
        drop(gigantic);
        // The pool is asked again after a few steps.
        let mut blocks = vec![small];
        while HEAP.stats().bytes_on(PageSize::HUGE_1G) == 0 {
            blocks.push(block(&HEAP, 3 * MIB));
            assert!(blocks.len() < 40, "{}", HEAP.stats());
        }
        let large = *blocks.last().unwrap();
        assert_eq!(kernel_page_kib(large), 1 << 20);
        assert!(large > small && large.addr() - small.addr() >= 512 * MIB, "at the next gibibyte");

        let _gigantic = Gigantic::take();
        let rest = block(&HEAP, 1000 * MIB);
        assert_eq!(kernel_page_kib(rest), 1 << 20, "in what is left of the page");
        let filled: Vec<_> = (0..16).map(|_| block(&HEAP, 5 * MIB)).skip_while(|block| *block > large).collect();
        assert!(filled.len() > 5 && filled.iter().all(|block| *block < large), "{} lie before the page", filled.len());
        for block in filled {
            assert_eq!(kernel_page_kib(block), 2048);
        }
    });
}

#[test]
fn trim_gives_whole_pages_back() {
    with_pages(2, 16).run(|| {
        let available = || Supply::read().available_pages(PageSize::HUGE_1G);
        let before = available();
        let kept = block(&HEAP, 100);
        let block_1 = block(&HEAP, 1500 * MIB);
        assert_eq!(HEAP.stats().bytes_on(PageSize::HUGE_1G), 2 * GIB);
        free(&HEAP, block_1, 1500 * MIB);
        assert_eq!(HEAP.trim() as u64, GIB, "the page that holds a small block stays\n{}", HEAP.stats());
        free(&HEAP, kept, 100);
        let stats = HEAP.stats();
        assert_eq!((stats.bytes_on(PageSize::HUGE_1G), available()), (GIB, before - 1), "{stats}");
        let again = block(&HEAP, 1200 * MIB);
        assert_eq!(kernel_page_kib(again), 1 << 20);
        assert_eq!(HEAP.stats().bytes_on(PageSize::HUGE_1G), 2 * GIB);
    });
}

#[test]
fn blocks_grow_across_pages_of_a_gibibyte() {
    with_pages(2, 16).run(|| {
        let mut size = 64 * MIB;
        let mut grown = block(&HEAP, size);
        while size < 1600 * MIB {
            let next = size + size / 3;
            // SAFETY: one live block, resized with its layout of the moment.
            grown = unsafe { HEAP.realloc(grown, layout(size), next) };
            assert!(!grown.is_null());
            for at in (0..64 * MIB).step_by(4096) {
                // SAFETY: inside the live block.
                assert_eq!(unsafe { grown.add(at).read() }, at as u8 | 1);
            }
            size = next;
        }
        free(&HEAP, grown, size);
        assert!(HEAP.stats().bytes_on(PageSize::HUGE_1G) >= GIB, "{}", HEAP.stats());
    });
}

#[test]
fn a_limit_passes_over_pages_that_exceed_it() {
    const LIMIT: u64 = GIB + (16 << 20);
    static LIMITED: HugeAlloc = HugeAlloc::new().page_sizes(BOTH).fork_unsafe().limit(LIMIT).strict();
    with_pages(2, 64).run(|| {
        block(&LIMITED, 1000 * MIB);
        // SAFETY: the size is not 0.
        while unsafe { !LIMITED.alloc(layout(MIB)).is_null() } {}
        let stats = LIMITED.stats();
        assert_eq!((stats.bytes_on(PageSize::HUGE_1G), stats.huge_2m_bytes), (GIB, 16 << 20), "{stats}");
    });
}

#[test]
fn a_heap_that_may_fork_takes_no_pages_that_children_may_lose() {
    static CAREFUL: HugeAlloc = HugeAlloc::new().page_sizes(BOTH);
    with_pages(1, 16).run(|| {
        block(&CAREFUL, 3 * MIB);
        let stats = CAREFUL.stats();
        assert_eq!((stats.bytes_on(PageSize::HUGE_1G), stats.huge_2m_bytes), (0, stats.mapped_bytes), "{stats}");
        assert!(stats.fallbacks > 0 && stats.to_string().contains("fork_unsafe"), "{stats}");
    });
}

/// What was not zero is never read as zero in a child: it has the page, or it ends before fork returns.
#[test]
fn a_child_of_fork_has_its_pages_or_says_so() {
    with_pages(2, 64).run(|| {
        let kept = block(&HEAP, 500 * MIB);
        let mut lost = 0;
        for round in 0..40 {
            let status = fork(|| {
                let mut pages = (0..500 * MIB).step_by(64 << 10);
                // SAFETY: inside the live block.
                i32::from(!pages.all(|at| unsafe { kept.add(at).read() } == at as u8 | 1))
            });
            assert!(status.success() || status.signal() == Some(libc::SIGABRT), "round {round}: {status}");
            lost += i32::from(!status.success());
        }
        eprintln!("{lost} of 40 children lost their page");
    });
}

static PREPARED: HugeAlloc = HugeAlloc::new().initial(64 << 20);

#[test]
fn initial_memory_is_there_from_the_first_allocation_on() {
    Child::new().pool_of(40).run(|| {
        block(&PREPARED, 1);
        let stats = PREPARED.stats();
        assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes, stats.fallbacks), (64 << 20, 64 << 20, 0), "{stats}");
        block(&PREPARED, 60 * MIB);
        assert_eq!(PREPARED.stats().mapped_bytes, 64 << 20);
    });
}

#[test]
fn initial_memory_comes_from_what_there_is() {
    Child::new().pool_of(5).run(|| {
        block(&PREPARED, 1);
        let stats = PREPARED.stats();
        assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes), (64 << 20, 5 * HUGE as u64), "{stats}");
        assert!(stats.fallbacks == 1 && stats.last_fallback.is_some() && stats.remedy.is_some(), "{stats}");
    });
}

#[test]
fn strict_initial_memory_is_what_the_pool_has() {
    static STRICT: HugeAlloc = HugeAlloc::new().initial(64 << 20).strict();
    Child::new().pool_of(5).run(|| {
        block(&STRICT, 1);
        let stats = STRICT.stats();
        assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes), (5 * HUGE as u64, 5 * HUGE as u64), "{stats}");
    });
}

#[test]
fn initial_memory_beyond_the_limit_goes_up_to_the_limit() {
    static LIMITED: HugeAlloc = HugeAlloc::new().initial(100 << 20).limit(50 << 20);
    Child::new().pool_of(5).run(|| {
        block(&LIMITED, 1);
        let stats = LIMITED.stats();
        assert_eq!((stats.mapped_bytes, stats.huge_2m_bytes), (50 << 20, 5 * HUGE as u64), "{stats}");
    });
}

#[test]
fn initial_memory_takes_larger_pages_first() {
    static BOTH_PREPARED: HugeAlloc =
        HugeAlloc::new().page_sizes(BOTH).fork_unsafe().initial(GIB + (10 << 20)).limit(2 * GIB);
    with_pages(1, 64).run(|| {
        let taken = block(&BOTH_PREPARED, 1);
        let stats = BOTH_PREPARED.stats();
        assert_eq!((stats.bytes_on(PageSize::HUGE_1G), stats.huge_2m_bytes), (GIB, 10 << 20), "{stats}");
        assert!([2048, 1 << 20].contains(&kernel_page_kib(taken)));
    });
}

#[test]
fn spare_pages_stay_in_the_pool() {
    static SPARING: HugeAlloc = HugeAlloc::new().spare_pages(12);
    Child::new().pool_of(20).run(|| {
        for _ in 0..30 {
            block(&SPARING, 3 * MIB);
        }
        let stats = SPARING.stats();
        assert!(stats.huge_2m_bytes > 0 && stats.huge_2m_bytes <= 8 * HUGE as u64, "{stats}");
        assert!(Supply::read().available_pages(PageSize::HUGE_2M) >= 12);
        assert!(stats.last_fallback.as_ref().is_some_and(|reason| reason.contains("spare")), "{stats}");
    });
}

#[test]
fn no_page_sizes_means_none_from_the_pool() {
    static NONE: HugeAlloc = HugeAlloc::new().page_sizes(&[]);
    Child::new().pool_of(16).run(|| {
        block(&NONE, 3 * MIB);
        let stats = NONE.stats();
        assert_eq!((stats.hugetlb.len(), stats.huge_2m_bytes, stats.fallbacks), (0, 0, 0), "{stats}");
        assert_eq!(stats.transparent_bytes + stats.base_bytes, stats.mapped_bytes);
    });
}

/// It starts at no multiple of 1 GiB, unless by chance.
#[test]
fn pages_that_a_short_range_has_no_place_for_are_not_asked_for() {
    Child::new().needs_pages(PageSize::HUGE_1G, 1).run(|| {
        for turn in 1..9 {
            let status = fork(|| {
                limit_resource(libc::RLIMIT_AS, 3 * GIB);
                let (flags, len) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, turn * 64 * MIB);
                // So that the range lies elsewhere each time.
                // SAFETY: a new mapping at an address of the kernel's choice, never touched.
                unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
                block(&HEAP, 100);
                let stats = HEAP.stats();
                // By chance one is had, or there are too few addresses for it to be moved in.
                let is_had = stats.bytes_on(PageSize::HUGE_1G) == GIB;
                assert!(is_had || stats.to_string().contains("RLIMIT_AS"), "{stats}");
                0
            });
            assert!(status.success(), "{status}");
        }
    });
}
