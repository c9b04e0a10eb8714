//! The program of one allocator: does one workload and says how long that took.

use std::process::exit;

use crate::workloads::{self, Outcome};

/// `PEER WORKLOAD OPERATIONS`: prints nanoseconds, the result, and what `note` has to say, in one line.
pub fn run(note: fn() -> String) {
    let mut arguments = std::env::args().skip(1);
    let workload = arguments.next().and_then(|name| workloads::named(&name));
    let operations = arguments.next().and_then(|text| text.parse().ok());
    let (Some(workload), Some(operations)) = (workload, operations) else {
        eprintln!("usage: WORKLOAD OPERATIONS; workloads:");
        workloads::ALL.iter().for_each(|workload| eprintln!("  {:16} {}", workload.name, workload.what));
        exit(2);
    };
    let Outcome { elapsed, result } = (workload.run)(operations);
    println!("{} {result} {}", elapsed.as_nanos(), note());
}
