#!/usr/bin/env bash
# Real programs with the heap as their malloc: redis, memcached, SQLite, Python, git, nginx, dd, stress-ng, Lua, Z3,
# Ghostscript. Each is put under load and decides by checks of its own; each is looked into for the library and for huge
# pages.
#
#   tests/programs.sh           everything, and redis against other allocators in turns (about ten minutes)
#   tests/programs.sh --short   two minutes: what CI runs
#   tests/programs.sh NAME...   only these
#   tests/programs.sh --figures dd, and redis on other allocators, as figures: what the bench of peers judges
#
# Installs the programs with apt-get where they are missing, so as root on Debian or Ubuntu. Exit status 0 if every
# check passed, 1 if one failed, 77 if a program cannot be had. Nothing stays behind but target/.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/apt.sh

declare -A PACKAGES=(
    [redis-server]=redis-server [redis-benchmark]=redis-tools [memcached]=memcached [sqlite3]=sqlite3
    [/usr/bin/python3]=python3 [git]=git [nginx]=nginx [ab]=apache2-utils
    [stress-ng]=stress-ng [lua5.4]=lua5.4 [z3]=z3 [gs]=ghostscript
)
ALL=(redis memcached sqlite python git nginx dd stress lua solver pages)
SHORT=0
NAMES=()
for argument in "$@"; do
    case $argument in
    --short) SHORT=1 ;;
    --figures) NAMES=(dd redis_peers) ;;
    -*) sed -n '2,11s/^# \?//p' "$0"; exit 2 ;;
    *) NAMES+=("$argument") ;;
    esac
