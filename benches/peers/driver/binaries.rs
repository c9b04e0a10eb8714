//! Where cargo built the peers, for the driver and for the tests.

/// One binary for each allocator, in the order of `Family`.
pub const BINARIES: [&str; 6] = [
    env!("CARGO_BIN_EXE_peer-hugearena"),
    env!("CARGO_BIN_EXE_peer-system"),
    env!("CARGO_BIN_EXE_peer-mimalloc"),
    env!("CARGO_BIN_EXE_peer-jemalloc"),
    env!("CARGO_BIN_EXE_peer-snmalloc"),
    env!("CARGO_BIN_EXE_peer-rusty"),
];
