"""docs/tour.md on a cluster: every command on the page works as described."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.integration.test_tour import WORKER, WORKING
from tests.support.poll import until
from tests.support.processes import PROGRAM
from tests.support.terminal import Terminal
from tests.support.tour import ADDRESSES, part

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(900)]

ACTIVATE: Final = "source .venv/bin/activate"
START: Final = "foqs dev --cluster 3"
EXPORT: Final = f"export FOQS_ADDRESS={ADDRESSES}"
BACK: Final = "foqs host --config FOLDER/host1/foqs.toml 2> host1.log &"
LETTERS: Final = 4_000
SOON_S: Final = 240.0

SHOWN: Final = [
    (f"seq {LETTERS} | foqs enqueue letters.eu --lines > ids.txt", r"\A\Z"),
    ("kill -9 PID", r"\A\Z"),
    ("foqs cluster status", r"(?s)\A(?!.*host1)(?!.*(free|acquiring|recovering|draining|lost)).*(owned.*){8}\Z"),
    (BACK, r"\[1\]"),
    ("foqs shard move 0 host1", r"Shard 0 moves to host1"),
    ("foqs host drain host2", r"host2 hands its shards over"),
    ("foqs cluster status", r"(?s)host2 [^\n]+ 0 +1 +drained.*\n0 +owned +host1 .*moved to host1"),
    ("foqs host undrain host2", r"host2 may own shards again"),
    ("foqs topic list --all", r"No topic has items"),
]
"""Every line of the second terminal after its first, and its output, at once or soon."""


def test_every_command_of_the_tour_is_accounted_for() -> None:
    commands = [block.commands for block in part("A cluster") if block.language == "sh"]
    assert commands[:2] == [[ACTIVATE, START], [EXPORT, WORKER]]
    assert [line for block in commands[2:] for line in block] == [EXPORT, *(line for line, _ in SHOWN)]


class Started:
    """The cluster that the first terminal has started, on free ports."""

    def __init__(self, first: Terminal) -> None:
        first.start(f"{START} --port 0")
        until(lambda: "Stop with Ctrl-C" in first.shown or first.ended is not None, "the cluster has started", SOON_S)
        assert first.ended is None, first.shown
        patterns = {
            "PID": r"^host1 .* pid (\d+)$",
            "FOLDER": r"are in (\S+);",
            "ADDRESSES": r"export FOQS_ADDRESS=(\S+)",
        }
        self.names: Mapping[str, str] = {
            name: re.findall(pattern, first.shown, re.MULTILINE)[0] for name, pattern in patterns.items()
        }

    def filled(self, line: str) -> str:
        line = line.replace(ADDRESSES, self.names["ADDRESSES"])
        return re.sub(r"\b(PID|FOLDER)\b", lambda found: self.names[found[0]], line)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[list[Terminal]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOQS_") or name == "FOQS_PURE"}
    environment = {**kept, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    with ExitStack() as stack:
        yield [stack.enter_context(Terminal(tmp_path, environment)) for _ in range(3)]


def test_the_tour_works_as_written(terminals: list[Terminal], tmp_path: Path) -> None:
    first, second, third = terminals
    [program] = [block.text for block in part("A worker") if block.language == "python"]
    (tmp_path / "letters.py").write_text(program)
    cluster = Started(first)
    third.run(cluster.filled(EXPORT))
    third.start(WORKER)
    until(lambda: WORKING in third.shown, "the worker works")

    second.run(cluster.filled(EXPORT))
    [status] = [block for block in part("A cluster") if block.language == "text"]
    for line, pattern in SHOWN:

        def as_documented(line: str = line, pattern: str = pattern) -> bool:
            ended, said = second.run(cluster.filled(line))
            return ended == 0 and re.search(pattern, said) is not None

        if line.startswith(("foqs cluster status", "foqs topic list")):
            until(as_documented, f"{line} shows {pattern}", SOON_S)
        else:
            assert as_documented(), (line, pattern, second.shown)
        if pattern == SHOWN[2][1]:
            assert status.is_in(second.shown), (status.text, second.shown)
        if line == BACK:
            until(lambda: "host1" in second.run("foqs host list")[1], "host1 is back", SOON_S)

    until(lambda: len(set(re.findall(r"^sent (\d+)$", third.shown, re.MULTILINE))) == LETTERS, "all are sent", SOON_S)
    third.interrupt()
    ended, said = third.wait()
    assert ended == 0
    [counts] = [block for block in part("A Spark job") if block.language == "text"]
    assert counts.is_in(said)
    assert int(re.findall(r"^done +(\d+)", said, re.MULTILINE)[0]) >= LETTERS

    assert second.run("kill %1; wait")[0] == 0
    first.interrupt()
    ended, said = first.wait(SOON_S)
    assert ended == 0, said
    assert said.rstrip().endswith("Stopped.")
