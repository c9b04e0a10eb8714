//! A figure that this project promises, against what was measured.

use crate::measure::Summary;

/// One line: whether the figure is met, the median, what was wanted, and how far the runs lie apart.
pub fn line(is_met: bool, name: &str, measured: Summary, wanted: &str) -> String {
    let verdict = if is_met { "met" } else { "NOT met" };
    let Summary { least, median, most } = measured;
    format!("{verdict:<8}{name:<56}{median:>9.2}  wanted {wanted:<10}(runs {least:.2} to {most:.2})\n")
}
