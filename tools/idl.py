"""Generates the Python code of thrift/foqs.thrift with its stubs, or compares them with the committed files.

    python tools/idl.py           writes client/foqs_contract/idl
    python tools/idl.py --check   exits 1 with a sentence if the committed files are out of date

Always true: the committed folder is replaced only after the compiler succeeded. One
version of the compiler is accepted, so that the same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tools import idl_stubs  # noqa: E402 - the project need not be installed

CONTRACT = ROOT / "thrift" / "foqs.thrift"
GENERATED = ROOT / "client" / "foqs_contract" / "idl"
VERSION = "0.17.0"
NAMES = ("Foqs.py", "__init__.py", "constants.py", "ttypes.py", *idl_stubs.NAMES)


class Failed(Exception):
    """One sentence that says what is wrong and what to do."""


def generate(contract: Path, folder: Path) -> Path:
    """Generate the package below `folder` and return its path. Raises Failed."""
    compiler = shutil.which("thrift")
    if compiler is None:
        raise Failed("the Thrift compiler is missing; install the package thrift-compiler")
    found = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if not found.endswith(VERSION):
        raise Failed(f"the Thrift compiler must be {VERSION}, but is {found or 'another'}; install that version")
    made = subprocess.run(
        [compiler, "--gen", "py:slots,enum", "-out", str(folder), str(contract)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise Failed(f"{contract} does not compile: {made.stderr.strip() or made.stdout.strip()}")
    package = folder / "foqs_contract" / "idl"
    idl_stubs.write_stubs(package)
    return package


def differences(made: Path, committed: Path) -> list[str]:
    """Return the names of files that are missing, obsolete or different."""
    there = {path.name for path in committed.iterdir() if path.is_file()} if committed.is_dir() else set()
    different = there ^ set(NAMES)
    different |= {name for name in there & set(NAMES) if (made / name).read_bytes() != (committed / name).read_bytes()}
    return sorted(different)


def check(contract: Path, committed: Path) -> None:
    """Raise Failed if `committed` differs from the code generated from `contract`."""
    with tempfile.TemporaryDirectory() as folder:
        different = differences(generate(contract, Path(folder)), committed)
    if different:
        raise Failed(
            f"{', '.join(different)} in {committed} is not what {contract.name} gives; run python tools/idl.py"
        )


def write(contract: Path, target: Path) -> None:
    """Replace the files of `target` with generated ones. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        made = generate(contract, Path(folder))
        target.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            shutil.copyfile(made / name, target / name)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Generates or checks the Python code of the contract.")
    parser.add_argument("--check", action="store_true", help="compare only")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.check:
            check(CONTRACT, GENERATED)
        else:
            write(CONTRACT, GENERATED)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
