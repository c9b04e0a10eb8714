#!/bin/sh
# Cross-compiles the crate for AArch64 with Debian's toolchain and runs the memops tests, and those of blocks by address,
# under qemu-user.
#
#   tests/aarch64.sh install   adds what is missing (root; Debian 12 or later), then runs
#   tests/aarch64.sh           runs
#
# Three CPUs, whose DC ZVA blocks are 64, 256 and 512 bytes. qemu proves what is written, not how fast, nor how
# stores are ordered.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = install ]; then
    dpkg --add-architecture arm64
    apt-get update
    apt-get install -y --no-install-recommends \
        rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
fi

export RUSTC=/usr/bin/rustc
export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64
# Static: pthread_create of the dynamic C library spins for ever under Debian 12's qemu 7.2.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static'
# Apart, because two compilers in one directory rebuild everything in turn.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/aarch64"
# Emulation is slow; the number of cases is what it can afford.
export PROPTEST_CASES="${PROPTEST_CASES:-32}"

for cpu in cortex-a57 a64fx max; do
    echo "== $cpu"
    QEMU_CPU=$cpu cargo test --lib memops -- --nocapture
done

# The thread's word in assembly, as the preload library has it; static, so by an offset that the linker fills in.
cargo test --features preload --test sizeless
