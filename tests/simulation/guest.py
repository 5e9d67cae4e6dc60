"""A client without the grants for its calls: it tries all calls, in every namespace.

Holds `Guest`. Always true: most calls are made without the grant that they need.
Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Final

from foqs_client import Change, Delivery, FoqsError, Item, ItemFilter, Namespace
from tests.support.recording_admin import RecordingAdmin

_WANTED: Final = 2
_NO_DOCUMENT: Final = '{"format": 0, "version": 1, "namespaces": {}}'
"""An input that every host refuses."""


class Guest:
    """A client that knows ids and topics, and perhaps has a token.

    Args:
        clients: one for each namespace.
        known: ids by namespace.
    """

    def __init__(
        self,
        clients: Mapping[str, RecordingAdmin],
        rng: Random,
        topics: Sequence[str],
        known: Mapping[str, Sequence[str]],
    ) -> None:
        self._clients = clients
        self._rng = rng
        self._topics = topics
        self._known = known
        self._held: list[Delivery] = []
        self._made = 0

    async def work(self, name: str, is_over: Callable[[], bool]) -> None:
        """Make random calls until the work is over. `name` makes payloads unique."""
        while not is_over():
            namespace = self._rng.choice(sorted(self._clients))
            with contextlib.suppress(FoqsError):
                await self._try(self._clients[namespace], self._known[namespace], name)
            await asyncio.sleep(self._rng.expovariate(4))
        for client in self._clients.values():
            await client.client.close()

    async def _try(self, client: RecordingAdmin, known: Sequence[str], name: str) -> None:
        rng, bare = self._rng, client.client
        topic = rng.choice(self._topics)
        only = ItemFilter(topic)
        looks: dict[str, Callable[[], Awaitable[object]]] = {
            "topics": lambda: bare.topics(limit=1),
            "peek": lambda: bare.peek(topic, limit=1),
            "count": lambda: bare.count(only),
            "dead": lambda: bare.dead(limit=1),
            "settings": lambda: bare.get_namespace(),
            "usage": lambda: bare.usage(),
            "grants": lambda: bare.grants(),
            "namespaces": lambda: bare.list_namespaces(limit=1),
        }
        deeds: list[Callable[[], Awaitable[object]]] = [
            lambda: self._enqueue(client, topic, name),
            lambda: self._dequeue(client, topic),
            lambda: client.purge_topic(topic),
            lambda: client.resume_topic(topic),
            lambda: client.update_matching(only, Change(priority=4), 1, None),
            lambda: client.grant(name, ["admin"]),
            lambda: client.set_limits(Namespace("", metadata_bytes_max=1_024)),
            lambda: client.export_config(),
            lambda: client.import_config(_NO_DOCUMENT),
            *(lambda op=op, asked=asked: client.record_read(op, asked()) for op, asked in looks.items()),
        ]
        if known:
            number = rng.choice(known[-30:])
            deeds += [
                lambda: client.record_read("item", bare.item(number)),
                lambda: client.explain(number),
                lambda: client.cancel([number]),
                lambda: client.update([number], Change(priority=5)),
                lambda: client.redrive([number]),
            ]
        if self._held:
            delivery = rng.choice(self._held)
            deeds += [
                lambda: client.ack([delivery]),
                lambda: client.nack([delivery]),
                lambda: client.extend([delivery]),
                lambda: client.release([delivery]),
            ]
        await rng.choice(deeds)()

    async def _enqueue(self, client: RecordingAdmin, topic: str, name: str) -> None:
        self._made += 1
        await client.enqueue([Item(topic, f"{name}/{self._made}".encode(), lease_ms=100, metadata=b"meta")])

    async def _dequeue(self, client: RecordingAdmin, topic: str) -> None:
        self._held += await client.dequeue({topic: _WANTED}, lease_ms=200)
