"""Real host processes: started, stopped, frozen, killed, and started again on the same port.

Always true: a host runs the installed program with its own configuration in its own
folder. It is ended by its process id when its `with` block ends, and an error that
leaves the block contains the end of its log. Knows nothing of what a host does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from tests.support.freezing import freeze, thaw
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.quick_foqs import quick_foqs

PROGRAM: Final = Path(sys.executable).with_name("foqs")
HOST: Final = (str(PROGRAM), "host")
"""The command of an ordinary host, without its configuration."""


def quick_host(**parts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command of a host that is quick to retry. `parts`: more of its constants, by part of `HostConstants`."""
    return (*quick_foqs(**parts), "host")


QUICK_HOST: Final = quick_host()
WAITING_HOST: Final = quick_host(calls={"delivery_wait_ms_max": 30_000})
"""The command of a host whose dequeues wait for a late shard of a slow machine, so that none returns too little."""

LEASE_MS_DEFAULT: Final = 1_000
BACKOFF_MS_MAX: Final = 400

_OPTIONS: Final[Mapping[str, Any]] = {
    "log.level": "info",
    "namespace.lease_ms_default": LEASE_MS_DEFAULT,
    "namespace.backoff_ms_min": 50,
    "namespace.backoff_ms_max": BACKOFF_MS_MAX,
}

_START_TIMEOUT_S: Final = 120.0
_END_TIMEOUT_S: Final = 90.0
_ANSWER_TIMEOUT_S: Final = 30.0
"""A busy machine answers later than a caller expects, and a dead host at once. The limits end only what hangs."""
_TAIL_BYTES: Final = 4_000


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not asked for its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


class RestartableHost:
    """One host's place: its ports, folder and configuration; and its process, one after the other.

    Args:
        folder: for its configuration and log; created.
        store: the URL of its store.
        options: of the configuration, as `section.option`.
        command: what is run, followed by `--config FILE`; see `quick_host` for other constants.
    """

    def __init__(
        self,
        folder: Path,
        store: str,
        options: Mapping[str, Any] = MappingProxyType({}),
        command: Sequence[str] = QUICK_HOST,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.http_port = free_port()
        self.config = folder / "foqs.toml"
        self._command = command
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        place = {
            "server.port": self.port,
            "server.http_port": self.http_port,
            "store.url": store,
            "coordinator.file": str(folder / "coordinator.json"),
        }
        self.config.write_text(_to_toml({**_OPTIONS, **place, **options}))

    # ------------------------------------------------------------------- looking

    @property
    def address(self) -> str:
        return f"foqs://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the host was never started"
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def get(self, path: str) -> tuple[int, str] | None:
        """Return the status and the body of an HTTP path; None without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=_ANSWER_TIMEOUT_S) as reply:
                return int(reply.status), reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return None

    # ------------------------------------------------------------------- working

    def launch(self) -> None:
        """Starts the process and returns at once."""
        assert not self.is_running, "the host runs already"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith("FOQS_") or name == "FOQS_PURE"
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=kept | {"NO_COLOR": "1"},
            )

    def start(self) -> None:
        """Starts the process and returns when every shard is served."""
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        until(self._ready, f"the host on port {self.port} is ready", _START_TIMEOUT_S)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill9(self) -> None:
        """Ends the process as a crash would."""
        self.signal(signal.SIGKILL)
        self.wait_for_exit()

    def stop(self) -> int:
        """Asks the process to leave, and returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_for_exit()

    def wait_for_exit(self) -> int:
        """Waits for the process to end by itself, and returns its exit code."""
        assert self._process is not None
        return self._process.wait(_END_TIMEOUT_S)

    def freeze(self) -> None:
        """Stops all of its threads where they are; returns when they stand."""
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    def _ready(self) -> bool:
        assert self.is_running, f"the host ended by itself:\n{self.log[-_TAIL_BYTES:]}"
        answer = self.get("/readyz")
        return answer is not None and answer[0] == 200

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill9()
        if error is not None:
            error.add_note(f"the end of the log in {self.folder}:\n{self.log[-_TAIL_BYTES:]}")


def _to_toml(options: Mapping[str, Any]) -> str:
    """Options by dotted name as a configuration file."""
    sections: dict[str, list[str]] = {}
    for name, value in options.items():
        section, option = name.rsplit(".", 1)
        sections.setdefault(section, []).append(f"{option} = {json.dumps(value)}\n")
    return "".join(f"[{name}]\n{''.join(lines)}" for name, lines in sections.items())
