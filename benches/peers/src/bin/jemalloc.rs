//! The workloads on jemalloc.

#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    hugearena_peers::peer::run(String::new);
}
