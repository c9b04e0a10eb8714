//! Measures ways of clearing against each other: interleaved, in one or more processes at once.

use hugearena::PageSize;
use hugearena::memops::{FirstTouch, Kernel, Method, Order};

use crate::bare::Bare;
use crate::crew;
use crate::measure::Summary;
use crate::ring::{COLD, HOT, Ring, Sample, Way, can_open};
use crate::uses::Use;

/// Where chunks come from, and how many processes work at once.
#[derive(Clone, Copy)]
pub struct Setting {
    pub page_size: PageSize,
    pub is_hot: bool,
    pub processes: usize,
    /// How often each way has its turn in each cell.
    pub rounds: usize,
}

impl Setting {
    /// Chunks in each ring. A chunk of 1 GiB is in no cache anyway.
    fn chunks(self) -> usize {
        if self.is_hot || self.page_size > PageSize::HUGE_2M { HOT } else { COLD }
    }
}

/// What is done with a chunk.
#[derive(Clone, Copy)]
pub struct Cell {
    pub touch: FirstTouch,
    pub usage: Use,
}

/// Medians in nanoseconds.
#[derive(Clone, Copy)]
pub struct Times {
    pub clear: f64,
    pub usage: f64,
    pub total: f64,
}

/// Clearings in a row by one way, so that all processes are at the same one most of the time.
const BLOCK: usize = 4;

/// The window's bytes at the start, in the middle and at the end of a chunk.
pub const POSITIONS: [&str; 3] = ["start", "middle", "end"];

pub fn touch_at(position: &str, window: usize, len: usize) -> FirstTouch {
    let room = len - window.min(len);
    let offset = match position {
        "start" => 0,
        "middle" => room / 2 / FirstTouch::GRANULE * FirstTouch::GRANULE,
        _ => room,
    };
    FirstTouch::at(offset, window)
}

impl Way {
    /// All cached, by ranges: what the library does with small or hot regions.
    pub fn all_cached() -> Way {
        let cached = Kernel::cached();
        Way::Forced(Method { order: Order::Ranges, far: cached, near: cached, near_bytes: usize::MAX }, usize::MAX)
    }

    /// What Linux did from 4.14 to 6.19: page by page, from both ends towards the window.
    pub fn butterfly_by_pages() -> Way {
        let cached = Kernel::cached();
        Way::Forced(Method { order: Order::Butterfly, far: cached, near: cached, near_bytes: usize::MAX }, 4096)
    }

    /// Every kernel for the far part in every order, with the window that the library would keep.
    pub fn all_forced(len: usize) -> Vec<Way> {
        let chosen = Method::choose(len, false);
        let orders = [Order::Ascending, Order::Butterfly, Order::Ranges];
        let methods = Kernel::available().flat_map(|far| orders.map(|order| Method { far, order, ..chosen }));
        methods.map(|method| Way::Forced(method, 32 << 10)).collect()
    }

    /// Kernel, order and batch, as they stand in tables.
    pub fn names(self) -> [String; 3] {
        let [kernel, order, batch] = match self {
            Way::Memset => ["memset", "ascending", "whole"],
            Way::Claim => ["claim_zeroed", "chosen", "whole"],
            Way::Window => ["memset of the window only", "-", "-"],
            Way::Bare(Bare { kernel, .. }) => return [format!("bare {kernel}"), "ascending".into(), "whole".into()],
            Way::Forced(method, batch_bytes) | Way::Calling(method, batch_bytes) => {
                let mut batch =
                    if batch_bytes == usize::MAX { "whole".into() } else { format!("{}", batch_bytes / 4096) };
                if let Way::Calling(..) = self {
                    batch += "+call";
                }
                let order = format!("{:?}", method.order).to_lowercase();
                return [method.far.name().to_owned(), order, batch];
            }
        };
        [kernel, order, batch].map(str::to_owned)
    }
}

/// Medians of every way in every cell: `[cell][way]`.
pub fn measure(setting: Setting, cells: &[Cell], ways: &[Way]) -> Result<Vec<Vec<Times>>, String> {
    can_open(setting.page_size, setting.processes * setting.chunks())?;
    let numbers = cells.len() * ways.len() * setting.rounds * BLOCK * 2;
    let all = crew::run(setting.processes, numbers, |member| work(member, setting, cells, ways))?;
    let per_way = setting.rounds * BLOCK * 2;
    let times_of = |cell: usize, way: usize| {
        let first = (cell * ways.len() + way) * per_way;
        let samples = all.iter().flat_map(|numbers| numbers[first..first + per_way].chunks_exact(2));
        Times::of(samples.map(|pair| Sample { clear: pair[0], usage: pair[1] }))
    };
    Ok((0..cells.len()).map(|cell| (0..ways.len()).map(|way| times_of(cell, way)).collect()).collect())
}

impl Times {
    fn of(samples: impl Iterator<Item = Sample> + Clone) -> Times {
        let median = |pick: fn(Sample) -> f64| Summary::of(samples.clone().map(pick)).median;
        Times {
            clear: median(|sample| sample.clear),
            usage: median(|sample| sample.usage),
            total: median(|sample| sample.clear + sample.usage),
        }
    }
}

/// All cells in one process: clear, use, clear, use.
fn work(member: &crew::Member, setting: Setting, cells: &[Cell], ways: &[Way]) -> Vec<f64> {
    let mut ring = Ring::open(setting.page_size, setting.chunks()).unwrap_or_else(|error| panic!("{error}"));
    let mut numbers = Vec::new();
    for cell in cells {
        let mut of_ways = vec![Vec::new(); ways.len()];
        for round in 0..setting.rounds {
            for turn in 0..ways.len() {
                // Each way follows each other one as often.
                let way = (turn * stride(round, ways.len()) + round) % ways.len();
                member.meet();
                for _ in 0..BLOCK {
                    let sample = ring.sample(ways[way], cell.touch, cell.usage);
                    of_ways[way].extend([sample.clear, sample.usage]);
                }
            }
        }
        numbers.extend(of_ways.into_iter().flatten());
    }
    numbers
}

/// A step that visits all of `count` ways, forwards in even rounds and backwards in odd ones.
fn stride(round: usize, count: usize) -> usize {
    if round.is_multiple_of(2) { 1 } else { count - 1 }
}
