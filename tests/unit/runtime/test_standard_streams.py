"""Tests of a process that was started without some of its standard streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_REPORT = """
import json, os, socket, sys
from foqs.runtime.standard_streams import open_closed_streams

open_closed_streams()
print("a message", file=sys.stderr, flush=True)
taken = socket.socket().fileno()
inherited = [os.get_inheritable(number) for number in (0, 1, 2)]
report = {"taken": taken, "inherited": inherited, "stdin": sys.stdin is None, "stdout": sys.stdout is None}
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
"""


@pytest.mark.parametrize(
    ("closed", "without"),
    [("", []), ("<&-", ["stdin"]), (">&-", ["stdout"]), ("2>&-", []), ("<&- >&- 2>&-", ["stdin", "stdout"])],
)
def test_no_socket_gets_the_number_of_a_closed_stream(tmp_path: Path, closed: str, without: list[str]) -> None:
    file = tmp_path / "report"
    command = ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, _REPORT, str(file)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    report = json.loads(file.read_text())
    assert report["taken"] > 2
    assert report["inherited"] == [True, True, True]
    assert [name for name in ("stdin", "stdout") if report[name]] == without
    assert done.stderr.decode() == ("" if "2>&-" in closed else "a message\n")
