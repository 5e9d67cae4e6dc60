"""The demo as `make demo` and `make run` start it: real host, real workers, real files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs_client import Client
from tests.support.poll import until

pytestmark = pytest.mark.process

WORKING = "  work "
PROVEN = "Every file is accounted for."


class Demo:
    """A started demo in its own folder, which also holds its temporary files."""

    def __init__(self, folder: Path, *options: str) -> None:
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        self.temporary = temporary
        self.lines: list[str] = []
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FOQS_") or name == "FOQS_PURE"
        }
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "foqs.demo", "--workers", "2", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment | {"TMPDIR": str(temporary)},
            start_new_session=True,
        )
        self.children: set[int] = set()

    def read_until(self, beginning: str) -> None:
        """Read its lines up to one with this prefix, and record the processes that it has by then."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                self.note_children()
                return
        pytest.fail(f"it ended before {beginning!r}: {self.lines} {self.process.communicate()[1]}")

    def note_children(self) -> None:
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            self.children.update(map(int, (task / "children").read_text().split()))

    def host(self) -> int:
        """Return the process of the host."""
        [found] = [child for child in self.children if "dev\0--data" in command_of(child)]
        return found

    def url(self) -> str:
        return next(line for line in self.lines if line.startswith("  host")).split()[1]

    def wait_for_workers(self) -> None:
        def all_there() -> bool:
            self.note_children()
            return len(self.workers()) >= 2

        until(all_there, "the workers are there")

    def workers(self) -> list[int]:
        """Return the processes of its workers. One that was just forked still has the command of the demo."""
        return [child for child in sorted(self.children) if "spawn_main" in command_of(child)]

    def end(self) -> tuple[int, str, str]:
        """Return its exit code, output and errors. Check that no process or file is left."""
        out, err = self.process.communicate(timeout=120)
        for child in self.children:
            until(lambda child=child: not running(child), "its processes are gone")  # type: ignore[misc]
        assert list(self.temporary.iterdir()) == []
        assert "Traceback" not in err
        return self.process.returncode, "\n".join([*self.lines, out]), err

    def kill(self) -> None:
        """Kill the processes that a failed test has left."""
        for process in [*self.children, self.process.pid]:
            if running(process):
                os.kill(process, signal.SIGKILL)
        self.process.communicate()


async def topics_of(url: str) -> int:
    async with Client(url) as client:
        return len((await client.topics(states=["ready", "deferred", "leased", "dead"])).topics)


