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
const PATIENCE: Duration = Duration::from_secs(30);

/// What was seen before the front end started, while it ran, and after it was killed.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Free pages of 2 MiB. Other users of the pool show here too.
    pub before: u64,
    pub during: u64,
    pub after: u64,
    /// Mappings that the back end had of the front end's memory while that ran, and after.
    pub mapped_during: usize,
    pub mapped_after: usize,
    /// Whether the same back end then served another.
    pub served_on: bool,
}

impl Death {
    pub fn is_met(&self) -> bool {
        self.after >= self.before && self.is_forgotten()
    }

    /// The front end is dead and its memory mapped nowhere: the pages are free, whoever took them since.
    pub fn is_forgotten(&self) -> bool {
        self.mapped_during > 0 && self.mapped_after == 0 && self.served_on
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = if self.served_on { "served the next" } else { "did not serve the next" };
        let Death { before, during, after, mapped_during, mapped_after, .. } = self;
        write!(
            f,
            "{before} free, {during} while it ran, {after} after; mapped {mapped_during} times, then {mapped_after}; the back end {next}"
        )
    }
}

/// Starts what `front_end` makes of a socket: a program that connects to it, says [`CONNECTED`] and sends for ever.
/// Kills it, and connects to the same back end.
pub fn of(front_end: impl FnOnce(&Path) -> Command, program: &Path) -> Result<Death, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut backend = Backend::start(program)?;
    // It takes its own pages first.
    drop(connect(&backend.socket(), &mut Memory::open()?, || backend.problem())?);
    settle(|| false, Duration::from_millis(500));
    let before = free();
    let mut child = front_end(&backend.socket()).stdout(Stdio::piped()).spawn().map_err(text)?;
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let is_connected = lines.map_while(Result::ok).any(|line| line.contains(CONNECTED));
    sleep(Duration::from_millis(200));
    let (during, mapped_during) = (free(), backend.mapped_arenas());
    let was_alive = child.try_wait().map_err(text)?.is_none();
    child.kill().and_then(|()| child.wait()).map_err(text)?;
    if !is_connected || !was_alive {
        return Err("the front end that was to be killed ended before".into());
    }
    settle(|| backend.mapped_arenas() == 0 && free() >= before, PATIENCE);
    let (after, mapped_after) = (free(), backend.mapped_arenas());
    let mut memory = Memory::open()?;
    let mut port = connect(&backend.socket(), &mut memory, || backend.problem())?;
    let mut traffic = Traffic::new(5000);
    let ended = traffic.run(&mut port, 5000)?;
    port.stop().map_err(|error| error.to_string())?;
    let served_on = ended == Ended::Reached && traffic.tally().received == 5000;
    Ok(Death { before, during, after, mapped_during, mapped_after, served_on })
}

fn free() -> u64 {
    Supply::read().pool(PageSize::HUGE_2M).map_or(0, |pool| pool.free)
}

/// Waits until it is so, or for a while.
fn settle(is_so: impl Fn() -> bool, at_most: Duration) {
    let start = Instant::now();
    while !is_so() && start.elapsed() < at_most {
        sleep(Duration::from_millis(20));
    }
}
