//! What clearing and copying cost on one machine, how to measure again, and what that does not show.
#![doc = include_str!("measured/page.md")]
//!
//! <div>
#![doc = include_str!("measured/gains.svg")]
//! </div>
