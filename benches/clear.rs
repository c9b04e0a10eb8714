//! Clearing: the plain way, which the library's own has to beat. The bench `clear` compares them.

use std::hint::black_box;

use criterion::{Criterion, Throughput};

const BYTES: usize = 2 << 20;

pub fn group(criterion: &mut Criterion) {
    let mut block = vec![0xff_u8; BYTES];
    let mut group = criterion.benchmark_group("clear");
    group.throughput(Throughput::Bytes(BYTES as u64));
    group.bench_function("write_bytes/2M", |bencher| {
        bencher.iter(|| {
            let at = black_box(block.as_mut_ptr());
            // SAFETY: `block` holds `BYTES` bytes and nobody else uses it.
            unsafe { at.write_bytes(0, BYTES) };
        });
    });
    drop(group);
    assert!(block.iter().all(|byte| *byte == 0xff) || block.iter().all(|byte| *byte == 0));
}
