#!/bin/bash
# Installs the missing system packages of the tests, found by their programs or files;
# `system_packages.sh bench` those of the benchmarks, `system_packages.sh race` those of all systems that are compared,
# `system_packages.sh compile` those of make compile, `system_packages.sh containers` those that networks of podman need.
# For the tests and for the race it also fetches a MySQL 9, which is not installed: see mysql9.sh. If that fails, its
# tests are skipped with a message; in CI they fail. The race shows the reason in place of figures.
# As root or in CI it does not ask; otherwise it asks on a terminal, or says what to install and fails.
set -euo pipefail

purpose=tests
[[ ${1:-} != bench ]] || purpose=benchmarks
[[ ${1:-} != compile ]] || purpose=compilation
[[ ${1:-} != race ]] || purpose=race
[[ ${1:-} != containers ]] || purpose=containers

programs() {
    if [[ $purpose == compilation ]]; then
        # A Python that is not Debian's brings its own headers.
        # gcc only recommends the headers of the C library.
        printf '%s\n' 'gcc gcc' '/usr/include/stdio.h libc6-dev'
        echo "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h python3-dev"
        return
    fi
    if [[ $purpose == containers ]]; then
        if command -v podman >/dev/null; then
            printf '%s\n' 'iptables iptables' '/usr/lib/podman/aardvark-dns aardvark-dns'
        fi
        return
    fi
    if [[ $purpose != tests ]]; then
        cat <<'LIST'
mariadbd mariadb-server
mariadb-install-db mariadb-server
postgres postgresql
LIST
        [[ $purpose == race ]] || return 0
        cat <<'LIST'
redis-server redis-server
/usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server
epmd erlang-base
beanstalkd beanstalkd
LIST
        return
    fi
    cat <<'LIST'
mariadbd mariadb-server
mariadb-install-db mariadb-server
thrift thrift-compiler
node nodejs
npm npm
strace strace
sqlite3 sqlite3
promtool prometheus
mariadb-dump mariadb-client
mariadb-backup mariadb-backup
postgres postgresql
systemd-analyze systemd
java default-jre-headless
chromium chromium
nginx nginx
/usr/share/java/zookeeper.jar libzookeeper-java
LIST
}

# Debian keeps Postgres's programs in a folder for each version.
PATH=$PATH:/usr/sbin:/sbin:$(printf '%s:' /usr/lib/postgresql/*/bin)
missing=()
while read -r program package; do
    # A name without a slash is a program's, and not that of a folder of ours.
    [[ $program != /* || ! -e $program ]] || continue
    if ! command -v "$program" >/dev/null && [[ " ${missing[*]-} " != *" $package "* ]]; then
        missing+=("$package")
    fi
done < <(programs)
if ! tools/python.sh >/dev/null 2>&1; then
    missing+=(python3 python3-venv)
fi

fetch_mysql9() {
    [[ $purpose == benchmarks || $purpose == compilation || $purpose == containers ]] || tools/mysql9.sh >/dev/null || true
}

if [[ ${#missing[@]} -eq 0 ]]; then
    fetch_mysql9
    exit 0
fi

explain() {
    echo "Packages for the $purpose are not installed: ${missing[*]}" >&2
}

if ! command -v apt-get >/dev/null; then
    explain
    echo "Install them (these are their names in Debian) and try again." >&2
    exit 1
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
        explain
        echo "Run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
    if [[ ${CI:-} != true ]]; then
        explain
        if [[ ! -t 0 || ! -t 2 ]]; then
            echo "Run: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
            exit 1
        fi
        read -r -p "Install them now with apt-get? [y/N] " answer
        [[ $answer == [yY]* ]] || exit 1
    fi
fi

echo "installing ${missing[*]} ..." >&2
# The tests start databases of their own: no package may leave a service running.
policy=/usr/sbin/policy-rc.d
kept=
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    kept=$policy
fi
trap '[[ -z $kept ]] || "${as_root[@]}" rm -f "$kept"' EXIT
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
"${apt[@]}" update
if [[ $purpose == race ]]; then
    # A system that is not to be had is a dash in the race's table.
    for package in "${missing[@]}"; do
        "${apt[@]}" install -y --no-install-recommends "$package" >/dev/null || echo "$package cannot be installed" >&2
    done
else
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
fi
fetch_mysql9
