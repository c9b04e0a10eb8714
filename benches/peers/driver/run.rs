//! One run of one allocator: how long inside, how long from spawn to exit, and the most memory it had.

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use hugearena_peers::workloads::Workload;

use crate::configurations::{Configuration, FOREIGN_VARIABLES};

/// Time between two looks at a process's memory.
const SAMPLING: Duration = Duration::from_millis(2);

/// What one run gave.
pub struct Run {
    /// Nanoseconds that the workload says it took.
    pub inside: f64,
    /// Nanoseconds from spawn to exit.
    pub whole: f64,
    /// The most bytes at a time: resident, and huge pages taken from the pool whether touched or only reserved.
    pub peak: u64,
    pub result: u64,
    /// What the allocator has to say; empty when nothing.
    pub note: String,
}

/// A command that runs `configuration`, by itself or under another program.
pub fn command(configuration: &Configuration, wrapper: &[&str]) -> Command {
    let binary = configuration.family.binary();
    let mut command = match wrapper {
        [] => Command::new(binary),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(binary);
            command
        }
    };
    for variable in FOREIGN_VARIABLES {
        command.env_remove(variable);
    }
    command.envs(configuration.environment.iter().copied());
    command
}

pub fn run(configuration: &Configuration, workload: &Workload, operations: usize) -> Result<Run, String> {
    let failed = |what: String| format!("{} on {}: {what}", workload.name, configuration.name);
    let mut command = command(configuration, &[]);
    command.arg(workload.name).arg(operations.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let is_done = AtomicBool::new(false);
    let pid = child.id();
    let (status, whole, peak) = thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(pid, &is_done));
        // Its one line fits into the pipe.
        let status = child.wait();
        let whole = start.elapsed();
        is_done.store(true, Relaxed);
        (status, whole, sampler.join().unwrap_or(0))
    });
    let status = status.map_err(|error| failed(error.to_string()))?;
    let mut line = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut line).map_err(|error| failed(error.to_string()))?;
    }
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    let mut words = line.trim_end().splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (Some(inside), Some(result)) = (number(), number()) else {
        return Err(failed(format!("printed {line:?}")));
    };
    let note = words.next().unwrap_or_default().to_owned();
    Ok(Run { inside: inside as f64, whole: whole.as_nanos() as f64, peak, result, note })
}

/// The most memory that process `pid` had until it was done.
fn sample(pid: u32, is_done: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !is_done.load(Relaxed) {
        peak = peak.max(memory(pid).unwrap_or(0));
        thread::sleep(SAMPLING);
    }
    peak
}

fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let resident = kib(&status, "VmRSS:")?;
    let touched = kib(&status, "HugetlbPages:").unwrap_or(0);
    Some((resident << 10) + (touched << 10).max(hugetlb_bytes(&maps)))
}

fn kib(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Bytes of mappings of huge pages from the pool. Every peer maps them with reservation, so their length is what is
/// not there for others.
fn hugetlb_bytes(maps: &str) -> u64 {
    let hugetlb = maps.lines().filter(|line| line.contains("/anon_hugepage"));
    hugetlb.filter_map(|line| line.split_once(' ')).filter_map(|(range, _)| length(range)).sum()
}

fn length(range: &str) -> Option<u64> {
    let (start, end) = range.split_once('-')?;
    Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
}
