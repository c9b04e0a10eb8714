//! From facts to findings: a pure function, so that every machine can be tried in a test.

use std::fmt;

use super::Facts;
use crate::error::{Limit, LimitKind};
use crate::page_size::PageSize;
use crate::supply::Pool;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Weight {
    /// The pages asked about cannot be had.
    Binds,
    /// They can be had now, and may not be when they are asked for, or not by every way of asking.
    Warning,
    /// Good to know.
    Note,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Weight::Binds => "binds",
            Weight::Warning => "warning",
            Weight::Note => "note",
        })
    }
}

/// One thing that was found out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub weight: Weight,
    /// What is the case.
    pub what: String,
    /// From which figures, in which file; or what follows from it.
    pub why: String,
    /// What to run or to do about it, if anything should be done.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(weight: Weight, what: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding { weight, what: what.into(), why: why.into(), remedy: None }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { weight, what, why, remedy } = self;
        write!(f, "{weight}: {what}\n  why: {why}")?;
        if let Some(remedy) = remedy {
            write!(f, "\n  do:  {remedy}")?;
        }
        Ok(())
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The page size asked about.
    pub page_size: PageSize,
    /// Pages asked about.
    pub needed_pages: u64,
    /// Pages that this process may have now: the least of all limits.
    pub available_pages: u64,
    /// The limit that allows least, whether or not that is enough; `None` where nothing could be read.
    pub tightest: Option<Limit>,
    /// The heaviest first; of those that bind, the tightest first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether every limit allows the pages asked about.
    #[must_use]
    pub fn can_be_had(&self) -> bool {
        self.available_pages >= self.needed_pages
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { page_size, needed_pages, available_pages, .. } = self;
        let answer = if self.can_be_had() { "yes" } else { "NO" };
        write!(f, "{answer}: {needed_pages} of {page_size} asked, {available_pages} to be had")?;
        if let Some(limit) = &self.tightest {
            write!(f, ", limited by {}", limit.kind)?;
        }
        if let Some(limit) = self.tightest.as_ref().filter(|limit| limit.source != limit.kind.to_string()) {
            write!(f, " ({})", limit.source)?;
        }
        self.findings.iter().try_for_each(|finding| write!(f, "\n{finding}"))
    }
}

/// Whether the pages can be had, which limit binds, and what else there is to say.
#[must_use]
pub fn judge(facts: &Facts) -> Report {
    let page = facts.page_size.bytes() as u64;
    let mut limits: Vec<&Limit> = facts.limits.iter().collect();
    limits.sort_by_key(|limit| limit.available_bytes);
    let binding = limits.iter().filter(|limit| limit.available_bytes < facts.needed_bytes);
    let mut findings: Vec<Finding> = binding.map(|limit| binds(limit, page)).collect();
    let others = [short_memory, overcommitted, promised, locked_memory, transparent];
    findings.extend(others.iter().filter_map(|look| look(facts)));
    findings.extend(refusals(facts).chain(mounts(facts)).chain(nodes(facts)));
    findings.sort_by_key(|finding| finding.weight);
    Report {
        page_size: facts.page_size,
        needed_pages: facts.needed_bytes.div_ceil(page),
        available_pages: limits.first().map_or(0, |limit| limit.available_bytes / page),
        tightest: limits.first().copied().cloned(),
        findings,
    }
}

fn binds(limit: &Limit, page: u64) -> Finding {
    let (available, needed) = (limit.available_bytes / page, limit.needed_bytes.div_ceil(page));
    let what = match limit.kind {
        LimitKind::PageSizeMissing => "this kernel has no pages of that size".into(),
        LimitKind::MountMissing => "there is no hugetlbfs with pages of that size there".into(),
        LimitKind::Permission => "this process is not allowed to make files of huge pages there".into(),
        kind => format!("{kind} allows {available} of {needed} pages"),
    };
    let why = format!("{}: {} bytes available, {} needed", limit.source, limit.available_bytes, limit.needed_bytes);
    Finding::new(Weight::Binds, what, why).remedy(&limit.remedy)
}

/// Pages that the pool lacks for what is asked, overcommit apart.
fn lacking(facts: &Facts) -> Option<(&Pool, u64)> {
    let pool = facts.supply.pool(facts.page_size)?;
    let needed = facts.needed_bytes.div_ceil(facts.page_size.bytes() as u64);
    needed.checked_sub(pool.unreserved_pages()).filter(|&pages| pages > 0).map(|pages| (pool, pages))
}

/// The remedy for a short pool would fail.
fn short_memory(facts: &Facts) -> Option<Finding> {
    let (_, pages) = lacking(facts)?;
    let available = facts.memory_available_bytes?;
    let bytes = pages.saturating_mul(facts.page_size.bytes() as u64);
    (bytes > available).then(|| {
        let what = format!("the pool lacks {pages} pages, more than ordinary memory can give");
        let why = format!("/proc/meminfo, MemAvailable: {available} bytes, {bytes} needed");
        Finding::new(Weight::Warning, what, why).remedy("ask for less, stop something, or add memory")
    })
}

