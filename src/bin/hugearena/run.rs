//! `hugearena run`: a program with the heap as its malloc. Becomes that program, or says why not.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use hugearena::doctor::gains_capabilities;

use crate::{eprint_line, size};

const LIBRARY: &str = "libpreload.so";
const BUILD: &str = "cargo build --release --example preload --features preload";

/// Exit statuses, those of env(1).
const OWN_FAILURE: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The library [default: $HUGEARENA_PRELOAD, else beside this command or in examples/ there]
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// The most the heap may hold; allocations beyond fail
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,
    /// Pages from the pool or nothing
    #[arg(long)]
    strict: bool,
    /// What the heap held, on which pages, to standard error when the program ends
    #[arg(long)]
    stats: bool,
    /// The program, and what it is to be called with
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Why the program does not run.
struct Refusal {
    status: u8,
    reason: String,
}

pub fn run(options: &Options) -> ExitCode {
    let refusal = match command(options) {
        // Returns only when it could not.
        Ok(mut command) => cannot_run(&options.command[0], &command.exec()),
        Err(refusal) => refusal,
    };
    // Standard output is the program's.
    eprint_line(&refusal.reason);
    ExitCode::from(refusal.status)
}

fn command(options: &Options) -> Result<Command, Refusal> {
    let own = |reason| Refusal { status: OWN_FAILURE, reason };
    let library = library(options.lib.as_deref()).map_err(own)?;
    let program = &options.command[0];
    check(program)?;
    let mut command = Command::new(program);
    command.args(&options.command[1..]).env("LD_PRELOAD", preload_list(&library, env::var_os("LD_PRELOAD")));
    if let Some(limit) = options.limit {
        command.env("HUGEARENA_LIMIT", limit.to_string());
    }
    for (name, wanted) in [("HUGEARENA_STRICT", options.strict), ("HUGEARENA_STATS", options.stats)] {
        if wanted {
            command.env(name, "1");
        }
    }
    Ok(command)
}

/// First, so that its symbols are the ones that are found.
fn preload_list(library: &Path, others: Option<OsString>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The library's absolute path. What was named and is not there is an error, not a reason to look elsewhere.
fn library(named: Option<&Path>) -> Result<PathBuf, String> {
    let variable = || env::var_os("HUGEARENA_PRELOAD").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = match named.map(Path::to_owned).or_else(variable) {
        Some(path) => path,
        None => beside_this_command()?,
    };
    let path = path.canonicalize().map_err(|error| format!("{}: {error}; it comes from: {BUILD}", path.display()))?;
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(format!("{}: LD_PRELOAD cannot hold a path with blanks or colons", path.display()));
    }
    Ok(path)
}

fn beside_this_command() -> Result<PathBuf, String> {
    let here = env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let places = [here.with_file_name(LIBRARY), here.with_file_name("examples").join(LIBRARY)];
    places.into_iter().find(|path| path.exists()).ok_or_else(|| {
        let directory = here.parent().unwrap_or(Path::new("/")).display();
        format!(
            "no {LIBRARY} in {directory} or its examples/; build it: {BUILD}; or name it: --lib, $HUGEARENA_PRELOAD"
        )
    })
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Refusal {
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    Refusal { status, reason: format!("{}: {error}", program.display()) }
}

/// The loader ignores LD_PRELOAD without a word for programs that it does not load or does not trust.
fn check(program: &OsStr) -> Result<(), Refusal> {
    // What cannot be found is exec's to complain about.
    let Some(path) = find(program) else {
        return Ok(());
    };
    let refuse = |reason: &str| {
        Err(Refusal { status: CANNOT_RUN, reason: format!("{} {reason}: nothing can be preloaded", path.display()) })
    };
    if fs::metadata(&path).is_ok_and(|metadata| metadata.permissions().mode() & 0o6000 != 0) {
        return refuse("is setuid or setgid");
    }
    if gains_capabilities(&path) {
        return refuse("has file capabilities, which it gains unless root runs it");
    }
    match File::open(&path).and_then(kind) {
        Ok(Kind::Static) => refuse("is statically linked"),
        Ok(Kind::Foreign) => refuse("is for another kind of machine"),
        // Other formats and scripts have interpreters of their own, which are what gets loaded. A program need not be
        // readable to run.
        Ok(Kind::Dynamic | Kind::Other) | Err(_) => Ok(()),
    }
}

/// As execvp(3) finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_program);
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Dynamic,
    Static,
    Foreign,
    Other,
}

/// Source: elf(5).
fn kind(mut file: impl Read + Seek) -> io::Result<Kind> {
    const HEADER: usize = 64;
    const PT_INTERP: u32 = 3;
    let mut header = [0; HEADER];
    if file.read_exact(&mut header).is_err() || &header[..4] != b"\x7fELF" {
        return Ok(Kind::Other);
    }
    let mut own = [0; HEADER];
    File::open("/proc/self/exe")?.read_exact(&mut own)?;
    // Class, byte order, machine.
    if header[4..6] != own[4..6] || header[18..20] != own[18..20] {
        return Ok(Kind::Foreign);
    }
    let u16_at = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let table = u64::from_ne_bytes(header[32..40].try_into().expect("eight bytes"));
    let (entry_len, count) = (u64::from(u16_at(54)), u64::from(u16_at(56)));
    for index in 0..count {
        file.seek(SeekFrom::Start(table.saturating_add(index * entry_len)))?;
        let mut kind = [0; 4];
        file.read_exact(&mut kind)?;
        if u32::from_ne_bytes(kind) == PT_INTERP {
            return Ok(Kind::Dynamic);
        }
    }
    Ok(Kind::Static)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn the_library_comes_first() {
        let library = Path::new("/a/libpreload.so");
        assert_eq!(preload_list(library, None), "/a/libpreload.so");
        assert_eq!(preload_list(library, Some("".into())), "/a/libpreload.so");
        assert_eq!(preload_list(library, Some("b.so c.so".into())), "/a/libpreload.so:b.so c.so");
    }

    #[test]
    fn only_what_may_be_executed_is_a_program() {
        let path = env::temp_dir().join(format!("hugearena-program-{}", std::process::id()));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        for (mode, is_program) in [(0o644, false), (0o755, true), (0o700, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(find(path.as_os_str()).is_some(), is_program, "{mode:o}");
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn programs_are_told_apart() {
        let mut own = fs::read("/proc/self/exe").unwrap();
        assert_eq!(kind(Cursor::new(&own)).unwrap(), Kind::Dynamic);
        let mut none = own.clone();
        none[56..58].fill(0);
        assert_eq!(kind(Cursor::new(&none)).unwrap(), Kind::Static);
        own[18] ^= 1;
        assert_eq!(kind(Cursor::new(&own)).unwrap(), Kind::Foreign);
        assert_eq!(kind(Cursor::new(b"#!/bin/sh\n")).unwrap(), Kind::Other);
        own[18] ^= 1;
        assert!(kind(Cursor::new(&own[..64])).is_err(), "cut short");
    }
}
