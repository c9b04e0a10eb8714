//! The figures that HugeAlloc is held to, each met or not.

use std::fmt::Write as _;

use crate::instructions::{self, Row};
use crate::results::{CLOCKS, Clock, LIBC, OURS, Results};

/// A median ratio from here up counts as equal.
const PARITY: f64 = 0.97;
/// Memory that every workload may have more than a third over the leanest peer.
const SPARE_BYTES: f64 = 8.0 * (1 << 20) as f64;

/// A figure: what is wanted, what was had.
pub struct Figure {
    pub text: String,
    pub is_met: bool,
}

impl Figure {
    /// How many times as fast as `whom` something has to be, and is, if that was measured.
    pub fn of_ratio(what: &str, wanted: f64, whom: &str, ratio: Option<f64>) -> Figure {
        let had = ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.2}"));
        let text = format!("{what}: {wanted:.2} x {whom}: {had}");
        Figure { text, is_met: ratio.is_some_and(|ratio| is_met(ratio, wanted)) }
    }
}

/// Whom a workload is compared with.
enum Against {
    Libc,
    Best,
}

/// Workloads with figures of their own, as how many times as fast we have to be.
const SPEEDS: [(&str, Against, f64); 8] = [
    // Three quarters of the time.
    ("pair-16", Against::Best, 1.0 / 0.75),
    ("batch-16", Against::Best, 1.0),
    ("batch-1k", Against::Best, 1.0),
    ("cross", Against::Best, 1.0),
    ("vec-growth", Against::Libc, 1.5),
    ("zeroed", Against::Libc, 5.0),
    ("zeroed", Against::Best, 1.3),
    ("chase", Against::Best, 1.1),
];

pub fn judge(results: &Results, instructions: &[Row]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = instruction_figure(instructions).into_iter().collect();
    for (name, against, wanted) in &SPEEDS {
        if let Some(workload) = results.index(name) {
            figures.extend(CLOCKS.map(|clock| speed_figure(results, workload, against, *wanted, clock)));
        }
    }
    for clock in CLOCKS {
        figures.push(mean_figure(results, "libc", LIBC, 2.4, clock));
        let mean = |peer: &usize| results.mean_speed(*peer, clock);
        if let Some(best) = results.peers().min_by(|one, other| mean(one).total_cmp(&mean(other))) {
            figures.push(mean_figure(results, "the best single peer", best, 1.25, clock));
        }
        figures.push(worst_figure(results, &Against::Best, 0.9, clock));
        figures.push(worst_figure(results, &Against::Libc, 1.0, clock));
    }
    figures.extend(memory_figure(results));
    figures
}

fn instruction_figure(rows: &[Row]) -> Option<Figure> {
    const WANTED: f64 = 20.0;
    let text = format!("{}: instructions a pair, at most {WANTED}", instructions::WORKLOADS[0]);
    Some(match &rows.first()?.counts[0] {
        Ok(count) => Figure { text: format!("{text}: {count:.1}"), is_met: *count <= WANTED },
        Err(reason) => Figure { text: format!("{text}: {reason}"), is_met: false },
    })
}

fn peer(results: &Results, workload: usize, against: &Against, clock: Clock) -> usize {
    match against {
        Against::Libc => LIBC,
        Against::Best => results.best(workload, clock),
    }
}

/// Whether a ratio is what is wanted; where equal is wanted, parity is.
fn is_met(speed: f64, wanted: f64) -> bool {
    speed >= if wanted == 1.0 { PARITY } else { wanted }
}

fn place(clock: Clock) -> &'static str {
    match clock {
        Clock::Inside => "in process",
        Clock::Whole => "spawn to exit",
    }
}

fn speed_figure(results: &Results, workload: usize, against: &Against, wanted: f64, clock: Clock) -> Figure {
    let other = peer(results, workload, against, clock);
    let (name, speed) = (results.configurations[other].name, results.speed(workload, other, clock));
    let who = match against {
        Against::Libc => name.to_owned(),
        Against::Best => format!("the best peer ({name})"),
    };
    let what = format!("{}, {}", results.workloads[workload].name, place(clock));
    let mut figure = Figure::of_ratio(&what, wanted, &format!("the speed of {who}"), Some(speed));
    if matches!(against, Against::Best) {
        for (pages, time) in results.bare(workload, clock) {
            let _ = write!(figure.text, "; {pages}: {:.2}", results.time(workload, other, clock) / time);
        }
    }
    figure
}

fn mean_figure(results: &Results, who: &str, other: usize, wanted: f64, clock: Clock) -> Figure {
    let (name, speed) = (results.configurations[other].name, results.mean_speed(other, clock));
    let who = if who == name { who.to_owned() } else { format!("{who} ({name})") };
    Figure::of_ratio(&format!("geometric mean, {}", place(clock)), wanted, &who, Some(speed))
}

/// The workload that is slowest against libc or its best peer.
fn worst_figure(results: &Results, against: &Against, wanted: f64, clock: Clock) -> Figure {
    let speed = |workload: usize| results.speed(workload, peer(results, workload, against, clock), clock);
    let mut speeds: Vec<_> = results.workloads.iter().enumerate().map(|(at, w)| (speed(at), w.name)).collect();
    speeds.sort_by(|one, other| one.0.total_cmp(&other.0));
    let below: Vec<_> = speeds.iter().filter(|(speed, _)| !is_met(*speed, wanted)).collect();
    let who = match against {
        Against::Libc => "libc",
        Against::Best => "its best peer",
    };
    let list = if below.is_empty() { &speeds[..1] } else { &speeds[..below.len()] };
    let list: Vec<_> = list.iter().map(|(speed, name)| format!("{name} {speed:.2}")).collect();
    let text = format!("every workload, {}: {wanted:.2} x {who}; lowest: {}", place(clock), list.join(", "));
    Figure { text, is_met: below.is_empty() }
}

fn memory_figure(results: &Results) -> Option<Figure> {
    const MIB: f64 = (1 << 20) as f64;
    let mut above = Vec::new();
    let mut most = (f64::MIN, String::new());
    for (at, workload) in results.workloads.iter().enumerate() {
        let least = results.peak(at, results.leanest(at)?);
        let (ours, allowed) = (results.peak(at, OURS), 1.3 * least + SPARE_BYTES);
        let line = format!("{} {:.0} of {:.0} MiB", workload.name, ours / MIB, allowed / MIB);
        if ours > allowed {
            above.push(line.clone());
        }
        if ours / allowed > most.0 {
            most = (ours / allowed, line);
        }
    }
    let list = if above.is_empty() { most.1 } else { above.join(", ") };
    let text =
        format!("peak memory of every workload: 1.3 x the leanest of mimalloc, jemalloc, snmalloc, and 8 MiB: {list}");
    Some(Figure { text, is_met: above.is_empty() })
}
