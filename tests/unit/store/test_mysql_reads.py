"""Long reads: what they leave behind for later reads, and if their callers are cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from foqs.core.flush.fence import Fence
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings
from foqs.store.mysql.mysql_protocol import Result
from foqs.store.mysql.mysql_reads import MysqlReads
from foqs.store.mysql.mysql_session_sql import BEGIN_READ
from tests.support.aio import run

OWNER = Result([(1, b"n", 1, 0, 7, 0)], 0)
COMMITTED = Fence(1, "n", 1, 0, 0)


class EmptyServer:
    """A connection to a server whose tables hold an owner row and nothing else.

    Args:
        on_read: called before each read of tables.
    """

    def __init__(self, settings: MysqlSettings, on_read: Callable[[EmptyServer], None]) -> None:
        self.timeout_s = settings.statement_timeout_s
        self._on_read = on_read

    async def run(self, *statements: bytes) -> Sequence[Result]:
        if statements[0] != BEGIN_READ:
            return [Result([(7,)], 0) for _ in statements]
        await asyncio.sleep(0)
        self._on_read(self)
        return [Result([], 0), OWNER, *[Result([], 0) for _ in statements[2:]]]

    def abort(self) -> None:
        """Do nothing: there is no connection."""


def reads_of_empty_server(
    monkeypatch: pytest.MonkeyPatch, on_read: Callable[[EmptyServer], None], **settings: Any
) -> MysqlReads:
    async def connect(settings: MysqlSettings) -> EmptyServer:
        return EmptyServer(settings, on_read)

    monkeypatch.setattr(MysqlLink, "connect", connect)
    return MysqlReads(MysqlSettings("d", **settings), 1)


def test_a_read_that_fails_while_its_caller_is_cancelled_leaves_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []
    failures = 0

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))

        def fail(_: EmptyServer) -> None:
            nonlocal failures
            failures += 1
            reading.cancel()
            raise MysqlLinkLost("the connection broke")

        reads = reads_of_empty_server(monkeypatch, fail)
        reading = asyncio.ensure_future(reads.leases_in(COMMITTED, [(1, 2)], 9))
        with pytest.raises(asyncio.CancelledError):
            await reading

    run(story())
    gc.collect()
    assert failures == 1
    assert reported == []


def test_a_short_read_after_a_long_one_has_the_usual_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of the listings makes both kinds. A lost reply must not stop it for an hour."""
    limits_s: list[float] = []

    async def story() -> None:
        reads = reads_of_empty_server(
            monkeypatch, lambda link: limits_s.append(link.timeout_s), statement_timeout_s=7.0
        )
        assert await reads.leases_in(COMMITTED, [(1, 2)], 9) == []
        assert await reads.idempotency_keys_of(COMMITTED, {1: 2}) == {}

    run(story())
    assert limits_s == [3_600.0, 7.0]
