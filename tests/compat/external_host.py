"""A plugin of pytest: the behavioural suite of any version plays on a host that runs already.

The variable FOQS_EXTERNAL_HOST has the host's port and HTTP port; FOQS_EXTERNAL_CLIENT has the folder
from which the client must come. A story that needs more than the host's version has is left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

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


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Leave a story out when the client says that the host does not know a call or a field of it yet."""
    try:
        return (yield)
    except Exception as error:
        if type(error).__name__ != "HostTooOld":
            raise
        pytest.skip(str(error))
