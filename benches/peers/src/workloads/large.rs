//! Much memory: where page size and first touch count.

use std::ptr;

use super::{Outcome, timed};

/// One cache line.
#[repr(align(64))]
struct Node {
    next: *const Node,
    value: u64,
}

/// Follows a chain of `count` boxes, a power of two, that visits them in random order. What counts is following;
/// making the chain shows from spawn to exit.
pub fn chase(count: usize) -> Outcome {
    const HOPS: usize = 3_000_000;
    assert!(count.is_power_of_two() && count >= 4);
    let nodes: Vec<*mut Node> =
        (0..count).map(|at| Box::into_raw(Box::new(Node { next: ptr::null(), value: at as u64 }))).collect();
    // A multiplier that leaves 1 modulo 4 and an odd addend visit every index once before they repeat.
    let next = |at: usize| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x2545_f491_4f6c_dd1d) & (count - 1);
    for (at, &node) in nodes.iter().enumerate() {
        // SAFETY: a box of ours, to which no reference exists.
        unsafe { (*node).next = nodes[next(at)] };
    }
    timed(|| {
        let mut sum = 0u64;
        let mut node = nodes[0].cast_const();
        for _ in 0..HOPS.min(count) {
            // SAFETY: every `next` is a box, and none has been dropped. All end with the process.
            unsafe {
                sum += (*node).value;
                node = (*node).next;
            }
        }
        sum
    })
}

/// A vector grows by push.
pub fn vec_growth(numbers: usize) -> Outcome {
    timed(|| {
        let mut vector = Vec::new();
        for number in 0..numbers as u64 {
            vector.push(number);
        }
        vector.iter().step_by(4096).sum()
    })
}

/// Zeroed buffers, one after the other, each 4 KiB of which is read and written.
pub fn zeroed(buffers: usize) -> Outcome {
    const BYTES: usize = 256 << 20;
    timed(|| {
        let mut touched = 0;
        for _ in 0..buffers {
            let mut buffer = vec![0u8; BYTES];
            for byte in buffer.iter_mut().step_by(4096) {
                assert_eq!(*byte, 0, "a zeroed buffer is not zero");
                *byte = 1;
            }
            touched += buffer.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>();
        }
        touched
    })
}
