//! Everything that was timed, by what it was.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::measure::Summary;
use crate::ring::Way;
use crate::sweep::{Cell, Setting, Times};
use crate::uses::Use;

/// What a row was measured with.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub page: String,
    pub is_hot: bool,
    pub processes: usize,
    /// Bytes of the window, rounded as the library does.
    pub window: usize,
    pub position: &'static str,
    pub usage: String,
    /// Kernel, order, batch.
    pub way: [String; 3],
}

/// Times in nanoseconds, one for each run.
#[derive(Default)]
pub struct Table(BTreeMap<Key, Vec<Times>>);

impl Table {
    pub fn add(&mut self, setting: &Setting, cell: &Cell, position: &'static str, way: Way, times: Times) {
        let key = Key {
            page: setting.page_size.to_string(),
            is_hot: setting.is_hot,
            processes: setting.processes,
            window: cell.touch.window(setting.page_size.bytes()).len(),
            position,
            usage: format!("{:?}", cell.usage),
            way: way.names(),
        };
        self.0.entry(key).or_default().push(times);
    }

    /// Medians over the runs of the rows that are `wanted`.
    pub fn rows(&self, wanted: impl Fn(&Key) -> bool) -> Vec<(&Key, Times)> {
        self.0.iter().filter(|(key, _)| wanted(key)).map(|(key, all)| (key, middle(all))).collect()
    }

    pub fn csv(&self) -> String {
        let mut csv = "page,cache,processes,window_bytes,position,use,kernel,order,batch_pages,\
                       clear_ns,use_ns,total_ns,runs\n"
            .to_owned();
        for (key, all) in &self.0 {
            let Times { clear, usage, total } = middle(all);
            let Key { page, processes, window, position, usage: pattern, way, .. } = key;
            let (cache, way) = (if key.is_hot { "hot" } else { "cold" }, way.join(","));
            let _ = writeln!(
                csv,
                "{page},{cache},{processes},{window},{position},{pattern},{way},\
                 {clear:.0},{usage:.0},{total:.0},{}",
                all.len()
            );
        }
        csv
    }

    /// The part of it that fits a screen: every way, one process, a window at the start that is read.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut pages: Vec<(&str, bool)> = self.0.keys().map(|key| (key.page.as_str(), key.is_hot)).collect();
        pages.dedup();
        pages.sort_unstable();
        pages.dedup();
        for (page, is_hot) in pages {
            let wanted = |key: &Key| {
                (key.page.as_str(), key.is_hot) == (page, is_hot)
                    && (key.processes, key.position, key.window) == (1, "start", 64 << 10)
                    && key.usage == format!("{:?}", Use::Read)
            };
            let mut rows = self.rows(wanted);
            rows.sort_by(|one, other| one.1.total.total_cmp(&other.1.total));
            let cache = if is_hot { "hot" } else { "cold" };
            let _ = writeln!(text, "\n{page} pages, {cache}, window 64 KiB at the start, then read; us");
            let _ = writeln!(
                text,
                "{:<26}{:<11}{:>6}{:>11}{:>9}{:>11}",
                "kernel", "order", "batch", "clear", "use", "total"
            );
            for (key, Times { clear, usage, total }) in rows {
                let [kernel, order, batch] = &key.way;
                let [clear, usage, total] = [clear, usage, total].map(|time| time / 1e3);
                let _ = writeln!(text, "{kernel:<26}{order:<11}{batch:>6}{clear:>11.2}{usage:>9.2}{total:>11.2}");
            }
        }
        text
    }
}

fn middle(all: &[Times]) -> Times {
    let median = |pick: fn(&Times) -> f64| Summary::of(all.iter().map(pick)).median;
    Times { clear: median(|times| times.clear), usage: median(|times| times.usage), total: median(|times| times.total) }
}
