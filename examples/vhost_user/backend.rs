//! The back end: `dpdk-testpmd` with a vhost port, which sends back every packet that it receives.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugearena::PageSize;
use hugearena::supply::Supply;

const PROGRAM: &str = "dpdk-testpmd";
/// How to get it, on Debian and Ubuntu.
pub const INSTALL: &str = "apt-get install -y --no-install-recommends dpdk-dev";
/// MiB that it has for packets and for itself.
const MIB: u64 = 64;
/// It takes a second or so to start or to end, more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running `dpdk-testpmd`. Ended when dropped; it also ends by itself when this process does, because its standard
/// input ends.
pub struct Backend {
    child: Child,
    directory: PathBuf,
    command: String,
    on_huge_pages: bool,
}

/// What it counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub received: u64,
    /// Packets that it could not send back: the receive queue had no buffer.
    pub dropped: u64,
}

/// The program, if `PATH` has it.
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|place| place.join(PROGRAM)).find(|program| program.is_file())
}

impl Backend {
    /// Starts it, and waits until it listens. On 2 MiB pages of its own if the pool has 64 MiB of them, else on base pages.
    pub fn start(program: &Path) -> Result<Backend, String> {
        let available = Supply::read().available_pages(PageSize::HUGE_2M) * PageSize::HUGE_2M.bytes() as u64;
        let huge = (available >= MIB << 20).then(|| Backend::launch(program, true)?.listening());
        match huge {
            Some(Ok(backend)) => return Ok(backend),
            // The pool may have been taken by somebody else meanwhile.
            Some(Err(problem)) => eprintln!("back end: not on 2 MiB pages: {problem}"),
            None => {}
        }
        Backend::launch(program, false)?.listening()
    }

    fn launch(program: &Path, on_huge_pages: bool) -> Result<Backend, String> {
        let failed = |error: io::Error| format!("{}: {error}", program.display());
        let directory = new_directory().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments(on_huge_pages, &directory.join(SOCKET)));
        // What it makes for itself, and leaves behind: there, and not in /tmp/dpdk or /run/dpdk.
        command.envs(["XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"].map(|name| (name, &directory)));
        let spawned = File::create(directory.join(LOG)).and_then(|log| {
            command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
            command.spawn()
        });
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let text = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        match spawned {
            Ok(child) => Ok(Backend { child, directory, command: text, on_huge_pages }),
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(failed(error))
            }
        }
    }

    fn listening(mut self) -> Result<Backend, String> {
        let start = Instant::now();
        while !self.socket().exists() {
            if let Some(problem) = self.problem() {
                return Err(problem);
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{} does not listen", self.command));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(self)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it was started.
    pub fn command(&self) -> &str {
        &self.command
    }

    pub fn is_on_huge_pages(&self) -> bool {
        self.on_huge_pages
    }

    /// Why it is not running any more, if so: the last of what it printed.
    pub fn problem(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let log = self.log();
        let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n  ");
        Some(format!("{} ended, {status}:\n  {last}", self.command))
    }

    /// Where it has the file with this inode number mapped.
    pub fn mappings(&self, inode: u64) -> Vec<Range<u64>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.id())).unwrap_or_default();
        maps.lines().filter_map(|line| mapping_of(line, inode)).collect()
    }

    /// How many mappings of arenas it has.
    pub fn mapped_arenas(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.id())).unwrap_or_default();
        maps.lines().filter(|line| line.contains("/memfd:hugearena")).count()
    }

    /// Its page faults so far, all threads.
    pub fn page_faults(&self) -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        // After the name, which may contain anything: state is the first field, minflt the 8th, majflt the 10th.
        let fields: Vec<_> = stat.rsplit(") ").next()?.split(' ').collect();
        Some(fields.get(7)?.parse::<u64>().ok()? + fields.get(9)?.parse::<u64>().ok()?)
    }

    /// SIGKILL, as the OOM killer would, and waits until it is gone.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it end, and returns what it counted.
    pub fn finish(mut self) -> Result<Counters, String> {
        drop(self.child.stdin.take());
        let start = Instant::now();
        while self.child.try_wait().map_err(|error| error.to_string())?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(format!("{PROGRAM} does not end"));
            }
            sleep(Duration::from_millis(20));
        }
        let log = self.log();
        let count = |name: &str| log.split(name).nth(1)?.split_whitespace().next()?.parse().ok();
        let counters = count("RX-packets:").zip(count("TX-dropped:"));
        let counters = counters.map(|(received, dropped)| Counters { received, dropped });
        counters.ok_or_else(|| format!("{PROGRAM} printed no statistics:\n{log}"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join(LOG)).unwrap_or_default()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

const SOCKET: &str = "vhost.sock";
const LOG: &str = "testpmd.log";

/// A directory that only this user can look into: whoever can connect to the socket gets and gives packets. A program
/// that was killed leaves its own, and another may have the same number later: then it is the next name.
pub fn new_directory() -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let name = format!("vhost-user-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mut path = std::env::temp_dir().join(&name);
        // The address of a socket is a path of at most 107 bytes.
        if path.as_os_str().len() + SOCKET.len() > 100 {
            path = Path::new("/tmp").join(name);
        }
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn arguments(on_huge_pages: bool, socket: &Path) -> Vec<String> {
    // One thread waits for the end of its input, one forwards.
    let cpus = allowed_cpus();
    let (first, last) = (cpus.first().copied().unwrap_or(0), cpus.last().copied().unwrap_or(0));
    let memory = match on_huge_pages {
        // Without a limit it takes a page of 1 GiB where there is one.
        true => format!("--in-memory --single-file-segments -m {MIB} --socket-limit={MIB}"),
        false => format!("--no-huge --no-shconf -m {MIB}"),
    };
    let device = format!("--vdev=net_vhost0,iface={},queues=1", socket.display());
    // With one port, what comes in goes out there. It would begin with throwing away what it finds: it may not.
    let forward = "-- --forward-mode=io --port-topology=loop --nb-cores=1 --total-num-mbufs=4096 --no-flush-rx";
    let words = format!("--lcores 0@{first},1@{last} {memory} --iova-mode=va --no-pci --no-telemetry");
    let before = words.split(' ').map(str::to_owned);
    before.chain([device]).chain(forward.split(' ').map(str::to_owned)).collect()
}

/// The CPUs that this process may run on, in ascending order.
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a set of zeroes is an empty one; the call fills it up to its size; CPU_ISSET reads inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// A line of /proc/PID/maps: range, flags, offset, device, inode, path.
fn mapping_of(line: &str, inode: u64) -> Option<Range<u64>> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let found: u64 = fields.nth(3)?.parse().ok()?;
    let parse = |text| u64::from_str_radix(text, 16).ok();
    (found == inode).then_some(parse(start)?..parse(end)?)
}
