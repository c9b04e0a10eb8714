//! Every workload gives the same result on every allocator.

use std::process::Command;

use hugearena_peers::workloads::{self, Workload};

#[path = "../driver/binaries.rs"]
mod binaries;

use binaries::BINARIES as PEERS;

fn result(peer: &str, workload: &Workload) -> String {
    let output = Command::new(peer).arg(workload.name).arg(workload.quick.to_string()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{} on {peer}: {}", workload.name, String::from_utf8_lossy(&output.stderr));
    text.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn results_do_not_depend_on_the_allocator() {
    for workload in &workloads::ALL {
        let results = PEERS.map(|peer| result(peer, workload));
        assert!(results.iter().all(|result| *result == results[1]), "{}: {results:?}", workload.name);
    }
}

#[test]
fn an_unknown_workload_is_refused() {
    for peer in PEERS {
        let output = Command::new(peer).args(["nothing", "1"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{peer}");
    }
}
