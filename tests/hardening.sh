#!/usr/bin/env bash
# The runs that take minutes: models of the threads, wrong frees in release builds, forks and threads in full, fuzzing
# against an oracle, AddressSanitizer, valgrind.
#
#     tests/hardening.sh [models] [checks] [forks] [threads] [random] [fuzz] [address] [valgrind]     all without arguments
#
# Works without huge pages; with pages reserved it uses them. `fuzz` needs a nightly toolchain, `valgrind` needs
# valgrind; what is missing is said. SECONDS_EACH is how long each kind of fuzzing takes (60), HUGEARENA_FORKS how many
# forks there are (10000, which take 12 minutes).
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-60}
target=$(rustc -vV | sed -n 's/^host: //p')

step() { printf '\n== %s\n' "$*"; }

# Every interleaving of a few operations on the heap's lock and the arena's bitmap.
models() { cargo run --release --manifest-path tests/loom/Cargo.toml; }

# Wrong frees, and everything else of the heap, in a release build that checks.
checks() { cargo test --release --features hardened --test hardening --test heap --test global_alloc; }

# Eight threads allocate while one forks; and new processes fork during their first allocation.
forks() {
    HUGEARENA_FORKS=${HUGEARENA_FORKS:-10000} cargo test --release --test fork
    HUGEARENA_FORKS=$((${HUGEARENA_FORKS:-10000} / 5)) cargo test --release --test start
}

# 100,000 threads that come and go; in debug builds there are fewer.
threads() { cargo test --release --test memory; }

# Inputs from a generator.
random() { cargo run --release --manifest-path tests/fuzz/Cargo.toml --bin random -- "$seconds"; }

# libFuzzer, under AddressSanitizer. The flags are those of cargo-fuzz, which this does without.
fuzz() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        echo "skipped: no nightly toolchain" >&2
        return
    fi
    local coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
    RUSTFLAGS="$coverage -Zsanitizer=address" cargo +nightly build --release --target "$target" \
        --manifest-path tests/fuzz/Cargo.toml --features libfuzzer --bin heap
    mkdir -p tests/fuzz/corpus
    ASAN_OPTIONS=detect_leaks=0 "tests/fuzz/target/$target/release/heap" -max_total_time="$seconds" -max_len=4096 \
        -rss_limit_mb=0 -artifact_prefix=tests/fuzz/ tests/fuzz/corpus
}

# The sanitizer knows the stack and std's heap; of ours it checks what the crate does with pointers of its own. The
# memory of a process at its end is not looked for, and signals that tests expect are theirs.
address() {
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0 cargo test --target "$target" \
        --target-dir target/asan --lib --test heap --test arena --test global_alloc
}

# Twenty times slower, so what shows the paths and no more.
valgrind() {
    if ! command -v valgrind >/dev/null; then
        echo "skipped: valgrind is not installed" >&2
        return
    fi
    local binaries
    binaries=$(cargo test --lib --test heap --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
    local check=(command valgrind --quiet --error-exitcode=9 --leak-check=no --fair-sched=yes)
    for binary in $binaries; do
        case $binary in
        */heap-*) "${check[@]}" "$binary" every_small shrinking absurd ;;
        *) "${check[@]}" "$binary" heap:: --skip proptest --skip no_unit --skip no_layout --skip every_offset --skip waste \
            --skip keep_every --skip smallest_class ;;
        esac
    done
}

for name in "${@:-models checks forks threads random fuzz address valgrind}"; do
    for part in $name; do
        step "$part"
        "$part"
    done
done
