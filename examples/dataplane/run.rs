//! One run, in a process of its own: both loops on their CPUs, and what was measured.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use hugearena::PageSize;

use crate::clearing::{Clearing, Way};
use crate::gaps::Gaps;
use crate::lane::{self, Back, Background, For, Front};
use crate::malloc;
use crate::measure::Readings;

/// How long packets are counted.
const TIME: Duration = Duration::from_millis(500);

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Packets a second, on the pool or on libc malloc.
    Pool,
    Malloc,
    /// Gaps, on the pool.
    Gaps(Way),
}

impl Job {
    /// As an argument.
    pub fn name(self) -> String {
        match self {
            Job::Pool => "pool".into(),
            Job::Malloc => "malloc".into(),
            Job::Gaps(Way::Paced) => "paced".into(),
            Job::Gaps(Way::Memset) => "memset".into(),
            Job::Gaps(Way::Nothing { turns }) => turns.to_string(),
        }
    }

    pub fn parse(name: &str) -> Option<Job> {
        Some(match name {
            "pool" => Job::Pool,
            "malloc" => Job::Malloc,
            "paced" => Job::Gaps(Way::Paced),
            "memset" => Job::Gaps(Way::Memset),
            turns => Job::Gaps(Way::Nothing { turns: turns.parse().ok()? }),
        })
    }

    pub fn run(self) -> Result<Readings, Box<dyn std::error::Error>> {
        let mut readings = Readings::default();
        match self {
            Job::Malloc => {
                let (front, back) = malloc::malloc()?;
                both(front, back, &mut For::new(TIME), &mut readings);
            }
            Job::Pool => {
                let (pool, front, back) = lane::pool(PageSize::HUGE_2M)?;
                readings.set("pages", pool.arena().obtained());
                both(front, back, &mut For::new(TIME), &mut readings);
                readings.set("lost", pool.stats().in_use);
            }
            Job::Gaps(way) => {
                let (_pool, front, back) = lane::pool(PageSize::HUGE_2M)?;
                let mut clearing = Clearing::new(way, PageSize::HUGE_2M)?;
                readings.set("pages", clearing.arena().obtained());
                both(front, back, &mut clearing, &mut readings);
                readings.set("took", clearing.took().unwrap_or_default().as_nanos());
                readings.set("budget", clearing.budget().as_nanos());
            }
        }
        Ok(readings)
    }
}

/// Runs both loops until the background is done.
fn both<F: Front, B: Back>(front: F, back: B, background: &mut impl Background, readings: &mut Readings) {
    const UNKNOWN: u64 = u64::MAX;
    let cpus = two_cpus();
    let total = AtomicU64::new(UNKNOWN);
    let faults = page_faults();
    let start = Instant::now();
    let (received, gaps, bad) = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(cpus, 1);
            lane::work(back, || Some(total.load(Acquire)).filter(|total| *total != UNKNOWN))
        });
        let receiver = scope.spawn(|| {
            pin(cpus, 0);
            let (received, gaps) = lane::receive(front, background);
            total.store(received, Release);
            (received, gaps)
        });
        let (received, gaps): (u64, Gaps) = receiver.join().expect("does not panic");
        (received, gaps, worker.join().expect("does not panic"))
    });
    readings.set("rate", received as f64 / start.elapsed().as_secs_f64());
    readings.set("packets", received);
    readings.set("bad", bad);
    readings.set("faults", page_faults() - faults);
    readings.set("pinned", cpus.is_some());
    readings.set("turns", gaps.count());
    readings.set("median", gaps.quantile(0.5));
    readings.set("p99", gaps.quantile(0.99));
    readings.set("p999", gaps.quantile(0.999));
    readings.set("longest", gaps.longest());
}

/// The first two CPUs that this process may use.
fn two_cpus() -> Option<[usize; 2]> {
    // SAFETY: a set of CPUs is a plain array of bits, filled by the kernel.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        set
    };
    // SAFETY: inside the set.
    let mut cpus = (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    Some([cpus.next()?, cpus.next()?])
}

/// Keeps this thread on a CPU, if there are two.
fn pin(cpus: Option<[usize; 2]>, which: usize) {
    let Some(cpus) = cpus else { return };
    // SAFETY: as above; for this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpus[which], &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Page faults of this process until now.
fn page_faults() -> i64 {
    // SAFETY: a plain struct, filled by the kernel.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_minflt + usage.ru_majflt
    }
}
