//! Populating in steps and by several threads: an even split by address, progress, a stop, the first error.
//!
//! What a step does is the caller's, so that who does which part is safe code and can be tested without memory.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, Scope, ScopedJoinHandle};

use parking_lot::{Condvar, Mutex};

use crate::error::Errno;
use crate::sys;
use crate::sys::numa::{CpuSet, run_on};

/// Bytes between two looks at the stop flag, in whole pages: 3 to 8 ms of clearing. Each step is a system call that
/// holds the lock of the address space for reading, so other threads' mmap waits for one step and not for all.
pub(crate) const STEP_BYTES: usize = 32 << 20;

/// Bytes for which another worker is started unasked: 3 to 8 ms of clearing, against 0.1 ms for a thread's start
/// and end.
const BYTES_PER_WORKER: usize = 32 << 20;

/// Told after steps how many bytes are there; can stop it all.
pub(crate) type Watch<'a> = dyn Fn(usize) -> ControlFlow<()> + 'a;

/// What one step does to a range of bytes.
pub(crate) type Step<'a> = dyn Fn(Range<usize>) -> Result<(), Errno> + Sync + 'a;

/// Who populates, and who is told. The calling thread works only where it is alone; it is the one that is told.
#[derive(Clone, Copy)]
pub(crate) struct Crew<'a> {
    pub(crate) workers: usize,
    /// Where the workers run; anywhere without it.
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) watch: Option<&'a Watch<'a>>,
}

/// How many workers `len` bytes in pages of `page_bytes` get: as many as are wanted, or one for each of `cpus` CPUs as
/// far as that pays; never more than there are pages.
pub(crate) fn workers(wanted: Option<usize>, cpus: usize, len: usize, page_bytes: usize) -> usize {
    let most = wanted.unwrap_or_else(|| cpus.min(len / BYTES_PER_WORKER));
    most.min(len / page_bytes).max(1)
}

/// Does all of `len` bytes in whole pages. `ECANCELED` when the watch said so; else the error of the first step that
/// failed. The other workers then stop after the step they are at; what is populated stays so.
pub(crate) fn run(len: usize, page_bytes: usize, crew: &Crew<'_>, step: &Step<'_>) -> Result<(), Errno> {
    if crew.workers <= 1 {
        return alone(len, page_bytes, crew.watch, step);
    }
    let shared = Shared::default();
    let work = Work { len, page_bytes, cpus: crew.cpus, step, shared: &shared };
    let started = thread::scope(|scope| {
        // Without the guard a watch that panics would leave workers behind the barrier for ever.
        let _stop = StopWhenDropped(&shared);
        let threads: Vec<_> = (0..crew.workers).map_while(|index| work.start(scope, index)).collect();
        shared.open_barrier(threads.len());
        shared.watch_over(crew.watch);
        let started = threads.len();
        // The end of the scope waits for their work only, and would leave threads behind that are ending.
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        started
    });
    match started {
        0 => alone(len, page_bytes, crew.watch, step),
        _ => shared.state.into_inner().failure.map_or(Ok(()), Err),
    }
}

fn alone(len: usize, page_bytes: usize, watch: Option<&Watch<'_>>, step: &Step<'_>) -> Result<(), Errno> {
    // Nobody can stop it, so nothing is gained by steps.
    let Some(watch) = watch else { return step(0..len) };
    for range in steps(0..len, page_bytes) {
        let done = range.end;
        step(range)?;
        if watch(done).is_break() {
            return Err(sys::ECANCELED);
        }
    }
    Ok(())
}

/// Cuts a range that starts at a page into steps.
fn steps(range: Range<usize>, page_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = STEP_BYTES.next_multiple_of(page_bytes);
    range.clone().step_by(step).map(move |start| start..range.end.min(start + step))
}

/// The part of worker `index` of `workers`: whole pages, sizes that differ by one page at most.
fn part(len: usize, page_bytes: usize, index: usize, workers: usize) -> Range<usize> {
    let pages = len / page_bytes;
    let (each, rest) = (pages / workers, pages % workers);
    let first = |index: usize| (index * each + index.min(rest)) * page_bytes;
    first(index)..first(index + 1)
}

