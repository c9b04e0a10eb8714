//! The whole exercise: memory, a back end, traffic, the back end's death and the next one.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Counters};
use crate::memory::Memory;
use crate::port::Port;
use crate::traffic::{Ended, Tally, Traffic, page_faults};

/// Packets of each connection before page faults count: code and stack come in, and the back end's page tables.
const WARM_UP: u64 = 2048;
/// A back end may take so long to listen.
const PATIENCE: Duration = Duration::from_secs(120);
/// Back ends in a row that may go while we tell them what they have to know.
const TRIES: u32 = 10;

/// Where packets go.
pub enum Peer<'a> {
    /// A back end of our own, started by this program, and killed so many times meanwhile.
    Own { program: &'a Path, kills: u64 },
    /// Whoever listens there.
    Other(&'a Path),
}

/// What came of it.
pub struct Outcome {
    pub obtained: String,
    /// Descriptors and regions that the back end was given.
    pub regions: usize,
    /// Where we have the memory.
    pub here: Vec<Range<u64>>,
    /// Where each back end of our own had it.
    pub there: Vec<Vec<Range<u64>>>,
    pub commands: Vec<String>,
    pub on_huge_pages: bool,
    pub tally: Tally,
    pub missing: u64,
    pub first_problem: Option<String>,
    /// The steady state, after the warm-up of each connection: packets back, and in which time.
    pub steady_packets: u64,
    pub steady_time: Duration,
    /// Page faults in the steady state: of this program, and of back ends of our own.
    pub page_faults: u64,
    pub peer_page_faults: Option<u64>,
    /// Connections after the first.
    pub reconnects: u64,
    /// What the last back end of our own counted.
    pub counters: Option<Counters>,
}

/// Sends `packets` and gets them back.
pub fn run(peer: &Peer<'_>, packets: u64, mut connected: impl FnMut()) -> Result<Outcome, String> {
    let mut memory = Memory::open()?;
    let mut exercise = Exercise {
        traffic: Traffic::new(packets),
        outcome: Outcome {
            obtained: memory.arena().obtained().to_string(),
            regions: memory.regions().len(),
            here: memory.regions().iter().map(|region| range(region.as_ptr().addr().get(), region.len())).collect(),
            there: Vec::new(),
            commands: Vec::new(),
            on_huge_pages: true,
            tally: Tally::default(),
            missing: packets,
            first_problem: None,
            steady_packets: 0,
            steady_time: Duration::ZERO,
            page_faults: 0,
            peer_page_faults: Some(0),
            reconnects: 0,
            counters: None,
        },
    };
    match *peer {
        Peer::Own { program, kills } => exercise.with_own(program, kills, packets, &mut memory, &mut connected)?,
        Peer::Other(socket) => exercise.with_other(socket, packets, &mut memory, &mut connected)?,
    }
    let Exercise { traffic, outcome } = exercise;
    let first_problem = traffic.first_problem().map(str::to_owned);
    Ok(Outcome { tally: traffic.tally(), missing: traffic.missing(), first_problem, ..outcome })
}

struct Exercise {
    traffic: Traffic,
    outcome: Outcome,
}

impl Exercise {
    /// Kills the back end with packets out, when it has brought back its share, and goes on with the next one.
    fn with_own(
        &mut self,
        program: &Path,
        kills: u64,
        packets: u64,
        memory: &mut Memory,
        connected: &mut dyn FnMut(),
    ) -> Result<(), String> {
        let inode = inode_of(memory.regions()[0].fd())?;
        for connection in 0..=kills {
            let mut backend = Backend::start(program)?;
            self.outcome.commands.push(backend.command().to_owned());
            self.outcome.on_huge_pages &= backend.is_on_huge_pages();
            let mut port = connect(&backend.socket(), memory, || backend.problem())?;
            connected();
            let until = packets / (kills + 1) * (connection + 1);
            let until = if connection == kills { packets } else { until };
            let ended = self.warm_up(&mut port, until)?;
            self.outcome.there.push(backend.mappings(inode));
            let before = backend.page_faults();
            if ended == Ended::Gone || self.steady(&mut port, until)? == Ended::Gone {
                return Err(backend.problem().unwrap_or("the back end closed the connection".into()));
            }
            self.add_peer_faults(before, backend.page_faults());
            if connection == kills {
                port.stop().map_err(|error| error.to_string())?;
                self.outcome.counters = Some(backend.finish()?);
                continue;
            }
            // While packets flow: it dies with some of them.
            let killed = thread::scope(|scope| {
                scope.spawn(move || backend.kill());
                self.traffic.run(&mut port, packets)
            });
            if killed? == Ended::Gone {
                self.traffic.start_over();
            }
            self.outcome.reconnects += 1;
        }
        Ok(())
    }

    /// Comes back to whoever listens there, as often as it goes.
    fn with_other(
        &mut self,
        socket: &Path,
        packets: u64,
        memory: &mut Memory,
        connected: &mut dyn FnMut(),
    ) -> Result<(), String> {
        self.outcome.peer_page_faults = None;
        let mut tries = TRIES;
        loop {
            let mut port = match connect(socket, memory, || None) {
                Err(refused) if refused.is_gone && tries > 1 => {
                    tries -= 1;
                    continue;
                }
                other => other?,
            };
            tries = TRIES;
            connected();
            let ended = self.warm_up(&mut port, packets)?;
            if ended == Ended::Reached && self.steady(&mut port, packets)? == Ended::Reached {
                // All packets are back; one that is gone cannot say that it has stopped.
                return port.stop().or_else(|failed| if failed.is_gone { Ok(()) } else { Err(failed.to_string()) });
            }
            self.traffic.start_over();
            self.outcome.reconnects += 1;
        }
    }

    fn warm_up(&mut self, port: &mut Port<'_>, until: u64) -> Result<Ended, String> {
        // That code too; if the back end is gone already, the next wait finds out.
        port.wait(Duration::ZERO);
        let warm = self.traffic.tally().received + WARM_UP;
        self.traffic.run(port, warm.min(until))
    }

    fn steady(&mut self, port: &mut Port<'_>, until: u64) -> Result<Ended, String> {
        let (received, start, faults) = (self.traffic.tally().received, Instant::now(), page_faults());
        let ended = self.traffic.run(port, until);
        self.outcome.page_faults += page_faults() - faults;
        self.outcome.steady_time += start.elapsed();
        self.outcome.steady_packets += self.traffic.tally().received - received;
        ended
    }

    fn add_peer_faults(&mut self, before: Option<u64>, after: Option<u64>) {
        let faults = after.zip(before).map(|(after, before)| after - before);
        self.outcome.peer_page_faults = self.outcome.peer_page_faults.zip(faults).map(|(sum, more)| sum + more);
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub struct Refused {
    why: String,
    /// The back end was there, and went.
    pub is_gone: bool,
}

impl From<Refused> for String {
    fn from(refused: Refused) -> String {
        refused.why
    }
}

/// Tries until the back end listens; gives up when `problem` says why it will not, or after [`PATIENCE`].
pub fn connect<'a>(
    socket: &Path,
    memory: &'a mut Memory,
    mut problem: impl FnMut() -> Option<String>,
) -> Result<Port<'a>, Refused> {
    let never = |why| Err(Refused { why, is_gone: false });
    let start = Instant::now();
    // Trying is looking for the socket, which costs less than making queues for nobody.
    while let Err(error) = std::os::unix::net::UnixStream::connect(socket) {
        if let Some(problem) = problem() {
            return never(problem);
        }
        if start.elapsed() > PATIENCE {
            return never(format!("{}: {error}", PathBuf::from(socket).display()));
        }
        sleep(Duration::from_millis(20));
    }
    Port::connect(socket, memory).map_err(|failed| {
        let why = problem().unwrap_or_else(|| failed.to_string());
        Refused { why, is_gone: failed.is_gone }
    })
}

/// What tells a mapping of the arena's file from others.
pub fn inode_of(fd: BorrowedFd<'_>) -> Result<u64, String> {
    let owned = fd.try_clone_to_owned().map_err(|error| error.to_string())?;
    std::fs::File::from(owned).metadata().map(|metadata| metadata.ino()).map_err(|error| error.to_string())
}

fn range(start: usize, len: usize) -> Range<u64> {
    start as u64..(start + len) as u64
}
