"""README.md's tour of a cluster: every command in it does what the text says, on a cluster that its first one starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.test_readme import README, commands
from tests.support.poll import until
from tests.support.processes import PROGRAM

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

START: Final = "foqs dev --cluster 3"
ADDRESSES: Final = "export FOQS_ADDRESS=foqs://127.0.0.1:7411,127.0.0.1:7413,127.0.0.1:7415"
ALL_OWNED: Final = r"(?s)\A(?!.*(free|acquiring|recovering|draining|lost)).*(owned.*){8}"
SHOWN: Final = [
    ("foqs cluster status", ALL_OWNED + r"\Z"),
    ("foqs enqueue mail 'hello' --count 100", r"enqueued"),
    ("kill -9 PID", r""),
    ("foqs cluster status", r"(?s)\A(?!.*host1).*(owned.*){8}\Z"),
    ("foqs dequeue mail=100 --wait 20s", r"(?s)(mail .*?hello.*?){100}"),
    ("foqs host --config FOLDER/host1/foqs.toml &", r""),
    ("foqs shard move 0 host1", r"Shard 0 goes to host1"),
    ("foqs host drain host2", r"host2 gives its shards to others"),
    ("foqs cluster status", r"(?s)host2 [^\n]+ 0 +1 +drained.*\n0 +owned +host1 .*moved to host1"),
    ("foqs host undrain host2", r"host2 may own shards again"),
]
"""Every line of the tour after the first two, and what it shows on either stream, at once or soon."""


def tour() -> list[str]:
    text = README.read_text().partition("\n## Several hosts\n")[2].partition("\n## ")[0]
    return [
        line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for line in commands(block)
    ]


def test_every_command_of_the_tour_is_accounted_for() -> None:
    assert tour() == [START, ADDRESSES, *(line for line, _ in SHOWN)]


class Shell:
    """The second terminal: a command at a time; what runs beside is ended with it."""

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        self._folder = folder
        self._names = names
        self._beside: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
            "FOQS_ADDRESS": names["ADDRESSES"],
        }

    def run(self, line: str) -> str:
        """What it shows. One that ends with & is left running."""
        filled = re.sub(r"\b(PID|FOLDER)\b", lambda found: self._names[found[0]], line)
        if filled.endswith("&"):
            command = ["bash", "-c", "exec " + filled.removesuffix("&")]
            quiet = subprocess.DEVNULL
            self._beside.append(subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet))
            return ""
        done = subprocess.run(
            ["bash", "-c", filled],
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def close(self) -> None:
        for process in self._beside:
            process.terminate()
            process.wait(60)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell beside the cluster that the first command has started, on ports that are free."""
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [str(PROGRAM), *START.split()[1:], "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=tmp_path,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    try:
        assert process.stdout is not None
        shown = ""
        while "Stop with" not in shown:
            line = process.stdout.readline()
            assert line, (tmp_path / "said").read_text()
            shown += line
        names = {
            name: re.findall(pattern, shown, re.MULTILINE)[0]
            for name, pattern in {
                "PID": r"^host1 .* pid (\d+)$",
                "FOLDER": r"are in (\S+);",
                "ADDRESSES": r"export FOQS_ADDRESS=(\S+)",
            }.items()
        }
        shell = Shell(tmp_path, names)
        yield shell
        shell.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_tour_goes_as_it_says(shell: Shell) -> None:
    for line, pattern in SHOWN:
        if line == "foqs cluster status":

            def as_told(pattern: str = pattern) -> bool:
                return re.search(pattern, shell.run("foqs cluster status")) is not None

            until(as_told, pattern, 60)
        else:
            shown = shell.run(line)
            assert re.search(pattern, shown), (line, pattern, shown)
            if line.endswith("&"):
                until(lambda: "host1" in shell.run("foqs host list"), "host1 is back", 60)
