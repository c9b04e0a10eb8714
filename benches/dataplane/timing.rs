//! Cycles, and threads that stay on their CPU.

use std::arch::x86_64::_rdtsc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The time stamp counter.
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 CPU has it.
    unsafe { _rdtsc() }
}

/// Cycles of the time stamp counter in a second, measured.
pub fn cycles_per_second() -> f64 {
    let (start, from) = (Instant::now(), cycles());
    thread::sleep(Duration::from_millis(100));
    (cycles() - from) as f64 / start.elapsed().as_secs_f64()
}

/// Keeps this thread on a CPU; without effect where there is none of that number.
pub fn pin(cpu: usize) {
    // SAFETY: a set of CPUs is a plain array of bits, for this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Runs both at the same time, on CPUs 0 and 1.
pub fn both<A: Send, B: Send>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B + Send) -> (A, B) {
    let barrier = Barrier::new(2);
    let start = |cpu| {
        pin(cpu);
        barrier.wait();
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            start(1);
            second()
        });
        let first = scope.spawn(|| {
            start(0);
            first()
        });
        (first.join().expect("does not panic"), second.join().expect("does not panic"))
    })
}

/// Runs on CPU 0.
pub fn alone<A: Send>(body: impl FnOnce() -> A + Send) -> A {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(0);
            body()
        });
        thread.join().expect("does not panic")
    })
}
