//! Reports on machines that nobody has, and on this one.

use super::*;
use crate::error::LimitKind;
use crate::supply::machine::fake::FakeMachine;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const SIZE: PageSize = PageSize::HUGE_2M;
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Sixteen pages, a mount, and nothing in the way.
fn machine() -> FakeMachine {
    let table = "1 2 0:3 / /cg rw - cgroup2 none rw\n2 2 0:4 / /dev/huge rw - hugetlbfs none rw\n";
    FakeMachine::default()
        .with_pool(2048, [16, 16, 0, 0, 0])
        .with_hugetlbfs("/dev/huge", 2 * MIB, [0, 0])
        .with("/proc/self/cgroup", "0::/a\n")
        .with("/proc/self/mountinfo", table)
        .with("/proc/self/statm", "1024 10 10 1 0 100 0\n")
        .with("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n")
        .with(THP, "always [madvise] never\n")
}

fn report(machine: &FakeMachine, mib: u64) -> Report {
    judge(&Facts::of(machine, SIZE, mib * MIB, None))
}

/// The weights and the words of what was found.
fn found(report: &Report) -> Vec<(Weight, &str)> {
    report.findings.iter().map(|finding| (finding.weight, finding.what.as_str())).collect()
}

fn cgroup(machine: FakeMachine, mib: u64) -> FakeMachine {
    machine.with("/cg/a/hugetlb.2MB.max", mib * MIB).with("/cg/a/hugetlb.2MB.current", 0)
}

#[test]
fn where_nothing_is_in_the_way_nothing_is_found() {
    let report = report(&machine(), 32);
    assert!(report.can_be_had());
    assert_eq!(report.findings, []);
    let text = "yes: 16 of 2M asked, 16 to be had, limited by the huge page pool \
                (/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages)";
    assert_eq!(report.to_string(), text);
}

#[test]
fn one_page_is_asked_about_unless_more_are() {
    for (bytes, pages) in [(0, 1), (1, 1), (2 * MIB, 1), (2 * MIB + 1, 2)] {
        assert_eq!(judge(&Facts::of(&machine(), SIZE, bytes, None)).needed_pages, pages);
    }
    let report = judge(&Facts::of(&machine(), SIZE, u64::MAX, None));
    assert!(!report.can_be_had() && report.available_pages == 16, "{report}");
}

/// Experiments: 5.
#[test]
fn the_tightest_of_several_limits_is_named_first_and_each_has_a_remedy() {
    let mut machine = cgroup(machine(), 8);
    machine.address_space = Some(4 * MIB + 6 * MIB);
    let report = report(&machine, 40);
    assert_eq!(report.available_pages, 3, "4 MiB of 10 are in use");
    assert_eq!(report.tightest.as_ref().unwrap().kind, LimitKind::AddressSpace);
    let remedies: Vec<_> = report.findings.iter().map(|finding| finding.remedy.clone().unwrap()).collect();
    let pool = "echo 20 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(remedies, ["ulimit -v 45056", "raise it: echo 41943040 > /cg/a/hugetlb.2MB.max", pool]);
}

#[test]
fn a_cgroup_without_a_limit_is_none() {
    let machine = machine().with("/cg/a/hugetlb.2MB.max", "max").with("/cg/a/hugetlb.2MB.current", 0);
    assert_eq!(report(&machine, 2).tightest.unwrap().kind, LimitKind::Pool);
}

#[test]
fn a_directory_brings_its_mounts_size_and_its_permissions() {
    let judge_in = |machine: &FakeMachine, path: &str| judge(&Facts::of(machine, SIZE, 8 * MIB, Some(path.into())));
    let small = machine().with_hugetlbfs("/dev/huge", 2 * MIB, [4, 3]).with_hugetlbfs("/dev/large", 1 << 30, [0, 0]);
    let small_mount = judge_in(&small, "/dev/huge");
    assert_eq!((small_mount.available_pages, small_mount.tightest.unwrap().kind), (3, LimitKind::MountSize));
    assert_eq!(small_mount.findings.len(), 1, "not a warning as well");
    for (path, why) in [("/dev/large", "another size"), ("/missing", "no such directory")] {
        let limit = judge_in(&small, path).tightest.unwrap();
        assert!(limit.kind == LimitKind::MountMissing && limit.source.contains(why), "{limit}");
    }
    let mut denied = machine();
    denied.denied = Some(crate::sys::EROFS);
    let limit = judge_in(&denied, "/dev/huge").tightest.unwrap();
    assert_eq!((limit.kind, limit.remedy.as_str()), (LimitKind::Permission, "mount -o remount,rw /dev/huge"));
    denied.denied = Some(crate::sys::EPERM);
    let limit = report(&denied, 2).tightest.unwrap();
    assert!(limit.kind == LimitKind::Permission && limit.remedy.contains("seccomp"), "{limit}");
}

