//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::corpus::Source;

pub const HELP: &str = "\
Builds an inverted index of text files and answers queries from it, under libc malloc and under HugeAlloc.

usage: quickstart [--runs N] [--check] [--heap-mib N] [--corpus-mib N] [--queries N] [PATH]

  PATH            index every text file below it (default: the Rust sources that cargo unpacked, else this repository)
  --runs N        rounds, each of one process per allocator (default 3; with --check, 9 or more)
  --check         compare the medians with the figures this project promises; exit with 1 when one is not met
  --heap-mib N    index the files again, as new documents, until the index holds this much (default 512)
  --corpus-mib N  read no more than this much text (default 32)
  --queries N     queries to answer (default 500000)
";

/// A median of fewer says more about the machine than about the allocators.
const LEAST_ROUNDS: usize = 9;

pub struct Options {
    pub path: Option<PathBuf>,
    pub runs: Option<usize>,
    pub check: bool,
    pub heap_mib: usize,
    pub corpus_mib: usize,
    pub queries: usize,
    pub help: bool,
}

impl Default for Options {
    fn default() -> Options {
        let (heap_mib, corpus_mib, queries) = (512, 32, 500_000);
        Options { path: None, runs: None, check: false, heap_mib, corpus_mib, queries, help: false }
    }
}

impl Options {
    pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, String> {
        let mut options = Options::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("--runs") => options.runs = Some(number("--runs", arguments.next())?),
                Some("--heap-mib") => options.heap_mib = number("--heap-mib", arguments.next())?,
                Some("--corpus-mib") => options.corpus_mib = number("--corpus-mib", arguments.next())?,
                Some("--queries") => options.queries = number("--queries", arguments.next())?,
                Some("--check") => options.check = true,
                Some("--help" | "-h") => options.help = true,
                Some(unknown) if unknown.starts_with('-') => return Err(format!("unknown option {unknown}")),
                _ if options.path.is_some() => return Err("more than one PATH".to_owned()),
                _ => options.path = Some(PathBuf::from(argument)),
            }
        }
        if options.check && options.runs() < LEAST_ROUNDS {
            return Err(format!("--check wants {LEAST_ROUNDS} rounds at least: fewer say nothing on a shared machine"));
        }
        Ok(options)
    }

    pub fn runs(&self) -> usize {
        self.runs.unwrap_or(if self.check { LEAST_ROUNDS } else { 3 })
    }

    pub fn source(&self) -> Source {
        let limit_bytes = (self.corpus_mib as u64) << 20;
        match &self.path {
            Some(path) => Source::under(path.clone(), limit_bytes),
            None => Source::found(limit_bytes),
        }
    }
}

fn number(option: &str, value: Option<OsString>) -> Result<usize, String> {
    let value = value.ok_or_else(|| format!("{option} wants a number"))?;
    let parsed = value.to_str().and_then(|text| text.parse().ok()).filter(|number| (1..1 << 32).contains(number));
    parsed.ok_or_else(|| format!("{option} wants a number from 1 up, not {}", value.display()))
}
