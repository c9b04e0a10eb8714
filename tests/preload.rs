//! `examples/preload.rs` as the malloc of this test binary: each test runs again in a process that has it preloaded,
//! and calls the malloc family by its C names.

#![allow(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use libc::{EINVAL, ENOMEM};
use support::child::SECONDS;
use support::pool::PoolLock;
use support::{fork, is_filled, is_preloadable, print_skip, skip, skips_short_pool};

unsafe extern "C" {
    fn free(block: *mut c_void);
    fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void;
    fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int;
    fn malloc_usable_size(block: *mut c_void) -> usize;
    fn malloc_trim(pad: usize) -> c_int;
    fn getline(line: *mut *mut c_char, room: *mut usize, stream: *mut libc::FILE) -> isize;
    fn pthread_exit(value: *mut c_void) -> !;
}

/// The functions that the compiler knows: of a block that nobody uses it says, unasked, that it can be had.
macro_rules! as_called {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        // As C: a caller that could unwind here would be no frame for pthread_exit(3) to pass.
        unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_void {
            unsafe extern "C" {
                fn $name($($argument: $type),*) -> *mut c_void;
            }
            // SAFETY: the caller's contract, which is that of the C function.
            unsafe { std::hint::black_box($name($(std::hint::black_box($argument)),*)) }
        }
    )*};
}
as_called! {
    fn malloc(size: usize);
    fn calloc(count: usize, size: usize);
    fn realloc(block: *mut c_void, size: usize);
    fn aligned_alloc(align: usize, size: usize);
    fn memalign(align: usize, size: usize);
    fn valloc(size: usize);
    fn pvalloc(size: usize);
}

const IS_PRELOADED: &str = "HUGEARENA_TEST_PRELOADED";

/// Where cargo, or CI's copy, puts the library; nothing, and a reason, where it cannot be preloaded.
fn library(test: &str) -> Option<PathBuf> {
    let binary = std::env::current_exe().unwrap();
    let beside = binary.with_file_name("bin").join("libpreload.so");
    let built = binary.parent()?.with_file_name("examples").join("libpreload.so");
    let Some(library) = [beside, built].into_iter().find(|path| path.exists()) else {
        skip(test, "libpreload.so is not built: cargo build --example preload --features preload");
        return None;
    };
    if !is_preloadable(&library) {
        print_skip(test, &format!("LD_PRELOAD cannot hold {}", library.display()));
        return None;
    }
    Some(library)
}

/// Runs `body`, which belongs to test `name`, in a process that has the library preloaded and these variables set.
fn preloaded_with(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(IS_PRELOADED).is_some() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("libpreload.so"), "not preloaded");
        // SAFETY: no preconditions; ends a process that hangs.
        unsafe { libc::alarm(SECONDS) };
        return body();
    }
    let Some(library) = library(name) else { return };
    let _lock = PoolLock::take();
    if skips_short_pool(name) {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(IS_PRELOADED, "1");
    command.env("LD_PRELOAD", library).envs(variables.iter().copied());
    // A backtrace takes memory, of which some tests leave none: std waits for itself then.
    command.env("RUST_BACKTRACE", "0");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {}\n{text}\n{errors}", output.status);
}

