//! The heap as the malloc of programs that know nothing of it.
//!
//! ```sh
//! cargo build --release --example preload --features preload
//! LD_PRELOAD=$PWD/target/release/examples/libpreload.so HUGEARENA_STATS=1 sqlite3 :memory: 'select 1'
//! ```
//!
//! `hugearena run -- PROGRAM` does the second line. Options come from the environment:
//!
//! | variable | meaning |
//! |---|---|
//! | `HUGEARENA_LIMIT` | the most the heap may hold: bytes, or with K, M, G or T behind; `malloc` fails beyond |
//! | `HUGEARENA_STRICT` | 1: pages from the pool or nothing |
//! | `HUGEARENA_STATS` | 1: what the heap held, on which pages, to standard error when the program exits |
//!
//! A value that cannot be read ends the program with a message: ignoring it would be a silent fallback.
//!
//! Everything is as malloc(3), posix_memalign(3), malloc_usable_size(3) and malloc_trim(3) have it, in glibc's reading
//! where they leave a choice: `malloc(0)` is a block, `realloc(p, 0)` frees, `free` keeps errno. Addresses that are not
//! from this heap, from before it was loaded or of an allocator that the program brought, are left alone by `free`, have
//! no usable size, and cannot be reallocated (`EINVAL`).

#![allow(unsafe_code)]
// The man pages say what is safe: nothing can be added here.
#![allow(clippy::missing_safety_doc)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64};

use hugearena::HugeAlloc;

/// The alignment of every block: that of `max_align_t`.
const ALIGN: usize = 16;

static HEAP: OnceLock<HugeAlloc> = OnceLock::new();

/// For what needs no options, because there is a heap already or nothing to do.
const STARTED: HugeAlloc = HugeAlloc::new();

#[inline(always)]
fn heap() -> &'static HugeAlloc {
    // Neither this nor what it calls allocates.
    HEAP.get_or_init(configured)
}

/// The block or, for null, null and `ENOMEM`.
#[inline(always)]
fn answer(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        return fail(libc::ENOMEM);
    }
    block.cast()
}

#[cold]
fn fail(errno: c_int) -> *mut c_void {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

/// A block of at least one byte at `align`, a power of two; null when it cannot be had.
#[inline(always)]
fn allocate(size: usize, align: usize) -> *mut u8 {
    match Layout::from_size_align(size.max(1), align.max(ALIGN)) {
        // SAFETY: the size is not 0.
        Ok(layout) => unsafe { heap().alloc(layout) },
        Err(_) => null_mut(),
    }
}

/// malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    answer(allocate(size, ALIGN))
}

/// free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller's contract: a block of ours, or somebody else's, which is left alone.
    unsafe { STARTED.dealloc_unsized(block.cast()) };
}

/// calloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let layout = count.checked_mul(size).map(|size| Layout::from_size_align(size.max(1), ALIGN));
    match layout {
        // SAFETY: the size is not 0.
        Some(Ok(layout)) => answer(unsafe { heap().alloc_zeroed(layout) }),
        _ => fail(libc::ENOMEM),
    }
}

/// realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    // SAFETY: the caller's contract, on every path.
    unsafe {
        if size == 0 {
            free(block);
            return null_mut();
        }
        let new = STARTED.realloc_unsized(block.cast(), ALIGN, size);
        if new.is_null() && STARTED.usable_size(block.cast()) == 0 {
            return fail(libc::EINVAL);
        }
        answer(new)
    }
}

/// reallocarray(3): by the `realloc` of the process. A program that brings a malloc of its own, as those that are linked
/// with jemalloc, need not bring this function: the C library's does the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(size) => unsafe { black_box(realloc as unsafe extern "C" fn(_, _) -> _)(block, size) },
        None => fail(libc::ENOMEM),
    }
}

/// posix_memalign(3): errno stays, and so does `*out` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    // The heap leaves errno alone.
    let block = allocate(size, align);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's contract.
    unsafe { *out = block.cast() };
    0
}

/// aligned_alloc(3): C17, in which any size goes with any power of two.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return fail(libc::EINVAL);
    }
    answer(allocate(size, align))
}

/// memalign(3): as in glibc, an alignment that is no power of two is rounded up to one.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => answer(allocate(size, align)),
        None => fail(libc::EINVAL),
    }
}

/// valloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    answer(allocate(size, page_bytes()))
}

/// pvalloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(page_bytes()) {
        Some(size) => answer(allocate(size, page_bytes())),
        None => fail(libc::ENOMEM),
    }
}