#[test]
fn a_limit_that_allows_enough_binds_no_one() {
    let report = report(&cgroup(machine(), 8), 8);
    assert!(report.can_be_had() && report.findings.is_empty(), "{report}");
    assert_eq!(report.tightest.unwrap().kind, LimitKind::CgroupMax);
}

#[test]
fn a_size_that_the_kernel_lacks_is_said_to_be_missing() {
    let report = judge(&Facts::of(&machine(), PageSize::HUGE_1G, 1, None));
    assert_eq!(found(&report)[0], (Weight::Binds, "this kernel has no pages of that size"));
    assert_eq!(report.findings[0].remedy.as_deref(), Some("use one of 2M"));
    let report = judge(&Facts::of(&FakeMachine::default(), SIZE, 1, None));
    assert!(!report.can_be_had(), "{report}");
}

#[test]
fn a_cpuset_that_allows_an_empty_node_binds() {
    let machine = machine()
        .with_node_pool(0, 2048, [16, 16, 0])
        .with_node_pool(1, 2048, [0, 0, 0])
        .with("/proc/self/status", "Mems_allowed_list:\t1\n");
    let report = report(&machine, 2);
    assert_eq!(report.tightest.as_ref().unwrap().kind, LimitKind::Node);
    let node = (Weight::Note, "node 1 has 0 free pages of 1 on its own");
    assert_eq!(found(&report), [(Weight::Binds, "a NUMA node allows 0 of 1 pages"), node]);
}

#[test]
fn promises_are_told_from_pages() {
    let machine = machine().with_pool(2048, [16, 10, 4, 0, 8]);
    let report = report(&machine, 14);
    assert!(report.can_be_had(), "{report}");
    let surplus = "1 of the pages would be taken from ordinary memory when they are asked for";
    let promised = "4 of 10 free pages are promised to mappings that have not touched them";
    assert_eq!(found(&report), [(Weight::Warning, surplus), (Weight::Note, promised)]);
    assert_eq!(report.findings[0].remedy.as_deref(), Some("hugearena reserve 14336K --page 2M"));
}

#[test]
fn a_remedy_that_memory_cannot_pay_for_is_doubted() {
    let report = report(&machine(), 5 << 10);
    let doubt = "the pool lacks 2544 pages, more than ordinary memory can give";
    assert_eq!(found(&report)[1], (Weight::Warning, doubt));
}

#[test]
fn what_limits_other_ways_of_asking_is_a_warning_or_a_note() {
    let mut machine = machine().with_hugetlbfs("/dev/huge", 2 * MIB, [4, 1]).with(THP, "always madvise [never]");
    machine.locked_memory = Some(64 << 10);
    let report = report(&machine, 4);
    assert!(report.can_be_had(), "{report}");
    let weights: Vec<_> = report.findings.iter().map(|finding| finding.weight).collect();
    assert_eq!(weights, [Weight::Warning, Weight::Warning, Weight::Note], "{report}");
    let text = report.to_string();
    assert!(text.contains("\nwarning: files in /dev/huge can have 2097152 bytes more\n  why: size= of"), "{text}");
    assert!(text.contains("\nnote: RLIMIT_MEMLOCK is below what is asked\n"), "{text}");
    assert!(text.contains("\n  do:  echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"), "{text}");
}

