#!/usr/bin/env bash
# Makes sure that PostgreSQL's client tools (psql, pgbench) and its server binaries are here.
#
# The tests drive polarless with pgbench and psql, and compare answers and speed with a real
# PostgreSQL. Nothing is done where all of it is found; elsewhere it is installed with apt-get, as
# root or through sudo. No database cluster is created and no service is started.
#
# sysbench (a test and benchmarks) and redis-server (a benchmark) are installed along, each where it
# is missing. Without them those who need them are skipped, and nothing here fails for it. A demo
# needs neither: --optional alone never installs them where PostgreSQL is complete.
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

missing=()
command -v sysbench >/dev/null || missing+=(sysbench)
command -v redis-server >/dev/null || missing+=(redis-server)

complete && { [ "$optional" = yes ] || [ ${#missing[@]} -eq 0 ]; } && exit 0

# Whether packages can be installed here; says why not in $why.
can_install() {
    why="there is no apt-get"
    command -v apt-get >/dev/null || return 1
    as_root=()
    [ "$(id -u)" -eq 0 ] && return 0
    why="installing needs root or sudo"
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
}

# Nothing but runlevel 1 is said to be on, where no service starts by itself.
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" >&2
}

# redis-server's package starts it, now and at each boot. What is wanted is the program: systemd is
# kept from the unit while it is installed, and afterwards it is left switched off.
install_redis() {
    local mask=/etc/systemd/system/redis-server.service result=0
    [ -e "$mask" ] && mask=
    [ -z "$mask" ] || "${as_root[@]}" ln -s /dev/null "$mask" || return 1
    apt install --no-install-recommends redis-server || result=1
    [ -z "$mask" ] || "${as_root[@]}" rm -f "$mask"
    [ $result -eq 1 ] || "${as_root[@]}" update-rc.d redis-server disable >&2 || true
    return $result
}

install_missing() {
    local name
    for name in "${missing[@]}"; do
        if [ "$name" = redis-server ]; then
            install_redis
        else
            apt install --no-install-recommends "$name"
        fi || echo "install-postgres: no $name; what needs it is skipped" >&2
    done
}

if complete; then
    if can_install; then
        echo "install-postgres: installing ${missing[*]}" >&2
        apt update || true
        install_missing
    else
        echo "install-postgres: without ${missing[*]}, as $why; what needs it is skipped" >&2
    fi
    exit 0
fi

can_install || give_up "PostgreSQL is not complete here, and $why"

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
install_missing

complete || give_up "installed, but psql, pgbench or the server is still missing"
