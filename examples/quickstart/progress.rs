//! How far a long phase is, for people at a terminal only.

use std::io::{IsTerminal, Write, stderr};

/// Silent unless standard error is a terminal; cleared when dropped.
pub struct Progress {
    what: &'static str,
    shown: u64,
    is_terminal: bool,
}

impl Progress {
    pub fn new(what: &'static str) -> Progress {
        Progress { what, shown: u64::MAX, is_terminal: stderr().is_terminal() }
    }

    /// Shows `done` of `total`, and writes only when the percentage changed.
    pub fn at(&mut self, done: usize, total: usize) {
        let percent = (100 * done as u64).checked_div(total as u64).unwrap_or(100).min(100);
        if self.is_terminal && percent != self.shown {
            self.shown = percent;
            // Nobody is helped by an error here.
            let _ = write!(stderr(), "\r\x1b[K{} {percent} %", self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
