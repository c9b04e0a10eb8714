//! The heap against libc malloc, both called directly: neither is this process's global allocator.

use std::alloc::{GlobalAlloc, System};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use hugearena::HugeAlloc;

use crate::spread::{self, Chase, Mixed};
use crate::workloads::{self, BATCH};

static HUGE: HugeAlloc = HugeAlloc::new();

/// MiB of boxes to chase through, 1024 unless set: for machines that have less memory.
const CHASE_VARIABLE: &str = "HUGEARENA_CHASE_MIB";

pub fn group(criterion: &mut Criterion) {
    churn(criterion);
    many(criterion);
    large(criterion);
    chase(criterion);
}

fn churn(criterion: &mut Criterion) {
    for size in [16, 64, 256] {
        let mut group = criterion.benchmark_group(format!("alloc/pair/{size}"));
        one(&mut group, "libc", |count| timed(|| workloads::churn_pairs(&System, size, count)));
        one(&mut group, "huge", |count| timed(|| workloads::churn_pairs(&HUGE, size, count)));
    }
    for size in [16, 64, 256] {
        let mut group = criterion.benchmark_group(format!("alloc/batch/{size}"));
        group.throughput(Throughput::Elements(BATCH as u64));
        one(&mut group, "libc", |rounds| timed(|| workloads::churn_batches(&System, size, rounds)));
        one(&mut group, "huge", |rounds| timed(|| workloads::churn_batches(&HUGE, size, rounds)));
    }
}

fn many(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("alloc/mixed");
    one(&mut group, "libc", replacing(&System));
    one(&mut group, "huge", replacing(&HUGE));
    drop(group);
    let mut group = criterion.benchmark_group("alloc/cross_thread/64");
    group.throughput(Throughput::Elements(BATCH as u64));
    one(&mut group, "libc", |batches| timed(|| spread::cross_thread(&System, 64, batches)));
    one(&mut group, "huge", |batches| timed(|| spread::cross_thread(&HUGE, 64, batches)));
}

fn large(criterion: &mut Criterion) {
    for (name, bytes) in [("2M", 2 << 20), ("256M", 256 << 20)] {
        let mut group = few_samples(criterion, &format!("alloc/zeroed/{name}"), bytes);
        one(&mut group, "libc", |count| {
            timed(|| (0..count).for_each(|_| workloads::zeroed_and_touched(&System, bytes)))
        });
        one(&mut group, "huge", |count| timed(|| (0..count).for_each(|_| workloads::zeroed_and_touched(&HUGE, bytes))));
    }
    let bytes = 512 << 20;
    let mut group = few_samples(criterion, "alloc/growth/512M", bytes);
    one(&mut group, "libc", |count| timed(|| (0..count).for_each(|_| workloads::growth(&System, bytes))));
    one(&mut group, "huge", |count| timed(|| (0..count).for_each(|_| workloads::growth(&HUGE, bytes))));
}

fn chase(criterion: &mut Criterion) {
    let mib = std::env::var(CHASE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(1024);
    let mut group = criterion.benchmark_group(format!("alloc/chase/{mib}M"));
    group.sample_size(10);
    one(&mut group, "libc", hopping(&System, mib << 20));
    one(&mut group, "huge", hopping(&HUGE, mib << 20));
}

/// For work that takes up to a second: as few samples as criterion accepts, each of the same size.
fn few_samples<'a>(criterion: &'a mut Criterion, name: &str, bytes: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(bytes as u64));
    group
}

fn one(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, mut work: impl FnMut(u64) -> Duration) {
    group.bench_function(name, |bencher| bencher.iter_custom(&mut work));
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The live set is made when it is first needed, outside the time, and stays for all samples.
fn replacing<A: GlobalAlloc>(allocator: &'static A) -> impl FnMut(u64) -> Duration {
    let mut mixed = None;
    move |count| {
        let mixed = mixed.get_or_insert_with(|| Mixed::new(allocator, 10_000));
        timed(|| mixed.replace(count as usize))
    }
}

/// As [`replacing`], for the ring of boxes.
fn hopping<A: GlobalAlloc>(allocator: &'static A, bytes: usize) -> impl FnMut(u64) -> Duration {
    let mut chase = None;
    move |hops| {
        let chase = chase.get_or_insert_with(|| Chase::new(allocator, bytes));
        timed(|| chase.hop(hops))
    }
}
