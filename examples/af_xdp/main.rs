//! An AF_XDP socket whose UMEM is a pool in an arena: an echo in a network namespace of its own, behind a veth pair,
//! and a sender in another one that checks every byte that comes back.
//!
//! ```text
//! cargo build --release --example af_xdp
//! sudo target/release/examples/af_xdp                 # 100,000 packets
//! sudo target/release/examples/af_xdp --check         # 1,000,000, and an error unless all is well
//! ```
//!
//! Needs root (namespaces, an XDP program), ip(8) of iproute2, and a kernel with `CONFIG_XDP_SOCKETS`. Namespaces,
//! interfaces and the program are gone when the process ends, however it ends. Copy mode: that is what veth has.
//!
//! On a real interface the same code runs without `network.rs`: bind to the interface's queue, leave out
//! `XDP_BIND_COPY`, and steer the flow to that queue (`ethtool -N`).

#![allow(unsafe_code)]

mod bpf;
mod echo;
mod frames;
mod network;
mod traffic;

use std::error::Error;
use std::process::ExitCode;

use hugearena::PageSize;
use traffic::Options;

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
    let mut options = Options { packets: 100_000, page_size: PageSize::HUGE_2M, umem_bytes: 4 << 20 };
    let mut check = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => (check, options.packets) = (true, 1_000_000),
            "--packets" => {
                // What is measured begins after a tenth; each packet has a byte of its own in a table.
                let number = args.next().and_then(|number| number.parse().ok());
                let number = number.filter(|number| (10..=1 << 32).contains(number));
                options.packets = number.ok_or("--packets wants a number from 10 up to 2^32")?;
            }
            _ => return Err(format!("{arg} is not known; see the head of examples/af_xdp/main.rs").into()),
        }
    }
    let report = traffic::run(&options)?;
    println!("{report}");
    let is_sound = report.is_sound() && report.steady_faults == 0;
    Ok(if is_sound || !check { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
