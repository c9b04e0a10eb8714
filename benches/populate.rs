//! Checks what populating an arena by several threads is held to.
//!
//! ```text
//! cargo bench --bench populate
//! cargo bench --bench populate -- --mib 4096 --runs 9 --check    # exit status 1 when a figure is not met
//! ```
//!
//! The gain of two threads over one is held against the gain that a memset of two threads shows on pages that are
//! there already, in the same round; one thread is held against the bare system call, two against two that make it
//! for half of the pages each. The ways take turns, and what counts is the median of the ratios of the rounds. Where
//! one thread's memset has all the memory bandwidth there is, its gain is 1 and says little.
#![allow(unsafe_code)]

mod environment;
#[path = "../examples/quickstart/judge.rs"]
mod judge;
#[path = "../examples/quickstart/measure.rs"]
#[allow(dead_code)]
mod measure;

use std::hint::black_box;
use std::process::ExitCode;
use std::ptr;
use std::time::Instant;

use hugearena::supply::Supply;
use hugearena::{Arena, PageSize};

use measure::Summary;

const HUGE: PageSize = PageSize::HUGE_2M;
const THREADS: usize = 2;

/// Of the gain of memset.
const LEAST_SHARE: f64 = 0.95;
/// Times the bare system call.
const MOST_OVERHEAD: f64 = 1.03;

struct Options {
    bytes: usize,
    runs: usize,
    check: bool,
}

/// Seconds of one round.
struct Round {
    bare: f64,
    bare_two: f64,
    one: f64,
    two: f64,
    memset_one: f64,
    memset_two: f64,
}

fn main() -> ExitCode {
    judge::exit("populate", run())
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { bytes: 4 << 30, runs: 9, check: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
        match argument.as_str() {
            "--bench" => {}
            "--check" => options.check = true,
            "--mib" => options.bytes = number().ok_or("--mib wants a number from 1 up")? << 20,
            "--runs" => options.runs = number().ok_or("--runs wants a number from 1 up")?,
            unknown => return Err(format!("unknown option {unknown}; there are --mib N, --runs N and --check")),
        }
    }
    Ok(options)
}

fn run() -> Result<bool, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("figures take a minute: cargo bench --bench populate");
        return Ok(true);
    }
    let options = options(&arguments)?;
    println!("{}\n", environment::describe());
    let free = Supply::read().available_pages(HUGE) as usize * HUGE.bytes();
    let bytes = options.bytes.min(free) / HUGE.bytes() * HUGE.bytes();
    if bytes < 256 << 20 {
        return Err(format!("256 MiB of free 2M pages needed at least, {} MiB are", free >> 20));
    }
    if bytes < options.bytes {
        println!("the pool has {} MiB: less than the {} MiB asked for", bytes >> 20, options.bytes >> 20);
    }
    println!("{} MiB of 2M pages, medians of {} rounds\n", bytes >> 20, options.runs);
    // The first round may pay for memory that a virtual machine has not been given yet.
    round(bytes, 0)?;
    let rounds = (0..options.runs).map(|number| round(bytes, number)).collect::<Result<Vec<_>, _>>()?;
    let is_met = report(&rounds, bytes);
    Ok(is_met || !options.check)
}

fn report(rounds: &[Round], bytes: usize) -> bool {
    let over = |ratio: fn(&Round) -> f64| Summary::of(rounds.iter().map(ratio));
    let share = over(|round| (round.one / round.two) / (round.memset_one / round.memset_two));
    let overhead = over(|round| round.one / round.bare);
    let overhead_two = over(|round| round.two / round.bare_two);
    let is_shared = share.median >= LEAST_SHARE;
    let [is_thin, is_thin_two] = [overhead, overhead_two].map(|overhead| overhead.median <= MOST_OVERHEAD);
    let most = format!("<= {MOST_OVERHEAD}x");
    print!("{}", judge::line(is_shared, "gain of 2 threads, of that of memset", share, &format!(">= {LEAST_SHARE}x")));
    print!("{}", judge::line(is_thin, "1 thread, of the bare system call", overhead, &most));
    print!("{}", judge::line(is_thin_two, "2 threads, of 2 bare system calls", overhead_two, &most));
    println!();
    let gib = bytes as f64 / f64::from(1 << 30);
    let seconds = [
        ("mmap(MAP_POPULATE)", over(|round| round.bare)),
        ("madvise, 2 threads", over(|round| round.bare_two)),
        ("arena, 1 thread", over(|round| round.one)),
        ("arena, 2 threads", over(|round| round.two)),
        ("memset, 1 thread", over(|round| round.memset_one)),
        ("memset, 2 threads", over(|round| round.memset_two)),
    ];
    for (name, summary) in seconds {
        println!("        {name:<20}{:>8.1} ms/GiB", summary.median * 1e3 / gib);
    }
    let gains = [over(|round| round.one / round.two).median, over(|round| round.memset_one / round.memset_two).median];
    println!("        gain of 2 threads: {:.2} populating, {:.2} memset", gains[0], gains[1]);
    is_shared && is_thin && is_thin_two
}

