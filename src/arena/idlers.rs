//! Threads that run only while a CPU is idle, and hold pages. Who waits for such a page on a busy machine lends its holder
//! the right to run, as priority inheritance does: the kernel's own is for real-time threads, and for locks.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use super::A_MOMENT;
use crate::sys::process;

/// The idle threads of an arena.
#[derive(Default)]
pub(super) struct Idlers {
    threads: Mutex<Vec<Idler>>,
    /// The system does not let this process lift a thread; it is not asked again.
    is_refused: AtomicBool,
}

struct Idler {
    thread: i32,
    /// [`process::forks`] when it enrolled: a forked child has not the thread.
    forks: u64,
    is_lifted: bool,
}

impl Idlers {
    /// Puts this thread on the list, as one that runs like any other until it [settles](Enrolled::settle): a thread that was
    /// idle before it was on the list might not get to run, and nobody would lift it.
    pub(super) fn enroll(&self) -> Enrolled<'_> {
        let (thread, forks) = (process::thread_id(), process::forks());
        let idlers = self.threads.try_lock_for(A_MOMENT).map(|mut threads| {
            threads.retain(|idler| idler.forks == forks);
            threads.push(Idler { thread, forks, is_lifted: true });
            self
        });
        if idlers.is_none() {
            // In a child of fork(2) a thread of the parent may hold the list, for ever: nobody lifts this one.
            let _ = process::run_when_idle();
        }
        Enrolled { idlers, thread }
    }

    /// Lets all of them run like any other thread until they [settle](Enrolled::settle) again. Never waits.
    #[cold]
    pub(super) fn lift(&self) {
        if self.is_refused.load(Relaxed) {
            return;
        }
        let Some(mut threads) = self.threads.try_lock() else { return };
        let forks = process::forks();
        for idler in threads.iter_mut().filter(|idler| idler.forks == forks && !idler.is_lifted) {
            // A thread leaves the list, under this lock, before it ends: the number is its own.
            idler.is_lifted = process::run_as_usual(idler.thread).is_ok();
            if !idler.is_lifted {
                self.is_refused.store(true, Relaxed);
            }
        }
    }
}

/// A thread that is on the list, if it could be; off it when dropped.
pub(super) struct Enrolled<'a> {
    idlers: Option<&'a Idlers>,
    thread: i32,
}

impl Enrolled<'_> {
    /// Lets this thread run only while no other wants its CPU, if it is new here or somebody has lifted it; not if it is to
    /// `stop`. With no page in hand. Where that is refused (by seccomp) it runs like any other.
    pub(super) fn settle(&self, stop: &AtomicBool) {
        // Not under the lock: where the CPUs are busy this thread stays where it is as soon as it is idle. It looks again
        // afterwards, so that nobody's lifting is undone unseen.
        while self.take_lifted() && !stop.load(Relaxed) {
            let _ = process::run_when_idle();
        }
    }

    fn take_lifted(&self) -> bool {
        let take = |idlers: &Idlers| {
            let mut threads = idlers.threads.lock();
            let own = threads.iter_mut().find(|idler| idler.thread == self.thread);
            own.is_some_and(|idler| std::mem::take(&mut idler.is_lifted))
        };
        self.idlers.is_some_and(take)
    }
}

impl Drop for Enrolled<'_> {
    fn drop(&mut self) {
        if let Some(idlers) = self.idlers {
            idlers.threads.lock().retain(|idler| idler.thread != self.thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::arena::{Arena, Worker};
    use crate::page_size::PageSize;

    const PAGES: usize = 16_384;

    /// Whether it is idle again while pages are left to scrub; `None` where nobody may lift it.
    fn becomes_idle_again(arena: &Arena) -> Option<bool> {
        let idlers = &arena.inner.idlers;
        drop(arena.claim(PAGES));
        while arena.stats().dirty == PAGES {
            sleep(Duration::from_micros(100));
        }
        idlers.lift();
        while idlers.threads.lock()[0].is_lifted {
            sleep(Duration::from_micros(100));
        }
        let left = arena.stats().dirty;
        while arena.stats().clean < PAGES {
            sleep(Duration::from_micros(100));
        }
        (!idlers.is_refused.load(Relaxed)).then_some(left > 0)
    }

    /// The scheduler's policy for this thread: field 41 of /proc/thread-self/stat (proc(5)).
    fn policy() -> u32 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = text.rsplit_once(") ").unwrap();
        fields.split(' ').nth(41 - 3).unwrap().parse().unwrap()
    }

    fn enroll_and_settle() {
        const SCHED_IDLE: u32 = 5;
        let (idlers, usual) = (Idlers::default(), policy());
        let stopped = idlers.enroll();
        assert_eq!((policy(), idlers.threads.lock()[0].is_lifted), (usual, true));
        stopped.settle(&AtomicBool::new(true));
        assert_eq!(policy(), usual, "idle though it is to stop");
        drop(stopped);
        let idle = idlers.enroll();
        idle.settle(&AtomicBool::new(false));
        if policy() == usual {
            assert!(process::run_when_idle().is_err(), "it could be idle");
            return;
        }
        assert_eq!((policy(), idlers.threads.lock()[0].is_lifted), (SCHED_IDLE, false));
        idlers.lift();
        assert!(idlers.is_refused.load(Relaxed) || policy() != SCHED_IDLE);
    }

    #[test]
    fn a_thread_is_on_the_list_before_it_is_idle() {
        std::thread::spawn(enroll_and_settle).join().unwrap();
    }

    #[test]
    fn a_worker_that_was_lifted_does_not_do_the_rest_of_its_work_so() {
        let page = PageSize::base();
        let arena = Arena::builder().page_size(page).capacity(PAGES * page.bytes()).open().unwrap();
        let worker = Worker::start(&arena).unwrap();
        // This thread may be the one that does not get to run.
        assert!((0..20).any(|_| becomes_idle_again(&arena) != Some(false)));
        drop(worker);
    }
}
