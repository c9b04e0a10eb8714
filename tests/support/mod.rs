//! What the integration tests share: the page sizes to test on, a guard over the pool's counters, processes of
//! their own for tests that change limits, mounts or signal handling.
//!
//! What cannot be tested here is printed as `skipped: ...`, past the harness's capture. With
//! `HUGEARENA_REQUIRE_HUGE=1` (or a list of page sizes, such as `2M,1G`) such a skip is a failure instead.

#![allow(unsafe_code)]
// Each test binary uses a part.
#![allow(dead_code, unused_imports)]

pub mod cgroup;
pub mod child;
pub mod kill;
pub mod machine;
pub mod pool;

use std::io::Write;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugearena::supply::Supply;
use hugearena::{Arena, Chunk, FirstTouch, PageSize};

pub use child::{Child, fork, without_system_calls};
pub use pool::PoolUnchanged;

/// What `HUGEARENA_REQUIRE_HUGE` asks for.
fn required() -> Option<String> {
    std::env::var("HUGEARENA_REQUIRE_HUGE").ok().filter(|text| !text.is_empty() && text != "0")
}

/// Prints why something is not tested here, or panics where everything has to be.
pub fn skip(what: &str, reason: &str) {
    assert!(required().is_none(), "HUGEARENA_REQUIRE_HUGE is set, and {what} cannot be tested: {reason}");
    print_skip(what, reason);
}

/// Prints why a page size is not tested here, or panics if it has to be.
pub fn skip_size(size: PageSize, reason: &str) {
    let named = |text: String| text == "1" || text.split(',').any(|one| one.trim().parse() == Ok(size));
    assert!(!required().is_some_and(named), "HUGEARENA_REQUIRE_HUGE names {size}, which cannot be tested: {reason}");
    print_skip(&format!("{size} pages"), reason);
}

/// Prints why a program's peer is not tested here, or panics if it has to be: `HUGEARENA_WITHOUT` names those that cannot
/// be had, which says nothing about this crate.
pub fn skip_program(program: &str, what: &str, reason: &str) {
    let without = std::env::var("HUGEARENA_WITHOUT").unwrap_or_default();
    if without.split_whitespace().any(|name| name == program) { print_skip(what, reason) } else { skip(what, reason) }
}

/// Whether the loader can be told this path, to preload it.
pub fn is_preloadable(path: &Path) -> bool {
    !path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte))
}

/// Prints why something is not tested here: for what few machines can test.
pub fn print_skip(what: &str, reason: &str) {
    // Not `eprintln`: the harness keeps what passing tests print by it to itself. In one call, for threads print.
    let _ = std::io::stderr().write_all(format!("skipped: {what}: {reason}\n").as_bytes());
}

/// Prints a figure that a test has counted, past the harness's capture and that of [`Child`].
pub fn print_figure(text: &str) {
    let _ = std::io::stderr().write_all(format!("figure: {text}\n").as_bytes());
}

/// Why `pages` pages of `size` cannot be had here, if so.
pub fn missing(size: PageSize, pages: usize) -> Option<String> {
    if !size.is_huge() {
        return None;
    }
    let supply = Supply::read();
    let available = supply.available_pages(size);
    match supply.pool(size) {
        None => Some("this kernel has no pages of that size".into()),
        Some(_) if available < pages as u64 => Some(format!("{pages} pages needed, {available} available")),
        Some(_) => None,
    }
}

/// Skips a test of programs that fork on the heap where the pool has a few pages, and says whether it did: as soon as it has
/// none, the kernel kills children that look at theirs. Where it has none from the start, the heap has none either.
pub fn skips_short_pool(test: &str) -> bool {
    let available = Supply::read().available_pages(PageSize::HUGE_2M);
    let is_short = (1..32).contains(&available);
    if is_short {
        skip_size(PageSize::HUGE_2M, &format!("{test}: 32 pages needed, {available} available"));
    }
    is_short
}

/// A page more than the pool can have, however many others give back meanwhile.
pub fn too_many(size: PageSize) -> usize {
    Supply::read().pool(size).map_or(0, |pool| pool.total + pool.overcommit) as usize + 1
}

