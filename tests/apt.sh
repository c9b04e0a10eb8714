# Sourced by the scripts that install packages. Neither a network that does not answer nor another installation stops them
# for long.
apt() {
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -o Acquire::Retries=5 -o Acquire::http::Timeout=30 \
        -o DPkg::Lock::Timeout=300 "$@"
}
