#!/bin/sh
# Prints the name of a Python that can make the environment: 3.11 or later, with venv.
# Says what to install when there is none.
set -eu

wanted='import sys; sys.exit(sys.version_info < (3, 11))'
found=
for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
    command -v "$name" >/dev/null 2>&1 || continue
    "$name" -c "$wanted" >/dev/null 2>&1 || continue
    found=$name
    if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        echo "$name"
        exit 0
    fi
done

if [ -n "$found" ]; then
    echo "$found cannot make a virtual environment: its venv module is missing." >&2
    echo "Install it (Debian and Ubuntu: apt-get install python3-venv), then try again." >&2
else
    echo "Python 3.11 or later is needed and was not found." >&2
    echo "Install it (Debian 12: apt-get install python3 python3-venv), or name one with: make PYTHON=..." >&2
fi
exit 1