fn round(bytes: usize, number: usize) -> Result<Round, String> {
    // Whoever comes second finds the machine as the first one left it.
    let is_first = number.is_multiple_of(2);
    let [one, bare] = in_turns(is_first, || opened(bytes, 1), || bare(bytes, 1))?;
    let [two, bare_two] = in_turns(is_first, || opened(bytes, THREADS), || self::bare(bytes, THREADS))?;
    let (memset_one, memset_two) = memset(bytes)?;
    Ok(Round { bare, bare_two, one, two, memset_one, memset_two })
}

type Seconds = Result<f64, String>;

fn in_turns(is_first: bool, ours: impl Fn() -> Seconds, bare: impl Fn() -> Seconds) -> Result<[f64; 2], String> {
    if is_first {
        let ours = ours()?;
        Ok([ours, bare()?])
    } else {
        let bare = bare()?;
        Ok([ours()?, bare])
    }
}

fn open(bytes: usize, threads: usize) -> Result<Arena, String> {
    let arena = Arena::builder().page_size(HUGE).capacity(bytes).strict().populate_threads(threads).open();
    arena.map_err(|error| error.to_string())
}

fn opened(bytes: usize, threads: usize) -> Seconds {
    let start = Instant::now();
    let arena = open(bytes, threads)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(arena);
    Ok(seconds)
}

/// What a program without this crate writes: a memfd, its length, one mmap that populates; or, with several threads, a
/// mapping of which each populates its part.
fn bare(bytes: usize, threads: usize) -> Seconds {
    let start = Instant::now();
    // SAFETY: a new descriptor and a new mapping, both given back below; the name is a C string.
    unsafe {
        let fd = libc::memfd_create(c"bare".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB);
        let flags = libc::MAP_SHARED | if threads == 1 { libc::MAP_POPULATE } else { 0 };
        let at = match libc::ftruncate(fd, bytes as libc::off_t) {
            0 => libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0),
            _ => libc::MAP_FAILED,
        };
        if at == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        let is_there = threads == 1 || populate_in_parts(at.expose_provenance(), bytes, threads);
        let seconds = start.elapsed().as_secs_f64();
        libc::munmap(at, bytes);
        libc::close(fd);
        if is_there { Ok(seconds) } else { Err("madvise failed".to_owned()) }
    }
}

/// Whether `MADV_POPULATE_WRITE` made all of a mapping present.
fn populate_in_parts(at: usize, bytes: usize, threads: usize) -> bool {
    let part = (bytes / HUGE.bytes()).div_ceil(threads) * HUGE.bytes();
    let populate = |start: usize| {
        let address = ptr::with_exposed_provenance_mut(at + start);
        // SAFETY: whole pages of the caller's mapping, of which populating changes no contents.
        unsafe { libc::madvise(address, part.min(bytes - start), libc::MADV_POPULATE_WRITE) == 0 }
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..bytes).step_by(part).map(|start| scope.spawn(move || populate(start))).collect();
        parts.into_iter().all(|part| part.join().is_ok_and(|done| done))
    })
}

/// Seconds that libc's memset takes for pages that are there, with one thread and with two.
fn memset(bytes: usize) -> Result<(f64, f64), String> {
    let arena = open(bytes, THREADS)?;
    let pages = bytes / HUGE.bytes();
    let mut chunk = arena.claim(pages).ok_or("all pages are free")?;
    // SAFETY: the only chunk of an arena that nobody else has.
    let memory = unsafe { chunk.slice_mut() };
    let start = Instant::now();
    black_box(&mut *memory).fill(1);
    let one = start.elapsed().as_secs_f64();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in memory.chunks_mut(pages.div_ceil(THREADS) * HUGE.bytes()) {
            scope.spawn(|| black_box(part).fill(2));
        }
    });
    let two = start.elapsed().as_secs_f64();
    assert!(memory.chunks(HUGE.bytes()).all(|page| page[0] == 2 && page[HUGE.bytes() - 1] == 2));
    Ok((one, two))
}
