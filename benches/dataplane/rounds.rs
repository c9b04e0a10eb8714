//! Rounds: everything once, in turns, and the median of the rounds' ratios.

use crate::dpdk::Dpdk;
use crate::judge;
use crate::measure::Summary;
use crate::pools::Pools;
use crate::rings;
use crate::timing::cycles_per_second;

const KEEPS: [usize; 2] = [32, 128];
const CORES: [&str; 2] = ["one core", "two cores"];

/// What a round measured.
struct Round {
    /// Objects a second: cores, keep.
    pool: [[f64; 2]; 2],
    boxed: f64,
    /// Cycles an object: cores.
    spsc: [f64; 2],
    mpmc: [f64; 2],
    array_queue: [f64; 2],
    /// Or why there is no comparison: DPDK does not say the same on all machines.
    theirs: Result<Theirs, String>,
}

struct Theirs {
    pool: [[f64; 2]; 2],
    /// Cycles an object: cores, single or multi.
    ring: [[f64; 2]; 2],
}

impl Round {
    fn new(pools: &Pools, dpdk: Result<&Dpdk, String>) -> Round {
        let ring = dpdk.clone().and_then(Dpdk::ring);
        let (spsc, mpmc, array_queue) = (rings::spsc(), rings::mpmc(), rings::array_queue());
        let pool = [KEEPS.map(|keep| pools.one_core(keep)), KEEPS.map(|keep| pools.two_cores(keep))];
        let boxed = pools.boxed(KEEPS[0]);
        let theirs = ring.and_then(|ring| Ok(Theirs { pool: dpdk?.mempool(KEEPS)?, ring }));
        Round { pool, boxed, spsc, mpmc, array_queue, theirs }
    }

    fn their_pool(&self, cores: usize, keep: usize) -> f64 {
        self.theirs.as_ref().map_or(f64::NAN, |theirs| theirs.pool[cores][keep])
    }

    fn their_ring(&self, cores: usize, kind: usize) -> f64 {
        self.theirs.as_ref().map_or(f64::NAN, |theirs| theirs.ring[cores][kind])
    }
}

/// Prints every figure; whether all are met.
pub fn measure(runs: usize) -> Result<bool, String> {
    let dpdk = Dpdk::find();
    let pools = Pools::new()?;
    let rounds: Vec<_> = (0..runs.max(1)).map(|_| Round::new(&pools, dpdk.as_ref().map_err(String::clone))).collect();
    let nanoseconds = 1e9 / cycles_per_second();
    println!("Medians of {runs} rounds; a cycle of the time stamp counter is {nanoseconds:.3} ns.\n");
    let all = |value: &dyn Fn(&Round) -> f64| Summary::of(rounds.iter().map(value));
    let mut is_met = true;
    // How many times as fast as the other.
    let mut least = |name: String, limit: f64, gain: &dyn Fn(&Round) -> f64| {
        let gain = all(gain);
        is_met &= gain.median >= limit;
        print!("{}", judge::line(gain.median >= limit, &name, gain, &format!(">= {limit}x")));
    };
    let missing = rounds.iter().find_map(|round| round.theirs.as_ref().err());
    if let Some(reason) = missing {
        println!("NOT met: no comparison with DPDK: {reason}");
    } else {
        for (cores, name) in CORES.iter().enumerate() {
            for (at, keep) in KEEPS.iter().enumerate() {
                let gain = |round: &Round| round.pool[cores][at] / round.their_pool(cores, at);
                least(format!("pool, bulk 32, {keep} kept, {name}, over DPDK"), 1.0, &gain);
            }
        }
        for (cores, name) in CORES.iter().enumerate() {
            least(format!("SPSC, burst 32, {name}, over DPDK"), 1.0, &|round| {
                round.their_ring(cores, 0) / round.spsc[cores]
            });
            least(format!("MPMC, burst 32, {name}, over DPDK"), 1.0, &|round| {
                round.their_ring(cores, 1) / round.mpmc[cores]
            });
        }
    }
    for (cores, name) in CORES.iter().enumerate() {
        least(format!("SPSC, burst 32, {name}, over ArrayQueue"), 3.0, &|round| {
            round.array_queue[cores] / round.spsc[cores]
        });
        least(format!("MPMC, burst 32, {name}, over ArrayQueue"), 3.0, &|round| {
            round.array_queue[cores] / round.mpmc[cores]
        });
    }
    table(&rounds, nanoseconds);
    Ok(is_met && missing.is_none())
}

/// What the gains are made of.
fn table(rounds: &[Round], nanoseconds: f64) {
    let all = |value: &dyn Fn(&Round) -> f64| Summary::of(rounds.iter().map(value));
    println!("\nNanoseconds an object          ours      DPDK ArrayQueue");
    for (cores, name) in CORES.iter().enumerate() {
        let threads = (cores + 1) as f64;
        for (at, keep) in KEEPS.iter().enumerate() {
            let theirs = all(&|round| threads * 1e9 / round.their_pool(cores, at));
            let ours = all(&|round| threads * 1e9 / round.pool[cores][at]);
            println!("pool, keep {keep:<4} {name:<12}{:>8.2}{:>10.2}", ours.median, theirs.median);
        }
        let queue = all(&|round| nanoseconds * round.array_queue[cores]).median;
        for (kind, kind_name) in ["SPSC", "MPMC"].iter().enumerate() {
            let ours = all(&|round| nanoseconds * [round.spsc, round.mpmc][kind][cores]);
            let theirs = all(&|round| nanoseconds * round.their_ring(cores, kind));
            println!("{kind_name} ring       {name:<12}{:>8.2}{:>10.2}{queue:>11.2}", ours.median, theirs.median);
        }
    }
    println!("PoolBox, one core          {:>8.2}", all(&|round| 1e9 / round.boxed).median);
}
