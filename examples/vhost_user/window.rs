//! Which packets are out: sent, and not back yet.

use std::collections::VecDeque;

/// More than ever is between the oldest packet that is out and the newest.
const SPAN: usize = 1 << 14;

/// What is wrong with the number of a packet that came back whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unexpected {
    /// It was back already.
    Twice(u64),
    /// It was never sent.
    NeverSent(u64),
}

/// Gives out numbers from 0 up to a total, and keeps those that are out. Allocates when it is made and then no more.
pub struct Window {
    total: u64,
    /// All below are back.
    oldest: u64,
    /// None from here on was ever sent.
    next: u64,
    /// Whether a number is back, at the number modulo [`SPAN`]; of `oldest..next`.
    back: Vec<bool>,
    /// Numbers to be sent again.
    again: VecDeque<u64>,
    received: u64,
    /// Sent and not back, by this connection.
    in_flight: u64,
}

impl Window {
    pub fn new(total: u64) -> Window {
        let again = VecDeque::with_capacity(SPAN);
        Window { total, oldest: 0, next: 0, back: vec![true; SPAN], again, received: 0, in_flight: 0 }
    }

    /// The next packet to send, if there is one that may be sent now.
    pub fn send(&mut self) -> Option<u64> {
        if let Some(number) = self.again.pop_front() {
            self.in_flight += 1;
            return Some(number);
        }
        if self.next == self.total || self.next - self.oldest == SPAN as u64 {
            return None;
        }
        let number = self.next;
        self.back[slot(number)] = false;
        self.next += 1;
        self.in_flight += 1;
        Some(number)
    }

    /// Notes a packet that is back, and its number checked to be one that is out.
    pub fn receive(&mut self, number: u64) -> Result<(), Unexpected> {
        if number >= self.next {
            return Err(Unexpected::NeverSent(number));
        }
        if number < self.oldest || self.back[slot(number)] {
            return Err(Unexpected::Twice(number));
        }
        self.back[slot(number)] = true;
        self.received += 1;
        // A packet that is still to be sent again may come from a back end that remembers too much.
        self.in_flight = self.in_flight.saturating_sub(1);
        while self.oldest < self.next && self.back[slot(self.oldest)] {
            self.oldest += 1;
        }
        Ok(())
    }

    /// The back end is gone: what is out is sent again, in order. Returns how many that are.
    pub fn start_over(&mut self) -> u64 {
        self.in_flight = 0;
        self.again.clear();
        self.again.extend((self.oldest..self.next).filter(|number| !self.back[slot(*number)]));
        self.again.len() as u64
    }

    /// Packets that are back, each counted once.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Packets that this connection has sent and not brought back.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Packets that are out, those to be sent again among them.
    pub fn out(&self) -> u64 {
        (self.oldest..self.next).filter(|number| !self.back[slot(*number)]).count() as u64
    }
}

fn slot(number: u64) -> usize {
    (number % SPAN as u64) as usize
}