fn preloaded(name: &str, body: impl FnOnce()) {
    preloaded_with(name, &[], body);
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn set_errno(errno: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// What a failing call answers: null and this errno.
#[track_caller]
fn assert_fails(block: *mut c_void, expected: c_int) {
    let errno = errno();
    assert!(block.is_null());
    assert_eq!(errno, expected);
}

const HUGE_SIZES: [usize; 5] =
    [usize::MAX, usize::MAX - 15, isize::MAX as usize + 1, isize::MAX as usize, isize::MAX as usize - 15];

#[test]
fn malloc_is_aligned_and_fails_with_enomem() {
    // SAFETY: blocks of this test, written within their usable size and freed once.
    preloaded("malloc_is_aligned_and_fails_with_enomem", || unsafe {
        for size in (0..4096).chain((4096..2 << 20).step_by(4093)) {
            let block = malloc(size);
            assert!(!block.is_null() && block.addr().is_multiple_of(16), "{size}");
            assert!(malloc_usable_size(block) >= size.max(1));
            block.cast::<u8>().write_bytes(1, malloc_usable_size(block));
            free(block);
        }
        let empty: BTreeSet<usize> = (0..1000).map(|_| malloc(0).addr()).collect();
        assert_eq!(empty.len(), 1000, "malloc(0) is a block of its own");
        for size in HUGE_SIZES {
            assert_fails(malloc(size), ENOMEM);
        }
        assert_eq!(malloc_usable_size(null_mut()), 0);
    });
}

#[test]
fn free_keeps_errno_and_leaves_others_blocks_alone() {
    // SAFETY: blocks freed once, and addresses that are not from the heap, which is what is tested.
    preloaded("free_keeps_errno_and_leaves_others_blocks_alone", || unsafe {
        let here = 1u64;
        set_errno(77);
        for size in [1, 100, 10_000, 100_000, 1 << 20, 100 << 20] {
            let blocks: Vec<_> = (0..4).map(|_| malloc(size)).collect();
            set_errno(77);
            blocks.into_iter().for_each(|block| free(block));
            assert_eq!(errno(), 77);
        }
        free(null_mut());
        let other = (&raw const here).cast_mut().cast();
        free(other);
        assert_eq!(malloc_usable_size(other), 0);
        assert_fails(realloc(other, 10), EINVAL);
        assert_eq!(here, 1);
    });
}

#[test]
fn calloc_is_zero_and_checks_for_overflow() {
    // SAFETY: blocks of this test, within their size, freed once.
    preloaded("calloc_is_zero_and_checks_for_overflow", || unsafe {
        for size in [1usize, 24, 1000, 40_000, 300_000, 5 << 20] {
            for _ in 0..3 {
                let dirty = malloc(size);
                dirty.cast::<u8>().write_bytes(0xab, malloc_usable_size(dirty));
                free(dirty);
                let block = calloc(size.div_ceil(8), 8);
                assert!(block.addr().is_multiple_of(16));
                assert!(is_filled(std::slice::from_raw_parts(block.cast(), size.next_multiple_of(8)), 0), "{size}");
                free(block);
            }
        }
        assert_fails(calloc(1 << 33, 1 << 33), ENOMEM);
        assert_fails(calloc(usize::MAX, 1), ENOMEM);
        for (count, size) in [(0, 0), (0, 5), (5, 0)] {
            let block = calloc(count, size);
            assert!(!block.is_null());
            free(block);
        }
    });
}

#[test]
fn realloc_keeps_contents_on_success_and_on_failure() {
    // SAFETY: blocks of this test; an old pointer is used only when the call failed.
    preloaded("realloc_keeps_contents_on_success_and_on_failure", || unsafe {
        let mut block = realloc(null_mut(), 1).cast::<u8>();
        block.write(5);
        for size in (1..400_000).step_by(997).chain([20 << 20, 30 << 20, 3 << 20, 100, 1]) {
            block = realloc(block.cast(), size).cast();
            assert!(block.addr().is_multiple_of(16));
            assert_eq!(block.read(), 5);
            block.add(size - 1).write(5);
        }
        for size in HUGE_SIZES {
            assert_fails(realloc(block.cast(), size), ENOMEM);
        }
        assert_fails(reallocarray(block.cast(), 1 << 33, 1 << 33), ENOMEM);
        block = reallocarray(block.cast(), 100, 8).cast();
        assert_eq!(block.read(), 5);
        set_errno(77);
        assert!(realloc(block.cast(), 0).is_null(), "realloc(p, 0) frees");
        assert_eq!(errno(), 77);
        let empty = realloc(null_mut(), 0);
        assert!(!empty.is_null());
        free(empty);
        // What memalign aligned, realloc keeps whole.
        let aligned = memalign(4096, 5000).cast::<u8>();
        aligned.write_bytes(6, 5000);
        let moved = realloc(aligned.cast(), 1 << 20).cast::<u8>();
        assert!(is_filled(std::slice::from_raw_parts(moved, 5000), 6));
        free(moved.cast());
    });
}

#[test]
fn aligned_blocks_are_aligned_and_bad_alignments_refused() {
    // SAFETY: blocks of this test, written within their size, freed once.
    preloaded("aligned_blocks_are_aligned_and_bad_alignments_refused", || unsafe {
        for log2 in 0..=22 {
            let align = 1usize << log2;
            for size in [0, 1, 100, 5000, 300_000] {
                let mut out = null_mut();
                set_errno(77);
                let result = posix_memalign(&mut out, align, size);
                assert_eq!((result, errno()), (if align < 8 { EINVAL } else { 0 }, 77));
                for block in [out, aligned_alloc(align, size), memalign(align, size)] {
                    if result == 0 || !block.is_null() {
                        assert!(!block.is_null() && block.addr().is_multiple_of(align.max(16)), "{size} at {align}");
                        block.cast::<u8>().write_bytes(1, malloc_usable_size(block));
                        free(block);
                    }
                }
            }
        }
        let kept = 8 as *mut c_void;
        for (align, size, expected) in [(0, 8, EINVAL), (24, 8, EINVAL), (4, 8, EINVAL), (16, usize::MAX, ENOMEM)] {
            let mut out = kept;
            assert_eq!(posix_memalign(&mut out, align, size), expected);
            assert_eq!(out, kept);
        }
        assert_fails(aligned_alloc(24, 48), EINVAL);
        assert_fails(aligned_alloc(64, usize::MAX), ENOMEM);
        assert_fails(memalign(usize::MAX, 1), EINVAL);
        assert!(memalign(24, 1).addr().is_multiple_of(32));
        assert!(valloc(10).addr().is_multiple_of(4096));
        let pages = pvalloc(4097);
        assert!(pages.addr().is_multiple_of(4096) && malloc_usable_size(pages) >= 8192);
        assert!(malloc_usable_size(pvalloc(0)) >= 4096);
        assert_fails(pvalloc(usize::MAX), ENOMEM);
        assert_fails(valloc(usize::MAX - 5), ENOMEM);
    });
}

#[test]
fn memory_goes_back_on_malloc_trim() {
    // SAFETY: a block of this test, freed once.
    preloaded("memory_goes_back_on_malloc_trim", || unsafe {
        free(malloc(64 << 20));
        assert_eq!(malloc_trim(0), 1);
        assert_eq!(malloc_trim(0), 0);
    });
}

#[test]
fn the_limit_is_the_limit() {
    // SAFETY: blocks of this test, freed once.
    preloaded_with("the_limit_is_the_limit", &[("HUGEARENA_LIMIT", "32M")], || unsafe {
        assert_fails(malloc(40 << 20), ENOMEM);
        let block = malloc(16 << 20);
        assert!(!block.is_null());
        free(block);
    });
}

#[test]
fn options_that_cannot_be_read_end_the_program() {
    let Some(library) = library("options") else { return };
    for (name, value) in [("HUGEARENA_LIMIT", "much"), ("HUGEARENA_LIMIT", "1.5G"), ("HUGEARENA_STRICT", "yes")] {
        // A path of its own: what the shell of a shim does with the variable is not what is tested.
        let output = Command::new("/bin/ls").env("LD_PRELOAD", &library).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(name), "{output:?}");
    }
    let output = Command::new("/bin/ls").env("LD_PRELOAD", &library).env("HUGEARENA_STATS", "1").output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("MiB mapped"), "{output:?}");
}

