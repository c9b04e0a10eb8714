//! Packets through a real DPDK back end, in memory of an arena: a minimal vhost-user front end.
//!
//! ```text
//! cargo run --release --example vhost_user
//! cargo run --release --example vhost_user -- --check
//! ```
//!
//! [`hugearena::guide::vhost_user`] explains it and says how to set a machine up. `memory.rs`, `session.rs`, `queue.rs`
//! and `port.rs` are what a program of your own needs; the others make traffic and check it.

mod backend;
mod death;
mod exercise;
mod memory;
mod options;
mod packet;
mod port;
mod queue;
mod report;
mod session;
mod traffic;
mod window;

use std::path::Path;
use std::process::{Command, ExitCode};

use exercise::Peer;
use options::{HELP, Options};

/// `dpdk-testpmd` is not installed.
const NO_PEER: u8 = 3;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("vhost_user: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let options = Options::parse(std::env::args_os().skip(1))?;
    if options.help {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(socket) = &options.socket {
        return exchange(&Peer::Other(socket), options.packets);
    }
    let Some(program) = backend::find() else {
        eprintln!("vhost_user: dpdk-testpmd is not installed: {}", backend::INSTALL);
        return Ok(ExitCode::from(NO_PEER));
    };
    let peer = Peer::Own { program: &program, kills: options.kills };
    if options.check { check(&peer, &program, options.packets) } else { exchange(&peer, options.packets) }
}

fn exchange(peer: &Peer<'_>, packets: u64) -> Result<ExitCode, String> {
    let outcome = exercise::run(peer, packets, || println!("{}", death::CONNECTED))?;
    print!("{}", report::text(&outcome));
    let is_whole = outcome.missing == 0 && outcome.tally.corrupted == 0 && outcome.tally.unexpected == 0;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(peer: &Peer<'_>, program: &Path, packets: u64) -> Result<ExitCode, String> {
    let outcome = exercise::run(peer, packets, || println!("{}", death::CONNECTED))?;
    print!("{}", report::text(&outcome));
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let front_end = |socket: &Path| {
        let mut command = Command::new(this);
        command.args(["--packets", "1000000000000", "--socket"]).arg(socket);
        command
    };
    let verdict = report::verdict(&outcome, packets, &death::of(front_end, program)?);
    print!("\n{}", verdict.text);
    Ok(if verdict.all_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
