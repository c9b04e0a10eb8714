#!/usr/bin/env bash
# Runs the NUMA tests on a kernel with two nodes, and those of hugetlb cgroups with the controller in version 1: qemu in
# software emulation boots Debian's kernel with an initramfs that holds the test binaries.
#
#   tests/numa-vm.sh install   adds what is missing (root; Debian 12 or later), then runs
#   tests/numa-vm.sh fetch     adds what is missing; fails where it cannot be had
#   tests/numa-vm.sh           runs
#
# Half a minute after the build, and 1 GiB of memory. The guest's pools change, those of this machine do not.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/apt.sh

SECONDS_AT_MOST=1800
PACKAGES=(qemu-system-x86 busybox-static cpio)
CACHE=${CARGO_TARGET_DIR:-target}/numa-vm

mkdir -p "$CACHE"

# Unpacked, not installed: this machine boots something else.
kernel() {
    if ! compgen -G "$CACHE/kernel/boot/vmlinuz-*" >/dev/null; then
        local package
        package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
        (cd "$CACHE" && apt download "$package" >&2 && dpkg-deb -x "$package"_*.deb kernel)
    fi
    compgen -G "$CACHE/kernel/boot/vmlinuz-*" | head -n 1
}

if [ $# -gt 0 ]; then
    if ! dpkg -s "${PACKAGES[@]}" >/dev/null 2>&1; then
        # What is known of packages from before may do.
        apt update || true
        apt install -y --no-install-recommends "${PACKAGES[@]}"
    fi
    kernel
fi
if [ "${1:-}" = fetch ]; then
    exit
fi

# The test binary that these options of cargo name, built now.
binary() {
    cargo test --no-run "$@" 2>&1 | tee >(cat >&2) | sed -n 's/^ *Executable .*(\(.*\))$/\1/p'
}

# A binary and the libraries it is linked to, at the same places.
copy_with_libraries() {
    cp "$1" "$root/$2"
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

root=$(mktemp -d)
log=$(mktemp)
trap 'rm -rf "$root" "$log"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,tmp}
copy_with_libraries "$(binary --test numa)" numa
copy_with_libraries "$(binary --lib)" unit
copy_with_libraries "$(binary --test faults)" faults
copy_with_libraries "$(binary --test resize)" resize
copy_with_libraries "$(binary --all-features --test cli)" cli
# The test looks for the command here.
copy_with_libraries "${CARGO_TARGET_DIR:-target}/debug/hugearena" bin/hugearena
cp "$(command -v busybox)" "$root/bin/busybox"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HUGEARENA_REQUIRE_NODES=1 RUST_BACKTRACE=0 PROPTEST_CASES=8
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
mount -t cgroup2 none /sys/fs/cgroup
echo "kernel $(uname -r), nodes $(cat /sys/devices/system/node/has_memory), up $(cut -d' ' -f1 /proc/uptime) s"
mkdir /cgroup-v1
# Version 1 has the hugetlb controller, version 2 the others.
mount -t cgroup -o hugetlb none /cgroup-v1
cgroups() {
    echo 128 >/proc/sys/vm/nr_hugepages
    HUGEARENA_REQUIRE_HUGE=2M /faults cgroup:: --test-threads=1 && HUGEARENA_REQUIRE_HUGE=2M /cli doctor --test-threads=1 &&
        HUGEARENA_REQUIRE_HUGE=2M /resize refused::by_ --test-threads=1
    local status=$?
    echo 0 >/proc/sys/vm/nr_hugepages
    return $status
}
cgroups && /unit numa:: --test-threads=1 && /numa --test-threads=1 --nocapture && echo "numa-vm: passed"
dmesg | grep -iE 'oom|killed' && echo "numa-vm: the kernel killed a process"
echo "up $(cut -d' ' -f1 /proc/uptime) s"
poweroff -f
INIT
chmod +x "$root/init"
# For the test that is somebody else.
chmod 755 "$root"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$CACHE/initramfs"

# Two nodes of 512 MiB with a CPU each; node 1 is the far one.
timeout "$SECONDS_AT_MOST" qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 1024 -nographic -no-reboot -net none \
    -object memory-backend-ram,id=near,size=512M -numa node,nodeid=0,cpus=0,memdev=near \
    -object memory-backend-ram,id=far,size=512M -numa node,nodeid=1,cpus=1,memdev=far \
    -kernel "$(kernel)" -initrd "$CACHE/initramfs" -append "console=ttyS0 quiet panic=-1" </dev/null | tee "$log"
grep -q 'numa-vm: passed' "$log" && ! grep -q 'numa-vm: the kernel killed' "$log"
