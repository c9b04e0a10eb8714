//! The figures that this project promises for this program.

use crate::judge;
use crate::rounds::Rounds;

/// A reading, what it is called, and by how much less HugeAlloc must take.
const FIGURES: [(&str, &str, f64); 4] = [
    ("build", "build, in process, population included", 1.25),
    ("queries", "queries, in process", 1.3),
    ("wall", "the whole program, spawn to exit", 1.25),
    ("page_faults", "page faults", 50.0),
];

pub struct Verdict {
    pub text: String,
    pub all_met: bool,
}

/// Each figure is compared with the median of the ratios of the rounds.
pub fn verdict(rounds: &Rounds) -> Verdict {
    let mut verdict = Verdict { text: String::new(), all_met: true };
    for (reading, name, least) in FIGURES {
        let gain = rounds.ratio(reading);
        let is_met = gain.median >= least;
        verdict.all_met &= is_met;
        verdict.text += &judge::line(is_met, name, gain, &format!(">= {least}x"));
    }
    verdict
}
