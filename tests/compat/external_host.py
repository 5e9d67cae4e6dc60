"""A plugin of pytest: the behavioural suite of any version plays on a host that runs already.

The variable FOQS_EXTERNAL_HOST has the host's port and HTTP port; FOQS_EXTERNAL_CLIENT has the folder
from which the client must come.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

PORT, HTTP_PORT = map(int, os.environ["FOQS_EXTERNAL_HOST"].split(","))


class ExternalHost:
    """Stands for a suite's own host process, which the host outside replaces."""

    def __init__(self, *_: Any) -> None:
        self.port, self.http_port = PORT, HTTP_PORT
        self.address = f"foqs://127.0.0.1:{PORT}"

    def start(self) -> None:
        """Do nothing: it runs."""

    def __enter__(self) -> ExternalHost:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: its own test ends it."""


def _replace_hosts() -> None:
    """Replace the suite's class of host processes before its conftest imports it."""
    client = importlib.import_module("foqs_client").__file__
    assert client is not None
    assert Path(client).is_relative_to(os.environ["FOQS_EXTERNAL_CLIENT"]), client
    processes = importlib.import_module("tests.support.processes")
    replaced = [name for name in ("RestartableHost", "HostProcess") if hasattr(processes, name)]
    assert replaced
    for name in replaced:
        setattr(processes, name, ExternalHost)


_replace_hosts()
