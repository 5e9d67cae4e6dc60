"""Which Python runs Spark's tasks, and whether that has what the sink needs.

Holds `missing` and `problem`. Always true: where a session has not started yet,
the Python is looked for as Spark will. Spark finds data sources in that Python
and not in the driver's, and says DATA_SOURCE_NOT_FOUND where it is the wrong one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

REQUIRED_PACKAGES: Final = ("pyspark_foqs", "foqs_client", "thrift", "pyarrow")
_TIMEOUT_S: Final = 60.0
_LIST_MISSING: Final = f"""
from importlib.util import find_spec
print(*[name for name in {REQUIRED_PACKAGES!r} if find_spec(name) is None])
"""


def missing_packages() -> list[str]:
    """What this Python lacks."""
    return [name for name in REQUIRED_PACKAGES if find_spec(name) is None]


def remedy(python: str, lacking: list[str]) -> str:
    """What to do about a Python that lacks packages."""
    return (
        f"Spark's tasks run on {python}, which has no {' and no '.join(lacking)}: install foqs[spark] there, or set "
        "PYSPARK_PYTHON to a Python that has it before the session starts"
    )


def problem(environ: Mapping[str, str]) -> str | None:
    """Why a session of this environment would not find the sink, and what to do; None where it will."""
    python = environ.get("PYSPARK_PYTHON") or "python3"
    unset = "" if environ.get("PYSPARK_PYTHON") else " (PYSPARK_PYTHON is not set)"
    try:
        asked = subprocess.run(
            [python, "-c", _LIST_MISSING],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env=dict(environ),
        )
    except (OSError, subprocess.SubprocessError):
        return f"{python}{unset} cannot be run: set PYSPARK_PYTHON to {sys.executable} before the session starts"
    lacking = asked.stdout.split()
    return remedy(python + unset, lacking) if lacking else None


def main() -> int:
    """The program `python -m pyspark_foqs`: says what is wrong, or that nothing is."""
    found = problem(os.environ)
    print(found or "Spark's tasks have what the sink needs.")  # noqa: T201
    return 0 if found is None else 1
