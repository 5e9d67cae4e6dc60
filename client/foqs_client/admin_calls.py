"""The client's administrative calls: namespaces, grants, paused topics, policies of topics, the whole configuration.

Holds the calls, which `Client` inherits, with their arguments and results. Always
true: a change is durable when its call returns, and the host that replied applies
it. None in a `Namespace` that is sent means that the value is not set. Every call
is safe to repeat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foqs_client import errors
from foqs_client.conversion import fairness_name, fairness_number, order_name, order_number
from foqs_client.routed_calls import RoutedCalls
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

PERMISSIONS: Final = {"enqueue": 1, "consume": 2, "admin": 3}
_PERMISSION_NAMES: Final = {number: name for name, number in PERMISSIONS.items()}


@dataclass(slots=True, frozen=True)
class Namespace:
    """The settings of a namespace. A result holds the values in force, with the host's defaults.

    Attributes:
        name: the name of the namespace.
        tier: the tier whose hosts serve it.
        enqueues_per_minute: the maximum number of enqueued items per minute, over all hosts; 0 means no limit.
        backlog_items_max: enqueues are refused while it has this number of items; 0 means no limit.
        backlog_bytes_max: enqueues are refused while its payloads have this size; 0 means no limit.
        topics_max: items of new topics are refused while it has this number of topics on a
            host; 0 means no limit.
        payload_bytes_max: the largest payload.
        metadata_bytes_max: the largest metadata.
        lease_ms_default: the lease of items that set none.
        lease_ms_max: the longest lease.
        attempts_max_default: the `attempts_max` of items that set none; 0 means no limit.
        backoff_ms_min: the wait after the first nack without a delay; it doubles with each attempt.
        backoff_ms_max: the longest wait after a nack without a delay.
        dead_retention_ms: dead items are deleted after this time.
        key_window_ms: an idempotency key is remembered for this time.
        weight: its share of writes, reads and memory when they are short.
    """

    name: str
    tier: str | None = None
    enqueues_per_minute: int | None = None
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
    """A page of namespaces.

    Attributes:
        namespaces: the namespaces by name.
        next_cursor: pass it to the next call; None on the last page.
    """

    namespaces: list[Namespace]
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class Usage:
    """The usage of a namespace. A value that is not counted is None.

    Attributes:
        items: the number of its items.
        bytes: the size of their payloads.
        topics: the number of its topics.
        enqueues_last_minute: the items that were enqueued in the last minute.
    """

    items: int | None
    bytes: int | None
    topics: int | None
    enqueues_last_minute: int | None


@dataclass(slots=True, frozen=True)
class Grant:
    """The permissions of a principal in a namespace: any of "enqueue", "consume" and "admin"."""

    principal: str
    namespace: str
    permissions: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class TopicPolicy:
    """How the items of a topic are delivered.

    Attributes:
        topic: the name of the topic.
        group_leases_max: how many items of one group may be leased at once. 1: strict order. None: any number.
        fair: the groups take turns within each priority, and share the topic: by "items", or by the "time" that they hold
            leases. None: items come in their order.
        weights: with `fair`, at most 100 groups that get more than others, 1 to 100 times as much.
        order: "relaxed": a host delivers its own items though another host has better ones. None: it asks that host first.
    """

    topic: str
    group_leases_max: int | None = None
    fair: str | None = None
    weights: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    order: str | None = None


@dataclass(slots=True, frozen=True)
class AuditEntry:
    """A change that an administrator made, or that was refused.

    Attributes:
        at_ms: the moment of its end, in milliseconds since 1970-01-01 UTC by the clock of the host.
        principal: None if the host does not authenticate.
        peer: the address that the call came from; "console" or "sqs" before it, if it came over one of these.
        call: the call of the contract, or "sqs." and an action.
        namespace: None if it concerns the whole cluster.
        target: the item, topic or other object of the change, for people.
        outcome: "OK", or the code of the error.
        host: the name of the host that was called.
    """

    at_ms: int
    principal: str | None
    peer: str
    call: str
    namespace: str | None
    target: str
    outcome: str
    host: str


@dataclass(slots=True, frozen=True)
class AuditPage:
    """The last changes of all hosts, and the names of the hosts that did not report."""

    entries: list[AuditEntry]
    missing_hosts: tuple[str, ...]


class AdminCalls(RoutedCalls):
    """The administrative calls. The default namespace is the client's."""

    async def create_namespace(self, settings: Namespace, *, timeout_ms: int | None = None) -> Namespace:
        """Create a namespace and return its settings.

        Raises:
            InvalidArgument: it exists with other settings.
        """
        return _namespace(await self._call(_CREATE, _namespace_request(settings), timeout_ms))

    async def update_namespace(self, settings: Namespace, *, timeout_ms: int | None = None) -> Namespace:
        """Change the settings that are not None, and return all of them.

        Raises:
            NamespaceNotFound: there is no such namespace.
        """
        return _namespace(await self._call(_UPDATE, _namespace_request(settings), timeout_ms))

    async def get_namespace(self, name: str | None = None, *, timeout_ms: int | None = None) -> Namespace:
        """Return the settings of a namespace.

        Raises:
            NamespaceNotFound: there is no such namespace.
        """
        return _namespace(await self._call(_GET, self._namespace_name(name), timeout_ms))

    async def keys_until_ms(self, *, timeout_ms: int | None = None) -> int:
        """Return the latest `Item.key_until_ms` that an item of the namespace may name now.

        Raises:
            NamespaceNotFound: there is no such namespace.
            NotImplementedYet: the host has an older version, which knows no ends of keys.
        """
        reply = await self._call(_GET, self._namespace_name(None), timeout_ms)
        if reply.keys_until_ms is None:
            raise errors.NotImplementedYet("this host knows no ends of keys; upgrade the hosts first")
        return int(reply.keys_until_ms)

    async def incarnation(self, *, timeout_ms: int | None = None) -> int:
        """Return the number of the incarnation of the namespace: that of all items that are delivered now.

        Raises:
            NamespaceNotFound: there is no such namespace.
            NotImplementedYet: the host has an older version, which has no such numbers.
        """
        reply = await self._call(_GET, self._namespace_name(None), timeout_ms)
        if reply.incarnation is None:
            raise errors.NotImplementedYet("this host numbers no incarnations; upgrade the hosts first")
        return int(reply.incarnation)

    async def list_namespaces(
        self, limit: int = 100, cursor: str | None = None, *, timeout_ms: int | None = None
    ) -> NamespacePage:
        """List namespaces by name."""
        reply = await self._call(_LIST, ttypes.ListRequest(ttypes.Page(limit, cursor)), timeout_ms)
        return NamespacePage([_namespace(raw) for raw in reply.namespaces or ()], reply.next_cursor)

    async def delete_namespace(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Delete a namespace with its grants, pauses and policies.

        Raises:
            InvalidArgument: it still has items.
        """
        await self._call(_DELETE, self._namespace_name(name), timeout_ms)

    async def usage(self, name: str | None = None, *, timeout_ms: int | None = None) -> Usage:
        """Return how many items, payload bytes and topics a namespace has."""
        reply = await self._call(_USAGE, self._namespace_name(name), timeout_ms)
        return Usage(reply.items, reply.bytes, reply.topics, reply.enqueues_last_minute)

    async def set_grant(
        self, principal: str, permissions: Iterable[str], namespace: str | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Replace the permissions of a principal in the namespace. An empty list revokes the grant.

        Raises:
            InvalidArgument: a permission is not "enqueue", "consume" or "admin".
        """
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
        """List the grants of the namespace by principal."""
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
        """Stop deliveries of the topic until it is resumed, also across restarts."""
        await self._call(_PAUSE, ttypes.TopicRequest(self.namespace, topic), timeout_ms)

    async def resume_topic(self, topic: str, *, timeout_ms: int | None = None) -> None:
        """Start deliveries of the topic again. Dequeues that wait for it are served."""
        await self._call(_RESUME, ttypes.TopicRequest(self.namespace, topic), timeout_ms)

    async def set_topic_policy(self, policy: TopicPolicy, *, timeout_ms: int | None = None) -> None:
        """Replace the policy of a topic. A policy without any rule removes it.

        Raises:
            InvalidArgument: names the rule that is wrong.
            NotImplementedYet: a host of the cluster is of an older version, which would not keep it.
            LimitExceeded: the namespace would have too many policies, or too large a part of the catalog.
        """
        fair = None if policy.fair is None else fairness_number(policy.fair)
        weights = [ttypes.GroupWeight(group, weight) for group, weight in policy.weights.items()]
        order = None if policy.order is None else order_number(policy.order)
        raw = ttypes.TopicPolicy(policy.topic, policy.group_leases_max, fair, weights or None, order)
        await self._call(_SET_POLICY, ttypes.SetTopicPolicyRequest(self.namespace, raw), timeout_ms)

    async def topic_policies(self, *, timeout_ms: int | None = None) -> list[TopicPolicy]:
        """List the policies of the namespace by topic. Topics without one are missing."""
        reply = await self._call(_LIST_POLICIES, self._namespace_name(None), timeout_ms)
        return [
            TopicPolicy(
                raw.topic or "",
                raw.group_leases_max,
                fairness_name(raw.fair),
                {each.group or "": each.weight or 1 for each in raw.weights or ()},
                order_name(raw.order),
            )
            for raw in reply.policies or ()
        ]

    async def purge_topic(self, topic: str, *, timeout_ms: int | None = None) -> int:
        """Delete all items that the topic has now, in every state. Return their number, as far as they were counted.

        Items that are enqueued during the call may survive. Idempotency keys survive. An ack of a delivery of the topic
        still succeeds. After `UnknownOutcome`, some items may be left: call again.
        """
        return int((await self._call(_PURGE, ttypes.TopicRequest(self.namespace, topic), timeout_ms)).items or 0)

    async def export_config(self, *, timeout_ms: int | None = None) -> str:
        """Return all namespaces with their settings, grants, pauses and policies, as JSON."""
        text: str | None = (await self._call(_EXPORT, ttypes.ListRequest(), timeout_ms)).json
        return text or ""

    async def audit(
        self, limit: int = 100, namespace: str | None = None, *, timeout_ms: int | None = None
    ) -> AuditPage:
        """List the last changes that administrators made at all hosts, the newest first.

        Each host remembers its last 1,000 until it stops; its log has all of them.

        Args:
            limit: the maximum number of entries, up to 1,000.
            namespace: only changes that name it; None: all.
        """
        reply = await self._call(_AUDIT, ttypes.ListAuditRequest(limit, namespace), timeout_ms)
        return AuditPage([_audit_entry(raw) for raw in reply.entries or ()], tuple(reply.missing_hosts or ()))

    async def import_config(self, json: str, *, timeout_ms: int | None = None) -> None:
        """Replace all namespaces, settings, grants, pauses and policies by an export.

        Raises:
            InvalidArgument: the document is wrong; the message says what and where.
        """
        await self._call(_IMPORT, ttypes.ConfigDocument(json), timeout_ms)

    def _namespace_name(self, name: str | None) -> Any:
        return ttypes.NamespaceRequest(self.namespace if name is None else name)


def _namespace_request(settings: Namespace) -> Any:
    return ttypes.SetNamespaceRequest(
        ttypes.NamespaceSettings(**{name: getattr(settings, name) for name in NAMESPACE_FIELDS})
    )


def _namespace(raw: Any) -> Namespace:
    values = {name: getattr(raw, name) for name in NAMESPACE_FIELDS}
    return Namespace(**{**values, "name": raw.name or ""})


def _audit_entry(raw: Any) -> AuditEntry:
    return AuditEntry(
        raw.at_ms or 0,
        raw.principal,
        raw.peer or "",
        raw.call or "",
        raw.namespace_name,
        raw.target or "",
        raw.outcome or "",
        raw.host or "",
    )


_CREATE: Final = ThriftMethod("createNamespace")
_UPDATE: Final = ThriftMethod("updateNamespace")
_GET: Final = ThriftMethod("getNamespace")
_LIST: Final = ThriftMethod("listNamespaces")
_DELETE: Final = ThriftMethod("deleteNamespace")
_USAGE: Final = ThriftMethod("getUsage")
_SET_GRANT: Final = ThriftMethod("setGrant")
_LIST_GRANTS: Final = ThriftMethod("listGrants")
_PAUSE: Final = ThriftMethod("pauseTopic")
_RESUME: Final = ThriftMethod("resumeTopic")
_SET_POLICY: Final = ThriftMethod("setTopicPolicy")
_LIST_POLICIES: Final = ThriftMethod("listTopicPolicies")
_PURGE: Final = ThriftMethod("purgeTopic")
_EXPORT: Final = ThriftMethod("exportConfig")
_IMPORT: Final = ThriftMethod("importConfig")
_AUDIT: Final = ThriftMethod("listAudit")
