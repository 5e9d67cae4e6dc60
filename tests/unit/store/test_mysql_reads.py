"""Long reads: what they leave behind for later reads, and if their callers are cancelled."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.core.flush.fence import Fence
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_reads import MysqlReads
from foqs.store.port import StoreLost
from tests.support.aio import run


def test_a_read_that_fails_while_its_caller_is_cancelled_leaves_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        reads = MysqlReads(MysqlSettings("d"), 1)

        async def fail(statements: list[bytes], *_: Any) -> Any:
            if len(statements) == 1:  # connects
                return []
            await asyncio.sleep(0)
            reading.cancel()
            raise StoreLost("the owner row shows another owner")

        monkeypatch.setattr(reads, "_run", fail)
        reading = asyncio.ensure_future(reads.leases_in(Fence(1, "n", 1, 0, 0), [(1, 2)], 9))
        with pytest.raises(asyncio.CancelledError):
            await reading

    run(story())
    gc.collect()
    assert reported == []


def test_a_short_read_after_a_long_one_has_the_usual_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of the listings makes both kinds. A lost reply must not stop it for an hour."""
    limits_s: list[float] = []

    async def story() -> None:
        reads = MysqlReads(MysqlSettings("d", statement_timeout_s=7.0), 1)
        link: Any = SimpleNamespace(timeout_s=7.0)
        reads._link = link

        async def noted(statements: list[bytes], *_: Any) -> list[Any]:
            limits_s.append(link.timeout_s)
            return [None, None, SimpleNamespace(rows=[]), None]

        monkeypatch.setattr(reads, "_run", noted)
        assert await reads.leases_in(Fence(1, "n", 1, 0, 0), [(1, 2)], 9) == []
        assert await reads.idempotency_keys_of(Fence(1, "n", 1, 0, 0), {1: 2}) == {}

    run(story())
    assert limits_s == [3_600.0, 7.0]
