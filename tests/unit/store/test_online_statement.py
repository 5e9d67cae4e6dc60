"""Tests of a statement that gives way to writers. Contract tests run it on real servers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from foqs.store.mysql import online_statement
from foqs.store.mysql.mysql_driver import MysqlLinkLost, MysqlSettings
from foqs.store.mysql.mysql_session_sql import PROCESSES
from foqs.store.mysql.online_statement import run_online
from tests.support.aio import run

STATEMENT: Final = b"ALTER TABLE t DROP KEY k"


class LinkToDyingServer:
    """A connection to a server that dies while the statement runs."""

    timeout_s = 1.0

    async def run(self, *statements: bytes) -> list[Any]:
        if PROCESSES in statements:
            raise MysqlLinkLost("the server is gone")
        if STATEMENT in statements:
            await asyncio.Event().wait()
        return [SimpleNamespace(rows=[(7,)]) for _ in statements]

    async def close(self) -> None:
        """Do nothing."""


def test_a_server_that_dies_while_the_statement_runs_is_a_lost_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(settings: MysqlSettings) -> LinkToDyingServer:
        return LinkToDyingServer()

    monkeypatch.setattr(online_statement, "MysqlLink", SimpleNamespace(connect=connect))
    with pytest.raises(MysqlLinkLost, match="the server is gone"):
        run(run_online(MysqlSettings("d"), STATEMENT))
