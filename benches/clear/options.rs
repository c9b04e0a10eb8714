//! What the command line asks for.

use crate::context::Extent;

pub struct Options {
    pub extent: Extent,
    pub runs: usize,
    pub is_check: bool,
    /// Names of parts; none means all.
    parts: Vec<String>,
}

/// A median of fewer runs says more about the machine than about the code.
const LEAST_RUNS: usize = 3;

impl Options {
    /// `None` when cargo runs benches as tests: then it does not add `--bench`.
    pub fn parse(arguments: impl Iterator<Item = String>, parts: &[&str]) -> Result<Option<Options>, String> {
        let mut options = Options { extent: Extent::Usual, runs: 0, is_check: false, parts: Vec::new() };
        let mut is_bench = false;
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => is_bench = true,
                "--quick" => options.extent = Extent::Quick,
                "--full" => options.extent = Extent::Full,
                "--check" => options.is_check = true,
                "--runs" => options.runs = number(arguments.next())?,
                part if parts.contains(&part) => options.parts.push(argument),
                unknown => {
                    return Err(format!("{unknown}? Options: --quick --full --check --runs N; parts: {parts:?}"));
                }
            }
        }
        if options.runs == 0 {
            options.runs = if options.extent == Extent::Usual { 5 } else { LEAST_RUNS };
        }
        if options.is_check && options.runs < LEAST_RUNS {
            return Err(format!("--check wants {LEAST_RUNS} runs at least"));
        }
        Ok(is_bench.then_some(options))
    }

    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

fn number(text: Option<String>) -> Result<usize, String> {
    text.and_then(|text| text.parse().ok()).filter(|number| *number > 0).ok_or("--runs wants a number from 1 up".into())
}
