"""docs/outbox.md: the programs work as written, and `foqs relay` moves what they wrote."""

from __future__ import annotations

import json
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
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from foqs_client import SyncClient
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.processes import PROGRAM, RestartableHost

PAGE: Final = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text()
PROGRAMS: Final = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))

pytestmark = pytest.mark.process


def run_program(name: str, folder: Path) -> str:
    (folder / name).write_text(PROGRAMS[name])
    done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        [(count,)] = connection.execute("SELECT COUNT(*) FROM foqs_outbox")
    return int(count)


def test_the_programs_write_rows_that_the_relay_moves_into_the_queue(tmp_path: Path) -> None:
    run_program("shop_tables.py", tmp_path)
    assert "no second order 17" in run_program("shop.py", tmp_path)
    run_program("shop_orm.py", tmp_path)
    assert rows(tmp_path) == 2
    with RestartableHost(tmp_path / "host", "memory:") as host:
        host.start()
        environment = {**os.environ, "FOQS_ADDRESS": host.address, "FOQS_OUTBOX_DATABASE": "sqlite:///shop.db"}
        command = [str(PROGRAM), "relay", "-o", "json", "--http-port", str(free_port()), "--timeout", "60s"]
        relay = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            until(lambda: rows(tmp_path) == 0, "the outbox is empty")
            relay.send_signal(signal.SIGTERM)
            shown, log = relay.communicate(timeout=60)
        finally:
            relay.kill()
            relay.wait()
        assert relay.returncode == 0, log
        [counts] = json.loads(shown)
        assert (counts["sent_rows"], counts["parked_rows"]) == (2, 0)
        with SyncClient(host.address) as client:
            assert sorted(each.payload or b"" for each in client.peek("mail", with_payload=True).items) == [
                b"Thank you for order 17, Ada",
                b"Thank you for order 18, Cleo",
            ]


def test_the_migration_creates_and_drops_the_tables(tmp_path: Path) -> None:
    module: dict[str, Any] = {}
    exec(PROGRAMS["migrations/versions/0001_outbox.py"], module)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    tables = []
    for step in ("upgrade", "downgrade"):
        with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
            module[step]()
        tables.append({name for name in sa.inspect(engine).get_table_names() if name.startswith("foqs_")})
    engine.dispose()

    assert tables == [{"foqs_outbox", "foqs_parked", "foqs_relay", "foqs_inbox"}, set()]
