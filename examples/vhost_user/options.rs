//! The command line.

use std::path::PathBuf;

pub const HELP: &str = "\
Sends packets through a DPDK back end and gets them back, in memory that both have: a hugearena::Arena.

usage: vhost_user [--packets N] [--kills N | --socket PATH] [--check]

  --packets N    packets to send and to get back (default 1000000)
  --kills N      kill the back end so many times meanwhile, and go on with a new one (default 1)
  --check        compare with the figures that this project promises; exit with 1 when one is not met
  --socket PATH  use the vhost-user back end that listens there; come back when it comes back

Without --socket it starts dpdk-testpmd, and exits with 3 where that is not installed.
";

pub struct Options {
    pub packets: u64,
    pub kills: u64,
    pub check: bool,
    pub socket: Option<PathBuf>,
    pub help: bool,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<Options, String> {
        let mut options = Options { packets: 1_000_000, kills: 1, check: false, socket: None, help: false };
        while let Some(argument) = arguments.next() {
            let mut number = |option: &str, least: u64| {
                let value = arguments.next().and_then(|value| value.to_str()?.parse().ok());
                value.filter(|number| *number >= least).ok_or(format!("{option} wants a number from {least} up"))
            };
            match argument.to_str() {
                Some("--packets") => options.packets = number("--packets", 1)?,
                Some("--kills") => options.kills = number("--kills", 0)?,
                Some("--check") => options.check = true,
                Some("--socket") => options.socket = Some(arguments.next().ok_or("--socket wants a path")?.into()),
                Some("--help" | "-h") => options.help = true,
                _ => return Err(format!("unknown argument {}; --help tells which there are", argument.display())),
            }
        }
        if options.check && (options.socket.is_some() || options.kills == 0) {
            return Err("--check kills a back end of its own: not with --socket or --kills 0".into());
        }
        Ok(options)
    }
}
