//! Instructions that a pair of `alloc` and `dealloc` retires, loop included, counted by callgrind.

use hugearena_peers::workloads;

use crate::configurations::{ALL, Configuration};
use crate::run;

/// Two lengths of the loop, whose difference leaves start and exit out.
const LENGTHS: [usize; 2] = [100_000, 300_000];

/// The workloads that are counted.
pub const WORKLOADS: [&str; 3] = ["pair-16", "batch-16", "batch-1k"];

/// Instructions a pair, for a configuration and each of [`WORKLOADS`].
pub struct Row {
    pub configuration: &'static str,
    pub counts: [Result<f64, String>; WORKLOADS.len()],
}

pub fn count(wanted: impl Fn(&Configuration) -> bool) -> Vec<Row> {
    static CONFIGURATIONS: [Configuration; ALL.len()] = ALL;
    // Settings that concern pages change no instruction.
    let first =
        CONFIGURATIONS.iter().filter(|configuration| configuration.environment.is_empty() && wanted(configuration));
    first
        .map(|configuration| Row {
            configuration: configuration.name,
            counts: WORKLOADS.map(|name| pair(configuration, name)),
        })
        .collect()
}

fn pair(configuration: &Configuration, workload: &str) -> Result<f64, String> {
    if !configuration.runs_under_valgrind {
        return Err("valgrind cannot run it".into());
    }
    assert!(workloads::named(workload).is_some(), "{workload} is a workload");
    let [few, many] = LENGTHS.map(|length| instructions(configuration, workload, length));
    Ok((many? - few?) / (LENGTHS[1] - LENGTHS[0]) as f64)
}

fn instructions(configuration: &Configuration, workload: &str, length: usize) -> Result<f64, String> {
    let mut command = run::command(configuration, &["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    let output =
        command.arg(workload).arg(length.to_string()).output().map_err(|error| format!("valgrind: {error}"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, report.lines().last().unwrap_or_default()));
    }
    let collected = report.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| "valgrind printed no count".into())
}
