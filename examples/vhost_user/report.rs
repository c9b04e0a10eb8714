//! What people read, and the figures that this project promises.

use std::fmt::Write;
use std::ops::Range;

use crate::death::Death;
use crate::exercise::Outcome;

/// Regions that DPDK takes at most.
const REGIONS_MAX: usize = 8;

pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    let tally = &outcome.tally;
    let _ = writeln!(text, "arena: {}", outcome.obtained);
    if let Some(command) = outcome.commands.first() {
        let _ = writeln!(text, "back end: {command}");
        if !outcome.on_huge_pages {
            let _ = writeln!(text, "back end: on base pages, it could not have 64 MiB of 2 MiB pages");
        }
    }
    let _ = writeln!(text, "shared: 1 file in {} regions, here at {}", outcome.regions, ranges(&outcome.here));
    for there in &outcome.there {
        let _ = writeln!(text, "        in the back end at {}", ranges(there));
    }
    let _ = writeln!(text, "{} packets and {} bytes there and back", tally.received, tally.bytes);
    let (packets, seconds) = (outcome.steady_packets, outcome.steady_time.as_secs_f64());
    if packets > 0 {
        let _ = writeln!(text, "steady state: {packets} packets, {:.3} million/s", packets as f64 / seconds / 1e6);
    }
    let (missing, corrupted, unexpected) = (outcome.missing, tally.corrupted, tally.unexpected);
    let _ = writeln!(text, "lost {missing}, corrupted {corrupted}, twice or never sent {unexpected}");
    if let Some(problem) = &outcome.first_problem {
        let _ = writeln!(text, "first problem {problem}");
    }
    if let Some(counters) = outcome.counters {
        let _ = writeln!(text, "the last back end received {}, dropped {}", counters.received, counters.dropped);
    }
    if outcome.reconnects > 0 {
        let again = tally.sent_again;
        let _ =
            writeln!(text, "the back end died {} times: {again} packets that it had, sent again", outcome.reconnects);
    }
    let peer = outcome.peer_page_faults.map(|faults| format!(", of the back end {faults}")).unwrap_or_default();
    let _ = writeln!(text, "page faults in the steady state: {}{peer}", outcome.page_faults);
    text
}

pub struct Verdict {
    pub text: String,
    pub all_met: bool,
}

impl Verdict {
    fn add(&mut self, is_met: bool, figure: &str, measured: &str) {
        self.all_met &= is_met;
        let _ = writeln!(self.text, "{:<8}{figure:<58}{measured}", if is_met { "met" } else { "NOT met" });
    }
}

pub fn verdict(outcome: &Outcome, packets: u64, death: &Death) -> Verdict {
    let mut verdict = Verdict { text: String::new(), all_met: true };
    let tally = &outcome.tally;
    let back = tally.received;
    verdict.add(back == packets && packets >= 1_000_000, "1,000,000 packets or more, all back", &back.to_string());
    verdict.add(outcome.missing == 0, "packets lost: 0", &outcome.missing.to_string());
    let wrong = tally.corrupted + tally.unexpected;
    verdict.add(wrong == 0, "packets corrupted, doubled or never sent: 0", &wrong.to_string());
    verdict.add(outcome.page_faults == 0, "page faults in the steady state: 0", &outcome.page_faults.to_string());
    verdict.add(outcome.regions <= REGIONS_MAX, "regions: 8 at most", &outcome.regions.to_string());
    let elsewhere = outcome.there.iter().all(|there| is_elsewhere(there, &outcome.here));
    verdict.add(elsewhere, "every back end maps the file, at an address of its own", &ranges_of_all(outcome));
    let died = format!("{} times, {} packets sent again", outcome.reconnects, tally.sent_again);
    verdict.add(outcome.reconnects > 0, "back end killed and started again: we go on", &died);
    verdict.add(death.is_met(), "we are killed: pages back in the pool, back end serves on", &death.to_string());
    verdict
}

fn is_elsewhere(there: &[Range<u64>], here: &[Range<u64>]) -> bool {
    !there.is_empty() && there.iter().all(|range| here.iter().all(|own| range.start != own.start))
}

fn ranges_of_all(outcome: &Outcome) -> String {
    outcome.there.iter().map(|there| ranges(there)).collect::<Vec<_>>().join("; ")
}

fn ranges(ranges: &[Range<u64>]) -> String {
    let texts = ranges.iter().map(|range| format!("{:#x} ({} MiB)", range.start, (range.end - range.start) >> 20));
    texts.collect::<Vec<_>>().join(", ")
}
