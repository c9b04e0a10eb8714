//! What the allocators are given to do, and the program that does it on one of them.

pub mod peer;
pub mod workloads;
