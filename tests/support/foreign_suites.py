"""Runs other people's tests in an environment of their own, and compares the failures with a list.

Always true: a failure that is not in the list, a listed test that passes, and a listed
test that does not exist are reported; a run that ends early is an error.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.support.source_packages import cache_folder, locked, run

CONSTRAINTS: Final = Path(__file__).parents[2] / "constraints.txt"
_TIMEOUT_S: Final = 900.0


@dataclass(slots=True, frozen=True)
class SuiteResult:
    """The tests of a run by name, without their file; `output` is what pytest wrote."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]
    output: str

    def unexpected(self, known_failures: Mapping[str, str]) -> list[str]:
        """Return a line for each difference from the list of known failures."""
        known = set(known_failures)
        return [
            *(f"failed: {name}" for name in sorted(self.failed - known)),
            *(f"passed, but is listed as a failure: {name}" for name in sorted(self.passed & known)),
            *(f"does not exist: {name}" for name in sorted(known - self.passed - self.failed - self.skipped)),
        ]


def environment_python(requirements: Sequence[str], *, is_constrained: bool = True) -> Path:
    """Return the Python of a virtual environment with these packages, which is made once for a machine.

    Args:
        is_constrained: whether packages that this project has, too, are of the same version.
    """
    constraints = ("-c", str(CONSTRAINTS)) if is_constrained else ()
    text = "\n".join([sys.version, *requirements, CONSTRAINTS.read_text() if is_constrained else ""])
    name = f"venv-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    folder = cache_folder() / name
    python, complete = folder / "bin" / "python", folder / ".complete"
    with locked(name):
        if not complete.exists():
            run(sys.executable, "-m", "venv", "--clear", str(folder))
            pip = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
            run(*pip, *constraints, *requirements)
            complete.touch()
    return python


def run_suite(python: Path, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> SuiteResult:
    """Run pytest in a folder and return its result. `environment` is the whole environment of the process."""
    report = folder / "report.xml"
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), f"pytest ended with {done.returncode}:\n{done.stdout[-4_000:]}"
    return _read_report(report, done.stdout)


def _read_report(report: Path, output: str) -> SuiteResult:
    names: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        group = case.attrib.get("classname", "").rpartition(".")[2]
        name = case.attrib["name"]
        names[outcome].add(f"{group}.{name}" if not group.startswith("test_sqs") else name)
    failed = names["failed"]
    return SuiteResult(frozenset(names["passed"] - failed), frozenset(failed), frozenset(names["skipped"]), output)