done
((${#NAMES[@]})) || NAMES=("${ALL[@]}")

# Work so much, in the short run and in the long one.
scale() { if ((SHORT)); then echo "$1"; else echo "$2"; fi; }

install() {
    local missing=() program
    for program in "${!PACKAGES[@]}"; do
        command -v "$program" >/dev/null || missing+=("${PACKAGES[$program]}")
    done
    ls /usr/lib/python3*/test/test_dict.py >/dev/null 2>&1 || missing+=(libpython3-testsuite)
    ((${#missing[@]})) || return 0
    echo "installing ${missing[*]}" >&2
    # The services that the packages start are not wanted; those that run are left alone.
    # What is known of packages from before may do.
    { apt update -qq || true; RUNLEVEL=1 apt install -y -qq --no-install-recommends "${missing[@]}"; } >&2
}
if ! install; then
    echo "skipped: the programs cannot be installed here" >&2
    exit 77
fi

cargo build --quiet --release --example preload --features preload || exit 1
cargo build --quiet --release --features cli --bin hugearena || exit 1
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
LIBRARY=$TARGET/release/examples/libpreload.so
HUGEARENA=$TARGET/release/hugearena

# The loader has placed each thread's word: what asks it for one with a call, which may call malloc, is not on the way
# to a block. std does where it panics or prints.
[[ $(readelf -d "$LIBRARY") == *STATIC_TLS* ]] || { echo "FAILED: $LIBRARY is not in the initial-exec TLS model"; exit 1; }
callers=$(objdump -d -C --no-show-raw-insn "$LIBRARY" |
    awk '/^[0-9a-f]+ </ { name = $0 } /call.*__tls_get_addr/ { print name }' | grep -v 'std::')
[ -z "$callers" ] || { echo "FAILED: calls of __tls_get_addr: $callers"; exit 1; }

WORK=$(mktemp -d)
SERVER=

clean_up() {
    stop
    rm -rf "$WORK"
}
trap clean_up EXIT

POOL_FREE=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages)
if ((POOL_FREE < 256)); then
    echo "only $POOL_FREE pages of 2 MiB are free, 256 wanted: programs run on what stands in for them" >&2
    if [ "${HUGEARENA_REQUIRE_HUGE:-0}" != 0 ]; then exit 1; fi
fi

fail() {
    echo "FAILED: $*"
    return 1
}

heap() { "$HUGEARENA" run -- "$@"; }

# Starts a server, a program and not a function, in the background; its process id is in $SERVER.
start() {
    "$@" >>"$WORK/server.log" 2>&1 &
    SERVER=$!
}

stop() {
    [ -n "$SERVER" ] || return 0
    kill "$SERVER" 2>/dev/null
    wait "$SERVER" 2>/dev/null
    SERVER=
}

# Until it is so: generous, because machines are slow and have other things to do.
await() {
    local end=$((SECONDS + 120))
    while ((SECONDS < end)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    fail "no answer: $*"
}

# The library is in the process, and huge pages are behind its heap.
inside() {
    local huge
    grep -q "$LIBRARY" "/proc/$1/maps" || fail "process $1 is not on the heap" || return 1
    huge=$(awk '/^HugetlbPages:/ { print $2 / 1024 }' "/proc/$1/status")
    echo "huge pages: $huge MiB"
    if ((POOL_FREE >= 256)) && [ "$huge" = 0 ]; then fail "process $1 has no huge pages"; fi
}

# The same for a program that has ended, from what it said at exit.
told() {
    local line
    line=$(grep -h -o '[0-9.]* MiB on 2M pages' "$1" | sort -rn | head -1)
    echo "huge pages: ${line%% *} MiB"
    [ -n "$line" ] || fail "no statistics in $1" || return 1
    if ((POOL_FREE >= 256)) && [ "${line%% *}" = 0.0 ]; then fail "no huge pages"; fi
}

# A server that is still loading answers with an error, which redis-cli calls a success.
pong() { [ "$(redis-cli -s "$1" ping 2>/dev/null)" = PONG ]; }

OPERATIONS=set,get,incr,lpush,rpop,sadd,hset,spop,zadd,mset

redis() {
    local sock=$WORK/redis.sock dir=$WORK/redis digest again
    local server=(redis-server --port 0 --unixsocket "$sock" --dir "$dir" --save '' --enable-debug-command yes)
    local cli=(redis-cli -s "$sock")
    mkdir -p "$dir"
    start "$HUGEARENA" run -- "${server[@]}"
    await pong "$sock" || return 1
    redis-benchmark -s "$sock" -r 1000000 -n "$(scale 100000 1000000)" -P 16 -q -t "$OPERATIONS" || return 1
    redis-benchmark -s "$sock" -r 1000000 -n 100000 -P 16 -q lpush a 1 2 3 4 5 || return 1
    redis-benchmark -s "$sock" -r 1000000 -n 100000 -P 16 -q lrange a 1 5 || return 1
    inside "$SERVER" || return 1
    # Contents that a server on libc's or its own malloc has to agree on, by its own digest.
    "${cli[@]}" flushall >/dev/null
    keys "$(scale 100000 500000)" | "${cli[@]}" --pipe | tail -1
    digest=$("${cli[@]}" debug digest)
    # A child of fork writes the file while the parent goes on.
    "${cli[@]}" bgsave >/dev/null
    redis-benchmark -s "$sock" -r 1000000 -n 100000 -P 16 -q -t ping_inline || return 1
    await grep -q 'DB saved on disk' "$WORK/server.log" || return 1
    "${cli[@]}" debug reload >/dev/null
    again=$("${cli[@]}" debug digest)
    [ "$digest" = "$again" ] || fail "contents differ after a reload" || return 1
    stop
    start "${server[@]}"
    await pong "$sock" || return 1
    again=$("${cli[@]}" debug digest)
    stop
    [ "$digest" = "$again" ] || fail "another malloc reads other contents from the file" || return 1
    echo "digest $digest"
}

# Strings of many lengths, hashes, lists and sorted sets, with deletions, as commands.
keys() {
    awk -v count="$1" 'BEGIN {
        filler = "x"; while (length(filler) < 20000) filler = filler filler
        for (i = 0; i < count; i++) {
            size = (i * 7919) % 400; if (i % 997 == 0) size = 20000
            print "SET key:" i, i substr(filler, 1, size)
            if (i % 3 == 0) print "HSET hash:" i % 5000, "field" i, i
            if (i % 5 == 0) print "RPUSH list:" i % 300, "item" i
            if (i % 7 == 0) print "ZADD set:" i % 200, i % 1000, "member" i
            if (i % 4 == 0) print "APPEND key:" int(i / 2), "more" i
            if (i % 6 == 0) print "DEL key:" int(i / 3)
        }
    }'
}

memcached() {
    start "$HUGEARENA" run -- /usr/bin/memcached -u "$(id -un)" -s "$WORK/memcached.sock" -m 256 -t 2 -I 2m
    await test -S "$WORK/memcached.sock" || return 1
    /usr/bin/python3 tests/programs/memcached.py "$WORK/memcached.sock" "$(scale 20000 200000)" || return 1
    inside "$SERVER" || return 1
    stop
}

sqlite() {
    local rows
    rows=$(scale 100000 400000)
    sed "s/ROWS/$rows/g" tests/programs/sqlite.sql >"$WORK/sqlite.sql"
    "$HUGEARENA" run --stats -- sqlite3 "$WORK/heap.db" <"$WORK/sqlite.sql" >"$WORK/heap.out" 2>"$WORK/heap.err" ||
        fail "sqlite3: $(tail -1 "$WORK/heap.err")" || return 1
    sqlite3 "$WORK/libc.db" <"$WORK/sqlite.sql" >"$WORK/libc.out" || return 1
    grep -qx ok "$WORK/heap.out" || fail "integrity_check: $(head -1 "$WORK/heap.out")" || return 1
    cmp "$WORK/heap.out" "$WORK/libc.out" || fail "other answers than on libc" || return 1
    told "$WORK/heap.err"
}

python() {
    local tests=(test_dict test_list test_threading test_subprocess)
    # Not those that say how long something may take: they fail by chance, on any malloc, where the machine is busy.
    tests+=(-i '*timeout*' -i '*Timer*' -i '*ConditionTests*' -i '*BarrierTests*' -i '*EventTests*')
    # A test of Python's that fails has a second chance: some have races of their own.
    tests+=(-w)
    # Every object from malloc: Python's own allocator would ask for whole arenas.
    if ! PYTHONMALLOC=malloc "$HUGEARENA" run -- /usr/bin/python3 -m test "${tests[@]}" >"$WORK/python.out" 2>&1; then
        grep -E '^(test_|FAIL|ERROR|[0-9]+ test|.*failed)' "$WORK/python.out" | tail -20
        fail "python3 -m test ${tests[*]}" || return 1
    fi
    grep -E 'tests? OK|Result' "$WORK/python.out"
    PYTHONMALLOC=malloc "$HUGEARENA" run --stats -- /usr/bin/python3 -c \
        'd = {str(i): [i] * (i % 50) for i in range(300_000)}; assert sum(map(len, d.values())) == 7_350_000' \
        2>"$WORK/python.err" || fail "a dictionary of lists: $(tail -1 "$WORK/python.err")" || return 1
    told "$WORK/python.err"
}

git_() {
    local repository=$WORK/repository commits files
    commits=$(scale 40 200)
    export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    heap git init -q "$repository" || return 1
    history_of "$commits" | heap git -C "$repository" fast-import --quiet || fail "fast-import" || return 1
    heap git -C "$repository" reset -q --hard main || return 1
    heap git clone -q --no-local "$repository" "$WORK/clone" || fail "clone" || return 1
    "$HUGEARENA" run --stats -- git -C "$WORK/clone" -c gc.autoDetach=false gc -q --aggressive --prune=now 2>"$WORK/git.err" ||
        fail "gc: $(grep -v hugearena "$WORK/git.err" | tail -1)" || return 1
    heap git -C "$WORK/clone" fsck --full --strict || fail "fsck" || return 1
    git -C "$WORK/clone" fsck --full --strict || fail "fsck on libc" || return 1
    files=$(diff -r --exclude=.git "$repository" "$WORK/clone") || fail "$files" || return 1
    [ "$(git -C "$repository" log --format=%T | sha1sum)" = "$(heap git -C "$WORK/clone" log --format=%T | sha1sum)" ] ||
        fail "trees differ" || return 1
    told "$WORK/git.err"
}

# A history of so many commits on files that grow, for git fast-import.
history_of() {
    awk -v commits="$1" 'BEGIN {
        for (c = 1; c <= commits; c++) {
            printf "commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 6\ncommit\n", 1000000000 + c
            for (f = 0; f < 60; f++) {
                file = (c * 37 + f) % 900
                text[file] = text[file] sprintf("line %d of %d %s\n", c, file, (c * f * 2654435761) % 4294967296)
                printf "M 100644 inline d%d/f%d\ndata %d\n%s\n", file % 20, file, length(text[file]), text[file]
            }
        }
    }'
}

nginx() {
    local port url worker requests old
    port=$(free_port) || fail "no free port" || return 1
    url=http://127.0.0.1:$port
    requests=$(scale 20000 200000)
    mkdir -p "$WORK/www" "$WORK/nginx/logs"
    seq 200000 >"$WORK/www/large"
    seq 500 >"$WORK/www/small"
    chmod 755 "$WORK"
    sed "s#WORK#$WORK#g; s#PORT#$port#g" tests/programs/nginx.conf >"$WORK/nginx.conf"
    start "$HUGEARENA" run -- /usr/sbin/nginx -c "$WORK/nginx.conf" -p "$WORK/nginx"
    await fetch $url/small "$WORK/small" || { cat "$WORK/server.log"; return 1; }
    ab -q -k -n "$requests" -c 50 $url/small >"$WORK/ab.out" 2>&1 || fail "$(tail -1 "$WORK/ab.out")" || return 1
    ab -q -n "$((requests / 20))" -c 20 -H 'Accept-Encoding: gzip' $url/large >>"$WORK/ab.out" 2>&1 || return 1
    grep -E '^(Failed|Non-2xx|Requests per)' "$WORK/ab.out"
    [ "$(grep -c '^Failed requests: *0$' "$WORK/ab.out")" = 2 ] || fail "requests failed" || return 1
    for file in small large; do
        fetch $url/$file "$WORK/got" && cmp "$WORK/got" "$WORK/www/$file" || fail "$file differs" || return 1
        fetch $url/$file "$WORK/got" gzip && cmp "$WORK/got" "$WORK/www/$file" || fail "$file, gzip, differs" || return 1
    done
    # Workers that are replaced while requests run. They close connections that are kept alive, on any malloc, so that
    # ab sees resets (-r); no worker may end by a signal, and the new ones answer as the old did.
    old=$(children)
    kill -HUP "$SERVER"
    ab -q -k -r -n "$requests" -c 50 $url/small >"$WORK/ab.out" 2>&1 || fail "after a reload" || return 1
    # shellcheck disable=SC2086
    await are_gone $old || return 1
    ! grep 'exited on signal' "$WORK/nginx/error.log" || fail "a worker died" || return 1
    fetch $url/large "$WORK/got" gzip && cmp "$WORK/got" "$WORK/www/large" || fail "large differs after a reload" || return 1
    for worker in "$SERVER" $(children); do inside "$worker" || return 1; done
    stop
}

# Process ids of the children of the server.
children() { cat "/proc/$SERVER/task/$SERVER/children"; }

# None of these is a child of the server any more.
are_gone() {
    local process
    for process in "$@"; do
        [[ " $(children) " != *" $process "* ]] || return 1
    done
}

# A port that nobody listens on.
free_port() {
    /usr/bin/python3 - <<'PYTHON'
import socket
for port in range(18080, 18180):
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            continue
        print(port)
        break
else:
    raise SystemExit(1)
PYTHON
}

fetch() {
    /usr/bin/python3 - "$@" <<'PYTHON'
import gzip, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": "gzip"} if len(sys.argv) > 3 else {})
with urllib.request.urlopen(request, timeout=60) as reply:
    body = reply.read()
    if len(sys.argv) > 3:
        assert reply.headers["Content-Encoding"] == "gzip"
        body = gzip.decompress(body)
with open(sys.argv[2], "wb") as file:
    file.write(body)
PYTHON
}

# Copies between two devices: page faults of one buffer, then memory. In turns; the speed decides nothing, because the
# buffer of 10 MiB that the experiment is known for stays in the cache and the TLB of newer processors.
dd_() {
    local round rounds mib count
    rounds=$(scale 3 9)
    for mib in 10 32; do
        count=$(($(scale 4096 10240) / mib))
        for ((round = 0; round < rounds; round++)); do
            LD_PRELOAD=$LIBRARY seconds "heap.$mib" dd if=/dev/zero of=/dev/null bs=${mib}M count="$count" || return 1
            seconds "libc.$mib" dd if=/dev/zero of=/dev/null bs=${mib}M count="$count" || return 1
            GLIBC_TUNABLES=glibc.malloc.hugetlb=2 \
                seconds "hugetlb.$mib" dd if=/dev/zero of=/dev/null bs=${mib}M count="$count" || return 1
        done
        echo "figure dd-${mib}M-libc $(ratio "libc.$mib" "heap.$mib")"
        echo "figure dd-${mib}M-hugetlb2 $(ratio "hugetlb.$mib" "heap.$mib")"
        echo "bs=${mib}M: $(ratio "libc.$mib" "heap.$mib")x of libc," \
            "$(ratio "hugetlb.$mib" "heap.$mib")x of glibc.malloc.hugetlb=2" >>"$WORK/speed"
    done
    echo "speed: $(paste -sd\; "$WORK/speed")"
}

# malloc, calloc, realloc and free of random sizes by several threads and processes, with the contents checked.
stress() {
    local seconds
    seconds=$(scale 4 30)
    heap stress-ng --quiet --malloc 2 --malloc-ops 200000 --malloc-pthreads 2 --verify -t "$seconds" || fail "malloc" || return 1
    heap stress-ng --quiet --malloc 2 --malloc-bytes 64M --malloc-max 64 --malloc-touch --verify -t "$seconds" ||
        fail "malloc of large blocks" || return 1
    heap stress-ng --quiet --bigheap 1 --bigheap-ops 2000 --bigheap-growth 1M --verify -t "$seconds" || fail "realloc" || return 1
}

# A program, with what it reads on standard input, answers on the heap what it answers on libc.
agrees() {
    cat >"$WORK/input"
    "$HUGEARENA" run --stats -- "$@" <"$WORK/input" >"$WORK/heap.out" 2>"$WORK/heap.err" ||
        fail "$1: $(tail -1 "$WORK/heap.err")" || return 1
    "$@" <"$WORK/input" >"$WORK/libc.out" 2>/dev/null
    [ -s "$WORK/libc.out" ] && cmp "$WORK/heap.out" "$WORK/libc.out" || fail "$1: other answers than on libc" || return 1
    told "$WORK/heap.err"
}

lua() {
    agrees lua5.4 - <<LUA
local words, sum = {}, 0
for i = 1, $(scale 300000 2000000) do
    local word = string.rep(tostring(i % 9973), i % 7 + 1)
    words[word] = (words[word] or 0) + 1
    if i % 3 == 0 then words["t" .. i] = { i, i * 2, name = word } end
    if i % 5 == 0 then words["t" .. i - 98] = nil end
end
for key, value in pairs(words) do sum = sum + #key + (type(value) == "table" and value[2] or value) end
print(sum)
LUA
}

# Eight pigeons into seven holes, and sums of products: a solver that allocates and backtracks.
solver() {
    agrees z3 -in < <(
        awk -v pigeons="$(scale 7 8)" 'BEGIN {
            for (p = 1; p <= pigeons; p++) {
                clause = ""
                for (h = 1; h < pigeons; h++) { print "(declare-const x" p "_" h " Bool)"; clause = clause " x" p "_" h }
                print "(assert (or" clause "))"
            }
            for (h = 1; h < pigeons; h++) for (p = 1; p < pigeons; p++) for (q = p + 1; q <= pigeons; q++)
                print "(assert (not (and x" p "_" h " x" q "_" h ")))"
            print "(check-sat)(reset)(declare-const a Int)(declare-const b Int)(declare-const c Int)"
            print "(assert (and (> a 1) (> b a) (> c b) (= (+ (* a a) (* b b)) (* c c)) (< c 60)))(check-sat)"
        }'
    )
}

# Pages drawn by Ghostscript, pixel by pixel the same.
pages() {
    agrees gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=ppmraw -r"$(scale 100 300)" -sOutputFile=- - <<'POSTSCRIPT'
1 1 4 { /page exch def
    /Times-Roman findfont 9 scalefont setfont
    0 1 300 { dup 7 mul 600 mod 10 add exch dup 13 mul 780 mod 10 add exch 3 1 roll moveto page mul 20 string cvs show } for
    0 1 200 { /i exch def i 200 div i page mul 97 mod 97 div 0.5 setrgbcolor
        newpath i 37 mul 600 mod i 53 mul 780 mod i 5 add 0 360 arc gsave 0.2 setlinewidth stroke grestore
        i 5 mod 0 eq { fill } if } for
    showpage } for
POSTSCRIPT
}

# Seconds of wall time of a command, one line more in a file of that name.
seconds() {
    local name=$1 start
    shift
    start=$EPOCHREALTIME
    "$@" >/dev/null 2>"$WORK/$name.err" || fail "$*: $(tail -1 "$WORK/$name.err")" || return 1
    echo "$start $EPOCHREALTIME" | awk '{ print $2 - $1 }' >>"$WORK/$name"
}

median() { sort -g "$WORK/$1" | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }
ratio() { awk -v a="$(median "$1")" -v b="$(median "$2")" 'BEGIN { printf "%.2f", a / b }'; }

# redis under other allocators, as they come preloaded, in turns: requests a second, and CPU time of the server for
# the same work, which other load on the machine disturbs less.
redis_peers() {
    local round name peer library package sock=$WORK/peers.sock
    local -A peers=([heap]=$LIBRARY [own]='')
    for name in jemalloc:libjemalloc.so.2:libjemalloc2 mimalloc:libmimalloc.so.2:libmimalloc2.0 \
        tcmalloc:libtcmalloc_minimal.so.4:libtcmalloc-minimal4; do
        IFS=: read -r peer library package <<<"$name"
        [[ $(ldconfig -p) == *"$library"* ]] || apt install -y -qq --no-install-recommends "$package" >&2 ||
            fail "$library of package $package cannot be had" || return 1
        peers[$peer]=$library
    done
    for ((round = 0; round < ${ROUNDS:-9}; round++)); do
        for peer in "${!peers[@]}"; do
            start env LD_PRELOAD="${peers[$peer]}" redis-server --port 0 --unixsocket "$sock" --save ''
            await pong "$sock" || return 1
            seconds "load.$peer" redis-load "$sock" || return 1
            awk '{ print $14 + $15 }' "/proc/$SERVER/stat" >>"$WORK/ticks.$peer"
            stop
        done
    done
    local line=
    for peer in "${!peers[@]}"; do
        [ "$peer" = heap ] || echo "figure redis-$peer $(ratio "load.$peer" load.heap)"
        [ "$peer" = heap ] || line+=" $peer $(ratio "load.$peer" load.heap)x (CPU time $(ratio "ticks.$peer" ticks.heap)x)"
    done
    echo "speed: of$line"
}

redis-load() {
    redis-benchmark -s "$1" -r 1000000 -n 100000 -q -P 16 -t "$OPERATIONS"
    redis-benchmark -s "$1" -r 1000000 -n 100000 -q -P 16 lpush a 1 2 3 4 5
    redis-benchmark -s "$1" -r 1000000 -n 100000 -q -P 16 lrange a 1 5
}

((SHORT)) || [ "${NAMES[*]}" != "${ALL[*]}" ] || NAMES+=(redis_peers)
STATUS=0
TABLE=()
for name in "${NAMES[@]}"; do
    echo "== $name"
    : >"$WORK/server.log"
    begun=$SECONDS
    case $name in git | dd) body=${name}_ ;; *) body=$name ;; esac
    if "$body" >"$WORK/report" 2>&1; then result=ok; else result=FAILED STATUS=1; fi
    ((STATUS)) && [ "$result" = FAILED ] && tail -5 "$WORK/server.log"
    sed 's/.*\r//' "$WORK/report" | grep -v '^ *$' | tail -40
    stop
    detail=$(grep -h -E '^(FAILED|speed|huge pages)' "$WORK/report" | tail -1)
    TABLE+=("$(printf '%-12s %-7s %4d s  %s' "$name" "$result" $((SECONDS - begun)) "$detail")")
done
printf '\n%-12s %-7s %6s  %s\n' program result time detail
printf '%s\n' "${TABLE[@]}"
exit $STATUS