fn overcommitted(facts: &Facts) -> Option<Finding> {
    let (pool, pages) = lacking(facts)?;
    (pool.available_pages() >= pool.unreserved_pages() + pages).then(|| {
        let what = format!("{pages} of the pages would be taken from ordinary memory when they are asked for");
        let why = "nr_overcommit_hugepages allows it; it fails where memory is fragmented";
        let size = facts.page_size;
        Finding::new(Weight::Warning, what, why).remedy(format!("hugearena reserve {} --page {size}", need(facts)))
    })
}

/// As `reserve` reads it.
fn need(facts: &Facts) -> String {
    let bytes = facts.needed_bytes;
    if bytes.is_multiple_of(1 << 30) { format!("{}G", bytes >> 30) } else { format!("{}K", bytes >> 10) }
}

fn promised(facts: &Facts) -> Option<Finding> {
    let pool = facts.supply.pool(facts.page_size).filter(|pool| pool.reserved > 0)?;
    let what =
        format!("{} of {} free pages are promised to mappings that have not touched them", pool.reserved, pool.free);
    Some(Finding::new(Weight::Note, what, "resv_hugepages: they cannot be had").remedy("hugearena holders"))
}

fn locked_memory(facts: &Facts) -> Option<Finding> {
    let limit = facts.supply.locked_memory.filter(|&limit| limit < facts.needed_bytes)?;
    let what = "RLIMIT_MEMLOCK is below what is asked";
    let why = format!("{limit} bytes; huge pages are exempt, registering them with io_uring or a device is not");
    Some(Finding::new(Weight::Note, what, why).remedy(format!("ulimit -l {}", facts.needed_bytes.div_ceil(1024))))
}

fn transparent(facts: &Facts) -> Option<Finding> {
    let off = !facts.supply.transparent_huge.anonymous.is_some_and(|mode| mode.follows_advice());
    off.then(|| {
        let what = "no transparent huge pages: where the pool is short, base pages stand in";
        let file = "/sys/kernel/mm/transparent_hugepage/enabled";
        Finding::new(Weight::Warning, what, file).remedy(format!("echo madvise > {file}"))
    })
}

fn refusals(facts: &Facts) -> impl Iterator<Item = Finding> {
    let limits = facts.supply.cgroup_limits.iter();
    let refused = limits.filter(|limit| limit.page_size == facts.page_size && limit.refusals > 0);
    refused.map(|limit| {
        let what = format!("a cgroup limit has refused {} times", limit.refusals);
        Finding::new(Weight::Note, what, limit.to_string())
    })
}

fn mounts(facts: &Facts) -> impl Iterator<Item = Finding> {
    let size = facts.page_size;
    let own = || facts.mounts.iter().filter(move |mount| mount.page_size == size);
    let none = own().next().is_none() && facts.supply.pool(size).is_some();
    // Of the directory that was asked about, that is a limit.
    let others = own().filter(|_| facts.directory.is_none());
    let small = others.filter_map(move |mount| {
        let room = mount.room_bytes.filter(|&room| room < facts.needed_bytes)?;
        let what = format!("files in {} can have {room} bytes more", mount.path.display());
        let why = "size= of the mount; memfds, the default, are not limited by it";
        let remedy = format!("mount -t hugetlbfs -o pagesize={size} none DIR (another: a remount changes nothing)");
        Some(Finding::new(Weight::Warning, what, why).remedy(remedy))
    });
    let missing = none.then(|| {
        let what = format!("no hugetlbfs is mounted for pages of {size}");
        let why = "only files need one, to be shared by name; memfds, the default, do not";
        Finding::new(Weight::Note, what, why).remedy(format!("mount -t hugetlbfs -o pagesize={size} none DIR"))
    });
    small.chain(missing)
}

/// With more than one node, a strict placement has its node's pages only.
fn nodes(facts: &Facts) -> impl Iterator<Item = Finding> {
    let pages = facts.needed_bytes.div_ceil(facts.page_size.bytes() as u64);
    let pools = || facts.supply.node_pools.iter().filter(|pool| pool.page_size == facts.page_size);
    let several = pools().nth(1).is_some();
    let short = pools().filter(move |pool| several && pool.free < pages);
    short.map(move |pool| {
        let what = format!("node {} has {} free pages of {pages} on its own", pool.node, pool.free);
        let why = "Placement::Strict on that node would fail; other placements take pages elsewhere";
        let remedy = format!("hugearena reserve {} --page {} --node {}", need(facts), facts.page_size, pool.node);
        Finding::new(Weight::Note, what, why).remedy(remedy)
    })
}