/// Keeps blocks until the thread is gone, as a thread-specific value whose destructor runs again and again.
extern "C" fn late(block: *mut c_void) {
    // SAFETY: the value is a block that this destructor owns.
    unsafe {
        free(block);
        free(malloc(100));
        free(realloc(calloc(3, 5), 100_000));
    }
}

#[test]
fn threads_end_in_every_way() {
    // SAFETY: C calls with valid arguments; blocks are freed once, by whoever gets them.
    preloaded("threads_end_in_every_way", || unsafe {
        let mut key = 0;
        assert_eq!(libc::pthread_key_create(&mut key, Some(late)), 0);
        extern "C" fn body(key: *mut c_void) -> *mut c_void {
            // SAFETY: as above.
            unsafe {
                let key = key.addr() as libc::pthread_key_t;
                libc::pthread_setspecific(key, malloc(50));
                let block = malloc(1000);
                if block.addr() & 64 == 0 { pthread_exit(block) } else { block }
            }
        }
        for _ in 0..2000 {
            let mut thread = 0;
            let argument = std::ptr::without_provenance_mut(key as usize);
            assert_eq!(libc::pthread_create(&mut thread, null(), body, argument), 0);
            let mut block = null_mut();
            assert_eq!(libc::pthread_join(thread, &mut block), 0);
            free(block);
        }
    });
}

