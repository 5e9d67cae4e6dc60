"""Owner rows of many shards are read with few statements and in a bounded time, although some of them cannot be read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, cast

from foqs.store.mysql.mysql_driver import Result, ServerError
from foqs.store.mysql.mysql_server import MysqlServer
from foqs.store.mysql.replica_rows import _read
from foqs.store.mysql.schema_upgrade import NO_SUCH_TABLE_CODE
from shardmgr.loss_report import LastFlush
from tests.support.virtual_time import run_virtual

_LOCK_WAIT_CODE = 1205


class PlainLink:
    """A server with the owner rows of all shards. A statement that names one of these fails."""

    def __init__(self, failing: frozenset[int], code: int, delay_s: float = 0.0) -> None:
        self.timeout_s = 30.0
        self.reads = 0
        self._failing = failing
        self._code = code
        self._delay_s = delay_s

    async def run(self, *statements: bytes) -> Sequence[Result]:
        numbers = [int(number) for number in re.findall(rb"foqs_(\d+)_owner", statements[0])]
        self.reads += bool(numbers)
        if not self._failing.isdisjoint(numbers):
            await asyncio.sleep(self._delay_s)
            raise ServerError(self._code, "refused")
        columns = (7, 9, 1_000) if b"clock_ms" in statements[0] else (7, 9)
        return [Result([(number, *columns) for number in numbers], 0)]


def test_one_missing_table_costs_few_reads() -> None:
    async def story() -> None:
        link = PlainLink(frozenset({30}), NO_SUCH_TABLE_CODE)
        results = await _read(cast("Any", link), range(100))
        found = [number for result in results for number, _, _ in result.rows]
        assert found == [number for number in range(100) if number != 30]
        assert link.reads <= 2 * 7 + 1  # a half of a half, seven times

    run_virtual(story)


def test_last_flushes_are_read_in_a_bounded_time_although_every_table_is_held() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        link = PlainLink(frozenset(range(200)), _LOCK_WAIT_CODE, delay_s=1.0)
        server = MysqlServer("b", 12, cast("Any", link), cast("Any", None), "foqs", {})
        begun_s = loop.time()
        found = await server.last_flushes(range(300))
        assert loop.time() - begun_s <= 11
        assert [each.shard for each in found] == list(range(300))
        assert all(each.problem for each in found[:200])

    run_virtual(story)


def test_held_table_hides_no_other_one() -> None:
    async def story() -> None:
        link = PlainLink(frozenset({3}), _LOCK_WAIT_CODE, delay_s=1.0)
        server = MysqlServer("b", 12, cast("Any", link), cast("Any", None), "foqs", {})
        found = {each.shard: each for each in await server.last_flushes(range(8))}
        assert found.pop(3).problem == "refused (error 1205)"
        assert list(found.values()) == [LastFlush(number, 7, 9, 1_000) for number in found]

    run_virtual(story)
