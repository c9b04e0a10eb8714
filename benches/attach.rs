//! Checks the figures promised for attaching to pages that exist.
//!
//! ```text
//! cargo bench --bench attach
//! cargo bench --bench attach -- --check    # exit status 1 when a figure is not met
//! ```
//!
//! Needs root (it mounts a hugetlbfs that only it sees) and a GiB of free huge pages; takes up to 8 GiB. Every attach
//! is the first large one of a fresh process, which has attached before (on 2 MiB pages to a single one), so that its
//! code is there; attaches and bare `mmap(MAP_POPULATE)` of the same file take turns. Time is all of `Arena::attach(..).open()`:
//! reading the record, opening, mapping, and the last page being there.
#![allow(unsafe_code)]
// The modules that benches and tests share hold more than this one uses.
#![allow(dead_code)]

mod environment;
#[path = "../examples/quickstart/judge.rs"]
mod judge;
#[path = "../tests/support/machine.rs"]
mod machine;
#[path = "../examples/quickstart/measure.rs"]
mod measure;

use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use hugearena::arena::View;
use hugearena::backing::BackingKind;
use hugearena::supply::Supply;
use hugearena::{Arena, PageSize, arena};

use machine::{Mounted, TempDir};
use measure::{Readings, Summary};

const CHILD: &str = "--child";
const ROUNDS: usize = 21;
const GIB: usize = 1 << 30;
const MOST_GIB: usize = 8;
/// The arena that is measured, and the one of a page by which a process warms up.
const MEASURED: &str = "measured";
const SMALL: &str = "small";

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("attach: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Outcome<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == CHILD
    {
        return child(rest).map(|()| true);
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("figures need root and free huge pages: cargo bench --bench attach");
        return Ok(true);
    }
    println!("{}\n", environment::describe());
    if !machine::is_root() {
        println!("skipped: only root can mount a hugetlbfs");
        return Ok(true);
    }
    machine::own_mount_namespace()?;
    // Records are in memory by default (/run is a tmpfs nearly everywhere), not on the disk of a temporary directory.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("TMPDIR", "/dev/shm") };
    let is_check = arguments.iter().any(|argument| argument == "--check");
    let are_met = [small_pages()?, gigantic_pages()?];
    Ok(!is_check || are_met == [true; 2])
}

/// Mounts and directories of one page size.
struct Ground {
    size: PageSize,
    mount: Mounted,
    records: TempDir,
}

impl Ground {
    fn new(size: PageSize) -> Ground {
        Ground { size, mount: Mounted::hugetlbfs(size, "", 0), records: TempDir::new() }
    }

    fn open(&self, name: &str, bytes: usize) -> hugearena::Result<Arena> {
        let kind = BackingKind::Hugetlbfs { dir: Some(self.mount.path().into()) };
        let builder = Arena::builder().name(name).record_dir(self.records.path()).backing(kind);
        builder.page_size(self.size).capacity(bytes).open()
    }

    fn remove(&self) -> hugearena::Result<()> {
        arena::remove_from(self.records.path(), MEASURED)?;
        arena::remove_from(self.records.path(), SMALL)
    }

    /// What a fresh process measures: "attach" or "mmap".
    fn measure(&self, what: &str) -> Outcome<Readings> {
        let file = self.mount.path().join(format!("hugearena.{MEASURED}"));
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.args([CHILD, what]).arg(self.records.path()).arg(file).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(Readings::parse(&String::from_utf8(output.stdout)?))
    }

    /// Attaches and bare mmaps, in turns.
    fn rounds(&self) -> Outcome<Rounds> {
        let mut rounds = Rounds::default();
        for round in 0..ROUNDS {
            for side in [round % 2, (round + 1) % 2] {
                match side {
                    0 => rounds.attach.push(self.measure("attach")?),
                    _ => rounds.mmap.push(self.measure("mmap")?),
                }
            }
        }
        Ok(rounds)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.records.path()).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[derive(Default)]
struct Rounds {
    attach: Vec<Readings>,
    mmap: Vec<Readings>,
}

impl Rounds {
    fn attach(&self, name: &str) -> Summary {
        Summary::of(self.attach.iter().map(|run| run.number(name)))
    }