#[test]
fn processes_fork_while_threads_allocate() {
    preloaded("processes_fork_while_threads_allocate", || {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut blocks: Vec<Vec<u8>> = (0..64).map(|_| Vec::new()).collect();
                    for turn in (seed..).step_by(7) {
                        blocks[turn % 64] = vec![turn as u8; turn * 131 % 40_000];
                        if stop.load(Relaxed) {
                            return;
                        }
                    }
                });
            }
            let failed = (0..300).find_map(|turn| {
                let before = vec![turn as u8; 5000];
                let status = fork(|| {
                    let more = vec![1u8; 100_000];
                    let right = is_filled(&before, turn as u8) && is_filled(&more, 1);
                    drop(before);
                    i32::from(!right)
                });
                (!status.success()).then_some(status)
            });
            let output = Command::new("/bin/echo").arg("hello").stdout(Stdio::piped()).output();
            // Before anything fails: a panic would wait for the threads.
            stop.store(true, Relaxed);
            assert_eq!(failed, None, "a child failed");
            assert_eq!(output.unwrap().stdout, b"hello\n");
        });
    });
}

/// POSIX: malloc(3) is no cancellation point, and here looks at the pool's files when it grows.
#[test]
fn threads_are_not_cancelled_inside_of_malloc() {
    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }
    extern "C" fn body(_: *mut c_void) -> *mut c_void {
        // SAFETY: this thread, which reaches no cancellation point of its own; blocks are freed once.
        unsafe {
            pthread_cancel(libc::pthread_self());
            let mut blocks = [null_mut(); 300];
            for (at, block) in blocks.iter_mut().enumerate() {
                *block = malloc(300_000 + at * 7_000);
                assert!(!block.is_null());
            }
            blocks.into_iter().for_each(|block| free(block));
        }
        std::ptr::without_provenance_mut(7)
    }
    // SAFETY: C calls with valid arguments.
    preloaded("threads_are_not_cancelled_inside_of_malloc", || unsafe {
        let (mut thread, mut result) = (0, null_mut());
        assert_eq!(libc::pthread_create(&mut thread, null(), body, null_mut()), 0);
        assert_eq!(libc::pthread_join(thread, &mut result), 0);
        assert_eq!(result.addr(), 7, "cancelled");
    });
}

/// glibc bug 19431: one thread flushes all streams and waits for one, whose holder allocates while a third forks.
#[test]
fn processes_fork_while_streams_are_flushed() {
    unsafe extern "C" {
        fn flockfile(stream: *mut libc::FILE);
        fn funlockfile(stream: *mut libc::FILE);
    }
    // SAFETY: an open stream, locked and unlocked by one thread; blocks are freed once.
    preloaded("processes_fork_while_streams_are_flushed", || unsafe {
        let stream = libc::tmpfile();
        let address = stream.expose_provenance();
        let is_held = AtomicBool::new(false);
        let flush = || libc::fflush(null_mut());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stream = std::ptr::with_exposed_provenance_mut(address);
                flockfile(stream);
                is_held.store(true, Relaxed);
                std::thread::sleep(Duration::from_millis(600));
                let blocks: Vec<_> = (0..50).map(|at| malloc(300_000 + at * 9_000)).collect();
                blocks.into_iter().for_each(|block| free(block));
                funlockfile(stream);
            });
            while !is_held.load(Relaxed) {
                std::thread::yield_now();
            }
            scope.spawn(flush);
            std::thread::sleep(Duration::from_millis(200));
            for _ in 0..3 {
                assert!(fork(flush).success(), "a child has the streams");
            }
        });
        assert!(fork(flush).success());
        assert_eq!(flush(), 0, "the parent has them again");
        libc::fclose(stream);
    });
}

