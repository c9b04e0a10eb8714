//! What happens when there is not enough, or it is not allowed: an error that names the limit, with figures and
//! a remedy, or the stated fallback. Never a signal. Every test runs in a process of its own.

#![allow(unsafe_code)]

mod support;

#[path = "faults/access.rs"]
mod access;
#[path = "faults/cgroup.rs"]
mod cgroup;
#[path = "faults/fork.rs"]
mod fork;
#[path = "faults/heap.rs"]
mod heap;
#[path = "faults/heap_edges.rs"]
mod heap_edges;
#[path = "faults/kill.rs"]
mod kill;
#[path = "faults/limits.rs"]
mod limits;
#[path = "faults/orders.rs"]
mod orders;
#[path = "faults/pool.rs"]
mod pool;
#[path = "faults/race.rs"]
mod race;
#[path = "faults/reports.rs"]
mod reports;

use hugearena::backing::BackingKind;
use hugearena::error::{Error, Limit, LimitKind, Operation};
use hugearena::{Arena, ArenaBuilder, FirstTouch, PageSize};

const KINDS: [BackingKind; 2] = [BackingKind::Memfd, BackingKind::Anonymous];
const HUGE: usize = 2 << 20;

/// An arena on pages of 2 MiB, or on stand-ins.
fn arena(pages: usize) -> ArenaBuilder {
    Arena::builder().page_size(PageSize::HUGE_2M).capacity(pages * HUGE)
}

/// The error names this limit, with the figures and the remedy in its text.
fn assert_names(error: &Error, kind: LimitKind, needed: usize, available: usize) -> &Limit {
    let limit = error.limit().unwrap_or_else(|| panic!("no limit is named: {error}"));
    assert_eq!(limit.kind, kind, "{error}");
    assert_eq!((limit.needed_bytes, limit.available_bytes), (needed as u64, available as u64), "{error}");
    let text = error.to_string();
    for part in
        [&kind.to_string(), &limit.source, &limit.remedy, &format!("{needed} bytes needed, {available} available")]
    {
        assert!(!part.is_empty() && text.contains(part), "{part} is not in: {text}");
    }
    assert!(error.os_error().is_some() && !text.contains('\n'), "{text}");
    limit
}

/// The arena opened on smaller pages, works, and says which limit kept it from those asked for.
fn assert_fell_back(builder: ArenaBuilder, kind: LimitKind) {
    let arena = builder.open().unwrap();
    let obtained = arena.obtained();
    assert!(obtained.is_fallback() && obtained.page_size == PageSize::base(), "{obtained}");
    let declined = &obtained.declined[0];
    assert_eq!((declined.page_size, declined.error.limit().map(|limit| limit.kind)), (PageSize::HUGE_2M, Some(kind)));
    assert!(obtained.to_string().contains(&format!("not on 2M pages: {}", declined.error)), "{obtained}");
    let pages = arena.stats().pages;
    let mut chunk = arena.claim_zeroed(pages, FirstTouch::unknown()).unwrap();
    // SAFETY: our own chunk, in nobody else's hands.
    unsafe { chunk.slice_mut() }.fill(1);
    assert_eq!(chunk.as_ptr().addr().get() % HUGE, 0, "aligned like the pages asked for");
}
