//! What a figure depends on besides the code: printed with the figures, once.

use std::fs;

/// CPU, kernel, huge pages and load, one line each.
pub fn describe() -> String {
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).map_or("unknown", after_colon);
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let lines = [
        format!("cpu:         {model}, {cpus} usable"),
        format!("kernel:      {}", read("/proc/sys/kernel/osrelease").trim()),
        format!("huge pages:  {}", pools()),
        format!("transparent: {}", read("/sys/kernel/mm/transparent_hugepage/enabled").trim()),
        format!("load:        {}", read("/proc/loadavg").trim()),
    ];
    lines.join("\n")
}

/// Every pool of huge pages: how many pages, and how many of them are free.
fn pools() -> String {
    let Ok(directory) = fs::read_dir("/sys/kernel/mm/hugepages") else { return "none".to_owned() };
    let mut pools: Vec<String> = directory.flatten().map(|entry| pool(&entry.path().display().to_string())).collect();
    pools.sort();
    pools.join("; ")
}

fn pool(path: &str) -> String {
    let size = path.rsplit('-').next().unwrap_or_default();
    let count = |name: &str| read(&format!("{path}/{name}")).trim().to_owned();
    format!("{size} {} of {} free", count("free_hugepages"), count("nr_hugepages"))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|_| "unknown".to_owned())
}

fn after_colon(text: &str) -> &str {
    text.split_once(':').map_or("unknown", |(_, value)| value.trim())
}
