"""docs/inbox.md: the programs work as written, and a relay prunes what they wrote."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from foqs_client import Item, SyncClient
from tests.support.poll import until
from tests.support.processes import PROGRAM, RestartableHost

PAGE: Final = (Path(__file__).parents[2] / "docs" / "inbox.md").read_text()
PROGRAMS: Final = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))

pytestmark = pytest.mark.process


class Shop:
    """A folder with the programs, and a host."""

    def __init__(self, folder: Path, host: RestartableHost) -> None:
        self._folder = folder
        for name, text in PROGRAMS.items():
            (folder / name).write_text(text.replace("foqs://127.0.0.1:7411", host.address))

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=self._folder, env={**os.environ, **environment}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, name: str) -> str:
        with self.start(sys.executable, name) as program:
            shown, log = program.communicate(timeout=60)
        assert program.returncode == 0, log
        return shown

    def stop(self, program: subprocess.Popen[str]) -> None:
        program.send_signal(signal.SIGTERM)
        _, log = program.communicate(timeout=60)
        assert program.returncode == 0, log

    def query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._folder / "shop.db")) as connection, connection:
            return [value for (value,) in connection.execute(statement)]

    def charge(self, delivery: Any) -> None:
        """Charge as the handler does, and die before the ack."""
        text = f"import charges, foqs_client; charges.charge(foqs_client.{delivery!r})"
        with self.start(sys.executable, "-c", text) as program:
            _, log = program.communicate(timeout=60)
        assert program.returncode == 0, log


def test_each_customer_is_charged_once_although_a_consumer_has_died(tmp_path: Path) -> None:
    with RestartableHost(tmp_path / "host", "memory:") as host, SyncClient(host.address, timeout_ms=60_000) as client:
        host.start()
        shop = Shop(tmp_path, host)
        shop.run("charge_tables.py")
        client.enqueue([Item("charge", name, lease_ms=1_000) for name in (b"Ada", b"Bob")])
        shop.charge(client.dequeue({"charge": 1}, wait_ms=30_000)[0])
        with shop.start(sys.executable, "charges.py") as worker:
            until(lambda: not client.topics().topics, "all items are acked")
            shop.stop(worker)
        assert sorted(shop.query("SELECT customer FROM charges")) == ["Ada", "Bob"]

        assert "0 rows are deleted" in shop.run("prune.py")
        shop.query("UPDATE foqs_inbox SET done_ms = 0 WHERE rowid = 1")
        assert "1 rows are deleted" in shop.run("prune.py")
        shop.query("UPDATE foqs_inbox SET done_ms = 0")
        command = [str(PROGRAM), "relay", "--inbox", "--timeout", "60s"]
        with shop.start(*command, FOQS_ADDRESS=host.address, FOQS_OUTBOX_DATABASE="sqlite:///shop.db") as relay:
            until(lambda: shop.query("SELECT COUNT(*) FROM foqs_inbox") == [0], "the relay has pruned the inbox")
            shop.stop(relay)
