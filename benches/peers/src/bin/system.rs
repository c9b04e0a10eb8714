//! The workloads on libc.

#[global_allocator]
static GLOBAL: std::alloc::System = std::alloc::System;

fn main() {
    hugearena_peers::peer::run(String::new);
}
