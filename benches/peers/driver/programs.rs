//! Figures about programs that know nothing of any of this, which a script runs on the preload library.

use std::process::{Command, Stdio};

use crate::figures::Figure;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs.sh");

/// Ratios that the script prints: what they are of, how many times as fast we have to be, and as whom.
const WANTED: [(&str, &str, f64, &str); 2] = [
    ("dd-10M-libc", "dd of 10 MiB blocks", 1.2, "the speed on libc"),
    ("dd-10M-hugetlb2", "dd of 10 MiB blocks", 1.0, "glibc.malloc.hugetlb=2"),
];

/// Runs the script, which installs the programs, and judges what it prints; a figure that it does not print is not met.
pub fn judge() -> Vec<Figure> {
    let output = Command::new(SCRIPT).arg("--figures").stderr(Stdio::inherit()).output();
    let text = output.map_or_else(|error| format!("{SCRIPT}: {error}"), |o| String::from_utf8_lossy(&o.stdout).into());
    let ratios: Vec<(&str, f64)> = text.lines().filter_map(figure).collect();
    let dd = WANTED.map(|(name, what, wanted, whom)| {
        let ratio = ratios.iter().find(|(known, _)| *known == name).map(|(_, ratio)| *ratio);
        Figure::of_ratio(what, wanted, whom, ratio)
    });
    // One of them is called `own`: the jemalloc that redis is linked with.
    let redis = ratios.iter().filter_map(|(name, ratio)| Some((name.strip_prefix("redis-")?, *ratio)));
    let least = redis.clone().map(|(_, ratio)| ratio).min_by(f64::total_cmp);
    let list: Vec<_> = redis.map(|(name, ratio)| format!("{name} {ratio:.2}")).collect();
    let whom = format!("the best of {}", list.join(", "));
    dd.into_iter().chain([Figure::of_ratio("redis-benchmark", 1.0, &whom, least)]).collect()
}

/// `figure NAME RATIO`.
fn figure(line: &str) -> Option<(&str, f64)> {
    let (name, ratio) = line.strip_prefix("figure ")?.split_once(' ')?;
    Some((name, ratio.parse().ok()?))
}
