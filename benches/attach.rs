//! Checks the figures promised for attaching to pages that exist.
//!
//! ```text
//! cargo bench --bench attach
//! cargo bench --bench attach -- --check    # exit status 1 when a figure is not met
//! cargo bench --bench attach -- --gib 2    # so much of 2 MiB pages, not 8 GiB or what there is
//! ```
//!
//! Needs root (it mounts a hugetlbfs that only it sees) and a GiB of free huge pages; takes up to 8 GiB, and says so when
//! there are fewer. Every attach
//! is the first large one of a fresh process, which has attached before (on 2 MiB pages to a single one), so that its
//! code is there; attaches and bare `mmap(MAP_POPULATE)` of the same file take turns. Time is all of `Arena::attach(..).open()`:
//! reading the record, opening, mapping, and the last page being there.
#![allow(unsafe_code)]
// The modules that benches and tests share hold more than this one uses.
#![allow(dead_code)]

#[path = "attach/child.rs"]
mod child;
mod environment;
#[path = "../examples/quickstart/judge.rs"]
mod judge;
#[path = "../tests/support/machine.rs"]
mod machine;
#[path = "../examples/quickstart/measure.rs"]
mod measure;

use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

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
    judge::exit("attach", run())
}

fn run() -> Outcome<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == CHILD
    {
        return child::run(rest).map(|()| true);
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
    let most = match arguments.iter().position(|argument| argument == "--gib") {
        Some(at) => arguments.get(at + 1).and_then(|text| text.parse().ok()).ok_or("--gib wants a number")?,
        None => MOST_GIB,
    };
    let are_met = [small_pages(most)?, memfd_peers(most)?, gigantic_pages()?];
    Ok(!is_check || are_met == [true; 3])
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

    /// What a fresh process measures: "attach", "mmap", "alone", and "exit", "exit-mmap" or "nothing", which end without
    /// giving anything back.
    fn measure(&self, what: &str) -> Outcome<Readings> {
        let file = self.mount.path().join(format!("hugearena.{MEASURED}"));
        measured(what, self.records.path(), &file, Stdio::null())
    }

    /// How long the kernel takes to end a process that has the pages attached, or mapped, more than one that has not.
    fn print_exits(&self) -> Outcome<()> {
        let median = |what| -> Outcome<f64> {
            let runs = (0..ROUNDS).map(|_| self.measure(what)).collect::<Outcome<Vec<_>>>()?;
            Ok(Summary::of(runs.iter().map(|run| run.number("exit"))).median / 1e3)
        };
        let nothing = median("nothing")?;
        let (attached, mapped) = (median("exit")? - nothing, median("exit-mmap")? - nothing);
        println!(
            "        exit of a process takes {attached:.0} us more when attached, {mapped:.0} us when mapped bare"
        );
        Ok(())
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

fn measured(what: &str, records: &Path, file: &Path, input: Stdio) -> Outcome<Readings> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args([CHILD, what]).arg(records).arg(file).stdin(input).output()?;
    let ended = child::monotonic_nanoseconds();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let mut readings = Readings::parse(&String::from_utf8(output.stdout)?);
    readings.set("exit", ended - readings.number("end") as i64);
    Ok(readings)
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

/// How many GiB of 2 MiB pages there are beside one page, at most so many; 0, and a line that says so, without one.
fn gib_at_most(most: usize, what: &str) -> usize {
    let size = PageSize::HUGE_2M;
    let available = Supply::read().available_pages(size);
    let gib = (available.saturating_sub(1) as usize * size.bytes() / GIB).min(most);
    match gib {
        0 => println!("skipped: {what}: 513 pages of 2M needed, {available} available"),
        _ if gib < MOST_GIB => {
            println!("{gib} GiB of 2 MiB pages, {what} (8 GiB take 4097 pages, {available} are free):")
        }
        _ => println!("{gib} GiB of 2 MiB pages, {what}:"),
    }
    gib
}

/// Arenas on memfds, received over a socket: the descriptor is all that a peer gets.
fn memfd_peers(most: usize) -> Outcome<bool> {
    let gib = gib_at_most(most, "memfd peers");
    if gib == 0 {
        return Ok(true);
    }
    let open = |bytes| Arena::builder().capacity(bytes).strict().open();
    let (small, large) = (open(2 << 20)?, open(gib * GIB)?);
    let mut rounds = Rounds::default();
    let nowhere = Path::new("/");
    // The file of the arena by the one name that it has.
    let file = memfd_of(gib * GIB)?;
    for _ in 0..ROUNDS {
        let (ours, theirs) = UnixStream::pair()?;
        small.share(&ours)?;
        large.share(&ours)?;
        rounds.attach.push(measured("receive", nowhere, nowhere, Stdio::from(OwnedFd::from(theirs)))?);
        rounds.mmap.push(measured("map-file", nowhere, &file, Stdio::null())?);
    }
    Ok(with_holder(&rounds, gib, None))
}

/// The descriptor of this process whose file has that length.
fn memfd_of(bytes: usize) -> Outcome<PathBuf> {
    let files = std::fs::read_dir("/proc/self/fd")?.flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name();
    let mut own = files.filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|file| file.len() == bytes as u64));
    let own = own.next().map(number).ok_or("the arena has a descriptor")?;
    Ok(Path::new("/proc").join(std::process::id().to_string()).join("fd").join(own))
}

fn small_pages(most: usize) -> Outcome<bool> {
    let size = PageSize::HUGE_2M;
    let gib = gib_at_most(most, "a named arena");
    if gib == 0 {
        return Ok(true);
    }
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
    ground.print_exits()?;
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
