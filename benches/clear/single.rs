//! One process, 2 MiB: first use, bulk speed, hot chunks, callers that name no window, batches.

use hugearena::PageSize;
use hugearena::memops::{FirstTouch, Kernel, Method, Order};

use crate::bare::Bare;
use crate::context::Context;
use crate::ring::Way;
use crate::sweep::{self, Cell, POSITIONS, Setting, touch_at};
use crate::uses::Use;
use crate::verdicts::Bound;

const PAGE: PageSize = PageSize::HUGE_2M;

fn setting(context: &Context, is_hot: bool) -> Setting {
    Setting { page_size: PAGE, is_hot, processes: 1, rounds: context.rounds(20) }
}

/// Cold memory, a window of 64 KiB.
pub fn cold(context: &mut Context) -> Result<(), String> {
    let bares = Bare::available();
    if bares.is_empty() {
        return Err("no bare loop was written for this CPU".to_owned());
    }
    let mut ways = vec![Way::Memset, Way::Claim, Way::Window];
    ways.extend(bares.iter().map(|bare| Way::Bare(*bare)));
    for position in POSITIONS {
        for usage in [Use::Read, Use::Write] {
            let cell = Cell { touch: touch_at(position, 64 << 10, PAGE.bytes()), usage };
            let setting = setting(context, false);
            let times = &sweep::measure(setting, &[cell], &ways)?[0];
            for (way, times) in ways.iter().zip(times) {
                context.table.add(&setting, &cell, position, *way, *times);
            }
            let [memset, claim, written] = [0, 1, 2].map(|way: usize| times[way]);
            let bare = times[3..].iter().map(|times| times.clear).fold(f64::INFINITY, f64::min);
            let name = format!("{position} {usage:?}");
            let gain = memset.clear / bare;
            let verdicts = &mut context.verdicts;
            verdicts.add(
                "first use / use of memory just written",
                Bound::AtMost(1.25),
                &name,
                claim.usage / written.usage,
            );
            verdicts.add("bare bulk loop: gain over memset", Bound::Any, &name, gain);
            verdicts.add("clear: gain over memset", Bound::Any, &name, memset.clear / claim.clear);
            verdicts.add("clear: part of the bare gain", Bound::AtLeast(0.9), &name, memset.clear / claim.clear / gain);
            verdicts.add("clear + use: gain over memset", Bound::Any, &name, memset.total / claim.total);
            verdicts.add(
                "clear + use: part of the bare gain",
                Bound::AtLeast(0.9),
                &name,
                memset.total / claim.total / gain,
            );
        }
    }
    Ok(())
}

/// Each kernel against the bare loop with its instruction.
pub fn kernels(context: &mut Context) -> Result<(), String> {
    for bare in Bare::available() {
        let Some(kernel) = Kernel::named(bare.kernel) else { continue };
        let method = Method { order: Order::Ascending, far: kernel, near: kernel, near_bytes: 0 };
        let ways = [Way::Forced(method, usize::MAX), Way::Bare(bare)];
        let cell = Cell { touch: FirstTouch::at(0, 1), usage: Use::Nothing };
        let times = &sweep::measure(setting(context, false), &[cell], &ways)?[0];
        let speed = times[1].clear / times[0].clear;
        context.verdicts.add("bulk kernel / bare loop, speed", Bound::AtLeast(0.97), bare.kernel, speed);
    }
    Ok(())
}

/// A chunk that its last holder has just written.
pub fn hot(context: &mut Context) -> Result<(), String> {
    let touch = FirstTouch::unknown();
    let cells = [Use::Read, Use::ReadAll].map(|usage| Cell { touch, usage });
    let times = sweep::measure(setting(context, true), &cells, &[Way::Memset, Way::Claim])?;
    for (cell, times) in cells.iter().zip(times) {
        let name = format!("{:?}", cell.usage);
        context.verdicts.add(
            "hot: memset / claim, clear",
            Bound::AtLeast(0.95),
            &name,
            times[0].clear / times[1].clear,
        );
        context.verdicts.add(
            "hot: memset / claim, total",
            Bound::AtLeast(0.95),
            &name,
            times[0].total / times[1].total,
        );
    }
    Ok(())
}

/// No window is named, and the caller does this or that.
pub fn unknown(context: &mut Context) -> Result<(), String> {
    for is_hot in [false, true] {
        let cells = Use::AFTER_UNKNOWN.map(|usage| Cell { touch: FirstTouch::unknown(), usage });
        let times = sweep::measure(setting(context, is_hot), &cells, &[Way::Memset, Way::Claim])?;
        for (cell, times) in cells.iter().zip(times) {
            let gain = times[0].total / times[1].total;
            let name = format!("{:?}{}", cell.usage, if is_hot { ", hot" } else { "" });
            context.verdicts.add("unknown window: memset / claim, total", Bound::AtLeast(0.97), &name, gain);
            if cell.usage == Use::ReadFirst64K && !is_hot {
                context.verdicts.add("unknown window: gain if 64 KiB are used", Bound::Any, "", gain);
            }
        }
    }
    Ok(())
}

/// Pages in a batch; `None` is the whole chunk.
pub const BATCHES: [Option<usize>; 5] = [Some(1), Some(8), Some(64), Some(512), None];

/// Batches of one size after the other, by the method that is chosen for cold memory.
pub fn batches(context: &mut Context) -> Result<(), String> {
    let method = Method::choose(PAGE.bytes(), false);
    let ways = BATCHES.map(|pages| Way::Forced(method, pages.map_or(usize::MAX, |pages| pages * 4096)));
    let calling = Way::Calling(method, 8 * 4096);
    let all: Vec<Way> = ways.into_iter().chain([calling]).collect();
    let cell = Cell { touch: FirstTouch::unknown(), usage: Use::Read };
    let setting = setting(context, false);
    let times = &sweep::measure(setting, &[cell], &all)?[0];
    for (way, times) in all.iter().zip(times) {
        context.table.add(&setting, &cell, "start", *way, *times);
    }
    let [one, eight, whole, calling] = [0, 1, 4, 5].map(|way: usize| times[way].clear);
    let verdicts = &mut context.verdicts;
    verdicts.add("8 pages a batch / whole, time", Bound::AtMost(1.03), "", eight / whole);
    verdicts.add("1 page a batch / 8 pages, time", Bound::Any, "", one / eight);
    verdicts.add("empty callback each 8 pages / whole, time", Bound::AtMost(1.03), "", calling / whole);
    verdicts.add("empty callback each 8 pages / none, time", Bound::AtMost(1.03), "", calling / eight);
    Ok(())
}
