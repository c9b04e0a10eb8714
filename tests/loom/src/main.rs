//! Models of the heap's lock, of hand-over between threads under it, of fork, and of the bitmap that hands chunks
//! out, and of rings: the crate's own sources, with loom's atomics in the place of std's.

#[path = "../../../src/arena/bitmap.rs"]
#[allow(dead_code)]
mod bitmap;
mod chunks;
#[path = "../../../src/error.rs"]
#[allow(dead_code)]
mod error;
#[path = "../../../src/heap/lock.rs"]
#[allow(dead_code)]
mod lock;
mod locks;
#[path = "../../../src/ring/mod.rs"]
#[allow(dead_code, unused_imports)]
mod ring;
mod rings;
#[path = "../../../src/arena/state.rs"]
#[allow(dead_code)]
mod state;
mod sync;

/// What the included sources use of the crate besides `sync`.
mod sys {
    pub mod process {
        use crate::sync::{AtomicU32, Ordering};

        /// futex(2): looks at the word and goes to sleep in one step, as seen by [`wake_one`]. A wake-up that gets lost
        /// leaves a thread asleep, which loom reports.
        pub fn wait_while(word: &AtomicU32, expected: u32) {
            crate::locks::with_futex(|mutex, wake| {
                let guard = mutex.lock().unwrap();
                if word.load(Ordering::Relaxed) == expected {
                    drop(wake.wait(guard).unwrap());
                }
            });
        }

        /// Nothing allocates in fork handlers here.
        pub fn is_forking() -> bool {
            false
        }

        /// The models fork the lock, not the bitmap.
        pub fn forks_counted() -> u64 {
            0
        }

        pub fn wake_one(_: &AtomicU32) {
            crate::locks::with_futex(|mutex, wake| {
                let guard = mutex.lock().unwrap();
                wake.notify_one();
                drop(guard);
            });
        }
    }
}

mod mapping {
    pub mod words {
        /// The record of a named arena, which the models have not.
        #[derive(Debug)]
        pub(crate) struct Words(Vec<crate::sync::AtomicU64>);

        impl Words {
            pub(crate) fn as_slice(&self) -> &[crate::sync::AtomicU64] {
                &self.0
            }
        }
    }
}

/// Explores a model, with at most `preemptions` switches away from a thread that could go on.
fn explore(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
    println!("{name}: ok");
}

fn main() {
    locks::explore_all();
    chunks::explore_all();
    rings::explore_all();
}
