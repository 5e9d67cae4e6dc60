"""One server process on this machine: started in a folder, probed, and ended by its process id.

Always true: every process that starts here is ended here; a folder that was not given
is temporary and removed with the server; a server that cannot start raises
`ServerNotAvailable`, whose text says what to do. Knows nothing of the service.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 4_000
SEARCH_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where servers are looked for besides PATH."""
_PORTS: Final = range(10_000, 20_000)
_recent_ports: Final[deque[int]] = deque(maxlen=1_000)
"""The ports that `free_port` returned last."""


class ServerNotAvailable(Exception):
    """A server cannot be started; the text says why and what to do."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Treat SIGINT, SIGTERM and SIGHUP as Ctrl-C, so that started processes are ended.

    Only an ignored SIGHUP stays ignored, as under `nohup`. A shell without job control starts
    background commands with SIGINT ignored, and a script must be able to stop them too.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handled = {
        number: handler
        for number, handler in before.items()
        if number != signal.SIGHUP or handler is not signal.SIG_IGN
    }
    for number in handled:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


class ServerProcess(ABC):
    """One process and its folder; as a context manager it runs during the block.

    Args:
        folder: the folder of its data and log, which is created; None: a temporary one.
    """

    name: str
    stop_timeout_s = 60.0
    """The time after which a stopping server is killed."""

    def __init__(self, folder: Path | None = None) -> None:
        self._is_temporary = folder is None
        self.folder = temporary_folder(self.name) if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.starts_in: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns the context in which the process is started, such as a region: see `RegionNetwork`."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, or the negative number of a signal; None while it runs, and before its start."""
        return None if self._process is None else self._process.poll()

    def launch(self, command: Sequence[str], is_ready: Callable[[], bool], **how: Any) -> None:
        """Start the process; return when it answers. Interrupts of this terminal do not reach it.

        Raises:
            ServerNotAvailable: it ended, or did not answer in time.
        """
        assert self._process is None or self._process.poll() is not None, "it runs already"
        with (self.folder / "log").open("ab") as log, self.starts_in():
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **how
            )
        self.wait_until_ready(is_ready)

    def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait until the process answers. Raises ServerNotAvailable if it ends, or is not in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if self.exit_code is not None:
                raise ServerNotAvailable(f"{self.name} ended with exit code {self.exit_code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerNotAvailable(
                    f"{self.name} did not answer within {START_TIMEOUT_S:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        return (self.folder / "log").read_text(errors="replace")[-_TAIL_BYTES:]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the process and wait for its end; the data stays. Safe to repeat."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(self.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @abstractmethod
    def set_up(self) -> None:
        """Prepare a new folder, and start the process."""

    def close(self) -> None:
        """Stop the process and remove a temporary folder. Safe to repeat. An interrupt kills the process."""
        try:
            self.stop()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        finally:
            if self._is_temporary:
                shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def temporary_folder(name: str) -> Path:
    """Create a folder in the system's temporary folder."""
    return Path(tempfile.mkdtemp(prefix=f"foqs-{name}-"))


def run_program(command: Sequence[str], **how: Any) -> str:
    """Run a program to its end and return its output. Raises ServerNotAvailable with the output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise ServerNotAvailable(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def find_program(name: str, package: str) -> str:
    """Return the path of an installed program. Raises ServerNotAvailable, which names the Debian package."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")
    if found is None:
        raise ServerNotAvailable(f"{name} is not installed: apt-get install {package}")
    return found


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens now, and which this process did not get lately.

    It is below the ports that the kernel gives to outgoing connections: one of those could take it before a server listens
    there. Raises ServerNotAvailable if none is free.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        if port not in _recent_ports:
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                _recent_ports.append(port)
                return port
    raise ServerNotAvailable(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1; stop servers there")


def unprivileged_user(name: str) -> str | None:
    """Return the user of a server if this process runs as root; None otherwise.

    It is `name`, or `nobody` if there is no such user. Raises ServerNotAvailable if there is neither.
    """
    if os.geteuid() != 0:
        return None
    for user in (name, "nobody"):
        try:
            return pwd.getpwnam(user).pw_name
        except KeyError:
            continue
    raise ServerNotAvailable(f"there is no user `{name}` or `nobody` to run the server as")


def give_to_user(path: Path, user: str | None) -> None:
    """Give a file or folder to a user; every user may enter a folder."""
    if path.is_dir():
        path.chmod(0o755)
    if user:
        shutil.chown(path, user)
