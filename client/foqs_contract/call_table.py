"""The calls of service Foqs: who may make each, what it does, and which hosts serve it.

Holds `CALLS`, one row for each call. Whatever client, host, tests and documents know of a
call beyond its structs follows from its row. Always true: every call of the contract has a
row; without it neither a client nor a host starts. Pure, without Thrift.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

FIRST_VERSION: Final = 1
"""The version of the first contract, and of a host that names none."""


class Permission(enum.IntEnum):
    """A permission of a principal in a namespace; the numbers of `Permission` in thrift/foqs.thrift."""

    ENQUEUE = 1
    CONSUME = 2
    ADMIN = 3


class Scope(enum.Enum):
    """The scope of a call: how far it reaches. It decides which principals may make the call."""

    PUBLIC = enum.auto()
    """The call is allowed without a principal."""
    AUTHENTICATED = enum.auto()
    """The call is allowed to every principal."""
    NAMESPACE = enum.auto()
    """The call affects one namespace, and needs a grant on it."""
    CLUSTER = enum.auto()
    """The call affects all namespaces or the hosts, and needs an administrator."""


@dataclass(slots=True, frozen=True)
class Requirement:
    """The requirement of a call: its scope, and the permissions of which a principal needs one, or all.

    Attributes:
        any_of: the permissions of which a call of a NAMESPACE needs one.
        namespace_field: the path of the request's field that names the namespace.
        all_of: the permissions that a call of a NAMESPACE needs, each of them; `any_of` is empty then.
    """

    scope: Scope
    any_of: tuple[Permission, ...] = ()
    namespace_field: str = "namespace_name"
    all_of: tuple[Permission, ...] = ()

    @property
    def is_of_administrators(self) -> bool:
        """Whether only administrators, of the cluster or of the namespace, may make the call."""
        return self.scope is Scope.CLUSTER or self.any_of == (Permission.ADMIN,)

    def __str__(self) -> str:
        words = " and ".join(one.name for one in self.all_of) or " or ".join(one.name for one in self.any_of)
        return words or _WORDS[self.scope]

    def missing(self, granted: Collection[int]) -> Permission | None:
        """Return a permission that a call of a NAMESPACE still needs; None if these are enough."""
        if self.all_of:
            return next((permission for permission in self.all_of if permission not in granted), None)
        return None if any(permission in granted for permission in self.any_of) else self.any_of[0]


_WORDS: Final = {
    Scope.PUBLIC: "everybody",
    Scope.AUTHENTICATED: "every principal",
    Scope.CLUSTER: "administrators of the cluster",
}


class Route(enum.Enum):
    """The hosts of a tier that serve a call, whether or not they received it. The value describes them in words."""

    HERE = "the called host, about itself"
    """The call is never forwarded."""
    ANY = "any host: all of them know the same"
    """The call reads or writes documents of the registry: the catalog, the layout, the bulk jobs."""
    REPORTED = "any host, from what all hosts report"
    """The call is answered from gossip."""
    BY_ID = "the owner of each entry's shard"
    """`foqs.cluster.forwarding.by_id_calls` sends the entries of `entries` to the owners of their ids. The reply has an outcome for each."""
    BY_SHARD = "the owner of its one shard"
    """The call names a shard, or the id of one item. `foqs.cluster.forwarding.by_id_calls` forwards it as a whole."""
    ALL_SHARDS = "the owners of all shards, merged"
    """`foqs.cluster.forwarding.scatter_gather` holds the merge."""
    ALL_HOSTS = "all hosts, merged"
    """`foqs.cluster.forwarding.all_hosts` holds the merge."""
    PLACED = "the called host, or the owner of the key's slot, or a host with room"
    """Items go to another host if this one refuses them; see `foqs.cluster.forwarding.enqueues`."""
    BEST = "the host with the best items"
    """A dequeue goes to one peer at a time; see `foqs.cluster.forwarding.dequeues`."""


READS: Final = False
WRITES: Final = True


@dataclass(slots=True, frozen=True)
class CallRow:
    """One call of the contract.

    Attributes:
        writes: it can change something. A call that only reads and ends without a reply had no effect.
        entries: for BY_ID: the request's list, whose entries are ids or have an `id`.
        since: the first version of the contract with the call.
        settles: it ends a delivery or prolongs it. Without room for it, work that was done is done again.
        waits: a request with `wait_ms` waits for items, and clients often repeat it.
    """

    name: str
    requirement: Requirement
    writes: bool
    route: Route
    entries: str = ""
    since: int = FIRST_VERSION
    settles: bool = False
    waits: bool = False

    @property
    def is_audited(self) -> bool:
        """Whether each call is noted in the audit: a change that only administrators may make."""
        return self.writes and self.requirement.is_of_administrators


_ANYBODY: Final = Requirement(Scope.PUBLIC)
_PRINCIPAL: Final = Requirement(Scope.AUTHENTICATED)
_CLUSTER: Final = Requirement(Scope.CLUSTER)
_ENQUEUE: Final = Requirement(Scope.NAMESPACE, (Permission.ENQUEUE,))
_CONSUME: Final = Requirement(Scope.NAMESPACE, (Permission.CONSUME,))
_COMPLETE: Final = Requirement(Scope.NAMESPACE, all_of=(Permission.CONSUME, Permission.ENQUEUE))
_READ: Final = Requirement(Scope.NAMESPACE, (Permission.CONSUME, Permission.ADMIN))
_ADMIN: Final = Requirement(Scope.NAMESPACE, (Permission.ADMIN,))
_GRANTED: Final = Requirement(Scope.NAMESPACE, (Permission.ENQUEUE, Permission.CONSUME, Permission.ADMIN))
_GRANT: Final = Requirement(Scope.NAMESPACE, (Permission.ADMIN,), "grant.namespace_name")

_ROWS: Final = (
    CallRow("authenticate", _ANYBODY, READS, Route.HERE),
    # The life of an item.
    CallRow("enqueue", _ENQUEUE, WRITES, Route.PLACED),
    CallRow("dequeue", _CONSUME, WRITES, Route.BEST, waits=True),
    CallRow("abandonDequeues", _PRINCIPAL, WRITES, Route.HERE, since=2, settles=True),  # of its own connection only
    CallRow("ack", _CONSUME, WRITES, Route.BY_ID, "leases", settles=True),
    CallRow("complete", _COMPLETE, WRITES, Route.BY_ID, "completions", since=2, settles=True),
    CallRow("nack", _CONSUME, WRITES, Route.BY_ID, "nacks", settles=True),
    CallRow("extendLease", _CONSUME, WRITES, Route.BY_ID, "extensions", settles=True),
    CallRow("release", _CONSUME, WRITES, Route.BY_ID, "leases", settles=True),
    # What is there.
    CallRow("getActiveTopics", _READ, READS, Route.REPORTED),
    CallRow("listGroups", _READ, READS, Route.ALL_SHARDS, since=2),
    CallRow("peek", _READ, READS, Route.ALL_SHARDS),
    CallRow("getItem", _READ, READS, Route.BY_SHARD),
    CallRow("explain", _READ, READS, Route.BY_SHARD),
    CallRow("countItems", _READ, READS, Route.ALL_SHARDS),
    CallRow("listItems", _READ, READS, Route.BY_SHARD, since=2),
    CallRow("listDead", _READ, READS, Route.ALL_SHARDS),
    # Changes of items.
    CallRow("cancel", _ADMIN, WRITES, Route.BY_ID, "ids"),
    CallRow("update", _ADMIN, WRITES, Route.BY_ID, "ids"),
    CallRow("extendHeldLeases", _ADMIN, WRITES, Route.BY_ID, "ids", since=2),
    CallRow("redrive", _ADMIN, WRITES, Route.BY_ID, "ids"),
    CallRow("moveItems", _ADMIN, WRITES, Route.BY_ID, "ids", since=2),
    CallRow("restoreItems", _ADMIN, WRITES, Route.PLACED, since=2),
    CallRow("bulk", _ADMIN, WRITES, Route.ALL_SHARDS),
    CallRow("startBulkJob", _ADMIN, WRITES, Route.ANY, since=2),
    CallRow("listBulkJobs", _READ, READS, Route.ANY, since=2),
    CallRow("controlBulkJob", _ADMIN, WRITES, Route.ANY, since=2),
    CallRow("purgeTopic", _ADMIN, WRITES, Route.ALL_SHARDS),
    # The catalog.
    CallRow("createNamespace", _CLUSTER, WRITES, Route.ANY),
    CallRow("updateNamespace", _CLUSTER, WRITES, Route.ANY),  # a tenant must not raise its own limits
    CallRow("getNamespace", _GRANTED, READS, Route.ANY),  # a producer must know its limits, such as the key window
    CallRow("listNamespaces", _CLUSTER, READS, Route.ANY),
    CallRow("deleteNamespace", _CLUSTER, WRITES, Route.ANY),
    CallRow("getUsage", _ADMIN, READS, Route.ALL_SHARDS),
    CallRow("setGrant", _GRANT, WRITES, Route.ANY),
    CallRow("listGrants", _ADMIN, READS, Route.ANY),
    CallRow("pauseTopic", _ADMIN, WRITES, Route.ANY),
    CallRow("resumeTopic", _ADMIN, WRITES, Route.ANY),
    CallRow("setTopicPolicy", _ADMIN, WRITES, Route.ANY, since=2),
    CallRow("listTopicPolicies", _READ, READS, Route.ANY, since=2),
    CallRow("bindTopic", _ADMIN, WRITES, Route.ANY),
    CallRow("exportConfig", _CLUSTER, READS, Route.ANY),
    CallRow("importConfig", _CLUSTER, WRITES, Route.ANY),
    # Shards and hosts.
    CallRow("listShards", _CLUSTER, READS, Route.ANY),
    CallRow("addShard", _CLUSTER, WRITES, Route.ANY),
    CallRow("removeShard", _CLUSTER, WRITES, Route.ANY),
    CallRow("moveShard", _CLUSTER, WRITES, Route.ANY),
    CallRow("drainShard", _CLUSTER, WRITES, Route.ANY),
    CallRow("undrainShard", _CLUSTER, WRITES, Route.ANY),
    CallRow("listHosts", _CLUSTER, READS, Route.ANY),
    CallRow("drainHost", _CLUSTER, WRITES, Route.ANY),
    CallRow("undrainHost", _CLUSTER, WRITES, Route.ANY),
    CallRow("listAudit", _CLUSTER, READS, Route.ALL_HOSTS, since=2),
    CallRow("getRouting", _PRINCIPAL, READS, Route.ANY),
    # Between hosts.
    CallRow("gossip", _CLUSTER, READS, Route.HERE),
    CallRow("rankItem", _CLUSTER, READS, Route.HERE, since=2),
)

CALLS: Final[Mapping[str, CallRow]] = {row.name: row for row in _ROWS}
"""The row of each call by its name."""