    /// Of the pairs: how many times as long the bare mmap takes.
    fn gain(&self) -> Summary {
        let pairs = self.attach.iter().zip(&self.mmap);
        Summary::of(pairs.map(|(attach, mmap)| mmap.number("time") / attach.number("time")))
    }

    /// Times of the bare mmap and of both ways out.
    fn describe(&self) {
        let of = |runs: &[Readings], name| Summary::of(runs.iter().map(|run| run.number(name))).median / 1e3;
        println!(
            "        {} (and {} of this program); bare mmap {:.1} us; detach {:.1} us, munmap {:.1} us",
            self.attach[0].text("report"),
            self.attach[0].number("all_faults") - self.attach[0].number("faults"),
            of(&self.mmap, "time"),
            of(&self.attach, "detach"),
            of(&self.mmap, "detach"),
        );
    }
}

/// Prints a figure that may not be exceeded, or that has to be reached.
fn judge(name: &str, measured: Summary, most: f64, wanted: &str) -> bool {
    let is_met = measured.median <= most;
    print!("{}", judge::line(is_met, name, measured, wanted));
    is_met
}

fn scaled(summary: Summary, by: f64) -> Summary {
    Summary { least: summary.least * by, median: summary.median * by, most: summary.most * by }
}

fn small_pages() -> Outcome<bool> {
    let size = PageSize::HUGE_2M;
    // One page for the small arena.
    let available = Supply::read().available_pages(size).saturating_sub(1) as usize * size.bytes() / GIB;
    let gib = available.min(MOST_GIB);
    if gib == 0 {
        println!("skipped: 2M pages: 513 needed, {} available", Supply::read().available_pages(size));
        return Ok(true);
    }
    println!("{gib} GiB of 2 MiB pages{}:", if gib < MOST_GIB { ", which is all that the pool has" } else { "" });
    let ground = Ground::new(size);
    drop(ground.open(SMALL, size.bytes())?);
    let mut one = None;
    if gib > 1 {
        let _holder = ground.open(MEASURED, GIB)?;
        one = Some(ground.rounds()?.attach("time").median);
    }
    if one.is_some() {
        arena::remove_from(ground.records.path(), MEASURED)?;
    }
    let holder = ground.open(MEASURED, gib * GIB)?;
    let mut is_met = with_holder(&ground.rounds()?, gib, one);
    drop(holder);
    let alone = (0..ROUNDS).map(|_| ground.measure("alone")).collect::<Outcome<Vec<_>>>()?;
    let ratio = Summary::of(alone.iter().map(|run| run.number("ratio")));
    is_met &= judge("attach without a holder, over mmap(MAP_POPULATE)", ratio, 1.05, "<= 1.05x");
    println!("        {}; medians of nine pairs, the two in turns in one process", alone[0].text("report"));
    ground.remove()?;
    Ok(is_met)
}

fn with_holder(rounds: &Rounds, gib: usize, one: Option<f64>) -> bool {
    let time = rounds.attach("time");
    let gain = rounds.gain();
    let is_fast = gain.median >= 15.0;
    let are_met = [
        judge("attach with a holder, ms", scaled(time, 1e-6), 0.10, "<= 0.10 ms"),
        judge("page faults of attaching", rounds.attach("faults"), 10.0, "<= 10"),
        judge("page faults of touching every page afterwards", rounds.attach("touch_faults"), 0.0, "0"),
        is_fast,
    ];
    print!("{}", judge::line(is_fast, "mmap(MAP_POPULATE) over attach with a holder", gain, ">= 15x"));
    rounds.describe();
    if let Some(one) = one {
        let each = (time.median - one) / (gib - 1) as f64;
        let (small, all) = (one / 1e3, (one + 127.0 * each) / 1e6);
        println!(
            "        1 GiB takes {small:.1} us, each more {:.1} us; extrapolated, not measured: 128 GiB {all:.2} ms",
            each / 1e3
        );
    }
    are_met.iter().all(|is_met| *is_met)
}

fn gigantic_pages() -> Outcome<bool> {
    let pages = Supply::read().available_pages(PageSize::HUGE_1G).min(4) as usize;
    if pages < 2 {
        println!("skipped: 1G pages: 2 needed, {pages} available");
        return Ok(true);
    }
    println!("{pages} pages of 1 GiB:");
    let ground = Ground::new(PageSize::HUGE_1G);
    // What attaching to one page takes anyway is left out.
    let holder = ground.open(MEASURED, GIB)?;
    let one = ground.rounds()?.attach("time").median;
    drop(holder);
    arena::remove_from(ground.records.path(), MEASURED)?;
    let holder = ground.open(MEASURED, pages * GIB)?;
    let rounds = ground.rounds()?;
    let more = rounds.attach.iter().map(|run| (run.number("time") - one) / 1e3 / (pages - 1) as f64);
    let is_met = judge("attach with a holder, us for each page but the first", Summary::of(more), 10.0, "<= 10 us");
    rounds.describe();
    drop(holder);
    arena::remove_from(ground.records.path(), MEASURED)?;
    Ok(is_met)
}

/// Measures in this process, and prints.
fn child(arguments: &[String]) -> Outcome<()> {
    let [what, records, file] = arguments else { return Err("wanted: what, records, file".into()) };
    let attach = |name: &str| Arena::attach(name).record_dir(records).open();
    drop(attach(SMALL).or_else(|_| attach(MEASURED))?);
    let mut readings = Readings::default();
    if what == "attach" {
        let (before, start) = (faults(), Instant::now());
        let view = attach(MEASURED)?;
        readings.set_time("time", start.elapsed());
        readings.set("all_faults", faults() - before);
        readings.set("faults", view.attachment().page_faults);
        readings.set("report", view.attachment());
        let at = view.get(0, view.len()).ok_or("the whole view")?.cast::<u8>();
        readings.set("touch_faults", touch(at.as_ptr(), view.len(), view.page_size().bytes()));
        let start = Instant::now();
        drop(view);
        readings.set_time("detach", start.elapsed());
    } else if what == "mmap" {
        mmap(Path::new(file), &mut readings)?;
    } else {
        alone(|| attach(MEASURED), Path::new(file), &mut readings)?;
    }
    readings.print();
    Ok(())
}

/// Attaching and the bare mmap, in turns, each gone before the next: nobody holds the pages.
fn alone(attach: impl Fn() -> hugearena::Result<View>, file: &Path, readings: &mut Readings) -> Outcome<()> {
    let mut ratios = Vec::new();
    for _ in 0..9 {
        let mut bare = Readings::default();
        mmap(file, &mut bare)?;
        let start = Instant::now();
        let view = attach()?;
        let time = start.elapsed().as_nanos() as f64;
        readings.set("report", view.attachment());
        drop(view);
        ratios.push(time / bare.number("time"));
    }
    readings.set("ratio", Summary::of(ratios).median);
    Ok(())
}

/// Minor faults that touching every page takes.
fn touch(start: *mut u8, len: usize, page: usize) -> i64 {
    let before = faults();
    for offset in (0..len).step_by(page) {
        // SAFETY: inside a mapping that the caller has; every byte is initialized.
        unsafe { start.add(offset).write_volatile(start.add(offset).read_volatile()) };
    }
    faults() - before
}

fn faults() -> i64 {
    // SAFETY: getrusage fills the struct.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt
    }
}

/// The bare system call, file opened before.
fn mmap(path: &Path, readings: &mut Readings) -> Outcome<()> {
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let len = file.metadata()?.len() as usize;
    let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    let start = Instant::now();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rw, flags, file.as_raw_fd(), 0) };
    readings.set_time("time", start.elapsed());
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    readings.set("touch_faults", touch(at.cast(), len, 2 << 20));
    let start = Instant::now();
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { libc::munmap(at, len) };
    readings.set_time("detach", start.elapsed());
    Ok(())
}
