//! Threads that work for an arena: one that scrubs while a CPU has nothing else to do, one that populates.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Arena, Inner};
use crate::error::{Error, Operation, Result};
use crate::memops::{Pace, Progress};
use crate::sys::process;

/// How long the worker sleeps when it finds nothing to do: doubled each time, up to the second figure.
const NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(64);
/// How long it sleeps when a page could not be had.
const NAP_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// What is populated at a time: the kernel lets nobody else change the mappings of the process meanwhile. And what is
/// scrubbed before the worker becomes idle again that a claim has lifted.
const STEP_BYTES: usize = 2 << 20;

/// A background thread that scrubs an arena's dirty free pages, under the scheduler's policy `SCHED_IDLE`: only
/// while no other thread wants its CPU. Stops when dropped, within a batch.
///
/// Where every CPU is kept busy it does not get to run. A claim that needs the very page which it has in hand lets it
/// run like any other thread until that is back. A process that may not do that (it takes `CAP_SYS_NICE`, or an
/// RLIMIT_NICE that allows the nice value 0: `ulimit -e 20`) waits for it, for seconds: leave the worker a CPU, or scrub
/// from the poll loop instead ([`Arena::scrub`]).
///
/// # Examples
///
/// ```
/// use hugearena::{Arena, PageSize, Worker};
///
/// # fn main() -> hugearena::Result<()> {
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
#[must_use = "it works until it is dropped"]
pub struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    arena: Weak<Inner>,
    /// [`process::forks`] when it was started: a forked child has not the thread.
    forks: u64,
}

impl Worker {
    /// Starts a worker for `arena`, which it keeps alive until it is dropped.
    ///
    /// # Errors
    ///
    /// [`Operation::StartThread`] when the system refuses a thread. A refusal of `SCHED_IDLE` (by seccomp) is no error: the worker then runs
    /// like any other thread.
    pub fn start(arena: &Arena) -> Result<Worker> {
        let working = arena.clone();
        let worker = Worker::spawn(Arc::downgrade(&arena.inner), move |stop| scrub_until(&working, stop));
        worker.map_err(|error| Error::new(Operation::StartThread, "a worker that scrubs").os(error))
    }

    /// Starts one that populates what the arena has been promised, and ends when that is done or the arena is gone. It runs
    /// like any other thread: who is inside madvise(2) keeps the whole process from mapping and unmapping, and may not
    /// wait for an idle CPU there.
    fn populating(arena: &Arena) -> io::Result<Worker> {
        let arena = Arc::downgrade(&arena.inner);
        Worker::spawn(Weak::clone(&arena), move |stop| populate_until(&arena, stop))
    }

    fn spawn(arena: Weak<Inner>, work: impl FnOnce(&AtomicBool) + Send + 'static) -> io::Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("hugearena".into()).spawn(move || work(&stopped))?;
        Ok(Worker { stop, thread: Some(thread), arena, forks: process::forks() })
    }
}

impl Arena {
    /// Starts populating in the background.
    pub(super) fn populate_in_background(&self) -> Result<()> {
        let worker = Worker::populating(self).map_err(|error| {
            Error::new(Operation::Populate, "pages in the background: there is no thread for it").os(error)
        })?;
        // An arena is opened once.
        let _ = self.inner.background.set(worker);
        Ok(())
    }

    /// Ends [`Populate::Background`](super::Populate::Background), after the step that it is at (2 MiB, or a page).
    /// Pages that are not there yet are populated when they are claimed. Nothing for other arenas.
    pub fn cancel_populating(&self) {
        if let Some(worker) = self.inner.background.get() {
            worker.stop.store(true, Relaxed);
        }
    }

    /// Populates the first few free pages that are not populated yet.
    fn populate_ahead(&self) -> Ahead {
        let most = (STEP_BYTES / self.page_size().bytes()).max(1);
        let Some(pages) = self.inner.pages.begin_populating(most) else {
            let all = self.inner.pages.is_all_populated() || !self.inner.mapping.is_here();
            return if all { Ahead::Done } else { Ahead::Later };
        };
        let held = Promised { arena: self, pages: Some(pages) };
        if held.populate() { Ahead::More } else { Ahead::Failed }
    }
}

enum Ahead {
    More,
    /// Claims have taken all that is left, or wait for it: they populate it.
    Later,
    Failed,
    Done,
}

/// Pages in the worker's hands; go back on every way out.
struct Promised<'a> {
    arena: &'a Arena,
    pages: Option<std::ops::Range<usize>>,
}

impl Promised<'_> {
    fn populate(&self) -> bool {
        self.pages.as_ref().is_some_and(|pages| self.arena.populate_pages(pages.clone()))
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            self.arena.inner.pages.end_populating(pages);
        }
    }
}

fn populate_until(arena: &Weak<Inner>, stop: &AtomicBool) {
    let mut nap = NAP;
    while !stop.load(Relaxed) {
        // Between steps nothing is kept alive: the last handle that goes takes the arena with it.
        let Some(inner) = arena.upgrade() else { return };
        let step = Arena { inner }.populate_ahead();
        nap = match step {
            Ahead::Done => return,
            Ahead::More => {
                nap = NAP;
                continue;
            }
            Ahead::Later => (nap * 2).min(LONGEST_NAP),
            Ahead::Failed => NAP_AFTER_FAILURE,
        };
        if !stop.load(Relaxed) {
            thread::park_timeout(nap);
        }
    }
}

fn scrub_until(arena: &Arena, stop: &AtomicBool) {
    let idle = arena.inner.idlers.enroll();
    let mut nap = NAP;
    while !stop.load(Relaxed) {
        idle.settle(stop);
        if arena.scrub(STEP_BYTES, &mut UntilStopped(stop)) > 0 {
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
            if thread.thread().id() == thread::current().id() {
                // It held the last handle of the arena that it works for, and is about to end.
                return;
            }
            if let Some(arena) = self.arena.upgrade() {
                arena.idlers.lift();
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
