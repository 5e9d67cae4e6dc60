"""A client that writes down what an administrator does: pages of changes by filter, pauses, limits.

Always true: as `recording` promises. A page's line has its filter, limit and
change as `args`, and as its only result how many items it says that it changed.
Knows nothing of what is right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import TypeVar

from foqs_client import BulkPage, Change, ItemFilter, Namespace
from tests.support.history import Event, mark
from tests.support.recording import RecordingClient

T = TypeVar("T")


class RecordingAdmin(RecordingClient):
    """One administrator of one namespace."""

    async def cancel_matching(self, only: ItemFilter, limit: int, cursor: str | None) -> BulkPage:
        call = self._page("cancel matching", only, limit)
        return await self._one(call, self.client.cancel_matching(only, limit, cursor))

    async def update_matching(self, only: ItemFilter, change: Change, limit: int, cursor: str | None) -> BulkPage:
        """With a relative delay, if any: as it counts from the first page, of a later one nothing may be left."""
        metadata = None if change.metadata is None else mark(change.metadata)
        delay_ms = change.delay_ms if change.delay_ms is None or cursor is None else 0
        asked = {"priority": change.priority, "delay_ms": delay_ms, "metadata": metadata}
        call = self._page("update matching", only, limit, **asked)
        return await self._one(call, self.client.update_matching(only, change, limit, cursor))

    async def redrive_matching(self, only: ItemFilter, limit: int, cursor: str | None) -> BulkPage:
        call = self._page("redrive matching", only, limit)
        return await self._one(call, self.client.redrive_matching(only, limit, cursor))

    async def pause_topic(self, topic: str) -> None:
        await self._one(self._invoke("pause", [], topic=topic), self.client.pause_topic(topic))

    async def resume_topic(self, topic: str) -> None:
        await self._one(self._invoke("resume", [], topic=topic), self.client.resume_topic(topic))

    async def set_limits(self, limits: Namespace) -> None:
        """Limits and weight of the namespace, as far as they are given."""
        call = self._invoke("limit", [], metadata_bytes_max=limits.metadata_bytes_max)
        await self._one(call, self.client.update_namespace(dataclasses.replace(limits, name=self.client.namespace)))

    def _page(self, op: str, only: ItemFilter, limit: int, **change: object) -> int:
        return self._invoke(op, [], **dataclasses.asdict(only), limit=limit, change=change)

    async def _one(self, call: int, asked: Awaitable[T]) -> T:
        """As `_finish`, of a call with one answer."""

        async def answers() -> list[T]:
            return [await asked]

        [answer] = await self._finish(call, answers(), _told)
        return answer


def _told(answer: object) -> Event:
    return {"changed": answer.changed} if isinstance(answer, BulkPage) else {}
