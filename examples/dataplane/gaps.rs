//! How long a loop was away from its poll: counts by length, without allocating.

use std::time::Duration;

/// Steps in which a length may double: 1/32 is the error of a quantile.
const STEPS_LOG: u32 = 5;
const BUCKETS: usize = (64 - STEPS_LOG as usize) << STEPS_LOG;

/// Lengths in nanoseconds.
pub struct Gaps {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    longest: u64,
}

impl Gaps {
    pub fn new() -> Gaps {
        Gaps { counts: Box::new([0; BUCKETS]), count: 0, longest: 0 }
    }

    pub fn record(&mut self, gap: Duration) {
        let gap = gap.as_nanos() as u64;
        self.counts[bucket(gap)] += 1;
        self.count += 1;
        self.longest = self.longest.max(gap);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Nanoseconds.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// The length, in nanoseconds, that this share of the gaps does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut left = (self.count as f64 * share).ceil() as u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            if left <= *count {
                return end(bucket).min(self.longest);
            }
            left -= count;
        }
        self.longest
    }
}

/// The first 2^STEPS_LOG lengths have a bucket each; after that, each doubling has as many.
fn bucket(gap: u64) -> usize {
    let log = gap.checked_ilog2().unwrap_or(0).saturating_sub(STEPS_LOG);
    ((log as usize) << STEPS_LOG) + (gap >> log) as usize
}

/// The longest of a bucket.
fn end(bucket: usize) -> u64 {
    let steps = 1 << STEPS_LOG;
    let log = (bucket / steps).saturating_sub(1);
    (((bucket - log * steps) as u64 + 1) << log) - 1
}
