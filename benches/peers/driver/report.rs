//! The table on the screen, and the file with every number.

use std::fmt::Write as _;

use crate::instructions::{self, Row};
use crate::results::{Clock, OURS, Results};

const MIB: f64 = (1 << 20) as f64;

/// Three tables: time inside, time from spawn to exit, memory.
pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    for (clock, title) in [(Clock::Inside, "in process, ms"), (Clock::Whole, "spawn to exit, ms")] {
        header(&mut text, results, title, "of best peer");
        for at in 0..results.workloads.len() {
            row(&mut text, results, at, |configuration| results.time(at, configuration, clock) / 1e6);
            let best = results.best(at, clock);
            let _ = writeln!(text, " {:>5.2} {}", results.speed(at, best, clock), results.configurations[best].name);
        }
        let _ = write!(text, "{:12}", "mean speed");
        for configuration in 0..results.configurations.len() {
            // Everybody's against libc's default.
            let ours = results.mean_speed(crate::results::LIBC, clock);
            let theirs = if configuration == OURS { 1.0 } else { results.mean_speed(configuration, clock) };
            let _ = write!(text, "{:>14.2}", ours / theirs);
        }
        text.push_str("  x libc\n");
    }
    header(&mut text, results, "peak memory, MiB", "of leanest peer");
    for at in 0..results.workloads.len() {
        row(&mut text, results, at, |configuration| results.peak(at, configuration) / MIB);
        if let Some(leanest) = results.leanest(at) {
            let ratio = results.peak(at, OURS) / results.peak(at, leanest);
            let _ = write!(text, " {ratio:>5.2} {}", results.configurations[leanest].name);
        }
        text.push('\n');
    }
    text
}

fn header(text: &mut String, results: &Results, title: &str, last: &str) {
    let _ = write!(text, "\n{title}; medians of {} rounds\n{:12}", results.rounds(), "");
    results.configurations.iter().for_each(|configuration| {
        let _ = write!(text, "{:>14}", configuration.name);
    });
    let _ = writeln!(text, "  {last}");
}

fn row(text: &mut String, results: &Results, workload: usize, value: impl Fn(usize) -> f64) {
    let _ = write!(text, "{:12}", results.workloads[workload].name);
    for configuration in 0..results.configurations.len() {
        let _ = write!(text, "{:>14.1}", value(configuration));
    }
}

/// Instructions a pair.
pub fn instruction_table(rows: &[Row]) -> String {
    let mut text = format!("\ninstructions a pair (callgrind)\n{:14}", "");
    instructions::WORKLOADS.iter().for_each(|name| {
        let _ = write!(text, "{name:>10}");
    });
    for row in rows {
        let _ = write!(text, "\n{:14}", row.configuration);
        for count in &row.counts {
            let _ = match count {
                Ok(count) => write!(text, "{count:>10.1}"),
                Err(_) => write!(text, "{:>10}", "-"),
            };
        }
        if let Some(Err(reason)) = row.counts.iter().find(|count| count.is_err()) {
            let _ = write!(text, "  {reason}");
        }
    }
    text.push('\n');
    text
}

/// A line for each workload and configuration, after the machine's facts as comments.
pub fn csv(results: &Results, facts: &[String]) -> String {
    let mut csv: String = facts.iter().map(|fact| format!("# {fact}\n")).collect();
    csv.push_str("workload,allocator,inside_ns,whole_ns,peak_bytes,speed_inside,speed_whole,rounds\n");
    for (at, workload) in results.workloads.iter().enumerate() {
        for (peer, configuration) in results.configurations.iter().enumerate() {
            let [inside, whole] = [Clock::Inside, Clock::Whole].map(|clock| results.time(at, peer, clock));
            let speeds = [Clock::Inside, Clock::Whole].map(|clock| results.speed(at, peer, clock));
            let _ = writeln!(
                csv,
                "{},{},{inside:.0},{whole:.0},{:.0},{:.3},{:.3},{}",
                workload.name,
                configuration.name,
                results.peak(at, peer),
                speeds[0],
                speeds[1],
                results.rounds()
            );
        }
    }
    csv
}
