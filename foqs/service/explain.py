"""Why an item is not delivered: gathers what this host knows of it, for `core.explain` to put in words.

Always true: it changes nothing, and answers before the call's deadline also
when a database does not, because that is a reason too. What it reads are
hints: the item may be delivered while its explanation is on its way. Speaks no
Thrift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foqs.core.demand import Demand
from foqs.core.errors import NotOwner, Unavailable
from foqs.core.explain import Scene, explain
from foqs.core.item import Row, State, format_id
from foqs.service.api import Explained, Looked
from foqs.service.namespaces import Namespaces
from foqs.service.quota import Quota
from foqs.service.waiters import Waiters
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus

_READING: Final = 0.5
"""The part of a call's time that its reads may take; the rest is for saying that they did not end."""


class Explainer:
    """Args:
    shards, statuses: as the queue has them.
    seconds: the stop watch of `demand`.
    better_max: better items are counted so far.
    not_owner: the error for a shard that is not this host's.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        statuses: Mapping[int, ShardStatus],
        namespaces: Namespaces,
        waiters: Waiters[Any],
        demand: Demand,
        quota: Quota,
        seconds: Callable[[], float],
        better_max: int,
        not_owner: Callable[[int], NotOwner],
    ) -> None:
        self._shards = shards
        self._statuses = statuses
        self._namespaces = namespaces
        self._waiters = waiters
        self._demand = demand
        self._quota = quota
        self._seconds = seconds
        self._better_max = better_max
        self._not_owner = not_owner

    async def explain(
        self, namespace: str, shard_number: int, number: int, deadline: float, *, draining: bool, suspended: bool
    ) -> Explained:
        """Why the item of this number on this shard is not delivered.

        Raises:
            NotOwner: the shard is not this host's.
            NamespaceNotFound: there is no such namespace.
        """
        settings = self._namespaces.of(namespace)
        name = format_id(shard_number, number)
        shard = self._shards.get(shard_number)
        if shard is None:
            return _told(Scene(id=name, namespace=namespace, row=None, unread=self._unserved(shard_number)), None)
        now = asyncio.get_running_loop().time()
        until = now + (deadline - now) * _READING
        written = shard.numbers.is_settled(number)
        try:
            async with asyncio.timeout_at(until):
                rows = await shard.rows(namespace, [number]) if written else []
                row = rows[0] if rows and rows[0].namespace == namespace else None
                key = None if row is None else await shard.key_of(row)
        except (TimeoutError, Unavailable) as error:
            why = _why(error, shard)
            return _told(Scene(id=name, namespace=namespace, row=None, unread=why), None)
        better = await self._better(row, until) if row is not None and row.state is State.READY else 0
        topic = (namespace, row.topic if row is not None else "")
        taken_s = self._demand.taken_s_ago(topic, self._seconds())
        scene = Scene(
            id=name,
            namespace=namespace,
            row=row,
            now_ms=shard.now_ms(),
            is_written=written,
            trouble=shard.trouble,
            is_draining=draining,
            is_suspended=suspended,
            is_paused=topic in self._namespaces.paused,
            is_reserved=shard.index.is_reserved(number),
            is_in_memory=row is None or shard.index.rank(topic, row.key)[1] is None,
            better=None if better is None else min(better, self._better_max),
            is_all=better is None or better <= self._better_max,
            waiting=self._waiters.waiting(topic),
            taken_ms_ago=None if taken_s is None else int(taken_s * 1000),
            payload_bytes_max=settings.payload_bytes_max,
            breaker=shard.breaker,
            rate_wait_ms=self._quota.rate_wait_ms(namespace, settings),
        )
        return _told(scene, None if row is None else Looked(shard_number, row, scene.now_ms, key))

    async def _better(self, row: Row, until: float) -> int | None:
        """READY items of all shards that come before it, one more than is counted at most; None: it cannot be told."""
        better = 0
        if len(self._shards) < len(self._statuses):
            return None
        try:
            async with asyncio.timeout_at(until):
                for shard in list(self._shards.values()):
                    better += await shard.better((row.namespace, row.topic), row.key, self._better_max - better)
                    if better > self._better_max:
                        break
        except (TimeoutError, Unavailable):
            return None
        return better

    def _unserved(self, number: int) -> str:
        status = self._statuses.get(number)
        if status is None:
            raise self._not_owner(number)
        reason = f": {status.reason}" if status.reason else ""
        return f"shard {number} is not served here, it is {status.state}{reason}"


def _why(error: Exception, shard: Shard) -> str:
    if shard.trouble is not None:
        return f"shard {shard.number}: {shard.trouble}"
    return error.message if isinstance(error, Unavailable) else f"shard {shard.number} did not answer in time"


def _told(scene: Scene, seen: Looked | None) -> Explained:
    told = explain(scene)
    counted = scene.row is not None and scene.row.state is State.READY
    reasons: Sequence[str] = told.reasons
    better, more = (scene.better, not scene.is_all) if counted else (None, False)
    return Explained(seen, reasons, told.remedies, better, more, seen is None and scene.unread is None)
