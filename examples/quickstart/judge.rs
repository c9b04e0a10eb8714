//! A figure that this project promises, against what was measured.

use std::fmt::Display;
use std::process::ExitCode;

use crate::measure::Summary;

/// The exit status of a program that measures: 1 when a figure is not met, 2 when it cannot be measured, which it says.
pub fn exit(program: &str, is_met: Result<bool, impl Display>) -> ExitCode {
    match is_met {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(2)
        }
    }
}

/// One line: whether the figure is met, the median, what was wanted, and how far the runs lie apart.
pub fn line(is_met: bool, name: &str, measured: Summary, wanted: &str) -> String {
    let verdict = if is_met { "met" } else { "NOT met" };
    let Summary { least, median, most } = measured;
    format!("{verdict:<8}{name:<56}{median:>9.2}  wanted {wanted:<10}(runs {least:.2} to {most:.2})\n")
}
