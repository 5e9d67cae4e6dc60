"""docs/tour.md on one host: every command and program on the page works as described."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.poll import until
from tests.support.processes import PROGRAM, WAITING_HOST, RestartableHost
from tests.support.terminal import Terminal
from tests.support.tour import Block, part

WORKER: Final = "foqs worker letters:worker"
WORKING: Final = "SIGTERM, SIGHUP or Ctrl-C stops the worker"

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
    (WORKER, 0, WORKING),
    ("foqs enqueue letters.eu 'hello'", 0, r"\d+-\d+ +enqueued"),
    ("foqs enqueue letters.us 'bad letter' --attempts 2", 0, r"\d+-\d+ +enqueued"),
    ("python shop.py", 0, r"the letter to Bob is rolled back"),
    ("foqs relay --database sqlite:///shop.db 2> relay.log &", 0, ""),
    ("kill %1", 0, ""),
    ("foqs dead list --topic letters.us", 0, r"letters.us .* attempts exhausted(?s:.*)ValueError: no such"),
    ("foqs dead redrive --topic letters.us --yes", 0, ""),
    ("foqs topic pause letters.eu", 0, "foqs topic resume letters.eu"),
    ("foqs enqueue letters.eu 'not yet'", 0, r"\d+-\d+ +enqueued"),
    ("foqs explain ID", 0, r"paused(?s:.*)foqs topic resume letters.eu"),
    ("foqs item update --topic letters.eu --priority 7 --yes", 0, ""),
    ("foqs topic resume letters.eu", 0, ""),
    (
        "foqs namespace create orders --enqueues-per-minute 600 --backlog-items-max 500 --attempts-max-default 5",
        0,
        r"enqueues_per_minute +600",
    ),
    ("foqs enqueue new 'order 1' -n orders", 0, r"\d+-\d+ +enqueued"),
    ("foqs enqueue new 'too many' --count 500 -n orders", 2, r"LIMIT_EXCEEDED.*exceed its limit of 500"),
    ("foqs namespace usage orders", 0, r"items +1\b"),
    ("foqs topic purge new --yes -n orders", 0, r"new +1\b"),
    ("foqs namespace delete orders --yes", 0, ""),
]
"""Every line of the tour, its exit code, and its output."""

SOON: Final = ("foqs dead list --topic letters.us",)
"""Lines whose output depends on calls of the worker that it does not wait for."""


def tour() -> list[Block]:
    return [block for title in ("By hand", "A worker", "In your transaction", "Operating") for block in part(title)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RestartableHost]:
    options = {
        "namespace.lease_ms_default": 30_000,
        "namespace.backoff_ms_min": 300,
    }
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", options, WAITING_HOST) as host:
        host.start()
        yield host


def test_every_command_of_the_tour_is_accounted_for() -> None:
    commands = [line for block in tour() if block.language == "sh" for line in block.commands]
    assert commands == [line for line, _, _ in SHOWN]


def shows(terminal: Terminal, line: str, pattern: str) -> bool:
    return re.search(pattern, terminal.run(line)[1]) is not None


def is_shown(block: Block, by_commands: str, worker: Terminal) -> bool:
    return block.is_in(by_commands) or block.is_in(worker.shown)


@pytest.mark.process
def test_the_tour_works_as_written(host: RestartableHost, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "FOQS_ADDRESS": host.address,
    }
    expected, programs = iter(SHOWN), iter(("letters.py", "shop.py"))
    names = {"ID": "", "TOKEN": ""}
    with ExitStack() as stack:
        second, third = [stack.enter_context(Terminal(tmp_path, environment)) for _ in range(2)]
        shown = ""
        for block in tour():
            if block.language == "python":
                (tmp_path / next(programs)).write_text(block.text)
            elif block.language == "text":
                until(partial(is_shown, block, shown, third), f"this is shown: {block.text}")
            else:
                shown = ""
                for _ in block.commands:
                    line, code, pattern = next(expected)
                    if line == WORKER:
                        third.start(line)
                        until(lambda: WORKING in third.shown, "the worker works")
                        continue
                    if line == "kill %1":
                        until(lambda: "sent thanks to Ada" in third.shown, "the committed letter is sent")
                    if line == "foqs doctor":
                        line += f" --config {host.config}"  # its ports are not the usual ones
                    filled = re.sub(r"\b(ID|TOKEN)\b", lambda found: names[found[0]], line)
                    if line in SOON:
                        until(partial(shows, second, filled, pattern), f"{line} shows {pattern}")
                    ended, said = second.run(filled)
                    assert ended == code, (line, said)
                    assert re.search(pattern, said), (line, pattern, said)
                    shown += said
                    found = re.search(r"(\d+-\d{5,})(?: +(\d{5,}))?", said)
                    if found:
                        names["ID"], names["TOKEN"] = found[1], found[2] or names["TOKEN"]
        assert next(expected, None) is None
        until(lambda: "sent not yet" in third.shown, "the worker has the held items")
        until(lambda: third.shown.count(" attempt 2 of ") == 2, "the redriven item has failed as often as before")
        assert "Bob" not in third.shown
        third.interrupt()
        ended, said = third.wait()
        assert ended == 0
        assert re.search(r"done +3 *\nretried +2 *\ndead +2 *\n", said), said
