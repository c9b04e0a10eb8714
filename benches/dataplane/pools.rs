//! The loop of `mempool_perf_autotest`: get `keep` objects in bulks of 32, put them back in bulks of 32.

use std::hint::black_box;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use hugearena::pool::Pool;
use hugearena::{Arena, PoolCache};

use crate::measure::Summary;
use crate::timing::{alone, both};

const BULK: usize = 32;
const CACHE: usize = 512;
/// Objects between two looks at the clock.
const PASS: usize = 65_536;
const TIME: Duration = Duration::from_millis(5);
/// Places of the table, and pointers from one to the next: 4 KiB in all.
const PLACES: usize = 8;
const PLACE: usize = 64;

pub struct Pools {
    pool: Pool,
}

impl Pools {
    pub fn new() -> Result<Pools, String> {
        let builder = Pool::builder().object_size(2048).count(2 * (512 + CACHE) - 1);
        let bytes = builder.bytes_needed().map_err(|error| error.to_string())?;
        let arena = Arena::builder().capacity(bytes).open().map_err(|error| error.to_string())?;
        Ok(Pools { pool: builder.build(&arena).map_err(|error| error.to_string())? })
    }

    /// Objects got and put in a second, by one core.
    pub fn one_core(&self, keep: usize) -> f64 {
        alone(|| rate(self.pool.cache(CACHE), keep))
    }

    /// The same by two cores together.
    pub fn two_cores(&self, keep: usize) -> f64 {
        let (first, second) = both(|| rate(self.pool.cache(CACHE), keep), || rate(self.pool.cache(CACHE), keep));
        first + second
    }

    /// As [`one_core`](Self::one_core), but as values that go home by themselves.
    pub fn boxed(&self, keep: usize) -> f64 {
        alone(|| {
            let mut cache = self.pool.cache(CACHE);
            let mut held = Vec::with_capacity(keep);
            rate_of(
                || {
                    while held.len() < keep {
                        assert!(cache.get_bulk(BULK, &mut held), "the pool is as large as is needed");
                    }
                    cache.put_all(black_box(&mut held).drain(..));
                },
                keep,
            )
        })
    }
}

/// The median over places of the table. Where its address agrees with that of the objects in the cache modulo 4096, the
/// CPU takes loads from the one for loads of what was just stored to the other, here and in the test alike, and is half
/// as fast; one place is luck.
fn rate(mut cache: PoolCache, keep: usize) -> f64 {
    let mut table = vec![NonNull::<u8>::dangling(); PLACES * PLACE + keep];
    let rates = (0..PLACES).map(|place| rate_at(&mut cache, &mut table[place * PLACE..][..keep]));
    Summary::of(rates).median
}

fn rate_at(cache: &mut PoolCache, held: &mut [NonNull<u8>]) -> f64 {
    let keep = held.len();
    let pass = || {
        for bulk in held.chunks_exact_mut(BULK) {
            // The length is a constant, as in the test.
            let bulk: &mut [NonNull<u8>; BULK] = bulk.try_into().expect("that long");
            assert!(cache.get_raw_bulk(bulk), "the pool is as large as is needed");
        }
        for bulk in black_box(&mut *held).chunks_exact(BULK) {
            let bulk: &[NonNull<u8>; BULK] = bulk.try_into().expect("that long");
            // SAFETY: got above, put once.
            unsafe { cache.put_raw(bulk) };
        }
    };
    rate_of(pass, keep)
}

/// Runs `body`, which gets and puts `keep` objects, for a while.
fn rate_of(mut body: impl FnMut(), keep: usize) -> f64 {
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < TIME {
        (0..PASS / keep).for_each(|_| body());
        count += PASS / keep * keep;
    }
    count as f64 / start.elapsed().as_secs_f64()
}
