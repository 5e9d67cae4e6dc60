"""A long read whose caller leaves in the moment in which it fails is not reported as a lost exception."""

from __future__ import annotations

import asyncio
import gc
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
