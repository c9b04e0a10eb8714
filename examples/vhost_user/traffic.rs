//! Traffic that has to come back: numbered packets, every one checked, over as many connections as it takes.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::time::Duration;

use crate::packet::{self, Damage, LEN_MAX};
use crate::port::Port;
use crate::queue::SIZE;
use crate::session::Woken;
use crate::window::{Unexpected, Window};

/// Packets between two looks at the other queue.
const BURST: usize = 32;
/// Empty looks before waiting costs less than looking.
const LOOKS: u32 = 256;
/// How long a wait is, and how many without any news mean that a back end has lost what is out.
const WAIT: Duration = Duration::from_millis(100);
const WAITS: u32 = 600;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// So many are back.
    Reached,
    /// The back end is gone; [`Traffic::start_over`] and go on with the next.
    Gone,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Packets back, whole, each counted once; and their bytes.
    pub received: u64,
    pub bytes: u64,
    /// Packets with a byte that was not sent.
    pub corrupted: u64,
    /// Packets that came back more than once, or were never sent.
    pub unexpected: u64,
    /// Packets that were out when a back end died, and were sent again.
    pub sent_again: u64,
}

pub struct Traffic {
    total: u64,
    window: Window,
    tally: Tally,
    /// What was wrong first.
    first_problem: Option<String>,
}

impl Traffic {
    /// `total` packets, numbered from 0.
    pub fn new(total: u64) -> Traffic {
        Traffic { total, window: Window::new(total), tally: Tally::default(), first_problem: None }
    }

    pub fn tally(&self) -> Tally {
        Tally { received: self.window.received(), ..self.tally }
    }

    /// Packets that are not back.
    pub fn missing(&self) -> u64 {
        self.total - self.window.received()
    }

    pub fn first_problem(&self) -> Option<&str> {
        self.first_problem.as_deref()
    }

    /// Sends and receives until `until` packets are back. Others may still be out then.
    pub fn run(&mut self, port: &mut Port<'_>, until: u64) -> Result<Ended, String> {
        let until = until.min(self.total);
        let (mut looks, mut waits) = (0, 0);
        while self.window.received() < until {
            let received = self.receive(port)?;
            let sent = self.send(port)?;
            if received + sent > 0 {
                (looks, waits) = (0, 0);
                continue;
            }
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
                continue;
            }
            match port.wait(WAIT) {
                // What it brought before it went counts.
                Woken::Gone if self.receive(port)? == 0 => return Ok(Ended::Gone),
                Woken::Gone | Woken::Call => looks = 0,
                Woken::Timeout => waits += 1,
            }
            if waits > WAITS {
                return Err(format!("{} packets do not come back", self.window.out()));
            }
        }
        Ok(Ended::Reached)
    }

    fn receive(&mut self, port: &mut Port<'_>) -> Result<usize, String> {
        let mut expected = [0; LEN_MAX];
        let received = port.receive(BURST, |frame| self.check(frame, &mut expected));
        received.map_err(|broken| format!("the back end broke the rules: {broken}"))
    }

    fn check(&mut self, frame: &[u8], expected: &mut [u8; LEN_MAX]) {
        match packet::check(frame, expected).map(|number| self.window.receive(number)) {
            Ok(Ok(())) => self.tally.bytes += frame.len() as u64,
            Ok(Err(unexpected)) => self.problem(&unexpected),
            Err(damage) => self.problem(&damage),
        }
    }

    fn problem(&mut self, problem: &dyn Problem) {
        problem.count(&mut self.tally);
        let received = self.window.received();
        self.first_problem.get_or_insert_with(|| format!("after {received} packets: {problem:?}"));
    }

    /// Sends no more than the receive queue has buffers for: a back end that finds none drops the packet.
    fn send(&mut self, port: &mut Port<'_>) -> Result<usize, String> {
        let room = port.room().map_err(|broken| format!("the back end broke the rules: {broken}"))?;
        let mut frame = [0; LEN_MAX];
        let mut sent = 0;
        while sent < room.min(BURST) && self.window.in_flight() < u64::from(SIZE) {
            let Some(number) = self.window.send() else { break };
            let len = packet::write(number, &mut frame);
            assert!(port.send(&frame[..len]), "there is room");
            sent += 1;
        }
        port.flush();
        Ok(sent)
    }

    /// The back end is gone: what it had is sent again, to the next.
    pub fn start_over(&mut self) -> u64 {
        let again = self.window.start_over();
        self.tally.sent_again += again;
        again
    }
}

/// What can be wrong with a packet, by the counter that it belongs to.
trait Problem: std::fmt::Debug {
    fn count(&self, tally: &mut Tally);
}

impl Problem for Damage {
    fn count(&self, tally: &mut Tally) {
        tally.corrupted += 1;
    }
}

impl Problem for Unexpected {
    fn count(&self, tally: &mut Tally) {
        tally.unexpected += 1;
    }
}

/// Page faults of this thread so far, with and without input from a disk.
pub fn page_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: filled by the call, which has nothing to fail on.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_minflt + usage.ru_majflt) as u64
}