/// What a worker needs to know.
#[derive(Clone, Copy)]
struct Work<'a> {
    len: usize,
    page_bytes: usize,
    cpus: Option<CpuSet>,
    step: &'a Step<'a>,
    shared: &'a Shared,
}

impl<'a> Work<'a> {
    /// `None` when the system gives no thread: those that it gave share the work.
    fn start<'scope>(self, scope: &'scope Scope<'scope, 'a>, index: usize) -> Option<ScopedJoinHandle<'scope, ()>>
    where
        'a: 'scope,
    {
        let named = thread::Builder::new().name("hugearena-fill".into());
        named.spawn_scoped(scope, move || self.work(index)).ok()
    }

    fn work(self, index: usize) {
        if let Some(cpus) = &self.cpus {
            // A refusal costs time, not correctness: the policy says where the pages come from.
            let _ = run_on(cpus);
        }
        let workers = self.shared.wait_at_barrier();
        let _leave = LeaveWhenDropped(self.shared);
        if workers == 0 {
            return;
        }
        for range in steps(part(self.len, self.page_bytes, index, workers), self.page_bytes) {
            if self.shared.stop.load(Relaxed) {
                return;
            }
            let bytes = range.len();
            match (self.step)(range) {
                Ok(()) => self.shared.add(bytes),
                Err(errno) => return self.shared.fail(errno),
            }
        }
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many threads there are, once all are started: creating their stacks would fight with those who populate
    /// for the lock of the address space.
    workers: Option<usize>,
    running: usize,
    done_bytes: usize,
    failure: Option<Errno>,
}

impl Shared {
    fn open_barrier(&self, workers: usize) {
        let mut state = self.state.lock();
        state.workers = Some(workers);
        state.running = workers;
        self.changed.notify_all();
    }

    /// How many workers there are; 0 when there is nothing to do any more.
    fn wait_at_barrier(&self) -> usize {
        let mut state = self.state.lock();
        loop {
            match state.workers {
                Some(workers) => return workers,
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn add(&self, bytes: usize) {
        self.state.lock().done_bytes += bytes;
        self.changed.notify_all();
    }

    fn fail(&self, errno: Errno) {
        self.stop.store(true, Relaxed);
        self.state.lock().failure.get_or_insert(errno);
    }

    /// Returns when no worker is left.
    fn watch_over(&self, watch: Option<&Watch<'_>>) {
        let mut told = 0;
        loop {
            let mut state = self.state.lock();
            while state.done_bytes == told && state.running > 0 {
                self.changed.wait(&mut state);
            }
            let (done, running, failed) = (state.done_bytes, state.running, state.failure.is_some());
            drop(state);
            if done != told && !failed && watch.is_some_and(|watch| watch(done).is_break()) {
                self.fail(sys::ECANCELED);
            }
            told = done;
            if running == 0 {
                return;
            }
        }
    }
}

/// For the calling thread: lets nobody wait or work on when it unwinds.
struct StopWhenDropped<'a>(&'a Shared);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
        self.0.state.lock().workers.get_or_insert(0);
        self.0.changed.notify_all();
    }
}

/// For a worker: the calling thread waits for all of them, also for one that panics.
struct LeaveWhenDropped<'a>(&'a Shared);

