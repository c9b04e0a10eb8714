#!/usr/bin/env bash
# Test suites that others wrote, with the heap under them: each published crate's own tests, twice. First with
# HugeAlloc as the global allocator (two lines are added to a copy), then as they are on the preload library. By hand:
# it compiles a lot.
#
#   tests/suites.sh             all
#   tests/suites.sh bytes ...   only these
#
# Fetches the crates from crates.io; works in target/suites. A suite that fails is run on libc as well, to tell whose
# failure it is. Exit status 0 if nothing fails that passes on libc. What was found last is in src/heap/suites.md.
set -uo pipefail
cd "$(dirname "$0")/.."

# Name, version, and what cargo test is told: the features under which most of its tests run.
SUITES=(
    "hashbrown 0.16.1 --features=rayon,serde"
    "smallvec 1.16.6 --features=write,union,const_generics,const_new"
    "bytes 1.12.2"
    "indexmap 2.14.2 --features=rayon,serde"
    "rayon-core 1.13.0"
    "rayon 1.12.0"
    "crossbeam-utils 0.8.23"
    "crossbeam-channel 0.5.17"
    "crossbeam-deque 0.8.8"
    "crossbeam-epoch 0.9.21"
    "crossbeam-queue 0.3.14"
    "crossbeam-skiplist 0.1.3"
    "tokio 1.54.1 --features=full,test-util"
)

# Tests that are left out on libc too, by name, and why. cargo test takes a part of a name for all that have it.
declare -A SKIPS=(
    # Threads that wait for each other with sched_yield(2): minutes on a busy machine, on libc's malloc as well.
    [crossbeam-channel]="stress_clone"
    # Expects that a directory without permissions cannot be read: root can.
    [tokio]=$([ "$(id -u)" = 0 ] && echo try_exists)
)
ROOT=$PWD
WORK=${SUITES_DIR:-$ROOT/target/suites}
REGISTRY=${CARGO_HOME:-$HOME/.cargo}/registry/src
mkdir -p "$WORK"

fetch() {
    mkdir -p "$WORK/fetch/src"
    : >"$WORK/fetch/src/lib.rs"
    {
        printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n[dependencies]\n'
        printf 'malloc-bench-rs = "=0.1.0"\n'
        for suite in "${SUITES[@]}"; do
            read -r name version _ <<<"$suite"
            printf '%s = "=%s"\n' "$name" "$version"
        done
    } >"$WORK/fetch/Cargo.toml"
    cargo fetch --quiet --manifest-path "$WORK/fetch/Cargo.toml"
}

