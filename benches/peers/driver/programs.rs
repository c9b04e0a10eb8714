//! Figures about programs that know nothing of any of this, which a script runs on the preload library.

use std::process::{Command, Stdio};

use crate::figures::Figure;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs.sh");

/// Ratios that the script prints, by how many times as fast we have to be.
const WANTED: [(&str, &str, f64); 2] = [
    ("dd-10M-libc", "dd of 10 MiB blocks: 1.20 x the speed on libc", 1.2),
    ("dd-10M-hugetlb2", "dd of 10 MiB blocks: 1.00 x glibc.malloc.hugetlb=2", 1.0),
];
const REDIS: &str = "redis-benchmark: 1.00 x the best of";

/// Runs the script, which installs the programs, and judges what it prints; a figure that it does not print is not met.
pub fn judge() -> Vec<Figure> {
    let output = Command::new(SCRIPT).arg("--figures").stderr(Stdio::inherit()).output();
    let text = output.map_or_else(|error| format!("{SCRIPT}: {error}"), |o| String::from_utf8_lossy(&o.stdout).into());
    let ratios: Vec<(&str, f64)> = text.lines().filter_map(figure).collect();
    let mut figures: Vec<Figure> = WANTED
        .iter()
        .map(|(name, what, wanted)| {
            let ratio = ratios.iter().find(|(known, _)| known == name).map(|(_, ratio)| *ratio);
            Figure::of_ratio(what, ratio, *wanted)
        })
        .collect();
    let redis = ratios.iter().filter_map(|(name, ratio)| Some((name.strip_prefix("redis-")?, *ratio)));
    // Its own is the jemalloc that it is linked with.
    let redis: Vec<_> = redis.collect();
    let least = redis.iter().map(|(_, ratio)| *ratio).min_by(f64::total_cmp);
    let list: Vec<_> = redis.iter().map(|(name, ratio)| format!("{name} {ratio:.2}")).collect();
    figures.push(Figure::of_ratio(&format!("{REDIS} {}", list.join(", ")), least, 1.0));
    figures
}

/// `figure NAME RATIO`.
fn figure(line: &str) -> Option<(&str, f64)> {
    let (name, ratio) = line.strip_prefix("figure ")?.split_once(' ')?;
    Some((name, ratio.parse().ok()?))
}
