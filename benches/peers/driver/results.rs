//! All runs, and what their medians say.

use hugearena_peers::workloads::Workload;

use crate::configurations::{BARE, Configuration, Family};
use crate::run::Run;

/// Which clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The workload's own.
    Inside,
    /// From spawn to exit.
    Whole,
}

pub const CLOCKS: [Clock; 2] = [Clock::Inside, Clock::Whole];

/// The first configuration is ours, the second libc with its defaults.
pub const OURS: usize = 0;
pub const LIBC: usize = 1;

pub struct Results {
    pub workloads: Vec<&'static Workload>,
    pub configurations: Vec<Configuration>,
    /// By workload, configuration, round.
    runs: Vec<Vec<Vec<Run>>>,
    /// Runs without any allocator: workload, pages, nanoseconds by clock.
    bare: Vec<(usize, &'static str, [f64; 2])>,
}

impl Results {
    pub fn new(workloads: Vec<&'static Workload>, configurations: Vec<Configuration>) -> Results {
        let runs = workloads.iter().map(|_| configurations.iter().map(|_| Vec::new()).collect()).collect();
        Results { workloads, configurations, runs, bare: Vec::new() }
    }

    /// Adds a run; its result has to be what everybody else's is.
    pub fn add(&mut self, workload: usize, configuration: usize, run: Run) -> Result<(), String> {
        self.compare(workload, self.configurations[configuration].name, &run)?;
        self.runs[workload][configuration].push(run);
        Ok(())
    }

    /// Adds a run without any allocator, to which the same applies.
    pub fn add_bare(&mut self, workload: usize, configuration: &Configuration, run: &Run) -> Result<(), String> {
        self.compare(workload, configuration.name, run)?;
        self.bare.push((workload, configuration.name, [run.inside, run.whole]));
        Ok(())
    }

    fn compare(&self, workload: usize, who: &str, run: &Run) -> Result<(), String> {
        let known = self.runs[workload].iter().flatten().next().map_or(run.result, |first| first.result);
        if known != run.result {
            let name = self.workloads[workload].name;
            return Err(format!("{name} on {who}: the result is {}, and was {known} before", run.result));
        }
        Ok(())
    }

    pub fn index(&self, workload: &str) -> Option<usize> {
        self.workloads.iter().position(|known| known.name == workload)
    }

    pub fn rounds(&self) -> usize {
        self.runs.first().and_then(|runs| runs.first()).map_or(0, Vec::len)
    }

    /// Nanoseconds of each round.
    fn times(&self, workload: usize, configuration: usize, clock: Clock) -> impl Iterator<Item = f64> {
        self.runs[workload][configuration].iter().map(move |run| match clock {
            Clock::Inside => run.inside,
            Clock::Whole => run.whole,
        })
    }

    /// Median nanoseconds.
    pub fn time(&self, workload: usize, configuration: usize, clock: Clock) -> f64 {
        median(self.times(workload, configuration, clock))
    }

    /// Median bytes at the peak.
    pub fn peak(&self, workload: usize, configuration: usize) -> f64 {
        median(self.runs[workload][configuration].iter().map(|run| run.peak as f64))
    }

    /// How many times as fast as `other` we are: the median over the rounds of its time by ours.
    pub fn speed(&self, workload: usize, other: usize, clock: Clock) -> f64 {
        let ours = self.times(workload, OURS, clock);
        median(self.times(workload, other, clock).zip(ours).map(|(theirs, ours)| theirs / ours))
    }

    /// Median nanoseconds without any allocator, by pages.
    pub fn bare(&self, workload: usize, clock: Clock) -> Vec<(&'static str, f64)> {
        let times = |name: &str| {
            let runs = self.bare.iter().filter(move |(which, pages, _)| *which == workload && *pages == name);
            median(runs.map(|(_, _, times)| times[clock as usize]))
        };
        let all = BARE.iter().map(|bare| (bare.name, times(bare.name)));
        all.filter(|(_, time)| time.is_finite()).collect()
    }

    /// All but ours.
    pub fn peers(&self) -> std::ops::Range<usize> {
        1..self.configurations.len()
    }

    /// The fastest peer of a workload.
    pub fn best(&self, workload: usize, clock: Clock) -> usize {
        let time = |peer: &usize| self.time(workload, *peer, clock);
        self.peers().min_by(|one, other| time(one).total_cmp(&time(other))).unwrap_or(LIBC)
    }

    /// The peer that has least memory at its peak, of those that are known for it.
    pub fn leanest(&self, workload: usize) -> Option<usize> {
        let is_wanted = |peer: &usize| {
            matches!(self.configurations[*peer].family, Family::Mimalloc | Family::Jemalloc | Family::Snmalloc)
        };
        let peak = |peer: &usize| self.peak(workload, *peer);
        self.peers().filter(is_wanted).min_by(|one, other| peak(one).total_cmp(&peak(other)))
    }

    /// Geometric mean over the workloads of how many times as fast as `other` we are.
    pub fn mean_speed(&self, other: usize, clock: Clock) -> f64 {
        let logs = (0..self.workloads.len()).map(|workload| self.speed(workload, other, clock).ln());
        (logs.sum::<f64>() / self.workloads.len() as f64).exp()
    }

    /// What allocators had to say, and how often.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (workload, runs) in self.workloads.iter().zip(&self.runs) {
            for (configuration, runs) in self.configurations.iter().zip(runs) {
                let told: Vec<_> = runs.iter().filter(|run| !run.note.is_empty()).collect();
                if let Some(first) = told.first() {
                    let (count, all) = (told.len(), runs.len());
                    notes.push(format!(
                        "{} on {}, {count} of {all} runs: {}",
                        workload.name, configuration.name, first.note
                    ));
                }
            }
        }
        notes
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}
