//! How long a poll loop waits while it clears 1 GiB: the gaps between callbacks, beside a loop that only spins.

use std::ops::ControlFlow;
use std::time::Instant;

use hugearena::memops::{Callback, FirstTouch, Pace};
use hugearena::{Arena, PageSize, Populate};

use crate::context::Context;
use crate::measure::Summary;
use crate::ring::{nanoseconds, open};
use crate::verdicts::Bound;

/// Batches and spins take turns in groups of this many, so that what the machine does to one it does to both.
const GROUP: usize = 256;

const GIB: usize = 1 << 30;

/// All gaps in nanoseconds; for memset the one stall of each run.
#[derive(Default)]
pub struct Gaps {
    pub clearing: Vec<f64>,
    pub spinning: Vec<f64>,
    pub memset: Vec<f64>,
    longest_clearing: Vec<f64>,
    longest_spinning: Vec<f64>,
}

/// An arena of 1 GiB: one page if there is one.
fn gibibyte(context: &Context) -> Result<Arena, String> {
    let page_size = if context.gigantic_pages() > 0 { PageSize::HUGE_1G } else { PageSize::HUGE_2M };
    open(page_size, GIB / page_size.bytes(), Populate::Eager)
}

/// Ten clearings in all runs together at least.
pub fn run(context: &mut Context) -> Result<(), String> {
    let arena = gibibyte(context)?;
    for batch_pages in [8, 32] {
        let mut gaps = Gaps::default();
        gaps.memset.push(memset(&arena));
        for _ in 0..context.rounds(10) {
            once(&arena, batch_pages * 4096, &mut gaps);
        }
        judge(context, &gaps, batch_pages);
        if batch_pages == 8 {
            let all = &mut context.gaps;
            all.clearing.extend(&gaps.clearing);
            all.spinning.extend(&gaps.spinning);
            all.memset.extend(&gaps.memset);
        }
    }
    Ok(())
}

fn judge(context: &mut Context, gaps: &Gaps, batch_pages: usize) {
    let cell = format!("{batch_pages} pages a batch");
    let verdicts = &mut context.verdicts;
    let [ours, control] = [&gaps.clearing, &gaps.spinning].map(|gaps| quantile(gaps, 0.999));
    verdicts.add("1 GiB: p99.9 of gaps / control", Bound::AtMost(1.25), &cell, ours / control);
    verdicts.add("1 GiB: p99.9 of gaps, us", Bound::Any, &cell, ours / 1e3);
    let middle = quantile(&gaps.clearing, 0.5);
    verdicts.add("1 GiB: median gap, us", Bound::Any, &cell, middle / 1e3);
    let [longest, control] = [&gaps.longest_clearing, &gaps.longest_spinning].map(|all| quantile(all, 0.5));
    let excess = (longest - control) / 1e3;
    verdicts.add("1 GiB: longest gap - control's, us", Bound::AtMost(50.0), &cell, excess);
    verdicts.add("1 GiB: longest gap, us", Bound::Any, &cell, longest / 1e3);
    verdicts.add("1 GiB: memset's one gap, us", Bound::Any, &cell, Summary::of(gaps.memset.clone()).median / 1e3);
}

/// The value below which `part` of them lie.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(((values.len() as f64 - 1.0) * part) as usize).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds that nobody polls while memset writes the whole of it.
fn memset(arena: &Arena) -> f64 {
    let chunk = arena.claim(GIB / arena.page_size().bytes()).expect("all pages are free");
    let start = Instant::now();
    // SAFETY: the chunk's own bytes.
    unsafe { chunk.as_ptr().write_bytes(0, GIB) };
    nanoseconds(start)
}

/// Clears the arena; after every group of batches spins as many times for as long as a batch took in the middle.
fn once(arena: &Arena, batch_bytes: usize, gaps: &mut Gaps) {
    let (mut cleared, mut spun) =
        (Vec::with_capacity(GIB / batch_bytes + 2), Vec::with_capacity(GIB / batch_bytes + 2));
    let mut last = Instant::now();
    let callback = |_| {
        cleared.push(nanoseconds(last));
        if cleared.len() % GROUP == 0 {
            spin(quantile(&cleared[cleared.len() - GROUP..], 0.5), &mut spun);
        }
        last = Instant::now();
        ControlFlow::Continue(())
    };
    let mut pace = Callback::new(callback).in_batches_of(batch_bytes);
    let pages = GIB / arena.page_size().bytes();
    let chunk = arena.claim_zeroed_at(pages, FirstTouch::unknown(), &mut pace).expect("all pages are free");
    drop(chunk);
    gaps.longest_clearing.push(quantile(&cleared, 1.0));
    gaps.longest_spinning.push(quantile(&spun, 1.0));
    gaps.clearing.append(&mut cleared);
    gaps.spinning.append(&mut spun);
}

fn spin(each: f64, spun: &mut Vec<f64>) {
    for _ in 0..GROUP {
        let start = Instant::now();
        while nanoseconds(start) < each {
            std::hint::spin_loop();
        }
        spun.push(nanoseconds(start));
    }
}
