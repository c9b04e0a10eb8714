//! A thread that works for an arena while the CPU has nothing else to do.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Arena;
use crate::memops::{Pace, Progress};
use crate::sys::process;

/// How long the worker sleeps when it finds nothing to do: doubled each time, up to the second figure.
const NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(64);

/// A background thread that scrubs an arena's dirty free pages, under the scheduler's policy `SCHED_IDLE`: only
/// while no other thread wants its CPU. Stops when dropped, within a batch.
///
/// Where every CPU is kept busy it does not get to run; a page it has in hand then comes back late to a claim that
/// needs that very page. Leave it a CPU, or scrub from the poll loop instead ([`Arena::scrub`]).
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, PageSize, Worker};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let arena = Arena::builder().page_size(PageSize::base()).capacity(1 << 20).open()?;
/// let worker = Worker::start(&arena)?;
/// drop(arena.claim(10));
/// while arena.stats().dirty > 0 {
///     std::thread::yield_now();
/// }
/// drop(worker);
/// # Ok(())
/// # }
/// ```
///
/// # Sources
///
/// sched(7), `SCHED_IDLE`.
pub struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// [`process::forks`] when it was started: a forked child has not the thread.
    forks: u64,
}

impl Worker {
    /// Starts a worker for `arena`, which it keeps alive until it is dropped.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread. A refusal of `SCHED_IDLE` (by seccomp) is no error: the worker then runs
    /// like any other thread.
    pub fn start(arena: &Arena) -> io::Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let (arena, stopped) = (arena.clone(), Arc::clone(&stop));
        let work = move || {
            let _ = process::run_when_idle();
            scrub_until(&arena, &stopped);
        };
        let thread = thread::Builder::new().name("hugearena".into()).spawn(work)?;
        Ok(Worker { stop, thread: Some(thread), forks: process::forks() })
    }
}

fn scrub_until(arena: &Arena, stop: &AtomicBool) {
    let mut nap = NAP;
    while !stop.load(Relaxed) {
        if arena.scrub(usize::MAX, &mut UntilStopped(stop)) > 0 {
            nap = NAP;
        } else if !stop.load(Relaxed) {
            thread::park_timeout(nap);
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }
}

/// Goes on until the worker is told to stop.
struct UntilStopped<'a>(&'a AtomicBool);

impl Pace for UntilStopped<'_> {
    fn between(&mut self, _: Progress) -> ControlFlow<()> {
        if self.0.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            if process::forks() != self.forks {
                // Joining a thread that this process does not have would panic.
                std::mem::forget(thread);
                return;
            }
            thread.thread().unpark();
            // A panic of the worker has been reported by its hook; nothing is left to clean up.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
