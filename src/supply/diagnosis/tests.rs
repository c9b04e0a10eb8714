//! Which limit is named, on machines made of text.

use super::super::machine::fake::FakeMachine;
use super::*;

const MIB: u64 = 1 << 20;
const SIZE: PageSize = PageSize::HUGE_2M;

fn machine() -> FakeMachine {
    FakeMachine::default()
        .with_pool(2048, [16, 16, 0, 0, 0])
        .with("/proc/self/cgroup", "0::/a/b\n")
        .with("/proc/self/mountinfo", "1 2 0:3 / /cg rw - cgroup2 none rw\n")
        .with("/proc/self/statm", "1000 10 10 1 0 100 0\n")
        .with("/proc/sys/vm/max_map_count", 3)
        .with("/proc/self/maps", "a\nb\n")
}

fn with_limit(machine: FakeMachine, file: &str, usage: &str, mib: [u64; 2]) -> FakeMachine {
    machine.with(format!("/cg/{file}"), mib[0] * MIB).with(format!("/cg/{usage}"), mib[1] * MIB)
}

fn name(machine: &FakeMachine, errno: Errno, mib: u64) -> Option<Limit> {
    name_since(machine, &Refusals::default(), errno, mib, None)
}

fn name_since(machine: &FakeMachine, before: &Refusals, errno: Errno, mib: u64, mount: Option<&str>) -> Option<Limit> {
    Failure { machine, errno, page_size: SIZE, needed_bytes: mib * MIB, mount: mount.map(Path::new), node: None }
        .name_limit(before)
}

fn kind(limit: Option<Limit>) -> Option<LimitKind> {
    limit.map(|limit| limit.kind)
}

#[test]
fn a_short_pool_is_named_with_the_total_that_would_do() {
    let machine = machine().with_pool(2048, [16, 10, 4, 0, 0]);
    assert_eq!(name(&machine, ENOMEM, 12), None, "six pages are to be had");
    let limit = name(&machine, ENOMEM, 13).unwrap();
    assert_eq!(limit.kind, LimitKind::Pool);
    assert_eq!((limit.needed_bytes, limit.available_bytes), (13 * MIB, 12 * MIB));
    assert_eq!(limit.source, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    // Ten pages are in use or promised; 13 MiB are seven more.
    assert_eq!(limit.remedy, "echo 17 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
}

#[test]
fn overcommit_that_memory_cannot_fill_is_the_pools_fault() {
    let machine = machine().with_pool(2048, [4, 4, 0, 0, 100]);
    let limit = name(&machine, ENOMEM, 20).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::Pool, 8 * MIB));
}

#[test]
fn gigantic_pages_are_best_asked_for_at_boot() {
    let machine = machine().with_pool(1 << 20, [0; 5]);
    let failure = Failure {
        machine: &machine,
        errno: ENOMEM,
        page_size: PageSize::HUGE_1G,
        needed_bytes: 1 << 31,
        mount: None,
        node: None,
    };
    let limit = failure.name_limit(&Refusals::default()).unwrap();
    assert!(limit.remedy.ends_with("nr_hugepages, or boot with hugepagesz=1G hugepages=2"), "{limit}");
}

#[test]
fn the_two_cgroup_limits_answer_to_different_errors() {
    let machine = with_limit(machine(), "a/b/hugetlb.2MB.max", "a/b/hugetlb.2MB.current", [8, 2]);
    let machine = with_limit(machine, "a/hugetlb.2MB.rsvd.max", "a/hugetlb.2MB.rsvd.current", [12, 8]);
    let limit = name(&machine, EFAULT, 8).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::CgroupMax, 6 * MIB));
    assert_eq!(limit.source, "/cg/a/b/hugetlb.2MB.max");
    assert_eq!(limit.remedy, "raise it: echo 10485760 > /cg/a/b/hugetlb.2MB.max");
    let limit = name(&machine, ENOMEM, 8).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::CgroupReserved, 4 * MIB));
    assert_eq!(limit.source, "/cg/a/hugetlb.2MB.rsvd.max");
    assert_eq!(name(&machine, EFAULT, 6), None);
}

