"""A client that records an administrator's calls: pages of changes by filter, pauses, limits, grants, namespaces.

Always true: as in `recording_client`. The record of a page has its filter, limit and
change as `args`, and the number of changed items as its only result. Exports and
imports are recorded as a hash of their contents without the version. Does not judge.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection

from foqs_client import BulkPage, Change, ItemFilter, Namespace
from tests.support.history import Event, mark
from tests.support.recording_client import RecordingClient


class RecordingAdmin(RecordingClient):
    """One administrator of one namespace."""

    async def cancel_matching(self, only: ItemFilter, limit: int, cursor: str | None) -> BulkPage:
        call = self._invoke_bulk("cancel matching", only, limit)
        return await self._finish_single(call, self.client.cancel_matching(only, limit, cursor), _page)

    async def update_matching(self, only: ItemFilter, change: Change, limit: int, cursor: str | None) -> BulkPage:
        """With a relative delay, if any: as it counts from the first page, of a later one nothing may be left."""
        metadata = None if change.metadata is None else mark(change.metadata)
        delay_ms = change.delay_ms if change.delay_ms is None or cursor is None else 0
        asked = {"priority": change.priority, "delay_ms": delay_ms, "metadata": metadata}
        call = self._invoke_bulk("update matching", only, limit, **asked)
        return await self._finish_single(call, self.client.update_matching(only, change, limit, cursor), _page)

    async def redrive_matching(self, only: ItemFilter, limit: int, cursor: str | None) -> BulkPage:
        call = self._invoke_bulk("redrive matching", only, limit)
        return await self._finish_single(call, self.client.redrive_matching(only, limit, cursor), _page)

    async def pause_topic(self, topic: str) -> None:
        await self._finish_single(self._invoke("pause", [], topic=topic), self.client.pause_topic(topic))

    async def resume_topic(self, topic: str) -> None:
        await self._finish_single(self._invoke("resume", [], topic=topic), self.client.resume_topic(topic))

    async def set_limits(self, limits: Namespace) -> None:
        """Limits and weight of the namespace, as far as they are given."""
        call = self._invoke("limit", [], metadata_bytes_max=limits.metadata_bytes_max)
        await self._finish_single(
            call, self.client.update_namespace(dataclasses.replace(limits, name=self.client.namespace))
        )

    async def grant(self, principal: str, permissions: Collection[str]) -> None:
        call = self._invoke("grant", [], to=principal, permissions=sorted(permissions))
        await self._finish_single(call, self.client.set_grant(principal, permissions))

    async def create(self, settings: Namespace) -> None:
        """The client's namespace, with these settings."""
        named = dataclasses.replace(settings, name=self.client.namespace)
        await self._finish_single(self._invoke("create", []), self.client.create_namespace(named))

    async def delete(self) -> None:
        """The client's namespace."""
        await self._finish_single(self._invoke("delete", []), self.client.delete_namespace(self.client.namespace))

    async def export_config(self) -> str:
        return await self._finish_single(
            self._invoke("export", []), self.client.export_config(), lambda text: {"namespaces": _namespaces(text)}
        )

    async def import_config(self, document: str) -> None:
        call = self._invoke("import", [], namespaces=_namespaces(document))
        await self._finish_single(call, self.client.import_config(document))

    def _invoke_bulk(self, op: str, only: ItemFilter, limit: int, **change: object) -> int:
        return self._invoke(op, [], **dataclasses.asdict(only), limit=limit, change=change)


def _page(page: BulkPage) -> Event:
    return {"changed": page.changed}


def _namespaces(document: str) -> str:
    """A hash of all that an export holds but its version and incarnations, which an import does not bring back."""
    namespaces = json.loads(document)["namespaces"]
    for namespace in namespaces.values():
        namespace.pop("incarnation", None)
    return mark(json.dumps(namespaces, sort_keys=True).encode())
