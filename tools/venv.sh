#!/bin/bash
# Fills a virtual environment: `venv.sh FOLDER PYTHON REQUIREMENT`. It makes the folder again if it is of another Python,
# and installs only if pyproject.toml or constraints.txt changed since.
set -euo pipefail
folder=$1 python=$2 requirement=$3
stamp=$folder/.installed
wanted=$("$python" -c 'import sys; print(sys.version)')

[[ $("$folder/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null) == "$wanted" ]] || rm -rf "$folder"
if [[ ! -e $stamp || pyproject.toml -nt $stamp || constraints.txt -nt $stamp ]]; then
    echo "installing foqs and its tests into $folder with $python ..."
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip --disable-pip-version-check -qq install -e "$requirement" -c constraints.txt
    touch "$stamp"
fi
