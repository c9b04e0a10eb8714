//! The workloads on HugeAlloc.

#[global_allocator]
static GLOBAL: hugearena::HugeAlloc = hugearena::HugeAlloc::new();

fn main() {
    hugearena_peers::peer::run(note);
}

/// Steps of growth that did not get huge pages: such a run says nothing about them.
fn note() -> String {
    let stats = GLOBAL.stats();
    match stats.last_fallback {
        Some(reason) => format!("{} steps without huge pages, the last: {reason}", stats.fallbacks),
        None => String::new(),
    }
}
