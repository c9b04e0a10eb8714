//! What a fresh process measures, and prints.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use hugearena::Arena;
use hugearena::arena::View;

use super::measure::{Readings, Summary};
use super::{MEASURED, Outcome, SMALL};

/// Measures in this process, and prints.
pub fn run(arguments: &[String]) -> Outcome<()> {
    let [what, records, file] = arguments else { return Err("wanted: what, records, file".into()) };
    let attach = |name: &str| Arena::attach(name).record_dir(records).open();
    let mut readings = Readings::default();
    match &what[..] {
        // Its owner has sent a small arena and the large one.
        "receive" => {
            let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
            drop(View::receive(&socket)?);
            attached(|| View::receive(&socket), &mut readings)?;
        }
        "nothing" | "map-file" => {}
        _ => drop(attach(SMALL).or_else(|_| attach(MEASURED))?),
    }
    match &what[..] {
        "attach" => attached(|| attach(MEASURED), &mut readings)?,
        "mmap" | "map-file" => mmap(Path::new(file), &mut readings)?,
        "alone" => alone(|| attach(MEASURED), Path::new(file), &mut readings)?,
        "exit" => std::mem::forget(attach(MEASURED)?),
        "exit-mmap" => std::mem::forget(populated(Path::new(file), &mut readings)?),
        _ => {}
    }
    readings.set("end", monotonic_nanoseconds());
    readings.print();
    // No destructors: what the kernel takes to end the process is what is measured.
    std::process::exit(0)
}

/// The clock that all processes share.
pub fn monotonic_nanoseconds() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn attached(attach: impl Fn() -> hugearena::Result<View>, readings: &mut Readings) -> Outcome<()> {
    let (before, start) = (faults(), Instant::now());
    let view = attach()?;
    readings.set_time("time", start.elapsed());
    readings.set("all_faults", faults() - before);
    readings.set("faults", view.attachment().page_faults);
    readings.set("report", view.attachment());
    let at = view.get(0, view.len()).ok_or("the whole view")?.cast::<u8>();
    readings.set("touch_faults", touch(at.as_ptr(), view.len(), view.page_size().bytes()));
    let start = Instant::now();
    drop(view);
    readings.set_time("detach", start.elapsed());
    Ok(())
}

/// Unmapped when dropped.
struct Mapped {
    at: *mut libc::c_void,
    len: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `mmap`, which nobody uses any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
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

/// The bare system call, and its end.
fn mmap(path: &Path, readings: &mut Readings) -> Outcome<()> {
    let mapped = populated(path, readings)?;
    readings.set("touch_faults", touch(mapped.at.cast(), mapped.len, 2 << 20));
    let start = Instant::now();
    drop(mapped);
    readings.set_time("detach", start.elapsed());
    Ok(())
}

/// File opened before.
fn populated(path: &Path, readings: &mut Readings) -> Outcome<Mapped> {
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let len = file.metadata()?.len() as usize;
    let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    let start = Instant::now();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rw, flags, file.as_raw_fd(), 0) };
    readings.set_time("time", start.elapsed());
    if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error().into()) } else { Ok(Mapped { at, len }) }
}
