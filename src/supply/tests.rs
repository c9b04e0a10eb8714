//! The supply of machines that nobody has, and of this one.

use super::machine::fake::FakeMachine;
use super::*;
use proptest::prelude::*;

/// Experiments: 43.
#[test]
fn six_page_sizes_come_largest_first_and_odd_names_are_skipped() {
    let machine = [64, 2048, 32768, 524_288, 1_048_576, 16_777_216]
        .into_iter()
        .fold(FakeMachine::default(), |machine, kib| machine.with_pool(kib, [0; 5]))
        .with(format!("{POOLS}/hugepages-3000kB/nr_hugepages"), 0)
        .with(format!("{POOLS}/hugepages-18446744073709551615kB/nr_hugepages"), 0)
        .with(format!("{POOLS}/defrag/x"), 0);
    let names: Vec<_> = sizes_of(&machine).iter().map(PageSize::to_string).collect();
    assert_eq!(names, ["16G", "1G", "512M", "32M", "2M", "64K"]);
    assert_eq!(Supply::of(&machine).pools.len(), 6);
}

#[test]
fn a_machine_without_anything_has_an_empty_supply() {
    let supply = Supply::of(&FakeMachine::default());
    assert_eq!(supply.available_pages(PageSize::HUGE_2M), 0);
    assert!(supply.pools.is_empty() && supply.cgroup_limits.is_empty());
    assert!(supply.to_string().contains("none\nRLIMIT_AS: unlimited"), "{supply}");
}

#[test]
fn reserved_pages_are_not_available_and_overcommit_is() {
    let machine = FakeMachine::default().with_pool(2048, [12, 8, 3, 2, 6]).with_pool(1_048_576, [1, 1, 2, 9, 4]);
    let supply = Supply::of(&machine);
    let pool = supply.pool(PageSize::HUGE_2M).unwrap();
    assert_eq!((pool.unreserved_pages(), pool.available_pages()), (5, 9));
    // Counters that are read one after the other may not fit together.
    assert_eq!(supply.available_pages(PageSize::HUGE_1G), 0);
}

/// Seen on Linux 6.18: a process forks and ends, and its child, which shares its private huge pages, lives on.
#[test]
fn a_count_of_promises_below_zero_takes_nothing_off() {
    let machine = FakeMachine::default().with_pool(2048, [12, 8, 12u64.wrapping_neg(), 0, 0]);
    let supply = Supply::of(&machine);
    assert_eq!((supply.pools[0].reserved, supply.available_pages(PageSize::HUGE_2M)), (0, 8));
    assert_eq!([0, 5, i64::MAX as u64, 1 << 63, u64::MAX].map(promises), [0, 5, i64::MAX as u64, 0, 0]);
}

#[test]
fn a_cgroup_takes_its_share_off() {
    let machine = FakeMachine::default()
        .with_pool(2048, [12, 8, 0, 0, 0])
        .with("/proc/self/cgroup", "0::/a\n")
        .with("/proc/self/mountinfo", "1 2 0:3 / /cg rw - cgroup2 none rw\n")
        .with("/cg/a/hugetlb.2MB.max", 7 << 20)
        .with("/cg/a/hugetlb.2MB.current", 0);
    let supply = Supply::of(&machine);
    assert_eq!(supply.available_pages(PageSize::HUGE_2M), 3, "7 MiB hold three whole pages");
    let table = supply.to_string();
    assert!(table.contains("\n2M           12          8          0          0          0          8\n"), "{table}");
    assert!(table.contains("\n/cg/a/hugetlb.2MB.max: 0 of 7340032 bytes, 0 refusals\n"), "{table}");
}

#[test]
fn this_machine_answers_the_same_with_and_without_allocating() {
    let supply = Supply::read();
    for pool in &supply.pools {
        // Other processes may take pages in between.
        assert!(available_pages_now(pool.page_size).is_some(), "{pool:?}");
        assert!(pool.page_size.is_huge(), "{pool:?}");
    }
    assert_eq!(available_pages_now(PageSize::from_bytes(4096).unwrap()), None);
    assert_eq!(page_sizes().len(), supply.pools.len());
}

proptest! {
    #[test]
    fn decimals_round_trip(value: u64) {
        let mut digits = [0; 20];
        let written = decimal(value, &mut digits);
        prop_assert_eq!(written.to_vec(), value.to_string().into_bytes());
        prop_assert_eq!(number(written), Some(value));
    }

    #[test]
    fn numbers_are_what_std_makes_of_them(text in "[0-9]{0,22}\n?", any: Vec<u8>) {
        prop_assert_eq!(number(text.as_bytes()), text.strip_suffix('\n').unwrap_or(&text).parse().ok());
        number(&any);
    }

    #[test]
    fn any_name_of_a_pool_is_read_or_skipped(name: String, kib: u64) {
        size_of_pool(&name);
        let size = size_of_pool(&format!("hugepages-{kib}kB"));
        prop_assert_eq!(size, kib.checked_mul(1024).and_then(PageSize::from_bytes));
    }
}

/// Somebody populates three pages while the first of them are read.
#[test]
fn counts_that_change_together_are_read_together() {
    let mut readings = [(5, 2), (4, 1), (3, 0), (2, 0), (2, 0), (9, 9)].into_iter();
    assert_eq!(steady(|| readings.next()), Some((2, 0)));
    // Those that never rest are read for a while.
    let mut restless = 0..;
    assert_eq!(steady(|| restless.next().map(|count| (count, 0))), Some((7, 0)));
    assert_eq!(steady(|| None), None);
}
