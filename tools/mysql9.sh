#!/bin/bash
# Prints a program that runs a MySQL 9 server, `mysqld`, which the tests use beside MariaDB.
#
#   tools/mysql9.sh          fetches the server if it is missing
#   tools/mysql9.sh cached   never fetches; fails if it is missing
#
# Stable Debian packages no MySQL. So apt downloads mysql-server-core of Debian's unstable suite, with all libraries
# that it needs, from the mirror that this machine uses already. The packages are unpacked into a folder of their own
# and nothing is installed; the server runs on the unpacked loader and libraries. Delete the folder to fetch it again.
set -euo pipefail

# The server gives up root's rights, so its files must not lie in root's home folder.
if [[ $(id -u) -eq 0 ]]; then
    home=/var/cache
else
    home=${XDG_CACHE_HOME:-$HOME/.cache}
fi
folder=$home/foqs/mysql9
program=$folder/mysqld

give_up() {
    echo "MySQL 9 cannot be had here: $1" >&2
    exit 1
}

if [[ ! -x $program ]]; then
    [[ ${1:-} != cached ]] || give_up "it was not fetched; run make system-packages"
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || give_up "there is no apt-get"

    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [[ -e $keys ]] || give_up "$keys is missing: install debian-archive-keyring"
    # Both ways to write a source: a line that begins with deb, and a stanza with URIs.
    mirrors=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        sed -nE 's#^(deb +(\[[^]]*\] +)?|URIs: *)(https?://[^ ]*/debian)/?( .*)?$#\3#p' | sort -u) || true
    [[ -n $mirrors ]] || give_up "apt's sources name no mirror of Debian"

    echo "fetching MySQL 9 into $folder ..." >&2
    mkdir -p "$home/foqs"
    work=$(mktemp -d "$home/foqs/mysql9.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    mkdir -p "$work"/apt/{lists,archives}/partial "$work/tree"
    # With nothing installed, as this says, apt brings every library.
    : >"$work/apt/status"
    own_apt() {
        timeout 600 apt-get -qq \
            -o Dir::Etc::sourcelist="$work/apt/sources" -o Dir::Etc::sourceparts=- \
            -o Dir::State::status="$work/apt/status" -o Dir::State::lists="$work/apt/lists" \
            -o Dir::Cache="$work/apt" -o Dir::Cache::archives="$work/apt/archives" \
            -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Acquire::Languages=none \
            -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=1 "$@" >&2
    }
    # Some of them may be of other vendors, who call a folder debian too.
    found=
    for mirror in $mirrors; do
        echo "deb [signed-by=$keys] $mirror sid main" >"$work/apt/sources"
        if own_apt -o APT::Update::Error-Mode=any update; then
            found=yes
            break
        fi
    done
    [[ -n $found ]] || give_up "no mirror that apt's sources name gives the packages of sid"
    own_apt install --download-only -y mysql-server-core || give_up "$mirror does not give mysql-server-core"
    for package in "$work"/apt/archives/*.deb; do
        dpkg -x "$package" "$work/tree"
    done

    tree=$folder/tree
    loader=$(cd "$work/tree" && find usr/lib -name 'ld-linux*.so.*' -print -quit)
    libraries=$(cd "$work/tree" && find usr/lib -name 'libc.so.6' -printf '%h' -quit)
    [[ -n $loader && -n $libraries ]] || give_up "the packages hold no loader or no C library"
    cat >"$work/mysqld" <<RUN
#!/bin/sh
exec "$tree/$loader" --library-path "$tree/$libraries" "$tree/usr/sbin/mysqld" --no-defaults \\
    --basedir="$tree/usr" --plugin-dir="$tree/usr/lib/mysql/plugin" --lc-messages-dir="$tree/usr/share/mysql" \\
    --secure-file-priv= --mysqlx=OFF "\$@"
RUN
    chmod 755 "$work/mysqld"
    rm -rf "$work/apt"
    # Another run may have been faster.
    mv -T "$work" "$folder" 2>/dev/null || [[ -x $program ]] || give_up "$folder cannot be made"
    if [[ $("$program" --version) != *"Ver 9."* ]]; then
        rm -rf "$folder"
        give_up "$mirror gives another version, or one that does not run here"
    fi
fi
echo "$program"
