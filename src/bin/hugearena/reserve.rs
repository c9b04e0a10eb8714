//! `hugearena reserve`: the one command that changes the machine, and says what came of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hugearena::PageSize;
use hugearena::supply::Supply;

use crate::json::Json;
use crate::size;
use crate::{Answer, status};

const COMPACT: &str = "/proc/sys/vm/compact_memory";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How much is to be free afterwards, rounded up to whole pages; with --total: in the pool
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    size: u64,
    /// The page size
    #[arg(long, value_name = "2M|1G", default_value = "2M", value_parser = size::parse_page)]
    page: PageSize,
    /// The NUMA node to take the pages from [default: all nodes in turns]
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Set what the pool holds in all, free or not, also if it holds more now: how to give pages back
    #[arg(long)]
    total: bool,
    /// Also when less than a sixteenth of the memory would be left
    #[arg(long)]
    force: bool,
}

/// What the pool holds, in pages.
#[derive(Clone, Copy)]
struct Count {
    total: u64,
    /// Free and promised to nobody; on a node, where promises are not counted, free.
    free: u64,
}

pub fn run(options: &Options) -> Answer {
    let page = options.page.bytes() as u64;
    let asked = options.size.div_ceil(page);
    let Some(before) = count(options) else {
        return answer(options, asked, None, None, Some(no_pool(options)));
    };
    let target = if options.total { asked } else { before.total + asked.saturating_sub(before.free) };
    let pages = target.saturating_sub(before.total);
    if let Some(refusal) = (!options.force).then(|| leaves_too_little(options, pages)).flatten() {
        return answer(options, asked, Some(before), Some(before), Some(refusal));
    }
    let outcome = if target == before.total { Ok(false) } else { write_pool(options, target) };
    let after = count(options).unwrap_or(before);
    let reason = match outcome {
        Err(error) => Some(denied(options, &error)),
        Ok(compacted) if after.total < target => Some(too_few(options.page, &free_pages(), target, compacted)),
        Ok(_) if after.total > target => Some("the rest is in use; each page leaves the pool when it is freed".into()),
        Ok(_) => None,
    };
    answer(options, asked, Some(before), Some(after), reason)
}

fn count(options: &Options) -> Option<Count> {
    let supply = Supply::read();
    let Some(node) = options.node else {
        let pool = supply.pool(options.page)?;
        return Some(Count { total: pool.total, free: pool.unreserved_pages() });
    };
    let pool = supply.node_pools.iter().find(|pool| pool.node == node && pool.page_size == options.page)?;
    Some(Count { total: pool.total, free: pool.free })
}

fn pool_file(options: &Options) -> PathBuf {
    let root = match options.node {
        None => "/sys/kernel/mm".into(),
        Some(node) => format!("/sys/devices/system/node/node{node}"),
    };
    let kib = options.page.bytes() / 1024;
    Path::new(&root).join(format!("hugepages/hugepages-{kib}kB/nr_hugepages"))
}

/// Whether memory was compacted for it: only where the kernel did not find enough, because it stalls others.
fn write_pool(options: &Options, target: u64) -> io::Result<bool> {
    let file = pool_file(options);
    fs::write(&file, target.to_string())?;
    if count(options).is_none_or(|now| now.total >= target) {
        return Ok(false);
    }
    let compacted = fs::write(COMPACT, "1").is_ok();
    fs::write(&file, target.to_string())?;
    Ok(compacted)
}

/// A kernel that is short of memory kills processes, this machine's most important one among them.
fn leaves_too_little(options: &Options, pages: u64) -> Option<String> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    };
    let (available, least) = (bytes("MemAvailable")?, bytes("MemTotal")? / 16);
    let needed = pages.saturating_mul(options.page.bytes() as u64);
    (pages > 0 && needed.saturating_add(least) > available).then(|| {
        let mib = |bytes: u64| bytes >> 20;
        let (needed, available, least) = (mib(needed), mib(available), mib(least));
        format!(
            "nothing was changed: {needed} MiB more are needed, {available} MiB are available (MemAvailable of \
             /proc/meminfo), and less than {least} MiB would be left: ask for less, or --force"
        )
    })
}

