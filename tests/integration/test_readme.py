"""README.md's tour: every command and program in it does what the text says, on a host of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import PROGRAM, HostProcess

README: Final = Path(__file__).parents[2] / "README.md"
ADDRESS: Final = "foqs://127.0.0.1:7411"

SHOWN: Final[list[tuple[str, int, str]]] = [
    ("foqs enqueue mail 'hello'", 0, r"\d+-\d+ +enqueued"),
    ("foqs enqueue mail 'urgent' --priority -5", 0, r"\d+-\d+ +enqueued"),
    ("foqs enqueue mail 'later' --delay 1h", 0, r"\d+-\d+ +enqueued"),
    ("foqs topic list --all", 0, r"mail +2 +0 +1 +0 +-5 "),
    ("foqs dequeue mail --wait 5s", 0, r"\d+-\d+ +\d+ +mail +-5 +1 .*urgent"),
    ("foqs nack ID TOKEN --delay 0", 0, r"\d+-\d+ +"),
    ("foqs dequeue mail=2", 0, r"mail +-5 +2 .*urgent(?s:.*)mail +0 +1 .*hello"),
    ("foqs ack ID TOKEN", 0, r"\d+-\d+ +"),
    ("foqs doctor", 0, "ok"),
    ("foqs enqueue mail 'bad letter' --attempts 2", 0, r"\d+-\d+ +enqueued"),
    ("python consumer.py", 0, r"attempt 1 of \S+ failed: no such address\nattempt 2 of \S+ failed: no such address"),
    ("foqs dead list", 0, r"bad letter(?s:.*)|attempts exhausted"),
    ("foqs dead redrive --topic mail --yes", 0, ""),
    ("foqs why ID", 0, r"It is ready, and the next of its topic\."),
    (
        "foqs namespace create orders --enqueues-per-minute 600 --backlog-items-max 500 --attempts-max-default 5",
        0,
        r"enqueues_per_minute +600",
    ),
    ("foqs enqueue new 'order 1' -n orders", 0, r"\d+-\d+ +enqueued"),
    ("foqs enqueue new 'too many' --count 500 -n orders", 2, r"LIMIT_EXCEEDED.*above its 500"),
    ("foqs namespace usage orders", 0, r"items +1\b"),
    ("foqs topic pause new -n orders", 0, "foqs topic resume new"),
    ("foqs dequeue new -n orders", 0, "Nothing is ready.*paused"),
    ("foqs why ID -n orders", 0, r"paused(?s:.*)foqs topic resume new"),
    ("foqs topic resume new -n orders", 0, ""),
    ("foqs item update --topic new --priority 7 --yes -n orders", 0, ""),
    ("foqs topic purge new --yes -n orders", 0, r"new +1\b"),
    ("foqs namespace delete orders --yes", 0, ""),
]
"""Every line of the tour, its exit code, and what it shows on either stream."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostProcess]:
    options = {
        "shard.sweep_interval_ms": 60_000,
        "namespace.lease_ms_default": 30_000,
        "namespace.backoff_ms_min": 300,
    }
    with HostProcess(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", options) as host:
        host.start()
        yield host


def tour() -> list[tuple[str, str]]:
    """(language, text) of each block of the tour."""
    text = README.read_text().partition("\n## A tour\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    return [line.partition(" #")[0].strip() for line in block.splitlines() if line.strip()]


def test_every_command_of_the_tour_is_accounted_for() -> None:
    assert [line for language, block in tour() if language == "sh" for line in commands(block)] == [
        line for line, _, _ in SHOWN
    ]


@pytest.mark.process
def test_the_tour_goes_as_it_says(host: HostProcess, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "FOQS_ADDRESS": host.address,
    }
    expected = iter(SHOWN)
    names = {"ID": "", "TOKEN": ""}
    for language, block in tour():
        if language == "python":
            assert ADDRESS in block
            (tmp_path / "consumer.py").write_text(block.replace(ADDRESS, host.address))
            continue
        for _ in commands(block):
            line, code, pattern = next(expected)
            if line == "foqs doctor":
                line += f" --config {host.config}"  # its ports are not the usual ones
            filled = re.sub(r"\b(ID|TOKEN)\b", lambda found: names[found[0]], line)
            done = subprocess.run(
                ["bash", "-c", filled],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            shown = done.stdout + done.stderr
            assert done.returncode == code, (line, shown)
            assert re.search(pattern, shown), (line, pattern, shown)
            found = re.search(r"(\d+-\d{5,})(?: +(\d{5,}))?", done.stdout)
            if found:
                names["ID"], names["TOKEN"] = found[1], found[2] or names["TOKEN"]
    assert next(expected, None) is None
