//! The workloads on snmalloc.

#[global_allocator]
static GLOBAL: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc;

fn main() {
    hugearena_peers::peer::run(String::new);
}
