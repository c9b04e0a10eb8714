//! The charts: what clearing and first use take, what it gains, batches, gaps.

use crate::context::Context;
use crate::gaps::quantile;
use crate::matrix::{PROCESSES, WINDOWS};
use crate::svg::{Anchor, COLOURS, Canvas, WIDTH, step};
use crate::sweep::Times;
use crate::table::{Key, Table};

/// Every chart for which there are data, by the name of its file.
pub fn all(context: &Context) -> Vec<(&'static str, String)> {
    let mut charts = Vec::new();
    for (name, page) in [("methods-2m", "2M"), ("methods-1g", "1G")] {
        charts.extend(methods(&context.table, page).map(|chart| (name, chart)));
    }
    charts.extend(gains(&context.table).map(|chart| ("gains", chart)));
    charts.extend(batches(&context.table).map(|chart| ("batches", chart)));
    charts.extend(gaps(context).map(|chart| ("gaps", chart)));
    charts
}

/// Left edge of bars, and the room for them.
const LEFT: f64 = 240.0;
const ROOM: f64 = WIDTH - LEFT - 90.0;

/// Horizontal bars, each of two parts, in microseconds.
struct Bars<'a> {
    title: &'a str,
    subtitle: &'a str,
    rows: Vec<(String, Times)>,
}

impl Bars<'_> {
    fn draw(&self) -> String {
        let bottom = 90.0 + 20.0 * self.rows.len() as f64;
        let mut canvas = Canvas::new(bottom + 50.0, self.title, self.subtitle);
        canvas.legend(72.0, &["clear", "first use of the window"]);
        let most = self.rows.iter().map(|(_, times)| times.clear + times.usage).fold(0.0, f64::max) / 1e3;
        let (scale, step) = (ROOM / most, step(most));
        for tick in 0..=(most / step) as usize {
            let x = LEFT + tick as f64 * step * scale;
            canvas.line([x, 84.0], [x, bottom], "#ddd");
            canvas.text(x, bottom + 16.0, Anchor::Middle, &format!("{}", tick as f64 * step));
        }
        canvas.text(LEFT + ROOM / 2.0, bottom + 36.0, Anchor::Middle, "microseconds, median");
        for (row, (name, times)) in self.rows.iter().enumerate() {
            let y = 88.0 + 20.0 * row as f64;
            let [clear, usage] = [times.clear, times.usage].map(|time| time / 1e3 * scale);
            canvas.text(LEFT - 8.0, y + 12.0, Anchor::End, name);
            canvas.rect([LEFT, y, clear, 15.0], COLOURS[0]);
            canvas.rect([LEFT + clear, y, usage, 15.0], COLOURS[1]);
            let total = (times.clear + times.usage) / 1e3;
            canvas.text(LEFT + clear + usage + 6.0, y + 12.0, Anchor::Start, &format!("{total:.1}"));
        }
        canvas.finish()
    }
}

fn is_usual(key: &Key, page: &str) -> bool {
    key.page == page
        && !key.is_hot
        && (key.processes, key.window, key.position, key.usage.as_str()) == (1, 64 << 10, "start", "Read")
}

/// Every kernel in every order.
fn methods(table: &Table, page: &str) -> Option<String> {
    let mut rows = table.rows(|key| is_usual(key, page));
    rows.retain(|(key, _)| ["8", "whole"].contains(&key.way[2].as_str()) || key.way[1] == "butterfly");
    rows.sort_by(|one, other| one.1.total.total_cmp(&other.1.total));
    let rows: Vec<_> = rows.into_iter().map(|(key, times)| (key.way.join(", "), times)).collect();
    let title = format!("Clearing {page} of memory that is not in cache");
    let subtitle = "Kernel for what is outside the window, order, 4 KiB pages in a batch; window: the first 64 KiB";
    (rows.len() > 1).then(|| Bars { title: &title, subtitle, rows }.draw())
}

fn batches(table: &Table) -> Option<String> {
    let is_batch = |key: &Key| key.usage == "Read" && key.way[1] == "ranges" && is_usual(key, "2M");
    let far = hugearena::memops::Kernel::non_caching().name();
    let rows = ["1", "8", "8+call", "64", "512", "whole"].into_iter().filter_map(|batch| {
        let rows = table.rows(|key| is_batch(key) && key.way[0] == far && key.way[2] == batch);
        rows.first().map(|(_, times)| (batch.to_owned(), *times))
    });
    let rows: Vec<_> = rows.collect();
    let subtitle = "4 KiB pages in a batch; +call: with an empty callback after each";
    (rows.len() > 2).then(|| Bars { title: "Batches, 2M of memory that is not in cache", subtitle, rows }.draw())
}

