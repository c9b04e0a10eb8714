//! The table of faults in the documentation of `hugearena::doctor` is made of the tests: of the lines
//! `/// Experiments: 1, 9.` above them, and of `tests/matrix/experiments.txt`. `HUGEARENA_WRITE=1` writes it anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const TABLE: &str = "src/doctor/faults.md";

struct Experiment {
    reports: String,
    what: String,
    reason: Option<String>,
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn experiments() -> BTreeMap<u32, Experiment> {
    let text = fs::read_to_string(root().join("tests/matrix/experiments.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let fields: Vec<_> = line.split(" | ").map(str::to_owned).collect();
        let [number, reports, what, rest @ ..] = &fields[..] else { panic!("{line}") };
        let reason = rest.first().cloned();
        (number.parse().unwrap(), Experiment { reports: reports.clone(), what: what.clone(), reason })
    };
    lines.map(parse).collect()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// `tests/faults/pool.rs` is `faults pool`, `src/numa/mod.rs` is `lib numa`: what cargo test runs, and the module.
fn place(file: &Path) -> String {
    let mut words: Vec<_> = file.with_extension("").iter().map(|word| word.to_str().unwrap().to_owned()).collect();
    if words[0] == "src" {
        words[0] = if words.get(1).is_some_and(|word| word == "bin") { "bin".into() } else { "lib".into() };
        words.retain(|word| word != "mod");
        words.dedup();
    } else {
        words.remove(0);
    }
    let test = words.remove(0);
    if words.is_empty() { test } else { format!("{test} {}", words.join("::")) }
}

/// Names of tests by the experiments they make.
fn tests() -> BTreeMap<u32, Vec<String>> {
    let mut files = Vec::new();
    ["src", "tests"].iter().for_each(|part| sources(&root().join(part), &mut files));
    files.sort();
    let mut tests: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.ends_with("tests/matrix.rs")) {
        let place = place(file.strip_prefix(root()).unwrap());
        let text = fs::read_to_string(file).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(numbers) = line.trim().strip_prefix("/// Experiments: ") else { continue };
            let function = lines.by_ref().find_map(|line| line.trim().strip_prefix("fn ")).expect("a test follows");
            let name = function.split('(').next().unwrap();
            for number in numbers.trim_end_matches('.').split(", ") {
                tests.entry(number.parse().unwrap()).or_default().push(format!("`{place}: {name}`"));
            }
        }
    }
    tests
}

fn table() -> String {
    let (experiments, tests) = (experiments(), tests());
    let mut text = String::from(
        "# Faults that are provoked in tests\n\n\
         Each row is what somebody has reported of another program, and what has to follow here. The tests provoke it for \
         real where a machine can: hugetlb cgroups of both versions and NUMA nodes in an emulated one \
         (`tests/numa-vm.sh`). This table is made of the tests by `tests/matrix.rs`.\n\n\
         | | reported of | what is provoked, and what has to follow | tests |\n|---|---|---|---|\n",
    );
    let mut tested = 0;
    for (number, Experiment { reports, what, reason }) in &experiments {
        let names = tests.get(number).map(|names| names.join("<br>"));
        tested += usize::from(names.is_some());
        let made = [names, reason.as_ref().map(|reason| format!("not more: {reason}"))];
        let made: Vec<_> = made.into_iter().flatten().collect();
        text += &format!("| {number} | {reports} | {what} | {} |\n", made.join("<br>"));
    }
    text + &format!("\n{tested} of {} have tests.\n", experiments.len())
}

#[test]
fn every_experiment_has_a_test_or_a_reason() {
    let (experiments, tests) = (experiments(), tests());
    for (number, experiment) in &experiments {
        assert!(tests.contains_key(number) || experiment.reason.is_some(), "experiment {number} has neither");
    }
    for (number, names) in &tests {
        assert!(experiments.contains_key(number), "{names:?}: there is no experiment {number}");
    }
}

#[test]
fn the_table_is_that_of_the_tests() {
    let (file, table) = (root().join(TABLE), table());
    if std::env::var_os("HUGEARENA_WRITE").is_some() {
        fs::write(&file, &table).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(written == table, "{TABLE} is out of date: HUGEARENA_WRITE=1 cargo test --test matrix");
}
