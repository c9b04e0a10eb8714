//! Chunks: what claiming and releasing costs, alone and with clearing.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use hugearena::backing::BackingKind;
use hugearena::{Arena, FirstTouch, PageSize};

const CAPACITY: usize = 64 << 20;

pub fn group(criterion: &mut Criterion) {
    let arena = match open() {
        Ok(arena) => arena,
        Err(error) => return println!("arena: skipped, {error}"),
    };
    let mut group = criterion.benchmark_group("arena");
    group.bench_function("claim_release/2M", |bencher| {
        bencher.iter(|| drop(black_box(arena.claim(1).expect("a chunk is free"))));
    });
    group.throughput(Throughput::Bytes(PageSize::HUGE_2M.bytes() as u64));
    group.bench_function("claim_zeroed/2M", |bencher| bencher.iter_custom(|count| claim_zeroed(&arena, count)));
}

/// Private memory, so that the benches may look at it through slices.
fn open() -> hugearena::Result<Arena> {
    let private = BackingKind::Anonymous;
    Arena::builder().page_size(PageSize::HUGE_2M).capacity(CAPACITY).backing(private).open()
}

/// The time that `count` claims of zeroed chunks take. Each chunk is made dirty all over, outside the time, before
/// it goes back, because one that was only looked at may stay clean.
fn claim_zeroed(arena: &Arena, count: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..count {
        let start = Instant::now();
        let mut chunk = arena.claim_zeroed(1, FirstTouch::unknown()).expect("a chunk is free");
        spent += start.elapsed();
        let bytes = chunk.as_mut_slice().expect("anonymous memory is private");
        assert!(bytes.iter().step_by(4096).all(|byte| *byte == 0), "a zeroed chunk was not zero");
        bytes.fill(0xff);
    }
    spent
}