#[test]
fn a_block_shrinks_when_there_is_no_memory_for_another() {
    let name = "a_block_shrinks_when_there_is_no_memory_for_another";
    // SAFETY: live blocks, within their sizes; they are not freed.
    preloaded_with(name, &[("HUGEARENA_LIMIT", "8M")], || unsafe {
        let blocks = [malloc(32_000), malloc(200_000), malloc(1 << 20)];
        for block in blocks {
            assert!(!block.is_null());
            block.cast::<u8>().write_bytes(7, 32_000);
        }
        for log2 in (4..21).rev() {
            while !std::hint::black_box(malloc(1 << log2)).is_null() {}
        }
        for (block, size) in blocks.into_iter().zip([5_000, 20, 9_000]) {
            let shrunk = realloc(block, size);
            // Before anything allocates.
            if shrunk.is_null() || !is_filled(std::slice::from_raw_parts(shrunk.cast(), size), 7) {
                libc::_exit(1);
            }
        }
        // What runs the test allocates when it is over.
        free(blocks[1]);
        free(blocks[2]);
    });
}

/// Programs close all descriptors and have files of their own under those numbers.
#[test]
fn statistics_go_to_standard_error_or_nowhere() {
    let name = "statistics_go_to_standard_error_or_nowhere";
    let path = std::env::temp_dir().join(format!("hugearena-statistics-{}", std::process::id()));
    // SAFETY: descriptors that this process has no use for; the file replaces the one that the library has opened.
    preloaded_with(name, &[("HUGEARENA_STATS", "1"), ("HUGEARENA_TEST_FILE", path.to_str().unwrap())], || unsafe {
        let file = std::fs::File::create(std::env::var_os("HUGEARENA_TEST_FILE").unwrap()).unwrap();
        for number in 100..120 {
            libc::dup2(file.as_raw_fd(), number);
        }
    });
    if let Ok(text) = std::fs::read(&path) {
        std::fs::remove_file(&path).unwrap();
        assert!(text.is_empty(), "written into a file of the program");
    }
}

const IS_ALONE: &str = "HUGEARENA_TEST_ALONE";

/// What has to run in a process with one thread runs before `main`: tests have threads.
#[used]
#[unsafe(link_section = ".init_array")]
static ALONE: extern "C" fn() = {
    extern "C" fn run() {
        if std::env::var_os(IS_ALONE).is_some() {
            std::process::exit(fork_from_signals());
        }
    }
    run
};

fn fork_from_signals() -> i32 {
    static FORKED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn fork_here(_signal: c_int) {
        let errno = errno();
        // SAFETY: the child only ends; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            let mut status = -1;
            if child > 0 && libc::waitpid(child, &raw mut status, 0) == child && status == 0 {
                FORKED.fetch_add(1, Relaxed);
            }
        }
        set_errno(errno);
    }
    let every = libc::timeval { tv_sec: 0, tv_usec: 3_000 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the handler calls nothing that may not be called there; a process that hangs is ended.
    unsafe {
        libc::alarm(SECONDS);
        libc::signal(libc::SIGVTALRM, fork_here as *const () as usize);
        libc::setitimer(libc::ITIMER_VIRTUAL, &raw const timer, null_mut());
    }
    let mut blocks: Vec<Vec<u8>> = (0..64).map(|_| Vec::new()).collect();
    for turn in (0..).take_while(|_| FORKED.load(Relaxed) < 100) {
        let slot = turn % 64;
        if !is_filled(&blocks[slot], slot as u8) {
            return 1;
        }
        blocks[slot] = vec![slot as u8; turn * 8191 % 300_000];
        // A signal may also come while this forks.
        if turn % 512 == 0 && !fork(|| 0).success() {
            return 2;
        }
    }
    0
}