fn no_pool(options: &Options) -> String {
    let sizes: Vec<_> = hugearena::supply::page_sizes().iter().map(PageSize::to_string).collect();
    let sizes = if sizes.is_empty() { "none".into() } else { sizes.join(", ") };
    let node = options.node.map_or(String::new(), |node| format!(" on node {node}"));
    format!("this kernel has no pages of {}{node}; page sizes: {sizes}", options.page)
}

fn denied(options: &Options, error: &io::Error) -> String {
    let file = pool_file(options);
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "only root may: try sudo",
        io::ErrorKind::ReadOnlyFilesystem => "sysfs is read-only in containers: run it on the host",
        io::ErrorKind::InvalidInput => "this kernel takes such pages at boot only",
        _ => "see the error",
    };
    format!("{}: {error}; {hint}", file.display())
}

/// Free pages by page size.
fn free_pages() -> Vec<(PageSize, u64)> {
    Supply::read().pools.iter().map(|pool| (pool.page_size, pool.free)).collect()
}

/// What the kernel does not say: it found no more contiguous memory.
fn too_few(size: PageSize, pools: &[(PageSize, u64)], target: u64, compacted: bool) -> String {
    let tried = if compacted { "also after compaction" } else { "and compaction was not allowed" };
    let mut text = format!("the kernel found no more contiguous memory, {tried}");
    if size >= PageSize::HUGE_1G {
        for (smaller, free) in pools.iter().filter(|(other, free)| *other < size && *free > 0) {
            text += &format!("; {free} free pages of {smaller} are in the way: reserve large pages first");
        }
    } else {
        text += "; what others use is not moved away: try when less is running";
    }
    text + &format!("; sure at boot only: hugepagesz={size} hugepages={target}")
}

fn answer(
    options: &Options,
    asked: u64,
    before: Option<Count>,
    after: Option<Count>,
    reason: Option<String>,
) -> Answer {
    let of = |count: Count| if options.total { count.total } else { count.free };
    let got = after.map_or(0, of);
    let is_yes = after.is_some() && if options.total { got == asked } else { got >= asked };
    let what = if options.total { "in the pool" } else { "free" };
    let size = options.page;
    let mut text = format!("asked for {asked} pages of {size} {what}, got {got}\n");
    if let (Some(before), Some(after)) = (before, after) {
        let file = pool_file(options);
        text += &format!("{}: {} before, {} now\n", file.display(), before.total, after.total);
    }
    if let Some(reason) = &reason {
        text += &format!("why: {reason}\n");
    }
    let json = Json::Object(vec![
        ("page_bytes", size.bytes().into()),
        ("node", options.node.into()),
        ("asked_pages", asked.into()),
        ("got_pages", got.into()),
        ("total_pages_before", before.map(|count| count.total).into()),
        ("total_pages_now", after.map(|count| count.total).into()),
        ("is_complete", is_yes.into()),
        ("reason", reason.into()),
    ]);
    Answer { status: status(is_yes), text, json }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Experiments: 75.
    #[test]
    fn a_shortfall_names_what_is_in_the_way() {
        let (small, large) = (PageSize::HUGE_2M, PageSize::HUGE_1G);
        let pools = [(large, 1), (small, 700)];
        let text = too_few(large, &pools, 8, true);
        assert!(text.contains("also after compaction; 700 free pages of 2M are in the way"), "{text}");
        assert!(text.ends_with("sure at boot only: hugepagesz=1G hugepages=8"), "{text}");
        let text = too_few(small, &pools, 8, false);
        assert!(text.contains("compaction was not allowed; what others use"), "{text}");
    }
}
