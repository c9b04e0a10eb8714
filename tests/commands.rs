//! A program under `HugeAlloc` that starts others, while a thread of it writes to the heap and the pool is empty.
//! `HUGEARENA_FORKS=1000` starts as many of each kind.

#![allow(unsafe_code)]

mod support;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hugearena::{HugeAlloc, PageSize};

use support::child::SECONDS;
use support::pool::Hog;
use support::{Child, is_filled, skip_size};

#[global_allocator]
static GLOBAL: HugeAlloc = HugeAlloc::new();

/// Programs started between two looks at the pool.
const BATCH: u64 = 20;
const PROGRAM: &str = "/bin/true";

/// Starts a program by posix_spawn(3): the child has its parent's memory until exec(2), and copies nothing.
const SPAWNED: [fn() -> Command; 2] = [
    || Command::new(PROGRAM),
    || {
        let mut command = Command::new(PROGRAM);
        command.env("PATH", "/bin:/usr/bin").arg("x".repeat(1_000));
        command
    },
];

/// Starts one by fork(2) and exec(2).
const FORKED: [fn() -> Command; 3] = [
    || {
        let mut command = Command::new(PROGRAM);
        // SAFETY: no preconditions.
        command.uid(unsafe { libc::geteuid() });
        command
    },
    || {
        let mut command = Command::new("true");
        command.env("PATH", "/bin:/usr/bin").arg("x".repeat(1_000));
        command
    },
    || {
        let mut command = Command::new(PROGRAM);
        // SAFETY: the heap's locks are free in a forked child.
        unsafe { command.pre_exec(allocate) };
        command
    },
];

fn allocate() -> std::io::Result<()> {
    let blocks: Vec<Vec<u8>> = (1..50).map(|index| vec![index as u8; 1_000 * index]).collect();
    assert!(blocks.iter().enumerate().all(|(index, block)| is_filled(block, index as u8 + 1)));
    Ok(())
}

/// Writes to blocks all over the heap, checking what they hold, until told to stop.
fn churn(stop: &AtomicBool) {
    let mut blocks: Vec<Vec<u8>> = (0..256).map(|_| Vec::new()).collect();
    for turn in 0usize.. {
        let at = turn * 97 % blocks.len();
        assert!(is_filled(&blocks[at], at as u8), "a byte is lost");
        if stop.load(Relaxed) {
            break;
        }
        blocks[at] = vec![at as u8; turn * 7919 % (64 << 10)];
    }
}

/// Starts the programs while the pool is empty; `check` gets what became of each.
fn start_all(kinds: &[fn() -> Command], check: impl Fn(&Command, std::io::Result<std::process::ExitStatus>)) {
    let rounds: u64 = std::env::var("HUGEARENA_FORKS").ok().map_or(25, |text| text.parse().unwrap());
    static STOP: AtomicBool = AtomicBool::new(false);
    let writer = std::thread::spawn(|| churn(&STOP));
    std::thread::sleep(Duration::from_millis(100));
    for batch in 0..rounds.div_ceil(BATCH) {
        // SAFETY: no preconditions; the time is for a batch, not for all.
        unsafe { libc::alarm(SECONDS) };
        // The heap may have grown, and others give pages back.
        let _hog = match Hog::leaving(0) {
            Ok(hog) => hog,
            Err(reason) => return skip_size(PageSize::HUGE_2M, &reason),
        };
        for _ in batch * BATCH..rounds.min((batch + 1) * BATCH) {
            for kind in kinds {
                let mut command = kind();
                let status = command.status();
                check(&command, status);
            }
        }
    }
    STOP.store(true, Relaxed);
    writer.join().expect("the parent has every byte");
}

fn assert_runs(command: &Command, status: std::io::Result<std::process::ExitStatus>) {
    let status = status.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}\n{}", GLOBAL.stats());
}

/// Experiments: 13.
#[test]
fn programs_are_spawned_while_the_pool_is_empty() {
    Child::new().ignoring_pool().run(|| start_all(&SPAWNED, assert_runs));
}

/// A page that the parent writes to while a child has not called exec(2) is taken from the child, if the pool has none: it is
/// killed when it looks for its arguments there, or the kernel does not find them.
#[test]
fn only_children_are_killed_while_the_pool_is_empty() {
    Child::new().ignoring_pool().run(|| {
        start_all(&FORKED, |command, status| match status {
            Ok(status) => assert!(status.success() || status.signal() == Some(libc::SIGBUS), "{command:?}: {status}"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{command:?}: {error}"),
        });
    });
}