/// Runs `test` on base pages, and on 2 MiB and 1 GiB where the supply allows, one page size after the other and
/// with no other test that touches the pool. `test` gets the size and how many pages it may use: `wanted`, but
/// at most two of 1 GiB. The pool is as before when it returns.
pub fn for_each_page_size(wanted: usize, mut test: impl FnMut(PageSize, usize)) {
    for size in [PageSize::base(), PageSize::HUGE_2M, PageSize::HUGE_1G] {
        let pages = if size >= PageSize::HUGE_1G { wanted.min(2) } else { wanted };
        let _guard = PoolUnchanged::begin();
        match missing(size, pages) {
            Some(reason) => skip_size(size, &format!("{}: {reason}", current_test())),
            None => {
                eprintln!("on {pages} pages of {size}");
                test(size, pages);
            }
        }
    }
}

/// The harness names threads after tests.
fn current_test() -> String {
    std::thread::current().name().unwrap_or("a test").into()
}

/// Looks until it is so; `false` when it is not within that time, which has to be generous: machines are slow and have
/// other things to do.
pub fn is_so_within(patience: Duration, is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        sleep(Duration::from_millis(5));
    }
}

/// Whether every byte is zero; fast in debug builds as well.
pub fn is_zero(bytes: &[u8]) -> bool {
    is_filled(bytes, 0)
}

/// Whether every byte is `fill`; fast in debug builds as well.
pub fn is_filled(bytes: &[u8], fill: u8) -> bool {
    let pattern = [fill; 4096];
    bytes.chunks(pattern.len()).all(|part| part == &pattern[..part.len()])
}

/// Claims every page that counts as clean, a chunk each; none of them is cleared for it.
pub fn claim_clean(arena: &Arena) -> Vec<Chunk> {
    let (clean, before) = (arena.stats().clean, arena.stats().cleared_bytes);
    let chunks = (0..clean).map(|_| arena.claim_zeroed(1, FirstTouch::unknown()).unwrap()).collect();
    assert_eq!(arena.stats().cleared_bytes, before, "zeroed pages go first");
    chunks
}

/// Bytes of ordinary memory that this process has: by the page tables, not by the counters of /proc/self/statm, to which
/// every CPU adds when it has a batch.
pub fn resident_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of this process, one a line.
pub fn mappings() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap()
}

/// The smaps entry of the mapping that holds `address`.
pub fn smaps_of(address: usize) -> Option<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let is_header = |line: &str| line.split(' ').next().is_some_and(|word| word.contains('-'));
    let holds = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let parse = |text| usize::from_str_radix(text, 16).ok();
        Some((parse(start)?..parse(end)?).contains(&address))
    };
    let mut lines = smaps.lines().skip_while(|line| !(is_header(line) && holds(line) == Some(true)));
    let header = lines.next()?;
    Some(lines.take_while(|line| !is_header(line)).fold(header.to_string(), |text, line| text + "\n" + line))
}

/// Whether ordinary memory that asks for transparent huge pages is on them, all 32 MiB of it: not where they are turned
/// off, nor where memory is in pieces.
pub fn gives_transparent_pages() -> bool {
    const LEN: usize = 32 << 20;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, asked and written to inside its bounds, unmapped at the end.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), LEN, access, kind, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        libc::madvise(start, LEN, libc::MADV_HUGEPAGE);
        let first = start.cast::<u8>().align_offset(2 << 20);
        start.cast::<u8>().add(first).write_bytes(1, LEN - (2 << 20));
        let entry = smaps_of(start.addr() + first).unwrap();
        let line = entry.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
        let bytes = line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10;
        assert_eq!(libc::munmap(start, LEN), 0);
        bytes >= LEN - (2 << 20)
    }
}

/// The `VmFlags` of the mapping that holds `address`.
pub fn vm_flags(address: usize) -> Vec<String> {
    let entry = smaps_of(address).expect("the address is mapped");
    let flags = entry.lines().find_map(|line| line.strip_prefix("VmFlags:")).expect("smaps has VmFlags");
    flags.split_whitespace().map(str::to_owned).collect()
}
