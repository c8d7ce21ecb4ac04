#!/usr/bin/env bash
# Makes sure that PostgreSQL's client tools (psql, pgbench) and its server binaries are here.
#
# The tests drive polarless with pgbench and psql, and compare answers and speed with a real
# PostgreSQL. Nothing is done where all of it is found; elsewhere it is installed with apt-get, as
# root or through sudo. No database cluster is created and no service is left running.
#
#   scripts/install-postgres.sh             fails under CI=true if it cannot be had, else warns
#   scripts/install-postgres.sh --optional  only ever warns
set -euo pipefail

optional=no
[ "${1:-}" = "--optional" ] && optional=yes

complete() {
    command -v psql >/dev/null && command -v pgbench >/dev/null || return 1
    command -v postgres >/dev/null && command -v initdb >/dev/null && return 0
    local bin
    for bin in /usr/lib/postgresql/*/bin; do
        [ -x "$bin/postgres" ] && [ -x "$bin/initdb" ] && return 0
    done
    return 1
}

give_up() {
    echo "install-postgres: $1" >&2
    echo "install-postgres: install PostgreSQL's server and client (psql, pgbench) by hand." >&2
    if [ "$optional" = no ] && [ "${CI:-}" = true ]; then
        exit 1
    fi
    echo "install-postgres: going on without; the tests that need it are skipped." >&2
    exit 0
}

complete && exit 0

command -v apt-get >/dev/null || give_up "PostgreSQL is not complete here, and there is no apt-get"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null ||
        give_up "PostgreSQL is not complete here, and installing it needs root or sudo"
    as_root=(sudo -n)
fi

apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" >&2
}

echo "install-postgres: installing PostgreSQL's server, client and contrib" >&2
apt update || give_up "apt-get update failed"
apt install --no-install-recommends postgresql-common || give_up "apt-get install failed"

# The server package would create a cluster and start it. Its binaries are all that is wanted.
no_cluster=/etc/postgresql-common/createcluster.d/polarless.conf
"${as_root[@]}" mkdir -p "$(dirname "$no_cluster")"
echo "create_main_cluster = false" | "${as_root[@]}" tee "$no_cluster" >/dev/null
trap '"${as_root[@]}" rm -f "$no_cluster"' EXIT

apt install --no-install-recommends postgresql postgresql-client postgresql-contrib ||
    give_up "apt-get install failed"
# A second load generator, used by the benchmarks only.
apt install --no-install-recommends sysbench || echo "install-postgres: no sysbench" >&2

complete || give_up "installed, but psql, pgbench or the server is still missing"
