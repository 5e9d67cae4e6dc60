"""docs/groups.md: the programs work as written."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import RestartableHost

PAGE: Final = (Path(__file__).parents[2] / "docs" / "groups.md").read_text()
PROGRAMS: Final = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
LEASES: Final = {"namespace.lease_ms_default": 600_000}
"""No lease ends while a slow machine works."""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path_factory.mktemp("host"), "memory:", LEASES) as host:
        host.start()
        yield host


def lines_of(name: str, folder: Path, host: RestartableHost) -> list[str]:
    """Run a program of the page, and return what it prints."""
    program = folder / name
    program.write_text(PROGRAMS[name].replace("foqs://127.0.0.1:7411", host.address))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_customer_is_served_in_order(tmp_path: Path, host: RestartableHost) -> None:
    steps = defaultdict(list)
    for line in lines_of("in_order.py", tmp_path, host):
        customer, step = line.split()
        steps[customer].append(step)
    assert steps == {"Ada": ["pay", "pack", "send"], "Bob": ["pay", "pack", "send"]}


def test_a_run_ends_where_an_item_fails(tmp_path: Path, host: RestartableHost) -> None:
    assert lines_of("in_runs.py", tmp_path, host) == ["a run: 1 2 3", "a run: 2 3 4", "a run: 5"]


def test_three_reports_are_made_at_a_time(tmp_path: Path, host: RestartableHost) -> None:
    assert lines_of("three_at_a_time.py", tmp_path, host) == ["3 reports at once", "1 more"]


def test_tenants_take_turns_by_weight(tmp_path: Path, host: RestartableHost) -> None:
    [line] = lines_of("fair_among_tenants.py", tmp_path, host)
    served = ast.literal_eval(line)
    assert sum(served.values()) == 12
    for name, wanted in {"Ada": 3, "Bob": 3, "Cleo": 6}.items():
        assert abs(served[name] - wanted) <= 1, served


def test_every_program_is_run() -> None:
    assert set(PROGRAMS) == {"in_order.py", "in_runs.py", "three_at_a_time.py", "fair_among_tenants.py"}