/// As glibc has it for a process with one thread: the handler may interrupt a malloc, or another fork.
#[test]
fn a_signal_handler_forks_in_a_process_with_one_thread() {
    let Some(library) = library("fork in a handler") else { return };
    let _lock = PoolLock::take();
    if skips_short_pool("fork in a handler") {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let status = command.env(IS_ALONE, "1").env("LD_PRELOAD", library).status().unwrap();
    assert!(status.success(), "{status}");
}

/// `fflush(NULL)` holds the lock of all streams and waits for one, whose holder needs memory; fork(2) takes that lock
/// after the handlers. glibc, bug 19431.
#[test]
fn processes_fork_while_streams_are_flushed_and_lines_are_read() {
    preloaded("processes_fork_while_streams_are_flushed_and_lines_are_read", || {
        let path = std::env::temp_dir().join(format!("hugearena-lines-{}", std::process::id()));
        std::fs::write(&path, [[b'x'; 50_000].as_slice(), b"\n"].concat()).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // SAFETY: a stream of this thread, and a line that getline(3) allocates.
                    unsafe {
                        let stream = libc::fopen(name.as_ptr(), c"r".as_ptr());
                        while !stop.load(Relaxed) {
                            let (mut line, mut room) = (null_mut(), 0);
                            libc::rewind(stream);
                            assert_eq!(getline(&raw mut line, &raw mut room, stream), 50_001);
                            free(line.cast());
                        }
                        libc::fclose(stream);
                    }
                });
            }
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    // SAFETY: null stands for all streams.
                    unsafe { libc::fflush(null_mut()) };
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    // The lock is not fair: a number of forks would take as long as it likes.
                    let (start, mut is_well) = (Instant::now(), true);
                    while is_well && start.elapsed() < Duration::from_secs(1) {
                        is_well = fork(|| i32::from(vec![1u8; 100_000].len() != 100_000)).success();
                    }
                    stop.store(true, Relaxed);
                    assert!(is_well, "a child failed");
                });
            }
        });
        std::fs::remove_file(path).unwrap();
    });
}

/// The word that each thread has is one that the loader places: no call on the way to a block, and room for it when
/// the library is opened late.
#[test]
fn the_library_can_be_opened_by_a_running_program() {
    let Some(library) = library("dlopen") else { return };
    let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: C strings; the functions have the types that they are called with; a block is freed once.
    unsafe {
        let object = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!object.is_null());
        let malloc: extern "C" fn(usize) -> *mut c_void = std::mem::transmute(libc::dlsym(object, c"malloc".as_ptr()));
        let free: extern "C" fn(*mut c_void) = std::mem::transmute(libc::dlsym(object, c"free".as_ptr()));
        let use_it = move || {
            let blocks: Vec<_> = (0..1000).map(|size| malloc(size).addr()).collect();
            assert_eq!(BTreeSet::from_iter(&blocks).len(), 1000);
            blocks.into_iter().for_each(|block| free(std::ptr::with_exposed_provenance_mut(block)));
        };
        use_it();
        std::thread::spawn(use_it).join().unwrap();
        std::thread::spawn(use_it).join().unwrap();
        // The program has a malloc of its own, and what is made of others' functions goes to that.
        const LONG: usize = 100 << 20;
        let reallocarray: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void =
            std::mem::transmute(libc::dlsym(object, c"reallocarray".as_ptr()));
        let free_sized: extern "C" fn(*mut c_void, usize) =
            std::mem::transmute(libc::dlsym(object, c"free_sized".as_ptr()));
        let mapped = || libc::mallinfo2().hblkhd;
        let block = reallocarray(libc::malloc(100), LONG / 100, 100);
        assert!(!block.is_null() && mapped() >= LONG / 100 * 100, "{}", mapped());
        free_sized(block, LONG);
        assert!(mapped() < LONG, "{}", mapped());
        // A thread that has a cache there outlives the library, and so does what happens at fork.
        let closed = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                use_it();
                closed.wait();
                closed.wait();
            });
            closed.wait();
            assert_eq!(libc::dlclose(object), 0);
            closed.wait();
        });
        let gone = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(gone.is_null(), "it is still there, so that this proves nothing");
        assert!(fork(|| 0).success());
    }
}

/// A report that aborted for want of memory would take the program's own output with it.
#[test]
fn statistics_are_printed_when_there_is_no_memory_left() {
    // SAFETY: nothing is done with the blocks; _exit would pass over the report.
    preloaded_with(
        "statistics_are_printed_when_there_is_no_memory_left",
        &[("HUGEARENA_LIMIT", "8M"), ("HUGEARENA_STATS", "1")],
        || unsafe {
            for log2 in (3..21).rev() {
                while !std::hint::black_box(malloc(1 << log2)).is_null() {}
            }
            println!("test x ... ok\n1 passed");
            libc::exit(0)
        },
    );
}