# A copy of a crate, in a workspace of its own. Some tests need files that are not published, or nightly: they go.
copy() {
    local to=$WORK/$1-$2
    rm -rf "$to"
    cp -r "$REGISTRY"/*/"$1-$2" "$to" && chmod -R u+w "$to" && rm -f "$to/Cargo.lock" && rm -rf "$to/benches"
    grep -q '^\[workspace\]' "$to/Cargo.toml" || printf '\n[workspace]\n' >>"$to/Cargo.toml"
    # Benches that are declared and not there any more.
    awk '/^\[\[bench\]\]/ { skip = 1; next } /^\[/ { skip = 0 } !skip' "$to/Cargo.toml" >"$to/Cargo.new"
    mv "$to/Cargo.new" "$to/Cargo.toml"
    # What its tests depend on may depend on it: on this copy then, as in its own repository.
    printf '\n[patch.crates-io.%s]\npath = "."\n' "$1" >>"$to/Cargo.toml"
}

# HugeAlloc in every test binary that brings no global allocator of its own.
patch() {
    local file line='#[global_allocator] static HUGEARENA: hugearena::HugeAlloc = hugearena::HugeAlloc::new();'
    printf '\n[dev-dependencies.hugearena]\npath = "%s"\n' "$ROOT" >>"$1/Cargo.toml"
    for file in "$1"/tests/*.rs; do
        grep -qs global_allocator "$file" || { [ -e "$file" ] && printf '\n%s\n' "$line" >>"$file"; }
    done
    grep -rqs global_allocator "$1/src" || printf '\n#[cfg(test)]\n%s\n' "$line" >>"$1/src/lib.rs"
}

# Tests passed, failed and ignored, from what cargo test wrote; or why there are none.
count() {
    awk '/^test result:/ { passed += $4; failed += $6; ignored += $8; found = 1 }
        /^error(\[|:)/ && !error { error = $0 }
        /^passed alone:/ { alone = 1 }
        END { if (found && !failed) printf "%d passed, %d ignored", passed, ignored
              if (found && failed) printf "%d passed, %d failed%s, %d ignored", passed, failed, \
                  alone ? " (and passed alone)" : "", ignored
              if (error && (!found || error ~ /could not compile/)) printf " (%s)", error }' "$1"
}

# Whether the tests of a crate pass. Some of these suites have tests of time, which fail on a busy machine on any
# allocator: what fails is tried again, alone, five times.
run() {
    local log=$1 directory=$2 attempt names skips
    read -r -a skips <<<"${SKIPS[$3]-}"
    shift 3
    rm -f "$log.again"
    (cd "$directory" && cargo test --no-fail-fast --lib --tests "$@" -- ${skips[@]/#/--skip=}) >"$log" 2>&1 && return
    for ((attempt = 0; attempt < 5; attempt++)); do
        mapfile -t names < <(failures "$([ -e "$log.again" ] && echo "$log.again" || echo "$log")" | awk '/^test / { print $2 }')
        # Not compiled, or ended by a signal: that is no test of time.
        if ((${#names[@]} == 0)) || [[ $(failures "$log") == *error:* ]] || grep -q 'signal:' "$log"; then return 1; fi
        (cd "$directory" && cargo test --no-fail-fast --lib --tests "$@" -- --exact --test-threads=1 "${names[@]}") \
            >"$log.again" 2>&1 && echo "passed alone: ${#names[@]}" >>"$log" && return
    done
    return 1
}

suite() {
    local name=$1 version=$2 directory=$WORK/$1-$2 verdict=ok
    shift 2
    copy "$name" "$version" || return 1
    # On the library first: the copy is still as it was published.
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$HUGEARENA run --lib $LIBRARY --" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$HUGEARENA run --lib $LIBRARY --" \
        run "$WORK/$name.preload" "$directory" "$name" "$@" || verdict=failed
    if [ $verdict = failed ]; then run "$WORK/$name.libc" "$directory" "$name" "$@" || verdict=same; fi
    patch "$directory"
    run "$WORK/$name.global" "$directory" "$name" "$@" || verdict=${verdict/ok/failed}
    if [ $verdict = same ]; then
        # The same tests, by name.
        diff <(failures "$WORK/$name.libc") <(failures "$WORK/$name.preload") >/dev/null &&
            diff <(failures "$WORK/$name.libc") <(failures "$WORK/$name.global") >/dev/null || verdict=failed
    fi
    TABLE+=("| $name $version | $(count "$WORK/$name.global") | $(count "$WORK/$name.preload") |$([ $verdict = same ] && echo " as on libc: $(count "$WORK/$name.libc") |" || echo " $verdict |")")
    echo "${TABLE[-1]}"
    [ $verdict != failed ] || { failures "$WORK/$name.global" "$WORK/$name.preload"; return 1; }
}

failures() { cat "$@" | grep -E '^test .* FAILED$|^error: could not compile|signal:' | sort -u; }

# malloc-bench-rs: its smoke test is one of the suites; here its two workloads, in turns with libc's malloc.
malloc_bench() {
    local directory=$WORK/malloc-bench
    mkdir -p "$directory/src"
    cat >"$directory/Cargo.toml" <<TOML
[package]
name = "malloc-bench"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
malloc-bench-rs = "=0.1.0"
hugearena = { path = "$ROOT" }
TOML
    cat >"$directory/src/main.rs" <<'RUST'
use hugearena::HugeAlloc;
use malloc_bench_rs::{Config, Workload, run};
use std::alloc::System;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    for (name, workload) in [("larson", Workload::Larson), ("mstress", Workload::Mstress)] {
        for threads in [1, 2, 4] {
            let config = Config { threads, steps_per_thread: 400_000 / threads, working_set: 1024, mstress_blocks: 512 };
            let (mut heap, mut ratios) = (Vec::new(), Vec::new());
            for _ in 0..9 {
                let huge = run(workload, &config, HugeAlloc::new);
                let libc = run(workload, &config, || System);
                heap.push(huge / 1e6);
                ratios.push(huge / libc);
            }
            println!("| {name}, {threads} threads | {:.1} M pairs/s | {:.2}x |", median(heap), median(ratios));
        }
    }
}
RUST
    (cd "$directory" && cargo run --quiet --release)
}

cargo build --quiet --release --example preload --features preload --target-dir target || exit 1
cargo build --quiet --release --features cli --bin hugearena --target-dir target || exit 1
LIBRARY=$ROOT/target/release/examples/libpreload.so
HUGEARENA=$ROOT/target/release/hugearena
# After these builds, which other flags would repeat.
export CARGO_TARGET_DIR=$WORK/target RUSTFLAGS="--cap-lints=warn -A warnings"
# Hundreds of test binaries are linked; nobody debugs them.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0 CARGO_INCREMENTAL=0
fetch || { echo "skipped: crates.io cannot be reached" >&2; exit 77; }

STATUS=0
TABLE=()
for line in "${SUITES[@]}"; do
    read -r -a words <<<"$line"
    [ $# = 0 ] || [[ " $* " == *" ${words[0]} "* ]] || continue
    suite "${words[@]}" || STATUS=1
done
printf '\n| suite | HugeAlloc as global allocator | preload | verdict |\n|---|---|---|---|\n'
printf '%s\n' "${TABLE[@]}"
if [ $# = 0 ] || [[ " $* " == *" malloc-bench-rs "* ]]; then
    printf '\n| malloc-bench-rs 0.1.0 | HugeAlloc | against libc |\n|---|---|---|\n'
    malloc_bench || STATUS=1
fi
exit $STATUS
