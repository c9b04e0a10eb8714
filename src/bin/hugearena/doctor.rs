//! `hugearena doctor`: the library's report, and the tables that it was made from.

use std::fmt::Write;
use std::path::PathBuf;

use hugearena::PageSize;
use hugearena::doctor::{Facts, Finding, HugeMount, Report, judge};
use hugearena::error::Limit;
use hugearena::supply::{CgroupLimit, NodePool, Pool};

use crate::json::Json;
use crate::size;
use crate::{Answer, status};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The page size asked about
    #[arg(long, value_name = "2M|1G", default_value = "2M", value_parser = size::parse_page)]
    page: PageSize,
    /// How much is asked about, rounded up to whole pages [default: one page]
    #[arg(long, value_name = "SIZE", default_value = "1", hide_default_value = true, value_parser = size::parse)]
    need: u64,
    /// In files of this directory on hugetlbfs, as named arenas are: its size and its permissions count as well
    #[arg(long, value_name = "DIR")]
    huge_dir: Option<PathBuf>,
}

pub fn run(options: &Options) -> Answer {
    let facts = match &options.huge_dir {
        None => Facts::collect(options.page, options.need),
        Some(directory) => Facts::collect_in(directory, options.page, options.need),
    };
    let report = judge(&facts);
    let json = Json::Object(vec![("report", report_json(&report)), ("facts", facts_json(&facts))]);
    Answer { status: status(report.can_be_had()), text: text(&facts, &report), json }
}

fn text(facts: &Facts, report: &Report) -> String {
    let mut text = format!("{report}\n\n{}\n", facts.supply);
    for HugeMount { path, page_size, room_bytes, .. } in &facts.mounts {
        let room = room_bytes.map_or("no limit".into(), |bytes| format!("room for {}", size::print(bytes)));
        let _ = writeln!(text, "hugetlbfs: {}, pages of {page_size}, {room}", path.display());
    }
    if facts.mounts.is_empty() {
        text.push_str("hugetlbfs: not mounted\n");
    }
    text
}

fn report_json(report: &Report) -> Json {
    Json::Object(vec![
        ("can_be_had", report.can_be_had().into()),
        ("page_bytes", report.page_size.bytes().into()),
        ("needed_pages", report.needed_pages.into()),
        ("available_pages", report.available_pages.into()),
        ("tightest", report.tightest.as_ref().map(limit_json).into()),
        ("findings", Json::list(report.findings.iter().map(finding_json))),
    ])
}

fn finding_json(finding: &Finding) -> Json {
    Json::Object(vec![
        ("weight", finding.weight.to_string().into()),
        ("what", (&finding.what).into()),
        ("why", (&finding.why).into()),
        ("remedy", finding.remedy.as_ref().into()),
    ])
}

pub fn limit_json(limit: &Limit) -> Json {
    Json::Object(vec![
        ("kind", limit.kind.to_string().into()),
        ("available_bytes", limit.available_bytes.into()),
        ("source", (&limit.source).into()),
    ])
}

fn facts_json(facts: &Facts) -> Json {
    let supply = &facts.supply;
    let mode = |mode: Option<_>| Json::from(mode.map(|mode: hugearena::supply::TransparentMode| mode.to_string()));
    Json::Object(vec![
        ("pools", Json::list(supply.pools.iter().map(pool_json))),
        ("nodes", Json::list(supply.node_pools.iter().map(node_json))),
        ("cgroup_limits", Json::list(supply.cgroup_limits.iter().map(cgroup_json))),
        ("mounts", Json::list(facts.mounts.iter().map(mount_json))),
        ("limits", Json::list(facts.limits.iter().map(limit_json))),
        ("address_space_bytes", supply.address_space.into()),
        ("locked_memory_bytes", supply.locked_memory.into()),
        ("memory_available_bytes", facts.memory_available_bytes.into()),
        ("transparent_anonymous", mode(supply.transparent_huge.anonymous)),
        ("transparent_shared", mode(supply.transparent_huge.shared)),
    ])
}

fn pool_json(pool: &Pool) -> Json {
    Json::Object(vec![
        ("page_bytes", pool.page_size.bytes().into()),
        ("total_pages", pool.total.into()),
        ("free_pages", pool.free.into()),
        ("reserved_pages", pool.reserved.into()),
        ("surplus_pages", pool.surplus.into()),
        ("overcommit_pages", pool.overcommit.into()),
        ("available_pages", pool.available_pages().into()),
    ])
}

fn node_json(pool: &NodePool) -> Json {
    Json::Object(vec![
        ("node", pool.node.into()),
        ("page_bytes", pool.page_size.bytes().into()),
        ("total_pages", pool.total.into()),
        ("free_pages", pool.free.into()),
        ("surplus_pages", pool.surplus.into()),
    ])
}

fn cgroup_json(limit: &CgroupLimit) -> Json {
    Json::Object(vec![
        ("kind", limit.kind.to_string().into()),
        ("page_bytes", limit.page_size.bytes().into()),
        ("limit_bytes", limit.limit_bytes.into()),
        ("used_bytes", limit.used_bytes.into()),
        ("refusals", limit.refusals.into()),
        ("file", limit.file.display().to_string().into()),
    ])
}

fn mount_json(mount: &HugeMount) -> Json {
    Json::Object(vec![
        ("path", mount.path.display().to_string().into()),
        ("page_bytes", mount.page_size.bytes().into()),
        ("room_bytes", mount.room_bytes.into()),
    ])
}
