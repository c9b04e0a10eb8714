//! The table that people read.

use std::fmt::Write;

use crate::chooser::Side;
use crate::measure::Readings;
use crate::rounds::Rounds;

/// What was indexed, a line for each reading, and what to do to get more.
pub fn table(rounds: &Rounds) -> String {
    let mut text = String::new();
    let job = rounds.example(Side::Huge);
    let _ = writeln!(
        text,
        "Index of {} files of {} under {},",
        job.text("files"),
        job.text("files_total"),
        job.text("root")
    );
    let times = if job.text("repeats") == "1" { "once".to_owned() } else { format!("{} times", job.text("repeats")) };
    let _ = writeln!(text, "{} of text, indexed {times}:", mib(job.number("text")));
    let counts = ["documents", "terms", "postings"].map(|name| format!("{} {name}", grouped(job.number(name))));
    let _ = writeln!(text, "{}; {} queries.", counts.join(", "), grouped(job.number("asked")));
    let _ = writeln!(text, "Medians of {} interleaved rounds; every run gave the same answers.\n", rounds.runs.len());
    row(&mut text, ["", "libc malloc", "HugeAlloc", "gain"]);
    for line in lines(rounds) {
        row(&mut text, line.each_ref().map(String::as_str));
    }
    if !job.text("remedy").is_empty() {
        let _ = writeln!(text, "\nTo get more: {}", job.text("remedy"));
    }
    text
}

fn row(text: &mut String, [name, libc, huge, gain]: [&str; 4]) {
    let _ = writeln!(text, "{}", format!("{name:<18}{libc:>22}{huge:>26}{gain:>14}").trim_end());
}

fn lines(rounds: &Rounds) -> Vec<[String; 4]> {
    let compared = |name: &str, reading: &str, show: fn(f64) -> String| {
        let [libc, huge] = Side::BOTH.map(|side| show(rounds.summary(side, reading).median));
        [name.to_owned(), libc, huge, format!("{:.2}x", rounds.ratio(reading).median)]
    };
    let stated = |name: &str, show: fn(&Readings) -> String| {
        let [libc, huge] = Side::BOTH.map(|side| show(rounds.example(side)));
        [name.to_owned(), libc, huge, String::new()]
    };
    let mut lines = backing(rounds);
    lines.extend([
        compared("build", "build", seconds),
        compared("queries", "queries", seconds),
        compared("spawn to exit", "wall", seconds),
        compared("page faults", "page_faults", grouped),
        compared("peak memory", "peak", mib),
        stated("huge pages in use", huge_pages),
        stated("fallbacks", fallbacks),
    ]);
    lines
}

/// One line for each kind of memory that either side holds. What the kernel says was obtained, not what was asked.
fn backing(rounds: &Rounds) -> Vec<[String; 4]> {
    let [libc, huge] = Side::BOTH.map(|side| backing_of(rounds.example(side)));
    let cell = |cells: &[String], line: usize| cells.get(line).cloned().unwrap_or_default();
    let line = |line: usize| {
        let name = if line == 0 { "backing" } else { "" };
        [name.to_owned(), cell(&libc, line), cell(&huge, line), String::new()]
    };
    (0..libc.len().max(huge.len())).map(line).collect()
}

fn backing_of(run: &Readings) -> Vec<String> {
    let huge = run.number("hugetlb");
    let transparent = run.number("transparent");
    let base = (run.number("resident_peak") - transparent).max(0.0);
    let kinds = [("2 MiB pages", huge), ("transparent", transparent), ("base pages", base)];
    kinds.iter().filter(|(_, bytes)| *bytes >= 1.0).map(|(name, bytes)| format!("{name} {}", mib(*bytes))).collect()
}

/// Taken from the kernel's count.
fn huge_pages(run: &Readings) -> String {
    let pages = run.number("hugetlb") / f64::from(1 << 21);
    if pages > 0.0 { format!("{} x 2M", grouped(pages)) } else { "0".to_owned() }
}

fn fallbacks(run: &Readings) -> String {
    if run.text("allocator") == Side::Huge.value() { run.text("fallbacks").to_owned() } else { "-".to_owned() }
}

fn seconds(nanoseconds: f64) -> String {
    format!("{:.3} s", nanoseconds / 1e9)
}

fn mib(bytes: f64) -> String {
    let mib = bytes / f64::from(1 << 20);
    format!("{mib:.*} MiB", usize::from(mib < 10.0))
}

/// A count with its thousands separated.
fn grouped(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
