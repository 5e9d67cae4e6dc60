"""Checks that the Python of Spark's tasks has the packages of the sink.

Holds `missing_packages`, `problem` and `is_from_session`. Always true: before a session starts, the
check finds the Python as Spark will. Spark looks for data sources in that Python, and runs
their tasks with it. If it is the wrong one, Spark reports DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

REQUIRED_PACKAGES: Final = ("pyspark_foqs", "foqs_client", "foqs_contract", "thrift", "pyarrow")
_VARIABLES: Final = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
"""The first one that is set names the Python of data sources, and of their tasks."""
_NO_SESSION: Final = "default"
_TIMEOUT_S: Final = 60.0
_LIST_MISSING: Final = f"""
from importlib.util import find_spec
print(*[name for name in {REQUIRED_PACKAGES!r} if find_spec(name) is None])
"""


def missing_packages() -> list[str]:
    """Return the packages that this Python does not have."""
    return [name for name in REQUIRED_PACKAGES if find_spec(name) is None]


def is_from_session(environ: Mapping[str, str], path: Sequence[str]) -> bool:
    """Return whether only a session of Spark Connect brings foqs to this Python.

    Args:
        environ: the environment of a process that Spark started.
        path: the `sys.path` of the process. Files that a session added are in a folder with the session's name.
    """
    session = environ.get("SPARK_JOB_ARTIFACT_UUID", _NO_SESSION)
    if session == _NO_SESSION:
        return False
    own = [folder for folder in path if session not in Path(folder).parts]
    return PathFinder.find_spec("foqs_client", own) is None


def remedy(python: str, missing: list[str], variable: str = "PYSPARK_PYTHON") -> str:
    """Return a sentence about a Python without these packages, and what to do. The variable names this Python."""
    return (
        f"Spark's tasks run on {python}, which has no {' and no '.join(missing)}: install foqs[spark] there, or set "
        f"{variable} to a Python that has it before the session starts"
    )


def problem(environ: Mapping[str, str]) -> str | None:
    """Return why a session of this environment will not find the sink, and what to do; None if it will."""
    given = [name for name in _VARIABLES if environ.get(name)]
    variable = given[0] if given else "PYSPARK_PYTHON"
    python = environ.get(variable) or "python3"
    unset = "" if given else f" ({variable} is not set)"
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
        return f"{python}{unset} cannot be run: set {variable} to {sys.executable} before the session starts"
    missing = result.stdout.split()
    return remedy(python + unset, missing, variable) if missing else None


def main() -> int:
    """Run `python -m pyspark_foqs`: print the problem, or that there is none."""
    found = problem(os.environ)
    print(found or "Spark's tasks have all packages of the sink.")  # noqa: T201
    return 0 if found is None else 1
