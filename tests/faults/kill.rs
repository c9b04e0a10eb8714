//! SIGKILL at a random moment: the kernel takes every page back.

use std::path::PathBuf;
use std::time::Duration;

use hugearena::Populate;
use hugearena::memops::{Nothing, Pace};

use super::*;
use crate::support::cgroup::{Cgroup, CgroupSpec, Limit as Which, Version, join};
use crate::support::kill::{Random, killed_after, rounds};
use crate::support::{Child, PoolUnchanged, print_figure, print_skip};

const PAGES: usize = 24;

/// Pages that processes of a group use and have promised: nobody else's count in it.
struct Usage {
    group: Cgroup,
    files: [PathBuf; 2],
}

impl Usage {
    /// `None` where there is no such cgroup to be had.
    fn new() -> Option<Usage> {
        let create = |version| {
            let spec = CgroupSpec { version, limit: Which::Max, bytes: 1 << 40, on_parent: false };
            let group = Cgroup::create(&spec).inspect_err(|reason| print_skip("usage by cgroup", reason)).ok()?;
            let names = match version {
                Version::V1 => ["hugetlb.2MB.usage_in_bytes", "hugetlb.2MB.rsvd.usage_in_bytes"],
                Version::V2 => ["hugetlb.2MB.current", "hugetlb.2MB.rsvd.current"],
            };
            let files = names.map(|name| group.path().join(name));
            Some(Usage { group, files })
        };
        create(Version::V2).or_else(|| create(Version::V1))
    }

    fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|index| std::fs::read_to_string(&self.files[index]).unwrap().trim().parse().unwrap())
    }

    /// A process that has ended gives its pages back a moment later.
    fn becomes_nothing(&self) -> bool {
        support::is_so_within(Duration::from_secs(30), || self.bytes() == [0, 0])
    }
}

/// Opens, populates, claims, clears, gives back and closes, over and over.
fn use_arenas(random: &mut Random) {
    loop {
        let pages = random.below(PAGES as u64 / 2) as usize + 1;
        let kind = KINDS[random.below(2) as usize].clone();
        let populate = if random.below(3) == 0 { Populate::Lazy } else { Populate::Eager };
        let threads = random.below(3) as usize + 1;
        let builder = arena(pages).backing(kind).populate(populate).populate_threads(threads).strict();
        let arena = builder.open().unwrap();
        for _ in 0..random.below(12) {
            let count = random.below(pages as u64) as usize + 1;
            match random.below(4) {
                0 => drop(arena.claim(count)),
                1 => drop(arena.claim_zeroed(count, FirstTouch::at(HUGE / 2, 64))),
                2 => drop(arena.scrub(count * HUGE, &mut Nothing.in_batches_of(64 << 10))),
                _ => {
                    let chunk = arena.claim(1).unwrap();
                    // SAFETY: our own chunk.
                    unsafe { chunk.as_ptr().as_ptr().write_bytes(1, HUGE) };
                }
            }
        }
    }
}

/// Experiments: 14, 17.
#[test]
fn whenever_it_is_killed_the_pages_come_back() {
    Child::new().needs_pages(PageSize::HUGE_2M, PAGES).run(|| {
        let mut random = Random::seeded();
        let usage = Usage::new();
        let (rounds, mut held) = (rounds(200), 0);
        for round in 0..rounds {
            let time = Duration::from_micros(random.below([2_000, 8_000, 40_000][round % 3]));
            let mut its_own = random.another();
            match &usage {
                Some(usage) => {
                    let was_running = killed_after(time, || {
                        join(usage.group.path());
                        use_arenas(&mut its_own);
                    });
                    assert!(was_running && usage.becomes_nothing(), "round {round}: {:?} bytes", usage.bytes());
                }
                None => {
                    let _unchanged = PoolUnchanged::begin();
                    assert!(killed_after(time, || use_arenas(&mut its_own)));
                }
            }
            held += 1;
        }
        print_figure(&format!("memfd and anonymous arenas killed, all pages back: {held} of {rounds}"));
    });
}
