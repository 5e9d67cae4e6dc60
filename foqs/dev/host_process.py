"""A host process on this machine.

Always true: it runs this interpreter's program with its own configuration, and without
the FOQS_ variables of this environment. Knows nothing of what a host does.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foqs.dev.server_process import ServerProcess, free_port

PROGRAM: Final = (str(Path(sys.executable).with_name("foqs")),)
REQUEST_FILE: Final = "program"
"""In the folder of a host: the program that it should run from its next start on."""
_PORT_OPTIONS: Final = ("server.port", "server.http_port", "server.console_port", "server.sqs_port")
_PROBE_S: Final = 5.0


class HostProcess(ServerProcess):
    """A process of `foqs host`.

    Args:
        options: the options of its configuration file, by dotted name. Missing ports are free ones.
        command: replaces the installed program; `host --config FILE` follows. The next `start` uses another one if it was
            set, or requested by the file `program`.
        ready_path: `start` returns when this HTTP path answers 200.
    """

    name = "foqs"

    def __init__(
        self,
        folder: Path | None,
        options: Mapping[str, Any],
        command: Sequence[str] = PROGRAM,
        ready_path: str = "/readyz",
    ) -> None:
        super().__init__(folder)
        self.options = {"server.port": free_port(), "server.http_port": free_port(), **options}
        self.config = self.folder / "foqs.toml"
        self.config.write_text(to_toml(self.options))
        self.command = list(command)
        self._ready_path = ready_path

    @property
    def port(self) -> int:
        return int(self.options["server.port"])

    @property
    def http_port(self) -> int:
        return int(self.options["server.http_port"])

    @property
    def ports(self) -> list[int]:
        """All ports on which it listens."""
        return [int(self.options[name]) for name in _PORT_OPTIONS if name in self.options]

    @property
    def console_url(self) -> str | None:
        """The address of its console; None if it has none."""
        return (
            f"http://127.0.0.1:{self.options['server.console_port']}/" if self.options.get("server.console") else None
        )

    @property
    def sqs_url(self) -> str | None:
        """The endpoint URL of its SQS server; None if it has none."""
        port = self.options.get("server.sqs_port")
        return None if port is None else f"http://127.0.0.1:{port}"

    @property
    def address(self) -> str:
        return f"foqs://127.0.0.1:{self.port}"

    def set_up(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the host on the data folder of its last run."""
        self.launch(
            [*self.command, "host", "--config", str(self.config)],
            self._is_ready,
            cwd=self.folder,
            env=program_environment(self.command),
        )

    @property
    def requested_command(self) -> list[str]:
        """The program with which the host should run: that of the file `program`, or the one it has."""
        try:
            found: list[str] = json.loads((self.folder / REQUEST_FILE).read_text())
        except FileNotFoundError:
            return self.command
        return found

    def request_command(self, command: Sequence[str]) -> None:
        """Let the host run this program when it is started next, by this process or another one."""
        replace_file(self.folder / REQUEST_FILE, json.dumps(list(command)))

    def get(self, path: str) -> str:
        """Return the body of an HTTP path. Raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=_PROBE_S) as reply:
            return str(reply.read().decode())

    def _is_ready(self) -> bool:
        return self.is_ok(self._ready_path)

    def is_ok(self, path: str) -> bool:
        """Return whether an HTTP path answers 200."""
        try:
            self.get(path)
        except OSError:  # an HTTPError is one
            return False
        return True


def program_environment(command: Sequence[str]) -> dict[str, str]:
    """Return the environment of a program: without FOQS_ variables, and with this process's modules only if it is ours.

    Ours are `foqs`, and any program that the Python of this process runs.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.upper().startswith("FOQS_") or name == "FOQS_PURE"
    }
    is_ours = tuple(command) == PROGRAM or command[0] == sys.executable
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if is_ours else {}
    return {name: value for name, value in kept.items() if name != "PYTHONPATH"} | {"NO_COLOR": "1"} | own


def replace_file(path: Path, text: str) -> None:
    """Replace a file as a whole, so that no reader sees a part of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def to_toml(options: Mapping[str, Any]) -> str:
    """Return options by dotted name as a configuration file."""
    sections: dict[str, list[str]] = {}
    for name, value in options.items():
        section, option = name.rsplit(".", 1)
        sections.setdefault(section, []).append(f"{option} = {json.dumps(value)}\n")
    return "".join(f"[{name}]\n{''.join(lines)}" for name, lines in sections.items())
