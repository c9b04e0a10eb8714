//! What the command line asks for.

use std::path::PathBuf;

use hugearena_peers::workloads::{self, Workload};

pub const USAGE: &str = "\
cargo bench --manifest-path benches/peers/Cargo.toml -- [OPTIONS]
  --rounds N    interleaved runs of each allocator (9; 1 with --quick)
  --only A,B    these workloads; a part of a name is enough
  --peers A,B   these configurations, besides HugeAlloc; a part of a name is enough
  --chase-mib N the pointer chase's chain (2048, less where memory is short)
  --quick       a few operations each: shows that all work, and no figures
  --check       the exit code says whether every figure is met
  --out DIR     where peers.csv and peers.svg go (target/peers)
  --lock FILE   flock this file while a workload is measured, so that others on the machine can take turns";

#[derive(Debug)]
pub struct Options {
    pub rounds: usize,
    pub is_quick: bool,
    pub is_check: bool,
    pub chase_mib: usize,
    pub out: PathBuf,
    pub lock: Option<PathBuf>,
    only: Vec<String>,
    peers: Vec<String>,
}

/// Parity is a median of nine.
const ROUNDS: usize = 9;
const CHASE_MIB: usize = 2048;

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            rounds: 0,
            is_quick: false,
            is_check: false,
            chase_mib: 0,
            out: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers")),
            lock: None,
            only: Vec::new(),
            peers: Vec::new(),
        };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value\n{USAGE}"));
            match argument.as_str() {
                // What cargo adds.
                "--bench" => {}
                "--quick" => options.is_quick = true,
                "--check" => options.is_check = true,
                "--rounds" => options.rounds = number(&value()?)?,
                "--chase-mib" => options.chase_mib = number(&value()?)?,
                "--only" => options.only = list(&value()?),
                "--peers" => options.peers = list(&value()?),
                "--out" => options.out = value()?.into(),
                "--lock" => options.lock = Some(value()?.into()),
                _ => return Err(format!("{argument}?\n{USAGE}")),
            }
        }
        options.complete()
    }

    fn complete(mut self) -> Result<Options, String> {
        if self.rounds == 0 {
            self.rounds = if self.is_quick { 1 } else { ROUNDS };
        }
        if self.is_check && self.rounds < ROUNDS && !self.is_quick {
            return Err(format!("--check wants {ROUNDS} rounds at least"));
        }
        if self.chase_mib == 0 {
            self.chase_mib = fitting_chase();
        }
        if let Some(unknown) = self.only.iter().find(|only| !workloads::ALL.iter().any(|w| w.name.contains(*only))) {
            return Err(format!("no workload is called {unknown}"));
        }
        Ok(self)
    }

    /// Whether nothing is left out.
    pub fn is_whole(&self) -> bool {
        self.only.is_empty() && self.peers.is_empty() && !self.is_quick
    }

    pub fn workloads(&self) -> Vec<&'static Workload> {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| name.contains(only));
        let names = workloads::ALL.iter().map(|workload| workload.name);
        names.filter(|name| wanted(name)).filter_map(workloads::named).collect()
    }

    pub fn wants_peer(&self, name: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| name.contains(peer))
    }

    /// Operations of a run.
    pub fn operations(&self, workload: &Workload) -> usize {
        const NODE_BYTES: usize = 64;
        match workload.name {
            _ if self.is_quick => workload.quick,
            "chase" => ((self.chase_mib << 20) / NODE_BYTES).next_power_of_two(),
            _ => workload.operations,
        }
    }
}

/// A quarter of what is available, at most 2 GiB: boxes of some allocators are half as long again, and the addresses
/// of all of them are kept as well.
fn fitting_chase() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
    let kib: usize = available.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    let mut mib = CHASE_MIB;
    while mib > 64 && mib > kib / 1024 / 4 {
        mib /= 2;
    }
    mib
}

fn list(text: &str) -> Vec<String> {
    text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or(format!("{text} is not a number from 1 up"))
}
