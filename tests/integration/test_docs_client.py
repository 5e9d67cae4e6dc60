"""README.md and docs/client.md: every Python example runs as written, and prints what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import RestartableHost

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "client.md"]
EXAMPLES = [found for page in PAGES for found in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
ADDRESS = "foqs://127.0.0.1:7411"
SAID: tuple[list[str], ...] = (
    ["urgent", "", ""],
    ["on disk"] * 4,
    ["all on disk"],
    ["followed by"],
    [],
    ["It is deferred until", "Have it delivered now"],
    ["0.2", "1.6", "1 0"],
    [],
    ["INVALID_ARGUMENT items[0].ttl_ms"],
    [],
    [],
)
"""The beginnings of the lines that each example prints."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path_factory.mktemp("host"), "memory:") as host:
        host.start()
        yield host


@pytest.mark.process
@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_an_example_runs(place: int, host: RestartableHost, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[place].replace(ADDRESS, host.address), f"example {place + 1}", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert tests or ADDRESS in EXAMPLES[place] or "Client(" not in EXAMPLES[place]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(SAID[place])
    for line, begin in zip(said, SAID[place], strict=True):
        assert line.startswith(begin)


def test_every_example_is_accounted_for() -> None:
    assert len(EXAMPLES) == len(SAID)