/// Memset's total over ours: a group for each number of processes, a bar for each window.
fn gains(table: &Table) -> Option<String> {
    let (bottom, height) = (330.0, 225.0);
    let title = "Clear + first read of the window: memset's time over claim_zeroed's";
    let mut canvas = Canvas::new(400.0, title, "2M of memory that is not in cache; window at the start; 1 is no gain");
    canvas.legend(72.0, &["4 KiB window", "64 KiB", "512 KiB", "2 MiB (all)"]);
    let total = |processes: usize, window: usize, kernel: &str| {
        let wanted = |key: &Key| {
            let Key { processes: count, window: bytes, .. } = key;
            (*count, *bytes) == (processes, window)
                && key.way[0] == kernel
                && is_usual(&Key { processes: 1, window: 64 << 10, ..key.clone() }, "2M")
        };
        table.rows(wanted).first().map(|(_, times)| times.total)
    };
    let gain =
        |processes, window| Some(total(processes, window, "memset")? / total(processes, window, "claim_zeroed")?);
    let most = PROCESSES.iter().flat_map(|&count| WINDOWS.iter().filter_map(move |&window| gain(count, window)));
    let most = most.fold(1.0, f64::max);
    let scale = height / most;
    for tick in 0..=(most / 0.5) as usize {
        let (value, y) = (tick as f64 * 0.5, bottom - tick as f64 * 0.5 * scale);
        canvas.line([60.0, y], [WIDTH - 20.0, y], if tick == 2 { "#222" } else { "#ddd" });
        canvas.text(52.0, y + 4.0, Anchor::End, &format!("{value:.1}"));
    }
    for (group, &processes) in PROCESSES.iter().enumerate() {
        let left = 90.0 + 190.0 * group as f64;
        for (bar, &window) in WINDOWS.iter().enumerate() {
            let Some(gain) = gain(processes, window) else { continue };
            let x = left + 38.0 * bar as f64;
            canvas.rect([x, bottom - gain * scale, 34.0, gain * scale], COLOURS[bar]);
            canvas.text(x + 17.0, bottom - gain * scale - 4.0, Anchor::Middle, &format!("{gain:.2}"));
        }
        canvas.text(left + 76.0, bottom + 18.0, Anchor::Middle, &format!("{processes} at once"));
    }
    canvas.text(WIDTH / 2.0, bottom + 46.0, Anchor::Middle, "processes, on as many CPUs as there are");
    gain(1, WINDOWS[0]).map(|_| canvas.finish())
}

/// How many gaps are longer than so many microseconds, both axes by powers of ten.
fn gaps(context: &Context) -> Option<String> {
    let gaps = &context.gaps;
    let (left, right, top, bottom) = (80.0, WIDTH - 30.0, 90.0, 370.0);
    let title = "Clearing 1 GiB: how long a poll loop waits";
    let mut canvas = Canvas::new(430.0, title, "Part of all gaps that are longer; a callback each 8 pages of 4 KiB");
    canvas.legend(72.0, &["clearing, between callbacks", "control: spins as long", "memset: one gap"]);
    // 10^-7 to 10^-1 s; 10^-6 to 1 of all gaps.
    let x_of = |nanoseconds: f64| left + (right - left) * (nanoseconds.log10() - 2.0) / 6.0;
    let y_of = |part: f64| bottom - (bottom - top) * (part.log10() + 6.0) / 6.0;
    for power in 0..=6 {
        let (x, y) = (x_of(10f64.powi(power + 2)), y_of(10f64.powi(-power)));
        canvas.line([x, top], [x, bottom], "#ddd");
        canvas.line([left, y], [right, y], "#ddd");
        let names = ["0.1 us", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms"];
        canvas.text(x, bottom + 16.0, Anchor::Middle, names[power as usize]);
        canvas.text(left - 8.0, y + 4.0, Anchor::End, &format!("{}", 10f64.powi(-power)));
    }
    canvas.text((left + right) / 2.0, bottom + 40.0, Anchor::Middle, "length of the gap");
    for (all, colour) in [&gaps.clearing, &gaps.spinning, &gaps.memset].into_iter().zip(COLOURS) {
        let parts =
            (0..=60).map(|tenth| 10f64.powf(-f64::from(tenth) / 10.0)).filter(|part| part * all.len() as f64 >= 1.0);
        let mut points: Vec<_> = parts.map(|part| [x_of(quantile(all, 1.0 - part)), y_of(part)]).collect();
        points.extend(points.last().map(|[x, _]| [*x, bottom]));
        canvas.path(&points, colour);
    }
    (!gaps.clearing.is_empty()).then(|| canvas.finish())
}
