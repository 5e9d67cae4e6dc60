#!/bin/sh
# Prints the name of a Python for the environment: 3.11 or later, with venv. A Python on PATH that was built
# with profile-guided optimisation comes first, since a host takes a tenth less time with it; distributions
# build theirs so, pyenv only on request. Without a Python it says what to install.
# `python.sh beside 3.11` prints the newest released Python with venv of another version than 3.11, also one of pyenv
# or uv; nothing if there is none.
set -eu

wanted='import sys; sys.exit(sys.version_info < (3, 11))'
optimised='
import sys, sysconfig
said = sysconfig.get_config_var("CONFIG_ARGS") or ""
sys.exit(sys.base_prefix != "/usr" and "--enable-optimizations" not in said)'
released='import ensurepip, sys, venv; sys.exit(sys.version_info.releaselevel != "final")'
found=
usable=

beside() {
    folders=$(
        echo "$PATH" | tr : '\n'
        for folder in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}"/*/bin; do
            echo "$folder"
        done
    )
    minor=30
    while [ "$minor" -ge 11 ]; do
        for folder in $folders; do
            name=$folder/python3.$minor
            [ "3.$minor" != "$1" ] && [ -x "$name" ] || continue
            "$name" -c "$released" >/dev/null 2>&1 || continue
            echo "$name"
            return
        done
        minor=$((minor - 1))
    done
}

candidates() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
    fi
    for name in python3.11 python3.12 python3.13 python3.14 python3; do
        echo "$PATH" | tr : '\n' | while read -r folder; do
            echo "$folder/$name"
        done
    done
}

IFS='
'  # a folder's name may hold spaces
if [ "${1:-}" = beside ]; then
    beside "$2"
    exit 0
fi
for name in $(candidates); do
    command -v "$name" >/dev/null 2>&1 || continue
    "$name" -c "$wanted" >/dev/null 2>&1 || continue
    found=$name
    "$name" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue
    usable=${usable:-$name}
    if [ "$name" = "${PYTHON:-}" ] || "$name" -c "$optimised" >/dev/null 2>&1; then
        usable=$name
        break
    fi
done

if [ -n "$usable" ]; then
    echo "$usable"
    exit 0
fi
if [ -n "$found" ]; then
    echo "$found cannot make a virtual environment: its venv module is missing." >&2
    echo "Install it (Debian and Ubuntu: apt-get install python3-venv), then try again." >&2
else
    echo "Python 3.11 or later is needed and was not found." >&2
    echo "Install it (Debian 12: apt-get install python3 python3-venv), or name one with: make PYTHON=..." >&2
fi
exit 1
