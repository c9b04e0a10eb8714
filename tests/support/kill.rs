//! Processes that are killed at a random moment.

use std::io::{Read, Write, pipe};
use std::time::{Duration, SystemTime};

use super::child;

/// Full counts are for `HUGEARENA_FULL=1`; a plain run takes a fifth.
pub fn rounds(full: usize) -> usize {
    if std::env::var_os("HUGEARENA_FULL").is_some_and(|value| value != "0") { full } else { full / 5 }
}

/// Forks a process that runs `body`, and kills it after a while. Whether it was still running then.
pub fn killed_after(time: Duration, body: impl FnOnce()) -> bool {
    let process = child::start(|| {
        body();
        0
    });
    kill_after(time, process)
}

/// As [`killed_after`]; the time begins when `body` calls what it is given, however long that takes.
pub fn killed_after_ready(time: Duration, body: impl FnOnce(&dyn Fn())) -> bool {
    let (mut heard, told) = pipe().unwrap();
    let process = child::start(|| {
        body(&|| (&told).write_all(&[1]).unwrap());
        0
    });
    drop(told);
    // Nothing to read: it has ended before, and its status says how.
    let _ = heard.read(&mut [0]);
    kill_after(time, process)
}

fn kill_after(time: Duration, process: libc::pid_t) -> bool {
    std::thread::sleep(time);
    // SAFETY: our own child, which nobody has waited for.
    unsafe { libc::kill(process, libc::SIGKILL) };
    let status = child::wait_for(process);
    assert_ne!(status.code(), Some(101), "it failed before it was killed");
    status.code().is_none()
}

/// xorshift64.
pub struct Random(u64);

impl Random {
    /// Seeded by the clock; the seed is printed, for the test that fails.
    pub fn seeded() -> Random {
        let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
        eprintln!("seed {seed}");
        Random(seed)
    }

    pub fn another(&mut self) -> Random {
        Random(self.below(u64::MAX) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
