#!/usr/bin/env bash
# The tests that other mallocs bring, those that call the malloc family by its own names: glibc's (malloc/tst-*.c, from the
# Debian package glibc-source) and mimalloc's stress test (from its Debian source package), each on libc and with the
# heap preloaded. By hand: some are built for minutes of waiting.
#
#   tests/malloc-tests.sh            all
#   tests/malloc-tests.sh NAME...    only these
#
# Needs gcc, and root for apt-get. Exit status 0 if nothing fails that passes on libc, 77 if the sources cannot be had.
# What was found last is in src/heap/suites.md, and which of glibc's tests are left out.
set -uo pipefail
cd "$(dirname "$0")/.."

TESTS=(
    mallocbug tst-malloc tst-calloc tst-realloc tst-reallocarray tst-memalign tst-posix_memalign tst-valloc tst-pvalloc
    tst-mallocalign1 tst-malloc-too-large tst-obstack tst-trim1 tst-tcfree3 tst-malloc-thread-exit
    tst-mallocfork tst-mallocfork2 tst-mallocfork3 tst-malloc-fork-deadlock
    mimalloc-stress
)
# Not relative: what follows is done in other directories.
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
WORK=$TARGET/malloc-tests
LIBRARY=$TARGET/release/examples/libpreload.so

fetch() {
    mkdir -p "$WORK/lists/partial" && cd "$WORK" || return 1
    if [ ! -d glibc ]; then
        apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root glibc-source && dpkg-deb -x glibc-source_*.deb package || return 1
        mkdir glibc && tar -xf package/usr/src/glibc/glibc-*.tar.xz -C glibc --strip-components=1 --wildcards '*/malloc/*' \
            '*/support/*' '*/test-skeleton.c' '*/include/array_length.h' '*/include/libc-diag.h' \
            '*/include/libc-pointer-arith.h' '*/sysdeps/generic/malloc-size.h' '*/sysdeps/generic/malloc-alignment.h'
        rm -rf package glibc-source_*.deb
    fi
    if [ ! -d mimalloc ]; then
        # Lists of sources, beside those of the machine, which may have none.
        sed 's/^Types: deb$/Types: deb-src/; s/^deb /deb-src /' /etc/apt/sources.list.d/debian.sources >sources.sources
        local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$WORK/sources.sources" -o Dir::Etc::sourceparts=-
            -o "Dir::State::lists=$WORK/lists" -o APT::Sandbox::User=root)
        "${apt[@]}" update && "${apt[@]}" source --download-only mimalloc || return 1
        mkdir mimalloc && tar -xf mimalloc_*.orig.tar.xz -C mimalloc --strip-components=1
    fi
}

# What the tests of glibc are linked with, as far as it compiles outside of glibc.
support() {
    local paths=()
    for path in SRCDIR OBJDIR OBJDIR_ELF_LDSO INSTDIR LIBDIR BINDIR SBINDIR SLIBDIR ROOTSBINDIR COMPLOCALEDIR SYSCONFDIR; do
        paths+=("-D${path}_PATH=\"/tmp\"")
    done
    mkdir -p objects
    (cd glibc && printf '%s\n' support/*.c | xargs -P "$(nproc)" -I{} sh -c 'gcc "$@" -c {} -o ../objects/$(basename {} .c).o' \
        sh "${FLAGS[@]}" "${paths[@]}" -DMODULE_NAME=testsuite -include limits.h -idirafter support 2>/dev/null)
    ar rcs support.a objects/*.o
}
FLAGS=(-O1 -w -D_GNU_SOURCE -DTIMEOUTFACTOR=20 -idirafter . -idirafter include -idirafter sysdeps/generic)

build() {
    if [ "$1" = mimalloc-stress ]; then
        gcc -O2 -w -DUSE_STD_MALLOC mimalloc/test/test-stress.c -o "$1" -lpthread
    else
        (cd glibc && gcc "${FLAGS[@]}" -fno-builtin "malloc/$1.c" ../support.a -o "../$1" -lpthread)
    fi
}

# A test that was preloaded into, and one that was not; both by their own exit status.
run() {
    local name=$1 libc heap begun=$SECONDS
    timeout 900 "./$name" >"$name.libc" 2>&1
    libc=$?
    LD_PRELOAD=$LIBRARY timeout 900 "./$name" >"$name.heap" 2>&1
    heap=$?
    printf '| %s | %s | %s |\n' "$name" "$(verdict $heap)" "$(verdict $libc)"
    [ $heap = 0 ] || tail -n 5 "$name.heap"
    [ $heap = 0 ] || [ $libc != 0 ]
}

verdict() {
    case $1 in 0) echo passed ;; 124) echo "no end" ;; *) echo "failed ($1)" ;; esac
}

cargo build --quiet --release --example preload --features preload || exit 1
fetch || { echo "skipped: the sources cannot be had" >&2; exit 77; }
cd "$WORK" || exit 1
[ -e support.a ] || support
STATUS=0
printf '| test | heap | libc |\n|---|---|---|\n'
for name in "${TESTS[@]}"; do
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    build "$name" && run "$name" || STATUS=1
done
exit $STATUS
