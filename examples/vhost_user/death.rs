//! Our own death: a front end is killed while packets flow, and what becomes of its pages and of the back end.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugearena::PageSize;
use hugearena::supply::Supply;

use crate::backend::Backend;
use crate::exercise::connect;
use crate::memory::Memory;
use crate::traffic::{Ended, Traffic};

/// What a front end prints when it is connected.
pub const CONNECTED: &str = "connected";
/// A back end notices a closed socket within milliseconds; other users of the pool may take longer to settle.
const PATIENCE: Duration = Duration::from_secs(10);

/// Free pages of 2 MiB before the front end started, while it ran, and after it was killed; and whether the same back
/// end then served another.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub before: u64,
    pub during: u64,
    pub after: u64,
    pub served_on: bool,
}

impl Death {
    pub fn is_met(&self) -> bool {
        self.after >= self.before && self.served_on
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = if self.served_on { "served the next" } else { "did not serve the next" };
        write!(f, "{} free, {} while it ran, {} after; the back end {next}", self.before, self.during, self.after)
    }
}

/// Starts what `front_end` makes of a socket: a program that connects to it, says [`CONNECTED`] and sends for ever.
/// Kills it, and connects to the same back end.
pub fn of(front_end: impl FnOnce(&Path) -> Command, program: &Path) -> Result<Death, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut backend = Backend::start(program).map_err(text)?;
    // It takes its own pages first.
    drop(connect(&backend.socket(), &mut Memory::open()?, || backend.problem())?);
    let before = settled(u64::MAX, Duration::from_millis(500));
    let mut child = front_end(&backend.socket()).stdout(Stdio::piped()).spawn().map_err(text)?;
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let is_connected = lines.map_while(Result::ok).any(|line| line.contains(CONNECTED));
    sleep(Duration::from_millis(200));
    let (during, was_alive) = (free(), child.try_wait().map_err(text)?.is_none());
    child.kill().and_then(|()| child.wait()).map_err(text)?;
    if !is_connected || !was_alive {
        return Err("the front end that was to be killed ended before".into());
    }
    let after = settled(before, PATIENCE);
    let mut memory = Memory::open()?;
    let mut port = connect(&backend.socket(), &mut memory, || backend.problem())?;
    let mut traffic = Traffic::new(5000);
    let ended = traffic.run(&mut port, 5000)?;
    port.stop().map_err(|error| error.to_string())?;
    let served_on = ended == Ended::Reached && traffic.tally().received == 5000;
    Ok(Death { before, during, after, served_on })
}

fn free() -> u64 {
    Supply::read().pool(PageSize::HUGE_2M).map_or(0, |pool| pool.free)
}

/// Free pages, when they are `wanted` or more, or after a while.
fn settled(wanted: u64, at_most: Duration) -> u64 {
    let start = Instant::now();
    loop {
        let now = free();
        if now >= wanted || start.elapsed() > at_most {
            return now;
        }
        sleep(Duration::from_millis(20));
    }
}
