//! Storage on an arena: chunks as registered buffers of io_uring, files by O_DIRECT, every byte checked.
//!
//! ```text
//! cargo run --release --example io_uring                  # 512 MiB of traffic through a file in this directory
//! cargo run --release --example io_uring -- --check       # 4 GiB, and an error unless nothing was lost and nothing faulted
//! ```
//!
//! Options: `--dir DIR` (on a file system with O_DIRECT: not every tmpfs), `--total-mib N`, `--file-mib N`,
//! `--arena-mib N`. Needs no privileges, but RLIMIT_MEMLOCK has to allow the arena to be registered; what happens if it
//! does not:
//!
//! ```text
//! cargo build --release --example io_uring
//! sudo sh -c 'ulimit -l 64; exec setpriv --reuid=65534 --clear-groups target/release/examples/io_uring --dir /var/tmp'
//! ```

#![allow(unsafe_code)]

mod storage;

use std::error::Error;
use std::process::ExitCode;

use hugearena::PageSize;
use storage::Options;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut options = Options {
        directory: ".".into(),
        // Several rounds, so that there is a steady state.
        file_bytes: 64 << 20,
        total_bytes: 512 << 20,
        page_size: PageSize::HUGE_2M,
        // RLIMIT_MEMLOCK is 8 MiB unless somebody changed it (Linux 5.16).
        arena_bytes: 4 << 20,
    };
    let mut check = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
        let mut mib = || -> Result<u64, Box<dyn Error>> {
            let wanted = || format!("{arg} wants a number of MiB, from 1 up to 2^40");
            let mib = value()?.parse().ok().filter(|mib| (1..=1 << 40).contains(mib));
            Ok(mib.map(|mib: u64| mib << 20).ok_or_else(wanted)?)
        };
        match arg.as_str() {
            "--check" => (check, options.total_bytes) = (true, 4 << 30),
            "--total-mib" => options.total_bytes = mib()?,
            "--file-mib" => options.file_bytes = mib()?,
            "--arena-mib" => options.arena_bytes = mib()? as usize,
            "--dir" => options.directory = value()?.into(),
            _ => return Err(format!("{arg} is not known; see the head of examples/io_uring/main.rs").into()),
        }
    }
    let report = storage::run(&options)?;
    println!("{report}");
    let is_sound = report.corrupted == 0 && report.steady_faults == 0 && report.steady_bytes > 0;
    Ok(if is_sound || !check { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