impl Drop for LeaveWhenDropped<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running = state.running.saturating_sub(1);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    const PAGE: usize = 2 << 20;
    /// What a step takes that others are to be stopped between: so long that to the end of all they would take seconds,
    /// in which every thread gets to run.
    const LONG: std::time::Duration = std::time::Duration::from_millis(200);

    fn crew<'a>(workers: usize, watch: Option<&'a Watch<'a>>) -> Crew<'a> {
        Crew { workers, cpus: None, watch }
    }

    /// The ranges that were done, in order of address.
    fn ranges(len: usize, page: usize, crew: &Crew<'_>) -> Vec<Range<usize>> {
        let seen = Mutex::new(Vec::new());
        let step = |range| {
            seen.lock().push(range);
            Ok(())
        };
        run(len, page, crew, &step).unwrap();
        let mut seen = seen.into_inner();
        seen.sort_by_key(|range| range.start);
        seen
    }

    #[test]
    fn workers_are_started_where_they_pay() {
        let by_default = |len| workers(None, 4, len, PAGE);
        assert_eq!([PAGE, 63 << 20, 64 << 20, 96 << 20, 1 << 40].map(by_default), [1, 1, 2, 3, 4]);
        assert_eq!(workers(None, 64, 2 << 30, 1 << 30), 2, "a page at least for each");
        assert_eq!(workers(Some(3), 1, 16 * PAGE, PAGE), 3, "as asked");
        assert_eq!(workers(Some(0), 4, 16 * PAGE, PAGE), 1);
        assert_eq!(workers(Some(9), 4, 2 * PAGE, PAGE), 2);
    }

    #[test]
    fn one_thread_without_a_watch_makes_one_call() {
        assert_eq!(ranges(99 * PAGE, PAGE, &crew(1, None)), vec![0..99 * PAGE]);
    }

    #[test]
    fn progress_rises_to_the_end() {
        for workers in [1, 3] {
            let told = Mutex::new(Vec::new());
            let watch = |done| {
                told.lock().push(done);
                ControlFlow::Continue(())
            };
            ranges(200 * PAGE, PAGE, &crew(workers, Some(&watch)));
            let told = told.into_inner();
            assert!(told.is_sorted_by(|a, b| a < b) && told.last() == Some(&(200 * PAGE)), "{told:?}");
        }
    }

    #[test]
    fn a_break_stops_everybody() {
        for workers in [1, 4] {
            let (done, watch) = (AtomicUsize::new(0), |_| ControlFlow::Break(()));
            let step = |range: Range<usize>| {
                done.fetch_add(range.len(), Relaxed);
                thread::sleep(LONG);
                Ok(())
            };
            let result = run(4096 * PAGE, PAGE, &crew(workers, Some(&watch)), &step);
            assert_eq!(result, Err(sys::ECANCELED));
            assert!(done.into_inner() < 4096 * PAGE, "{workers} workers went on to the end");
        }
    }

    #[test]
    fn a_break_at_the_end_counts() {
        let watch = |done| if done == 64 * PAGE { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        for workers in [1, 2] {
            assert_eq!(run(64 * PAGE, PAGE, &crew(workers, Some(&watch)), &|_| Ok(())), Err(sys::ECANCELED));
        }
    }

    #[test]
    fn the_first_error_is_told_and_stops_everybody() {
        for workers in [1, 4] {
            let after = AtomicUsize::new(0);
            let step = |range: Range<usize>| {
                if range.start == 0 {
                    return Err(sys::EFAULT);
                }
                after.fetch_add(range.len(), Relaxed);
                thread::sleep(LONG);
                Ok(())
            };
            assert_eq!(run(4096 * PAGE, PAGE, &crew(workers, None), &step), Err(sys::EFAULT));
            assert!(after.into_inner() < 2048 * PAGE, "{workers} workers went on");
        }
    }

    #[test]
    fn a_panic_of_the_watch_or_of_a_step_ends_the_others() {
        let panics = |watch: Option<&Watch<'_>>, step: &Step<'_>| {
            catch_unwind(AssertUnwindSafe(|| run(256 * PAGE, PAGE, &crew(3, watch), step))).is_err()
        };
        assert!(panics(Some(&|_| panic!("of the watch")), &|_| Ok(())));
        assert!(panics(None, &|range| if range.start == 0 { panic!("of a step") } else { Ok(()) }));
    }

    proptest! {
        #[test]
        fn every_page_is_done_once_in_even_parts(pages in 1usize..600, crew_size in 1usize..9, log2 in 12u32..31) {
            let page = 1 << log2;
            let done = ranges(pages * page, page, &crew(crew_size.min(pages), None));
            let mut next = 0;
            for range in done {
                prop_assert_eq!(range.start, next);
                prop_assert!(range.len() % page == 0 && !range.is_empty());
                prop_assert!(crew_size.min(pages) == 1 || range.len() <= STEP_BYTES.max(page));
                next = range.end;
            }
            prop_assert_eq!(next, pages * page);
            let sizes: Vec<_> = (0..crew_size).map(|index| part(pages * page, page, index, crew_size).len()).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= page);
        }
    }
}
