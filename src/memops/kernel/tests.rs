//! One runner and one naive oracle for every kernel this CPU has.

use super::*;
use proptest::prelude::*;

/// Bytes around the region that nobody may write.
const GUARD: usize = 256;
const OLD: u8 = 0xA5;

/// A buffer that starts at a multiple of 4096, so that offsets in it are alignments.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize, fill: impl Fn(usize) -> u8) -> Aligned {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().addr().wrapping_neg() % 4096;
        let mut aligned = Aligned { bytes, start, len };
        aligned.get().iter_mut().enumerate().for_each(|(index, byte)| *byte = fill(index));
        aligned
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// What distinguishes byte `index` of a source from its neighbours.
fn pattern(index: usize) -> u8 {
    (index * 31 + index / 251) as u8
}

/// Clears and copies `len` bytes at `dst_at` and compares every byte, guards included, with a plain loop.
fn check(kernel: Kernel, dst_at: usize, src_at: usize, len: usize) {
    let at = GUARD + dst_at;
    let mut source = Aligned::new(src_at + len, pattern);
    let mut cleared = Aligned::new(at + len + GUARD, |_| OLD);
    let mut copied = Aligned::new(at + len + GUARD, |_| OLD);
    // SAFETY: both buffers have `len` bytes behind `at`, the source behind `src_at`; all are distinct.
    unsafe {
        kernel.clear(cleared.get()[at..].as_mut_ptr(), len);
        kernel.copy(copied.get()[at..].as_mut_ptr(), source.get()[src_at..].as_ptr(), len);
    }
    for index in 0..at + len + GUARD {
        let inside = (at..at + len).contains(&index);
        let (zero, copy) = if inside { (0, pattern(src_at + index - at)) } else { (OLD, OLD) };
        assert_eq!(cleared.get()[index], zero, "{kernel:?} clears {len} at {dst_at}: byte {index}");
        assert_eq!(copied.get()[index], copy, "{kernel:?} copies {len} from {src_at} to {dst_at}: byte {index}");
    }
}

#[test]
fn every_kernel_at_every_alignment_and_short_length() {
    for kernel in Kernel::available() {
        for dst_at in 0..=64 {
            for len in (0..=8).chain([15, 16, 31, 33, 63, 64, 65, 127, 128, 129, 200, 4096, 4097]) {
                check(kernel, dst_at, dst_at * 7 % 64, len);
            }
        }
    }
}

#[test]
fn every_kernel_at_every_length_up_to_three_lines() {
    for kernel in Kernel::available() {
        for len in 0..=192 {
            for (dst_at, src_at) in [(0, 0), (1, 0), (63, 5)] {
                check(kernel, dst_at, src_at, len);
            }
        }
    }
}

#[test]
fn every_kernel_on_a_chunk() {
    for kernel in Kernel::available() {
        check(kernel, 0, 0, 2 << 20);
        check(kernel, 17, 3, (2 << 20) + 5);
    }
}

proptest! {
    #[test]
    fn every_kernel_matches_the_oracle(dst_at in 0usize..4096, src_at in 0usize..4096, len in 0usize..20_000) {
        for kernel in Kernel::available() {
            check(kernel, dst_at, src_at, len);
        }
    }
}

#[test]
fn what_a_kernel_wrote_is_seen_by_the_thread_it_is_published_to() {
    for kernel in Kernel::available() {
        let mut buffer = Aligned::new(64 << 10, |_| OLD);
        let slice = buffer.get();
        // SAFETY: the slice is writable and ours.
        unsafe { kernel.clear(slice.as_mut_ptr(), slice.len()) };
        let seen = std::thread::scope(|scope| scope.spawn(|| slice.iter().all(|&byte| byte == 0)).join());
        assert!(seen.unwrap(), "{kernel:?}");
    }
}

#[test]
fn choices_are_available_and_stay() {
    println!("available: {:?}", Kernel::available().collect::<Vec<_>>());
    println!("cached: {:?}, non-caching: {:?}, {:?}", Kernel::cached(), Kernel::non_caching(), caches());
    assert!(!Kernel::cached().is_non_caching());
    assert!(Kernel::available().any(|kernel| kernel == Kernel::cached()));
    assert!(Kernel::available().any(|kernel| kernel == Kernel::non_caching()));
    assert_eq!(Kernel::cached(), Kernel::cached());
    assert_eq!(Kernel::non_caching(), Kernel::non_caching());
    assert_eq!(Kernel::named("portable").map(Kernel::name), Some("portable"));
    assert_eq!(Kernel::named("no such kernel"), None);
    assert!(caches().level_2 >= 64 << 10 && caches().level_3 >= caches().level_2 && caches() == caches());
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = arch::ROUTINES.iter().map(|routines| routines.name).collect();
    names.push(PORTABLE.name);
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
