#![allow(unsafe_code)]
use hugearena::HugeAlloc;
use std::alloc::*;
use std::time::Instant;
static H: HugeAlloc = HugeAlloc::new();
#[inline(always)]
fn pair<A: GlobalAlloc>(a: &A, n: usize, size: usize) {
    let l = Layout::from_size_align(size, 8).unwrap();
    for _ in 0..n {
        unsafe {
            let p = a.alloc(l);
            std::hint::black_box(p);
            a.dealloc(p, l);
        }
    }
}
fn batch<A: GlobalAlloc>(a: &A, n: usize, size: usize, v: &mut Vec<*mut u8>) {
    let l = Layout::from_size_align(size, 8).unwrap();
    for _ in 0..n {
        v.clear();
        for _ in 0..1000 {
            unsafe {
                v.push(a.alloc(l));
            }
        }
        while let Some(p) = v.pop() {
            unsafe { a.dealloc(p, l) }
        }
    }
}
fn time(name: &str, per: usize, mut f: impl FnMut()) {
    f();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_nanos() as f64 / per as f64);
    }
    println!("{name}: {best:.2} ns");
}
fn main() {
    if std::env::args().nth(1).as_deref() == Some("cg") {
        pair(&H, 1_000_000, 16);
        return;
    }
    if std::env::args().nth(1).as_deref() == Some("cgb") {
        let mut v = Vec::with_capacity(1000);
        batch(&H, 1000, std::env::args().nth(2).unwrap().parse().unwrap(), &mut v);
        return;
    }
    let mut v = Vec::with_capacity(1000);
    for s in [16, 64, 128] {
        time(&format!("huge pair {s}"), 1_000_000, || pair(&H, 1_000_000, s));
        time(&format!("libc pair {s}"), 1_000_000, || pair(&System, 1_000_000, s));
    }
    for s in [16, 64, 1024, 8192, 65536] {
        time(&format!("huge batch {s}"), 1_000_000, || batch(&H, 1000, s, &mut v));
        time(&format!("libc batch {s}"), 1_000_000, || batch(&System, 1000, s, &mut v));
    }
    println!("{}", H.stats());
}