fn page_bytes() -> usize {
    // SAFETY: no preconditions; the page size is always known.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// malloc_usable_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    // SAFETY: the caller's contract.
    unsafe { STARTED.usable_size(block.cast()) }
}

/// malloc_trim(3). What lies behind the last block is no different from other free memory here.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(STARTED.trim() > 0)
}

/// C23, 7.24.3.4: by the `free` of the process, as [`reallocarray`] does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: the caller's contract.
    unsafe { black_box(free as unsafe extern "C" fn(_))(block) };
}

/// C23, 7.24.3.5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller's contract.
    unsafe { black_box(free as unsafe extern "C" fn(_))(block) };
}

/// The heap as the environment wants it. Called by the first who allocates, before there is a heap: so nothing here
/// allocates.
#[cold]
fn configured() -> HugeAlloc {
    let mut heap = HugeAlloc::new();
    if let Some(text) = variable(c"HUGEARENA_LIMIT") {
        heap = heap.limit(bytes(text).unwrap_or_else(|| refuse("HUGEARENA_LIMIT is not a size, such as 4G")));
    }
    if is_set(c"HUGEARENA_STRICT") {
        heap = heap.strict();
    }
    if is_set(c"HUGEARENA_STATS") {
        // SAFETY: a descriptor of our own, out of the way of those that programs count on; -1 without.
        let report = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 100) };
        REPORT.store(report, Relaxed);
        REPORT_FILE.store(file_number(report), Relaxed);
    }
    heap
}

fn is_set(name: &CStr) -> bool {
    match variable(name) {
        None | Some(b"" | b"0") => false,
        Some(b"1") => true,
        Some(_) => refuse("HUGEARENA_STRICT and HUGEARENA_STATS are 0 or 1"),
    }
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string. The value is read at once; somebody who changes the environment in another thread
    // meanwhile would break getenv(3) for everybody. Who starts a program that has more rights than he has no say here.
    unsafe {
        let value: *const c_char = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// `4G`, `1536M`, or a number of bytes.
fn bytes(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number: u64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    let shift = match &text[digits..] {
        b"" => 0,
        b"K" | b"k" => 10,
        b"M" | b"m" => 20,
        b"G" | b"g" => 30,
        b"T" | b"t" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn refuse(reason: &str) -> ! {
    // SAFETY: write(2) of live buffers; _exit ends the process without running anything that may allocate.
    unsafe {
        for part in ["hugearena: ", reason, "\n"] {
            libc::write(2, part.as_ptr().cast(), part.len());
        }
        libc::_exit(127)
    }
}

/// A duplicate of standard error if statistics are wanted: programs close theirs before they end. -1 if not.
static REPORT: AtomicI32 = AtomicI32::new(-1);
/// What file that is: programs that close all descriptors have others under that number later.
static REPORT_FILE: AtomicU64 = AtomicU64::new(0);
/// Memory for the report, if the program ends because there is no more.
static REPORT_ROOM: AtomicPtr<u8> = AtomicPtr::new(null_mut());
const REPORT_ROOM_BYTES: usize = 1 << 20;

/// The inode of an open file, with its device's number above; 0 without.
fn file_number(fd: c_int) -> u64 {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat fills the struct; where it fails, zeroes are valid numbers.
    let stat = unsafe {
        libc::fstat(fd, stat.as_mut_ptr());
        stat.assume_init()
    };
    stat.st_ino ^ stat.st_dev.rotate_right(16)
}

/// Before the program's own code, behind what it depends on.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = begin;

extern "C" fn begin() {
    // There is a heap from here on, with its fork handlers: the program may register many of its own, for which the C
    // library allocates under a lock that ours would wait for.
    let room = allocate(REPORT_ROOM_BYTES, ALIGN);
    if REPORT.load(Relaxed) >= 0 {
        REPORT_ROOM.store(room, Relaxed);
    } else {
        // SAFETY: a block of ours, or null.
        unsafe { STARTED.dealloc_unsized(room) };
    }
}

/// At exit, behind the program's own handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = print_stats;

extern "C" fn print_stats() {
    let report = REPORT.load(Relaxed);
    if report < 0 || file_number(report) != REPORT_FILE.load(Relaxed) {
        return;
    }
    // SAFETY: a block of ours that nobody else frees, or null; then write(2) of a live buffer. Nobody may be there to
    // read it.
    unsafe {
        STARTED.dealloc_unsized(REPORT_ROOM.swap(null_mut(), Relaxed));
        let text = format!("hugearena: process {}: {}\n", std::process::id(), STARTED.stats());
        libc::write(report, text.as_ptr().cast(), text.len());
    }
}
