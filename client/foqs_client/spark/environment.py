"""Checks that the Python of Spark's tasks has the packages of the sink.

Holds `missing_packages` and `problem`. Always true: before a session starts, the
check finds the Python as Spark will. Spark looks for data sources in that Python, not
in the driver's. If it is the wrong one, Spark reports DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

REQUIRED_PACKAGES: Final = ("pyspark_foqs", "foqs_client", "foqs_contract", "thrift", "pyarrow")
_TIMEOUT_S: Final = 60.0
_LIST_MISSING: Final = f"""
from importlib.util import find_spec
print(*[name for name in {REQUIRED_PACKAGES!r} if find_spec(name) is None])
"""


def missing_packages() -> list[str]:
    """Return the packages that this Python does not have."""
    return [name for name in REQUIRED_PACKAGES if find_spec(name) is None]


def remedy(python: str, missing: list[str]) -> str:
    """Return a sentence about a Python without these packages, and what to do."""
    return (
        f"Spark's tasks run on {python}, which has no {' and no '.join(missing)}: install foqs[spark] there, or set "
        "PYSPARK_PYTHON to a Python that has it before the session starts"
    )


def problem(environ: Mapping[str, str]) -> str | None:
    """Return why a session of this environment will not find the sink, and what to do; None if it will."""
    python = environ.get("PYSPARK_PYTHON") or "python3"
    unset = "" if environ.get("PYSPARK_PYTHON") else " (PYSPARK_PYTHON is not set)"
    try:
        result = subprocess.run(
            [python, "-c", _LIST_MISSING],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env=dict(environ),
        )
    except (OSError, subprocess.SubprocessError):
        return f"{python}{unset} cannot be run: set PYSPARK_PYTHON to {sys.executable} before the session starts"
    missing = result.stdout.split()
    return remedy(python + unset, missing) if missing else None


def main() -> int:
    """Run `python -m pyspark_foqs`: print the problem, or that there is none."""
    found = problem(os.environ)
    print(found or "Spark's tasks have all packages of the sink.")  # noqa: T201
    return 0 if found is None else 1
