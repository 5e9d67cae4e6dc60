"""The host of a run: `foqs dev` in its own process.

Always true: the process is gone when `running_host` ends. It does not share this
process's terminal, so it gets no Ctrl-C from there. Knows nothing of items.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final

from foqs_client import Client, FoqsError
from shardmgr.private_files import make_private_folder, private_opener

ADDRESS: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
PROBE_TIMEOUT_MS: Final = 1_000
LOG_NAME: Final = "host.log"


class DemoFailed(Exception):
    """The run cannot continue: one sentence for a person, which says what failed and what to do."""


class DemoHost:
    """A running `foqs dev`."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log
        self.url = ""
        self.http_url = ""
        self.console_url = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def wait_until_ready(self) -> None:
        """Read the host's addresses, which it prints when every shard is served.

        Raises:
            DemoFailed: it ended, or took too long.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not self.console_url:
                    line = (await self._process.stdout.readline()).decode()
                    if not line:
                        await self.fail_on_exit()
                    name, _, rest = line.partition(" ")
                    if name == "Thrift":
                        self.url = rest.split()[0]
                    elif name == "HTTP":
                        self.http_url = rest.split()[0].rstrip("/")
                    elif name == "Console":
                        self.console_url = rest.split()[0]
        except TimeoutError:
            raise DemoFailed(f"The host was not ready within {START_TIMEOUT_S:.0f} s; {self.last_log_line()}") from None

    async def fail_on_exit(self) -> None:
        """Wait for the end of the process, and raise DemoFailed with how it ended."""
        code = await self._process.wait()
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
        when = "" if self.console_url else " before it was ready"
        raise DemoFailed(f"The host {how}{when}; {self.last_log_line()}")

    def last_log_line(self) -> str:
        """Return a sentence with the last line of the host's log."""
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line for line in reversed(lines) if line.strip()), "")
        try:
            last = json.loads(last)["message"]
        except (ValueError, KeyError, TypeError):
            last = last.removeprefix("Error: ")
        return f"its last log line is {last!r}." if last else "its log is empty."

    async def stop(self) -> None:
        """Stop the process, and kill it if it does not end in time."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def running_host(data: Path, port: int, http_port: int) -> AsyncIterator[DemoHost]:
    """Run a host with its items and log in the folder `data`; it is ready in the block. Port 0 is any free port.

    Raises:
        DemoFailed: it cannot be started; the text says why and what to do.
    """
    for number, option in ((port, "--port"), (http_port, "--http-port")):
        await _refuse_taken_port(number, option)
    program = Path(sys.executable).with_name("foqs")
    options = ["--listen", ADDRESS, "--port", str(port), "--http-port", str(http_port), "--shards", "4"]
    with _open_log(data) as log:
        process = await asyncio.create_subprocess_exec(
            program, "dev", "--data", data, *options, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    host = DemoHost(process, data / LOG_NAME)
    try:
        await host.wait_until_ready()
        yield host
    finally:
        await host.stop()


def _open_log(data: Path) -> BinaryIO:
    try:
        make_private_folder(data)
        return open(data / LOG_NAME, "ab", opener=private_opener)
    except OSError as error:
        raise DemoFailed(f"{data} cannot be written to ({error.strerror}); name another folder with --data.") from None


async def _refuse_taken_port(port: int, option: str) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
            return
        except PermissionError:
            why = "needs rights that you lack."
        except OSError:
            why = f"is in use by {await _port_owner(port)}."
    raise DemoFailed(f"Port {port} {why} Or choose other ports: make run ARGS='--port 7511 --http-port 7512'")


async def _port_owner(port: int) -> str:
    try:
        async with Client(f"foqs://{ADDRESS}:{port}", timeout_ms=PROBE_TIMEOUT_MS) as client:
            await client.routing()
    except FoqsError:
        return f"another program (see `ss -ltnp 'sport = :{port}'`); stop it"
    return "a FOQS host: perhaps `make run` or `foqs dev` in another terminal; stop it there with Ctrl-C"
