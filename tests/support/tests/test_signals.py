"""Tests and their children get default signal handlers, also in the background and under nohup, where the shell ignores some."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
IGNORED = (signal.SIGINT, signal.SIGHUP)


def ignore() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def test_a_child_gets_default_signals() -> None:
    code = "import signal; print(*map(signal.getsignal, (signal.SIGINT, signal.SIGHUP)), sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split(".")[-1] for line in done.stdout.splitlines()] == [str(signal.default_int_handler), "0"]


def test_a_child_gets_default_signals_if_the_tests_were_started_without_them() -> None:
    tests = [f"{__file__}::{test_a_child_gets_default_signals.__name__}", "tests/unit/dev/test_server_process.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60", *tests]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=ignore, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
