//! Claims chunks in a process of its own: for the time, and where the kernel kills whoever makes a system call.

use std::ffi::OsString;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

use hugearena::{Arena, PageSize};

use crate::chooser::Side;
use crate::measure::Readings;
use crate::rounds;

/// Claims in one timed process: enough that starting it and populating the arena do not weigh much.
pub const COUNT: u64 = 5_000_000;

/// Names of child processes.
pub const TIMED: &str = "claims";
const CONFINED: &str = "claims without system calls";
const CONTROL: &str = "one system call";

const CONFINED_COUNT: u64 = 100_000;

/// Does the work of the child process called `name`, or answers that it is not one of these.
pub fn child(name: &str, readings: &mut Readings) -> Result<bool, String> {
    match name {
        TIMED => timed(readings)?,
        CONFINED => confined(CONFINED_COUNT)?,
        CONTROL => confined(0)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn arena() -> Result<Arena, String> {
    let arena = Arena::builder().page_size(PageSize::HUGE_2M).capacity(64 << 20).open();
    arena.map_err(|error| format!("no arena: {error}"))
}

fn claim_and_release(arena: &Arena, count: u64) {
    for _ in 0..count {
        drop(black_box(arena.claim(1).expect("a chunk is free")));
    }
}

fn timed(readings: &mut Readings) -> Result<(), String> {
    let arena = arena()?;
    let start = Instant::now();
    claim_and_release(&arena, COUNT);
    readings.set_time("time", start.elapsed());
    Ok(())
}

/// Makes `count` claims while the kernel allows read, write and exit only. With none, makes another system call
/// instead, to see that the kernel does what it should.
fn confined(count: u64) -> Result<(), String> {
    let arena = arena()?;
    claim_and_release(&arena, 1);
    // SAFETY: affects this process only, which ends below without needing any other system call.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) } != 0 {
        return Err("seccomp is not available".to_owned());
    }
    if count == 0 {
        // SAFETY: has no arguments and no effect; it does not return here.
        unsafe { libc::getppid() };
    }
    claim_and_release(&arena, count);
    // SAFETY: ends the only thread of this process. `libc::_exit` would use a call that is not allowed any more.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Ok(())
}

/// Whether claiming works without system calls, and a line that says so.
pub fn system_calls() -> Result<(bool, String), String> {
    let status = |name: &str| {
        let output = rounds::command(Side::Huge, &[OsString::from(name)])?.output();
        output.map(|output| output.status).map_err(|error| format!("cannot run myself: {error}"))
    };
    if status(CONTROL)?.signal() != Some(libc::SIGKILL) {
        return Ok((false, "NOT met system calls: cannot tell, because seccomp is not available".to_owned()));
    }
    let is_silent = status(CONFINED)?.success();
    let (verdict, count) = if is_silent { ("met", "none") } else { ("NOT met", "there are some") };
    Ok((is_silent, format!("{verdict:<8}system calls in {CONFINED_COUNT} claims and releases: {count}")))
}