#[test]
fn refusals_and_missing_mounts_are_told() {
    let machine = cgroup(machine(), 8)
        .with("/cg/a/hugetlb.2MB.events", "max 3\n")
        .with("/proc/self/mountinfo", "1 2 0:3 / /cg rw - cgroup2 none rw\n");
    let report = report(&machine, 2);
    let what = [
        (Weight::Note, "a cgroup limit has refused 3 times"),
        (Weight::Note, "no hugetlbfs is mounted for pages of 2M"),
    ];
    assert_eq!(found(&report), what);
}

#[test]
fn this_machine_has_a_report_for_every_size() {
    for size in supply::page_sizes() {
        let report = judge(&Facts::collect(size, 1));
        assert!(report.tightest.is_some(), "{report}");
    }
}

#[test]
fn holders_are_found_by_mapping_by_descriptor_and_by_file() {
    let smaps = "00400000-00600000 rw-s 00000000 00:0f 7   /memfd:ring (deleted)\nKernelPageSize:     2048 kB\n\
        Shared_Hugetlb:        0 kB\nPrivate_Hugetlb:       0 kB\n\
        7f0000000000-7f0000400000 rw-p 00000000 00:0f 8   /anon_hugepage (deleted)\nKernelPageSize:     2048 kB\n\
        Private_Hugetlb:    2048 kB\n\
        7f0000400000-7f0000800000 rw-p 00000000 00:00 0 \nKernelPageSize:        4 kB\nAnonHugePages: 4096 kB\n";
    let machine = machine()
        .with("/proc/7/status", "Name:\tdata plane\nHugetlbPages:\t    2048 kB\n")
        .with("/proc/7/smaps", smaps)
        .with_link("/proc/7/map_files/400000-600000", "/memfd:ring (deleted)", 7, 2 * MIB)
        .with("/proc/9/status", "Name:\tother\nHugetlbPages:\t       0 kB\n")
        .with("/proc/9/smaps", "")
        .with_link("/proc/9/fd/3", "/memfd:ring (deleted)", 7, 2 * MIB)
        .with_hugetlbfs("/proc/9/fd/3", 2 * MIB, [0, 0])
        .with_link("/proc/9/fd/4", "/memfd:small (deleted)", 10, 4096)
        .with("/proc/11/status", "Name:\tsecret\nHugetlbPages:\t    4096 kB\n")
        .with("/proc/12/status", "Name:\tnobody\n");
    let found = Holders::of(&machine);
    let processes: Vec<_> = found.processes.iter().map(|holder| (holder.process, holder.held.len())).collect();
    assert_eq!(processes, [(7, 2), (9, 1), (11, 0)], "{found:#?}");
    assert_eq!(found.processes[0].command, "data plane");
    let ways: Vec<_> =
        found.processes.iter().flat_map(|holder| &holder.held).map(|held| (held.via, held.bytes)).collect();
    let want = [(Via::SharedMapping, 2 * MIB), (Via::PrivateMapping, 2 * MIB), (Via::Descriptor, 2 * MIB)];
    assert_eq!(ways, want);
    assert_eq!(found.explained_bytes(SIZE), 4 * MIB, "the memfd is held twice and counts once");
    assert_eq!(found.unreadable, 2);
}

proptest! {
    #[test]
    fn holders_of_garbage_never_panic(text: String, words in "[-0-9a-f :kBrwsp/\n]{0,200}") {
        for text in [text, words] {
            let machine = machine().with("/proc/7/status", &text).with("/proc/7/smaps", text);
            Holders::of(&machine);
        }
    }

    #[test]
    fn what_can_be_had_is_what_no_finding_denies(
        pool in proptest::array::uniform5(0u64..40), limit in 0u64..80, space in 4u64..200, mib in 0u64..200,
    ) {
        let mut machine = cgroup(machine(), limit).with_pool(2048, pool);
        machine.address_space = Some(space * MIB);
        let report = report(&machine, mib);
        let bound = report.findings.iter().any(|finding| finding.weight == Weight::Binds);
        prop_assert_eq!(report.can_be_had(), !bound, "{}", report);
        let supply = Supply::of(&machine).available_pages(SIZE);
        prop_assert!(report.available_pages <= supply, "{}", report);
    }
}
