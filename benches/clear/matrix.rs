//! Kernel x order x window x position x processes x cache, and the figure that holds in every cell.

use hugearena::PageSize;

use crate::context::{Context, Extent};
use crate::ring::Way;
use crate::sweep::{self, Cell, POSITIONS, Setting, Times, touch_at};
use crate::uses::Use;
use crate::verdicts::Bound;

pub const WINDOWS: [usize; 4] = [4 << 10, 64 << 10, 512 << 10, 2 << 20];
pub const PROCESSES: [usize; 4] = [1, 2, 4, 8];

/// The ways that every extent measures in every cell.
fn rivals() -> Vec<Way> {
    vec![Way::Claim, Way::Memset, Way::all_cached(), Way::butterfly_by_pages()]
}

/// 2 MiB pages, cold and hot.
pub fn small(context: &mut Context) -> Result<(), String> {
    for processes in PROCESSES {
        for is_hot in [false, true] {
            let rounds = if context.extent == Extent::Quick { 4 } else { 6 };
            let setting = Setting { page_size: PageSize::HUGE_2M, is_hot, processes, rounds };
            run(context, setting, &cells(PageSize::HUGE_2M, &POSITIONS, &WINDOWS), &rivals())?;
        }
    }
    Ok(())
}

/// Every kernel in every order on 2 MiB pages; with `--full` in every cell.
pub fn every_kernel(context: &mut Context) -> Result<(), String> {
    let mut ways = rivals();
    ways.extend(Way::all_forced(PageSize::HUGE_2M.bytes()));
    let (positions, windows, processes): (&[&'static str], &[usize], &[usize]) = match context.extent {
        Extent::Quick => (&POSITIONS[..1], &WINDOWS[1..2], &PROCESSES[..1]),
        Extent::Usual => (&POSITIONS, &WINDOWS, &PROCESSES[..1]),
        Extent::Full => (&POSITIONS, &WINDOWS, &PROCESSES),
    };
    let cells = cells(PageSize::HUGE_2M, positions, windows);
    for &processes in processes {
        for is_hot in [false, true] {
            let setting = Setting { page_size: PageSize::HUGE_2M, is_hot, processes, rounds: 3 };
            let times = sweep::measure(setting, &each(&cells), &ways)?;
            record(context, setting, &cells, &ways, &times);
        }
    }
    Ok(())
}

/// 1 GiB pages: one process for each page that there is.
pub fn large(context: &mut Context) -> Result<(), String> {
    let pages = context.gigantic_pages();
    let mut ways = rivals();
    let (positions, windows): (&[&'static str], &[usize]) = match context.extent {
        Extent::Quick => (&POSITIONS[..1], &WINDOWS[1..2]),
        Extent::Usual => (&POSITIONS[..2], &WINDOWS[1..2]),
        Extent::Full => (&POSITIONS, &WINDOWS),
    };
    if context.extent != Extent::Quick {
        ways.extend(Way::all_forced(PageSize::HUGE_1G.bytes()));
    }
    for &processes in PROCESSES.iter().filter(|&&processes| processes <= pages) {
        let setting = Setting { page_size: PageSize::HUGE_1G, is_hot: false, processes, rounds: 1 };
        run(context, setting, &cells(PageSize::HUGE_1G, positions, windows), &ways)?;
    }
    match PROCESSES.iter().filter(|&&processes| processes > pages).min() {
        Some(fewest) => Err(format!("{pages} pages are free, so {fewest} and more processes were left out")),
        None => Ok(()),
    }
}

fn cells(page_size: PageSize, positions: &[&'static str], windows: &[usize]) -> Vec<(&'static str, Cell)> {
    let mut cells = Vec::new();
    for &position in positions {
        for &window in windows {
            let touch = touch_at(position, window, page_size.bytes());
            cells.extend([Use::Read, Use::Write].map(|usage| (position, Cell { touch, usage })));
        }
    }
    cells
}

fn each(cells: &[(&'static str, Cell)]) -> Vec<Cell> {
    cells.iter().map(|(_, cell)| *cell).collect()
}

/// Measures, and judges what `claim_zeroed` does against the better of memset and all cached.
fn run(context: &mut Context, setting: Setting, cells: &[(&'static str, Cell)], ways: &[Way]) -> Result<(), String> {
    let times = sweep::measure(setting, &each(cells), ways)?;
    record(context, setting, cells, ways, &times);
    for ((position, cell), times) in cells.iter().zip(&times) {
        let [claim, memset, all_cached] = [0, 1, 2].map(|way: usize| times[way].total);
        let page = setting.page_size;
        let window = cell.touch.window(page.bytes()).len() >> 10;
        let name = format!("{window} KiB {position} {:?} x{}", cell.usage, setting.processes);
        let (figure, bound, rival) = if setting.is_hot {
            (format!("{page} hot: memset / claim, total"), 0.95, memset)
        } else {
            (format!("{page} cold: better of memset, all cached / claim"), 0.97, memset.min(all_cached))
        };
        context.verdicts.add(&figure, Bound::AtLeast(bound), &name, rival / claim);
    }
    Ok(())
}

fn record(context: &mut Context, setting: Setting, cells: &[(&'static str, Cell)], ways: &[Way], times: &[Vec<Times>]) {
    for ((position, cell), times) in cells.iter().zip(times) {
        for (way, times) in ways.iter().zip(times) {
            context.table.add(&setting, cell, position, *way, *times);
        }
    }
}
