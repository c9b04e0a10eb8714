//! The picture: for each workload, how many times as fast as libc every allocator is, in its best configuration.

use crate::configurations::FAMILIES;
use crate::results::{Clock, LIBC, Results};
use crate::svg::{Anchor, COLOURS, Canvas, WIDTH};

const LEFT: f64 = 130.0;
const TOP: f64 = 100.0;
const ROW: f64 = 22.0;
const MARK: f64 = 9.0;
/// Powers of two of the axis: a quarter to 64 times.
const POWERS: std::ops::RangeInclusive<i32> = -2..=6;

pub fn draw(results: &Results, subtitle: &str) -> String {
    let height = TOP + ROW * results.workloads.len() as f64 + 50.0;
    let mut canvas = Canvas::new(height, "Speed against libc malloc, in process (right is better)", subtitle);
    canvas.legend(74.0, &FAMILIES.map(|family| family.name()));
    let bottom = height - 40.0;
    for power in POWERS {
        let x = place(f64::from(power));
        canvas.line([x, TOP - 8.0], [x, bottom], if power == 0 { "#222222" } else { "#dddddd" });
        canvas.text(x, bottom + 16.0, Anchor::Middle, &format!("{} x", 2f64.powi(power)));
    }
    for (at, workload) in results.workloads.iter().enumerate() {
        let y = TOP + ROW * (at as f64 + 0.5);
        canvas.text(LEFT - 12.0, y + 4.0, Anchor::End, workload.name);
        // Ours last, on top of the others.
        for (family, colour) in FAMILIES.iter().zip(COLOURS).rev() {
            let members =
                (0..results.configurations.len()).filter(|one| results.configurations[*one].family == *family);
            let time = members.map(|one| results.time(at, one, Clock::Inside)).fold(f64::INFINITY, f64::min);
            let x = place((results.time(at, LIBC, Clock::Inside) / time).log2());
            if time.is_finite() {
                canvas.rect([x - MARK / 2.0, y - MARK / 2.0, MARK, MARK], colour);
            }
        }
    }
    canvas.finish()
}

/// Where a power of two is on the axis; what is beyond it is at its end.
fn place(power: f64) -> f64 {
    let (first, last) = (f64::from(*POWERS.start()), f64::from(*POWERS.end()));
    let part = (power.clamp(first, last) - first) / (last - first);
    LEFT + part * (WIDTH - LEFT - 40.0)
}
