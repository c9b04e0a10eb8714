//! A small generator (splitmix64): the same seed gives the same work on every run and under every allocator.

pub struct Prng(u64);

impl Prng {
    pub const fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// A number below `limit`, which must not be 0. The bias, under one in 2^32 here, does not matter.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

/// The output function: a bijection that turns a counter, or a sum, into well-mixed bits.
pub fn scramble(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
