//! Where it was measured, and with what.

use std::fs;
use std::process::Command;

use hugearena::supply::Supply;

use crate::configurations::FAMILIES;

/// One line for each fact.
pub fn describe() -> Vec<String> {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or("unknown".into());
    let count = std::thread::available_parallelism().map_or(0, |count| count.get());
    let mut lines = vec![
        format!("cpu: {cpu}, {count} usable"),
        format!("kernel: {}", read("/proc/sys/kernel/osrelease")),
        format!("transparent huge pages: {}", read("/sys/kernel/mm/transparent_hugepage/enabled")),
        format!(
            "load: {}; memory available: {}",
            read("/proc/loadavg"),
            field("/proc/meminfo", "MemAvailable").unwrap_or_default()
        ),
    ];
    let pools = Supply::read().pools;
    lines.extend(pools.iter().map(|pool| {
        format!("pool of {}: {} pages, {} free, {} reserved", pool.page_size, pool.total, pool.free, pool.reserved)
    }));
    lines.push(format!("rustc: {}", output("rustc", "--version")));
    lines.push(format!("libc: {}", output("getconf", "GNU_LIBC_VERSION")));
    lines.push(format!("packages: {}", packages().join(", ")));
    lines
}

/// Versions of the peers, as they were built.
fn packages() -> Vec<String> {
    let lock = include_str!("../Cargo.lock");
    let version = |package: &str| {
        let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
        Some(format!("{package} {}", rest.split_once('"')?.0))
    };
    FAMILIES.iter().flat_map(|family| family.packages()).filter_map(|package| version(package)).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or("unknown".into(), |text| text.trim().to_owned())
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    output.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
