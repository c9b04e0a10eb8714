//! The workloads on mimalloc.

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    hugearena_peers::peer::run(String::new);
}
