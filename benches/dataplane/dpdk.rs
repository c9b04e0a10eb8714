//! `dpdk-test`, run for what its perf tests print.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How much slower the counter seems to be.
const SHORTER: u64 = 400;

/// Nothing of the tests is changed but for how long they take. Lines come out one by one, so that the process can be
/// ended as soon as it has said what is wanted.
const PRELOADED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
uint64_t rte_get_tsc_hz(void) {
    uint64_t (*real)(void) = (uint64_t (*)(void))dlsym(RTLD_NEXT, "rte_get_tsc_hz");
    return real() / SHORTER;
}
__attribute__((constructor)) static void lines(void) { setvbuf(stdout, NULL, _IOLBF, 0); }
"#;

/// What this machine has of DPDK.
pub struct Dpdk {
    directory: PathBuf,
}

impl Dpdk {
    /// # Errors
    ///
    /// Why there can be no comparison.
    pub fn find() -> Result<Dpdk, String> {
        let directory = std::env::temp_dir().join(format!("hugearena-dpdk-{}", std::process::id()));
        let dpdk = Dpdk { directory };
        std::fs::create_dir(&dpdk.directory).map_err(|error| error.to_string())?;
        let source = dpdk.directory.join("shorter.c");
        std::fs::write(&source, PRELOADED).map_err(|error| error.to_string())?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(dpdk.library()).arg(&source);
        let status = compiler.arg(format!("-DSHORTER={SHORTER}ull")).arg("-ldl").status();
        if !status.is_ok_and(|status| status.success()) {
            return Err("there is no C compiler (apt install gcc)".into());
        }
        match Command::new("dpdk-test").arg("--help").output() {
            Ok(_) => Ok(dpdk),
            Err(error) => Err(format!("dpdk-test: {error} (apt install dpdk-dev)")),
        }
    }

    fn library(&self) -> PathBuf {
        self.directory.join("shorter.so")
    }

    /// Runs a test until it has printed a line for each of `wanted`, in their order, and returns those lines' numbers
    /// at the end.
    fn run(&self, test: &str, wanted: &[(&str, &str)]) -> Result<Vec<f64>, String> {
        let mut child = Ended(start(&self.library())?);
        let mut stdin = child.0.stdin.take().expect("piped");
        writeln!(stdin, "{test}").map_err(|error| error.to_string())?;
        let lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
        let mut found = Vec::new();
        let mut section = String::new();
        for line in lines.map_while(Result::ok) {
            if line.starts_with("start ") || line.starts_with("###") {
                section.clone_from(&line);
            }
            let Some((heading, start)) = wanted.get(found.len()) else { break };
            if section.contains(heading) && line.contains(start) {
                let number = line.rsplit([' ', '=']).next().and_then(|number| number.parse().ok());
                found.push(number.ok_or_else(|| format!("dpdk-test says {line}"))?);
            }
        }
        if found.len() < wanted.len() {
            return Err(format!("dpdk-test did not come to {:?}", wanted[found.len()]));
        }
        Ok(found)
    }

    /// Objects got and put in a second: by one core and by two, for each of `keeps`.
    pub fn mempool(&self, keeps: [usize; 2]) -> Result<[[f64; 2]; 2], String> {
        let line =
            |cores, keep| format!("cache=512 cores={cores} n_get_bulk=32 n_put_bulk=32 n_keep={keep} constant_n=1");
        let lines: Vec<String> = [1, 2].iter().flat_map(|cores| keeps.map(|keep| line(cores, keep))).collect();
        let wanted: Vec<_> = lines.iter().map(|line| ("(with cache)", line.as_str())).collect();
        let rates = self.run("mempool_perf_autotest", &wanted)?;
        let rate = |at: usize| rates[at] * SHORTER as f64;
        Ok([[rate(0), rate(1)], [rate(2), rate(3)]])
    }

    /// Cycles an object: enqueued and dequeued by one core in a burst of 32, and by two cores in bulks of 32; single
    /// and multi.
    pub fn ring(&self) -> Result<[[f64; 2]; 2], String> {
        let wanted = [
            ("burst enq/deq", "legacy APIs: SP/SC: burst (size: 32)"),
            ("burst enq/deq", "legacy APIs: MP/MC: burst (size: 32)"),
            ("two physical cores", "legacy APIs: SP/SC: bulk (size: 32)"),
            ("two physical cores", "legacy APIs: MP/MC: bulk (size: 32)"),
        ];
        let cycles = self.run("ring_perf_autotest", &wanted)?;
        // With one core it prints cycles of a burst, with two cycles of an object.
        Ok([[cycles[0] / 32.0, cycles[1] / 32.0], [cycles[2], cycles[3]]])
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start(library: &Path) -> Result<Child, String> {
    let mut command = Command::new("dpdk-test");
    command.args(["--in-memory", "--no-pci", "-l", "0-1", "-m", "64"]).env("LD_PRELOAD", library);
    // What it makes for itself, and leaves behind, goes with the library.
    let directory = library.parent().expect("a file in a directory");
    command.envs(["XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"].map(|name| (name, directory)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map_err(|error| format!("dpdk-test: {error}"))
}

/// A process that is killed when it is not wanted any more: it would run for minutes.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
