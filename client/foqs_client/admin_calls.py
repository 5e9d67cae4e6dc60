"""The client's calls that configure: namespaces, grants, paused topics, the whole configuration.

Holds what goes into them and comes out, and the calls themselves, which
`Client` inherits. Always true: what was made by a call is durable and holds at
the host that answered; None in a `Namespace` that is sent means that the value
is not set. Each of the calls may be repeated without harm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from foqs_client import errors
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod

PERMISSIONS: Final = {"enqueue": 1, "consume": 2, "admin": 3}
_PERMISSION_NAMES: Final = {number: name for name, number in PERMISSIONS.items()}


@dataclass(slots=True, frozen=True)
class Namespace:
    """A namespace's settings, of which each is explained in configs/foqs.toml under `[namespace]`.

    In an answer: what holds, the host's defaults included.
    """

    name: str
    tier: str | None = None
    enqueues_per_minute: int | None = None
    """0, as with the next three: without limit."""
    backlog_items_max: int | None = None
    backlog_bytes_max: int | None = None
    topics_max: int | None = None
    payload_bytes_max: int | None = None
    metadata_bytes_max: int | None = None
    lease_ms_default: int | None = None
    lease_ms_max: int | None = None
    attempts_max_default: int | None = None
    backoff_ms_min: int | None = None
    backoff_ms_max: int | None = None
    dead_retention_ms: int | None = None
    key_window_ms: int | None = None
    weight: int | None = None


NAMESPACE_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Namespace))


@dataclass(slots=True, frozen=True)
class NamespacePage:
    """Namespaces by name; `next_cursor` None with the last page."""

    namespaces: list[Namespace]
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class Usage:
    """What a namespace holds; None: not counted."""

    items: int | None
    bytes: int | None
    topics: int | None
    enqueues_last_minute: int | None


@dataclass(slots=True, frozen=True)
class Grant:
    """What a principal may do in a namespace: of "enqueue", "consume" and "admin"."""

    principal: str
    namespace: str
    permissions: tuple[str, ...]


class AdminCalls:
    """The calls. Where a namespace is not given, it is the client's own."""

    namespace: str

    async def _call(self, method: ThriftMethod, request: Any, timeout_ms: int | None) -> Any:
        raise NotImplementedError

    async def create_namespace(self, settings: Namespace, *, timeout_ms: int | None = None) -> Namespace:
        """Makes a namespace. Raises InvalidArgument where it exists with other settings."""
        return _namespace(await self._call(_CREATE, _namespace_request(settings), timeout_ms))

    async def update_namespace(self, settings: Namespace, *, timeout_ms: int | None = None) -> Namespace:
        """Changes what is not None. Raises NamespaceNotFound."""
        return _namespace(await self._call(_UPDATE, _namespace_request(settings), timeout_ms))

    async def get_namespace(self, name: str | None = None, *, timeout_ms: int | None = None) -> Namespace:
        """Looks at one. Raises NamespaceNotFound."""
        return _namespace(await self._call(_GET, self._namespace_name(name), timeout_ms))

    async def list_namespaces(
        self, limit: int = 100, cursor: str | None = None, *, timeout_ms: int | None = None
    ) -> NamespacePage:
        """Namespaces by name."""
        reply = await self._call(_LIST, ttypes.ListRequest(ttypes.Page(limit, cursor)), timeout_ms)
        return NamespacePage([_namespace(raw) for raw in reply.namespaces or ()], reply.next_cursor)

    async def delete_namespace(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Deletes a namespace, with its grants and pauses. Raises InvalidArgument while it holds items."""
        await self._call(_DELETE, self._namespace_name(name), timeout_ms)

    async def usage(self, name: str | None = None, *, timeout_ms: int | None = None) -> Usage:
        """What a namespace holds."""
        reply = await self._call(_USAGE, self._namespace_name(name), timeout_ms)
        return Usage(reply.items, reply.bytes, reply.topics, reply.enqueues_last_minute)

    async def set_grant(
        self, principal: str, permissions: Iterable[str], namespace: str | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """A principal may do this in the namespace and nothing else; no permission at all revokes."""
        numbers = []
        for permission in permissions:
            if permission not in PERMISSIONS:
                raise errors.InvalidArgument(
                    f"{permission!r} is not a permission; use {', '.join(PERMISSIONS)}", field="permissions"
                )
            numbers.append(PERMISSIONS[permission])
        grant = ttypes.Grant(principal, self.namespace if namespace is None else namespace, numbers)
        await self._call(_SET_GRANT, ttypes.GrantRequest(grant), timeout_ms)

    async def grants(self, namespace: str | None = None, *, timeout_ms: int | None = None) -> list[Grant]:
        """The namespace's grants, by principal."""
        reply = await self._call(_LIST_GRANTS, self._namespace_name(namespace), timeout_ms)
        return [
            Grant(
                raw.principal or "",
                raw.namespace_name or "",
                tuple(_PERMISSION_NAMES.get(number, str(number)) for number in raw.permissions or ()),
            )
            for raw in reply.grants or ()
        ]

    async def pause_topic(self, topic: str, *, timeout_ms: int | None = None) -> None:
        """No more hand-outs of the topic until it is resumed, whatever happens meanwhile."""
        await self._call(_PAUSE, ttypes.TopicRequest(self.namespace, topic), timeout_ms)

    async def resume_topic(self, topic: str, *, timeout_ms: int | None = None) -> None:
        """The topic is handed out again; who waits for it is served."""
        await self._call(_RESUME, ttypes.TopicRequest(self.namespace, topic), timeout_ms)

    async def purge_topic(self, topic: str, *, timeout_ms: int | None = None) -> int:
        """Deletes all items that the topic holds now, in every state; how many those were, as far as they are counted.

        Items enqueued while it runs may survive; idempotency keys do. Whoever holds a delivery of it may ack it all
        the same. After UnknownOutcome some may be left: call again.
        """
        return int((await self._call(_PURGE, ttypes.TopicRequest(self.namespace, topic), timeout_ms)).items or 0)

    async def export_config(self, *, timeout_ms: int | None = None) -> str:
        """Namespaces with settings, grants and pauses, as JSON."""
        text: str | None = (await self._call(_EXPORT, ttypes.ListRequest(), timeout_ms)).json
        return text or ""

    async def import_config(self, json: str, *, timeout_ms: int | None = None) -> None:
        """Replaces all of it by what was exported. Raises InvalidArgument naming what is wrong and where."""
        await self._call(_IMPORT, ttypes.ConfigDocument(json), timeout_ms)

    def _namespace_name(self, name: str | None) -> Any:
        return ttypes.NamespaceName(self.namespace if name is None else name)


def _namespace_request(settings: Namespace) -> Any:
    return ttypes.NamespaceRequest(
        ttypes.NamespaceSettings(**{name: getattr(settings, name) for name in NAMESPACE_FIELDS})
    )


def _namespace(raw: Any) -> Namespace:
    values = {name: getattr(raw, name) for name in NAMESPACE_FIELDS}
    return Namespace(**{**values, "name": raw.name or ""})


_CREATE: Final = ThriftMethod("createNamespace", is_write=True)
_UPDATE: Final = ThriftMethod("updateNamespace", is_write=True)
_GET: Final = ThriftMethod("getNamespace")
_LIST: Final = ThriftMethod("listNamespaces")
_DELETE: Final = ThriftMethod("deleteNamespace", is_write=True)
_USAGE: Final = ThriftMethod("getUsage")
_SET_GRANT: Final = ThriftMethod("setGrant", is_write=True)
_LIST_GRANTS: Final = ThriftMethod("listGrants")
_PAUSE: Final = ThriftMethod("pauseTopic", is_write=True)
_RESUME: Final = ThriftMethod("resumeTopic", is_write=True)
_PURGE: Final = ThriftMethod("purgeTopic", is_write=True)
_EXPORT: Final = ThriftMethod("exportConfig")
_IMPORT: Final = ThriftMethod("importConfig", is_write=True)