#[test]
fn the_tightest_limit_is_named() {
    let machine = machine().with_pool(2048, [16, 4, 0, 0, 0]);
    let outer = with_limit(machine, "a/hugetlb.2MB.rsvd.max", "a/hugetlb.2MB.rsvd.current", [6, 0]);
    assert_eq!(kind(name(&outer, ENOMEM, 10)), Some(LimitKind::CgroupReserved));
    let both = with_limit(outer, "a/b/hugetlb.2MB.rsvd.max", "a/b/hugetlb.2MB.rsvd.current", [4, 0]);
    assert_eq!(name(&both, ENOMEM, 10).unwrap().source, "/cg/a/b/hugetlb.2MB.rsvd.max");
    let pool = both.with_pool(2048, [16, 1, 0, 0, 0]);
    assert_eq!(kind(name(&pool, ENOMEM, 10)), Some(LimitKind::Pool));
}

#[test]
fn a_refusal_that_was_counted_is_proof_even_when_the_limit_is_out_of_sight() {
    let counted = |limit: &str, refusals: u64| {
        machine()
            .with("/cg/a/hugetlb.2MB.max", limit)
            .with("/cg/a/hugetlb.2MB.current", 0)
            .with("/cg/a/hugetlb.2MB.events", format!("max {refusals}\n"))
    };
    for limit in ["max", "8388608"] {
        let before = Refusals::of(&counted(limit, 4), SIZE);
        assert_eq!(name_since(&counted(limit, 4), &before, EFAULT, 2, None), None);
        let named = name_since(&counted(limit, 5), &before, EFAULT, 2, None).unwrap();
        assert_eq!((named.kind, named.available_bytes), (LimitKind::CgroupMax, 0));
        assert!(named.remedy.contains("out of sight"), "{named}");
        assert_eq!(named.source, "refusals counted beside /cg/a/hugetlb.2MB.max");
    }
    let before = Refusals::of(&counted("8388608", 4), SIZE);
    let named = name_since(&counted("8388608", 5), &before, EFAULT, 10, None).unwrap();
    assert_eq!((named.available_bytes, &*named.source), (8 * MIB, "/cg/a/hugetlb.2MB.max"));
}

#[test]
fn a_mount_is_named_only_if_it_is_a_limited_hugetlbfs() {
    let machine = machine().with_hugetlbfs("/m", 2 * MIB, [4, 3]).with_hugetlbfs("/free", 2 * MIB, [0, 0]);
    let before = Refusals::default();
    let limit = name_since(&machine, &before, ENOMEM, 8, Some("/m")).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::MountSize, 6 * MIB));
    assert!(limit.remedy.contains("pagesize=2M,size=10485760 "), "{limit}");
    assert_eq!(kind(name_since(&machine, &before, ENOSPC, 8, Some("/m"))), Some(LimitKind::MountSize));
    for other in ["/free", "/nowhere"] {
        assert_eq!(name_since(&machine, &before, ENOMEM, 8, Some(other)), None);
    }
}

#[test]
fn limits_of_the_process_are_named() {
    let mut machine = machine();
    let used = 1000 * PageSize::base().bytes() as u64;
    machine.address_space = Some(used + 4 * MIB);
    let limit = name(&machine, ENOMEM, 6).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::AddressSpace, 4 * MIB));
    assert_eq!(limit.remedy, format!("ulimit -v {}", used / 1024 + 6 * 1024));

    machine.locked_memory = Some(MIB);
    let machine = machine.with("/proc/self/status", "VmPeak: 1 kB\nVmLck:\t     512 kB\n");
    let limit = name(&machine, EAGAIN, 2).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::LockedMemory, MIB / 2));
    assert_eq!(limit.remedy, "ulimit -l 2560");

    let full = machine.with("/proc/self/maps", "a\nb\nc\n");
    assert_eq!(kind(name(&full, ENOMEM, 2)), Some(LimitKind::Memory));
}

#[test]
fn base_pages_depend_on_the_overcommit_policy() {
    let meminfo = "MemTotal: 1024 kB\nSwapTotal: 1024 kB\nCommitLimit: 512 kB\nCommitted_AS: 256 kB\n";
    let available = |policy: u64| {
        let machine =
            machine().with("/proc/meminfo", meminfo).with("/proc/sys/vm/overcommit_memory", format!("{policy}\n"));
        let page_size = PageSize::base();
        let failure =
            Failure { machine: &machine, errno: ENOMEM, page_size, needed_bytes: 4 * MIB, mount: None, node: None };
        failure.name_limit(&Refusals::default()).map(|limit| (limit.kind, limit.available_bytes))
    };
    assert_eq!(available(0), Some((LimitKind::Memory, 2 * MIB)));
    assert_eq!(available(1), None);
    assert_eq!(available(2), Some((LimitKind::Memory, 256 << 10)));
}