def command_of(process: int) -> str:
    """Return the command of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def started() -> Iterator[list[Demo]]:
    """Yield a list. Every demo in it is killed afterwards."""
    demos: list[Demo] = []
    yield demos
    for demo in demos:
        demo.kill()


def test_the_demo_proves_every_file_and_leaves_nothing(tmp_path: Path, started: list[Demo]) -> None:
    demo = Demo(tmp_path, "--limit", "60")
    started.append(demo)
    code, out, err = demo.end()
    assert (code, err) == (0, "")
    assert PROVEN in out
    assert "60 acked + 5 dead = 65" in out
    assert "FAILED" not in out
    assert "\x1b" not in out
    assert "the content does not match its checksum" in out


def test_files_of_a_folder_are_counted_by_topic(tmp_path: Path, started: list[Demo]) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.md").write_text(f"number {number}" * 100)
    (folder / "large.bin").write_bytes(os.urandom(3_000_000))
    demo = Demo(tmp_path, "--dir", str(folder))
    started.append(demo)
    code, out, _ = demo.end()
    assert code == 0
    assert re.search(r"demo-\w+/md +30 +30 +0 +0 ", out)
    assert re.search(r"demo-\w+/bin +1 +1 +0 +0 +3\.0 MB", out)
    assert re.search(r"demo-\w+/txt +5 +0 +5 +0 ", out)


def test_leftovers_of_an_interrupted_run_are_reported_and_not_changed(tmp_path: Path, started: list[Demo]) -> None:
    data = str(tmp_path / "data")
    first = Demo(tmp_path, "--data", data)
    started.append(first)
    first.read_until(WORKING)
    until(lambda: asyncio.run(topics_of(first.url())) > 0, "something is enqueued")
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.end()[0] == 130
    second = Demo(tmp_path, "--data", data, "--limit", "10")
    started.append(second)
    code, out, _ = second.end()
    assert code == 0
    assert re.search(r"before +\d.* in [\d,]+ topics? of earlier runs, left as they are", out)
    assert "10 acked + 5 dead = 15" in out


@pytest.mark.parametrize("at", ["before the host is ready", "at work"])
def test_interrupts_leave_no_process_running(tmp_path: Path, started: list[Demo], at: str) -> None:
    demo = Demo(tmp_path)
    started.append(demo)
    if at == "at work":
        demo.read_until(WORKING)
        demo.wait_for_workers()
    else:

        def has_host() -> bool:
            demo.note_children()
            return bool(demo.children)

        until(has_host, "the host is started")
    for _ in range(3):
        os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.end()[0] == 130


def test_the_death_of_the_host_is_reported_in_one_sentence(tmp_path: Path, started: list[Demo]) -> None:
    demo = Demo(tmp_path)
    started.append(demo)
    demo.read_until(WORKING)
    demo.wait_for_workers()
    os.kill(demo.host(), signal.SIGKILL)
    code, out, err = demo.end()
    assert code == 1
    assert err.startswith("Error: The host was killed (SIGKILL)")
    assert len(err.splitlines()) == 1
    assert PROVEN not in out


def test_the_death_of_a_worker_is_reported_in_one_sentence(tmp_path: Path, started: list[Demo]) -> None:
    demo = Demo(tmp_path)
    started.append(demo)
    demo.read_until(WORKING)
    demo.wait_for_workers()
    os.kill(demo.workers()[0], signal.SIGKILL)
    code, _, err = demo.end()
    assert code == 1
    assert err.startswith("Error: A worker process ended unexpectedly")


def test_a_taken_port_is_reported_in_one_sentence_with_the_remedy(tmp_path: Path, started: list[Demo]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        demo = Demo(tmp_path, "--limit", "1", "--port", str(port))
        started.append(demo)
        code, _, err = demo.end()
    assert code == 1
    assert err.startswith(f"Error: Port {port} is in use")
    assert "--port" in err
    assert len(err.splitlines()) == 1


def test_an_empty_folder_is_reported_in_one_sentence(tmp_path: Path, started: list[Demo]) -> None:
    (tmp_path / "empty").mkdir()
    demo = Demo(tmp_path, "--dir", "empty")
    started.append(demo)
    code, _, err = demo.end()
    assert (code, len(err.splitlines())) == (1, 1)


def test_the_host_serves_on_after_the_proof_and_the_printed_commands_work(tmp_path: Path, started: list[Demo]) -> None:
    demo = Demo(tmp_path, "--serve", "--limit", "5", "--port", "0")
    started.append(demo)
    demo.read_until("Stop with Ctrl-C.")
    assert PROVEN in demo.lines
    assert (tmp_path / "foqs-data").is_dir()
    begin = next(place for place, line in enumerate(demo.lines) if line.startswith("The queue keeps serving"))
    commands = [line.strip() for line in demo.lines[begin + 1 :] if line.startswith("  ")]
    assert len(commands) == 5
    outputs = []
    for command in commands[:4]:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, (command, done.stderr)
        outputs.append(done.stdout)
    _, dequeued, topics, dead = outputs
    assert "hello" in dequeued
    assert "mail" in topics
    assert {json.loads(item["metadata"])["attempt"] for item in json.loads(dead)} == {3}
    os.killpg(demo.process.pid, signal.SIGINT)
    code, _, err = demo.end()
    assert (code, err) == (0, "")


def test_a_second_run_on_the_same_port_names_the_host_that_holds_it(tmp_path: Path, started: list[Demo]) -> None:
    first = Demo(tmp_path, "--serve", "--limit", "1", "--port", "0")
    started.append(first)
    first.read_until("Stop with Ctrl-C.")
    second = Demo(tmp_path, "--limit", "1", "--port", first.url().rpartition(":")[2])
    started.append(second)
    second_out = second.process.communicate(timeout=60)
    assert second.process.returncode == 1
    assert "by a FOQS host" in second_out[1]
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.end()[0] == 0
