//! The figures that this project promises for this program, against what was measured.

use std::fmt::Write;

use crate::rounds::Rounds;

/// A reading, what it is called, and how many times less HugeAlloc must take than libc malloc.
const FIGURES: [(&str, &str, f64); 4] = [
    ("build", "build, in process", 1.25),
    ("queries", "queries, in process", 1.3),
    ("wall", "spawn to exit, population included", 1.25),
    ("page_faults", "page faults", 50.0),
];

pub struct Verdict {
    pub text: String,
    pub all_met: bool,
}

/// Each figure is compared with the median of the ratios of the rounds.
pub fn verdict(rounds: &Rounds) -> Verdict {
    let mut verdict = Verdict { text: format!("Figures, medians of {} rounds:\n", rounds.len()), all_met: true };
    for (reading, name, wanted) in FIGURES {
        let ratio = rounds.ratio(reading);
        let is_met = ratio.median >= wanted;
        verdict.all_met &= is_met;
        let _ = writeln!(
            verdict.text,
            "{:<8}{name:<36}{:>8.2}x, wanted {wanted:>5.2}x   (from {:.2}x to {:.2}x)",
            if is_met { "met" } else { "NOT met" },
            ratio.median,
            ratio.least,
            ratio.most,
        );
    }
    verdict
}