#[test]
fn errors_that_are_about_something_else_blame_no_limit() {
    let poor = machine().with_pool(2048, [0; 5]);
    assert_eq!(name(&poor, EINVAL, 2), None, "the size exists");
    assert_eq!(name(&poor, Errno(24), 2), None, "EMFILE");
    let limit = name(&FakeMachine::default().with_pool(1 << 20, [0; 5]), ENODEV, 2).unwrap();
    assert_eq!((limit.kind, &*limit.remedy), (LimitKind::PageSizeMissing, "use one of 1G"));
    assert_eq!(kind(name(&FakeMachine::default(), EINVAL, 2)), Some(LimitKind::PageSizeMissing));
}

#[test]
fn permissions_name_the_directory_or_the_call() {
    let machine = machine().with_hugetlbfs("/m", 2 * MIB, [0, 0]);
    let limit = name_since(&machine, &Refusals::default(), EACCES, 2, Some("/m")).unwrap();
    assert_eq!((limit.kind, &*limit.source), (LimitKind::Permission, "/m, owner 0, mode 0755"));
    let limit = name_since(&machine, &Refusals::default(), EROFS, 2, Some("/m")).unwrap();
    assert_eq!(limit.remedy, "mount -o remount,rw /m");
    assert_eq!(name(&machine, EPERM, 2).unwrap().source, "the call itself");
}

#[test]
fn this_machine_is_read_without_a_panic() {
    for errno in [ENOMEM, EFAULT, ENOSPC, EINVAL, EAGAIN, EPERM] {
        diagnose(errno, SIZE, 2 * MIB, None);
        diagnose(errno, PageSize::base(), u64::MAX, Some(Path::new("/")));
    }
    assert!(Refusals::read(SIZE).0.len() <= 1000);
}

fn two_nodes() -> FakeMachine {
    machine().with_node_pool(0, 2048, [12, 10, 0]).with_node_pool(1, 2048, [4, 1, 0])
}

#[test]
fn an_empty_node_is_named_when_no_other_would_do() {
    let strict = |node: u32, mib: u64| {
        let (machine, node) = (&two_nodes(), Some(node));
        let failure = Failure { machine, errno: EFAULT, page_size: SIZE, needed_bytes: mib * MIB, mount: None, node };
        failure.name_limit(&Refusals::default())
    };
    let limit = strict(1, 4).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::Node, 2 * MIB));
    assert_eq!(limit.source, "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages");
    // Three of four are in use; 4 MiB are two more.
    assert_eq!(limit.remedy, "echo 5 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages");
    assert_eq!(strict(1, 2), None);
    assert_eq!(strict(0, 4), None);
    assert_eq!(kind(name(&two_nodes(), EFAULT, 30)), None, "any node would do, so none is to blame");
}

#[test]
fn nodes_that_a_cpuset_leaves_are_named() {
    for errno in [EFAULT, ENOMEM] {
        let confined = two_nodes().with("/proc/self/status", "Mems_allowed_list:\t1\n");
        let limit = name(&confined, errno, 4).unwrap();
        assert_eq!((limit.kind, limit.available_bytes), (LimitKind::Node, 2 * MIB));
        assert!(limit.source.contains("Mems_allowed_list") && limit.source.contains("node1"), "{limit}");
        let free = two_nodes().with("/proc/self/status", "Mems_allowed_list:\t0-1\n");
        assert_eq!(name(&free, errno, 4), None);
    }
}

#[test]
fn what_may_be_pinned_is_the_limit_less_what_is() {
    let status = |capabilities: &str| format!("VmLck:\t  40 kB\nVmPin:\t  24 kB\nCapEff:\t{capabilities}\n");
    let machine = |capabilities| FakeMachine {
        locked_memory: Some(64 << 10),
        ..FakeMachine::default().with("/proc/self/status", status(capabilities))
    };
    assert_eq!(pin_limit_on(&machine("0000000000000000"), 40 << 10), None);
    let limit = pin_limit_on(&machine("0000000000000000"), 2 << 20).unwrap();
    assert_eq!((limit.kind, limit.available_bytes), (LimitKind::LockedMemory, 40 << 10));
    assert!(limit.remedy.starts_with("ulimit -l 2072,"), "{limit}");
    assert_eq!(pin_limit_on(&machine("0000000000004000"), 2 << 20), None, "CAP_IPC_LOCK");
    assert_eq!(pin_limit_on(&FakeMachine::default(), 2 << 20), None, "no limit");
}
