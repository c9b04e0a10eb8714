//! Collections and documents, as programs use them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, DefaultHasher};

use serde_json::Value;

use super::{Outcome, Random, timed};

/// A map that nobody sized beforehand, then twice as many look-ups as it has entries.
pub fn hash_map(entries: usize) -> Outcome {
    let mut random = Random::new(6);
    timed(|| {
        let mut map: HashMap<u64, u64, BuildHasherDefault<DefaultHasher>> = HashMap::default();
        for _ in 0..entries {
            *map.entry(random.below(2 * entries) as u64).or_default() += 1;
        }
        let found = (0..2 * entries).filter_map(|_| map.get(&(random.below(2 * entries) as u64))).sum::<u64>();
        assert_eq!(map.values().sum::<u64>(), entries as u64);
        found
    })
}

/// A tree of random keys, looked up and half of them removed.
pub fn btree(entries: usize) -> Outcome {
    let mut random = Random::new(7);
    timed(|| {
        let mut tree: BTreeMap<u64, [u64; 2]> = (0..entries).map(|at| (random.next(), [at as u64; 2])).collect();
        for at in 0..entries {
            tree.insert(random.next(), [at as u64; 2]);
        }
        let found: u64 =
            (0..entries).filter_map(|_| tree.range(random.next()..).next()).map(|(_, value)| value[0]).sum();
        let mut is_kept = false;
        tree.retain(|_, _| {
            is_kept = !is_kept;
            is_kept
        });
        found + tree.len() as u64
    })
}

/// Parses a document, looks into it and drops it, `times` over.
pub fn json(times: usize) -> Outcome {
    let document = document();
    timed(|| {
        let mut sum = 0;
        for _ in 0..times {
            let tree: Value = serde_json::from_str(&document).expect("we wrote it");
            let items = tree["items"].as_array().expect("a list");
            sum += items.iter().filter_map(|item| item["price"]["amount"].as_u64()).sum::<u64>();
        }
        sum
    })
}

fn document() -> String {
    let mut random = Random::new(8);
    let mut text = String::from("{\"items\":[");
    for id in 0..10_000 {
        let comma = if id == 0 { "" } else { "," };
        let (amount, stock) = (random.below(10_000), random.below(100));
        let _ = write!(
            text,
            "{comma}{{\"id\":{id},\"name\":\"item number {id}\",\"tags\":[\"a\",\"tag{stock}\",\"another tag\"],\
             \"price\":{{\"amount\":{amount},\"currency\":\"EUR\"}},\"stock\":[{stock},{stock}.5,null,true],\
             \"text\":\"{}\"}}",
            "words ".repeat(random.below(16))
        );
    }
    text + "]}"
}

/// Lines split, changed, sorted and joined again, `times` over.
pub fn strings(times: usize) -> Outcome {
    let mut random = Random::new(9);
    let mut text = String::new();
    for _ in 0..50_000 {
        let _ = writeln!(text, "{:x} {}", random.next(), "x".repeat(random.below(60)));
    }
    timed(|| {
        let mut sum = 0;
        for time in 0..times {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            for line in &mut lines {
                line.push_str(&time.to_string());
                line.insert(0, '>');
            }
            lines.sort_unstable();
            let words: Vec<Vec<String>> =
                lines.iter().map(|line| line.split(' ').map(str::to_uppercase).collect()).collect();
            sum += words.iter().flatten().map(|word| word.len() as u64).sum::<u64>() + lines.join("\n").len() as u64;
        }
        sum
    })
}
