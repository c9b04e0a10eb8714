//! Two who open at the same moment, where there are pages for one: the last of the pool, of a cgroup, of a mount.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::time::Duration;

use hugearena::supply::Supply;

use super::*;
use crate::support::cgroup::{Cgroup, CgroupSpec, Limit as Which, Version, join};
use crate::support::child::{start, wait_for};
use crate::support::kill::rounds;
use crate::support::machine::{Mounted, TempDir};
use crate::support::{Child, print_figure};

const PAGES: usize = 3;
/// Pages that there are.
const POOL: u64 = PAGES as u64 + 2;

/// What kind of arena is raced for.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Memfd,
    Anonymous,
    /// Two names on one mount.
    Named,
}

const KINDS_RACED: [Kind; 3] = [Kind::Memfd, Kind::Anonymous, Kind::Named];

struct Ground {
    mount: Mounted,
    records: TempDir,
    /// That the racers are in.
    cgroup: Option<Cgroup>,
}

impl Ground {
    fn builder(&self, kind: Kind, racer: usize) -> ArenaBuilder {
        let dir = |path: &Path| BackingKind::Hugetlbfs { dir: Some(path.into()) };
        match kind {
            Kind::Memfd => arena(PAGES).strict(),
            Kind::Anonymous => arena(PAGES).backing(BackingKind::Anonymous).strict(),
            Kind::Named => {
                let builder = arena(PAGES).backing(dir(self.mount.path())).record_dir(self.records.path());
                builder.name(format!("racer-{racer}"))
            }
        }
    }

    fn remove(&self) {
        for racer in 0..2 {
            let _ = hugearena::arena::remove_from(self.records.path(), &format!("racer-{racer}"));
        }
    }
}

/// How one of them came off, as a byte: it has its pages; an error that names what there is too little of; something
/// else.
const WON: u8 = b'w';
const LOST: u8 = b'l';
const WRONG: u8 = b'?';

/// Waits for the start, opens, tells, and holds what it has until the end.
fn race(
    builder: ArenaBuilder,
    scarce: LimitKind,
    mut start: PipeReader,
    mut told: PipeWriter,
    mut end: PipeReader,
) -> i32 {
    let mut nothing = [0];
    let _ = start.read(&mut nothing);
    let opened = builder.open();
    let outcome = match &opened {
        Ok(arena) => arena.claim_zeroed(PAGES, FirstTouch::whole()).map_or(WRONG, |_| WON),
        Err(error) if error.limit().is_some_and(|limit| limit.kind == scarce) => LOST,
        Err(error) => {
            eprintln!("{error}");
            WRONG
        }
    };
    let _ = told.write_all(&[outcome]);
    let _ = end.read(&mut nothing);
    drop(opened);
    0
}

/// The outcomes of two processes that race.
fn one_race(ground: &Ground, kind: Kind, scarce: LimitKind) -> Vec<u8> {
    let (started, start_now) = pipe().unwrap();
    let (mut outcomes, told) = pipe().unwrap();
    let (ended, end_now) = pipe().unwrap();
    let racers = [0, 1].map(|racer| {
        start(|| {
            let ends = [&started, &ended].map(|end| end.try_clone().unwrap());
            let told = told.try_clone().unwrap();
            // A copy of the writing ends here would keep both waiting.
            for writer in [&start_now, &end_now] {
                // SAFETY: this process ends without looking at them again.
                unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(writer)) };
            }
            ground.cgroup.iter().for_each(|cgroup| join(cgroup.path()));
            let [started, ended] = ends;
            race(ground.builder(kind, racer), scarce, started, told, ended)
        })
    });
    drop((start_now, told));
    let mut seen = vec![0; 2];
    let result = outcomes.read_exact(&mut seen);
    drop(end_now);
    let codes = racers.map(wait_for);
    assert!(codes.iter().all(|code| code.success()), "a signal, or a panic: {codes:?}");
    result.unwrap();
    ground.remove();
    seen.sort_unstable();
    seen
}

/// Whether the pool was another one than was raced for. Two winners are proof: the kernel had pages for both. Two
/// losers may be: somebody had some of the pages for a moment.
fn was_disturbed(seen: &[u8]) -> bool {
    seen == [WON, WON] || seen == [LOST, LOST]
}

/// Until the pool is as it was made.
fn await_pool() {
    let is_as_made = || Supply::read().available_pages(PageSize::HUGE_2M) == POOL;
    let _ = support::is_so_within(Duration::from_secs(30), is_as_made);
}

/// Where others cannot interfere there is no excuse.
fn races(ground: &Ground, kinds: &[Kind], scarce: LimitKind, rounds: usize, excuses: usize) {
    let mut repeated = 0;
    for round in 0..rounds {
        let kind = kinds[round % kinds.len()];
        loop {
            let seen = one_race(ground, kind, scarce);
            if seen == [LOST, WON] {
                break;
            }
            repeated += 1;
            let is_excused = was_disturbed(&seen) && repeated <= excuses;
            assert!(is_excused, "round {round}, {kind:?}: {}", String::from_utf8_lossy(&seen));
            await_pool();
        }
    }
    let again = if repeated > 0 { format!(", {repeated} raced again: others use the pool") } else { String::new() };
    print_figure(&format!("races for the last pages of {scarce}, one clean error each: {rounds} of {rounds}{again}"));
}

/// Experiments: 76.
#[test]
fn of_two_processes_one_gets_the_last_pages_of_the_pool() {
    Child::new().in_mount_namespace().pool_of(POOL).run(|| {
        let mount = Mounted::hugetlbfs(PageSize::HUGE_2M, "", 0);
        let ground = Ground { mount, records: TempDir::new(), cgroup: None };
        let rounds = rounds(200);
        races(&ground, &KINDS_RACED, LimitKind::Pool, rounds, rounds);
    });
}

#[test]
fn of_two_processes_one_gets_the_last_pages_of_a_mount() {
    Child::new().in_mount_namespace().needs_pages(PageSize::HUGE_2M, 32).run(|| {
        let mount = Mounted::hugetlbfs(PageSize::HUGE_2M, &format!("size={}", (PAGES + 2) * HUGE), 0);
        let ground = Ground { mount, records: TempDir::new(), cgroup: None };
        races(&ground, &[Kind::Named], LimitKind::MountSize, rounds(400), 0);
    });
}

#[test]
fn of_two_processes_one_gets_the_last_pages_of_a_cgroup() {
    Child::new().in_mount_namespace().needs_pages(PageSize::HUGE_2M, 32).run(|| {
        let create = |version| {
            let bytes = (PAGES + 2) * HUGE;
            Cgroup::create(&CgroupSpec { version, limit: Which::Reserved, bytes: bytes as u64, on_parent: true })
        };
        let cgroup = match create(Version::V2).or_else(|_| create(Version::V1)) {
            Ok(cgroup) => cgroup,
            Err(reason) => return crate::support::skip("races in a cgroup", &reason),
        };
        let mount = Mounted::hugetlbfs(PageSize::HUGE_2M, "", 0);
        let ground = Ground { mount, records: TempDir::new(), cgroup: Some(cgroup) };
        races(&ground, &KINDS_RACED[..2], LimitKind::CgroupReserved, rounds(400), 0);
    });
}
