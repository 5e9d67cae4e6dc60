"""The permissions, and a table of which call needs which.

Always true: a call that the table lacks is allowed to nobody; a decision does not
depend on whether the namespace exists. Knows nothing of secrets, connections or
how grants are stored.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from foqs_contract.errors import PermissionDenied


class Permission(enum.IntEnum):
    """A permission of a principal in a namespace; the numbers of `Permission` in thrift/foqs.thrift."""

    ENQUEUE = 1
    CONSUME = 2
    ADMIN = 3


PermissionLookup: TypeAlias = Callable[[str, str], Collection[int]]
"""Returns the permissions of (principal, namespace). It is called for every request, so it must be fast."""


@dataclass(slots=True, frozen=True)
class Principal:
    """The owner of a token or certificate. With `is_admin` it may make all calls, on every namespace and the cluster."""

    name: str
    is_admin: bool = False


class Scope(enum.Enum):
    """The scope of a call decides what it needs."""

    PUBLIC = enum.auto()
    """Allowed without a principal."""
    AUTHENTICATED = enum.auto()
    """Allowed to every principal."""
    NAMESPACE = enum.auto()
    """Affects one namespace: needs a grant on it."""
    CLUSTER = enum.auto()
    """Affects all namespaces or the hosts: needs an administrator."""


@dataclass(slots=True, frozen=True)
class Requirement:
    """The requirement of a call.

    Attributes:
        any_of: for NAMESPACE: one of these permissions is needed.
        namespace_field: the path of the request's field that names the namespace.
    """

    scope: Scope
    any_of: tuple[Permission, ...] = ()
    namespace_field: str = "namespace_name"

    @property
    def is_of_administrators(self) -> bool:
        """Whether only administrators, of the cluster or of the namespace, may make the call."""
        return self.scope is Scope.CLUSTER or self.any_of == (Permission.ADMIN,)

    def refusal(self, principal: Principal, granted: Collection[int]) -> PermissionDenied | None:
        """Return the error if the principal may not make the call. `granted`: its permissions on the namespace."""
        if principal.is_admin or self.scope is Scope.AUTHENTICATED or self.scope is Scope.PUBLIC:
            return None
        for permission in self.any_of:
            if permission in granted:
                return None
        if self.scope is Scope.CLUSTER:
            return PermissionDenied(
                f"this call affects the whole cluster, and {principal.name!r} is not an administrator; "
                "set admin = true for it in [auth.principals]",
                field="admin",
            )
        wanted = " or ".join(permission.name for permission in self.any_of)
        return PermissionDenied(
            f"{principal.name!r} needs the grant {wanted} on the namespace; a principal with ADMIN on it can set it",
            field=self.any_of[0].name,
        )


_PUBLIC: Final = Requirement(Scope.PUBLIC)
_AUTHENTICATED: Final = Requirement(Scope.AUTHENTICATED)
_CLUSTER: Final = Requirement(Scope.CLUSTER)
_ENQUEUE: Final = Requirement(Scope.NAMESPACE, (Permission.ENQUEUE,))
_CONSUME: Final = Requirement(Scope.NAMESPACE, (Permission.CONSUME,))
_READ: Final = Requirement(Scope.NAMESPACE, (Permission.CONSUME, Permission.ADMIN))
_ADMIN: Final = Requirement(Scope.NAMESPACE, (Permission.ADMIN,))
_ANY: Final = Requirement(Scope.NAMESPACE, (Permission.ENQUEUE, Permission.CONSUME, Permission.ADMIN))

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    "authenticate": _PUBLIC,
    "getRouting": _AUTHENTICATED,
    "abandonDequeues": _AUTHENTICATED,  # it names calls of its own connection only
    "enqueue": _ENQUEUE,
    "dequeue": _CONSUME,
    "ack": _CONSUME,
    "nack": _CONSUME,
    "extendLease": _CONSUME,
    "release": _CONSUME,
    "getActiveTopics": _READ,
    "peek": _READ,
    "getItem": _READ,
    "explain": _READ,
    "countItems": _READ,
    "listItems": _READ,
    "listDead": _READ,
    "listBulkJobs": _READ,
    "cancel": _ADMIN,
    "update": _ADMIN,
    "extendHeldLeases": _ADMIN,
    "bulk": _ADMIN,
    "startBulkJob": _ADMIN,
    "controlBulkJob": _ADMIN,
    "redrive": _ADMIN,
    "moveItems": _ADMIN,
    "restoreItems": _ADMIN,
    "getNamespace": _ANY,  # a producer must know its limits, such as the key window
    "getUsage": _ADMIN,
    "setGrant": Requirement(Scope.NAMESPACE, (Permission.ADMIN,), "grant.namespace_name"),
    "listGrants": _ADMIN,
    "pauseTopic": _ADMIN,
    "resumeTopic": _ADMIN,
    "purgeTopic": _ADMIN,
    "bindTopic": _ADMIN,
    "createNamespace": _CLUSTER,
    "updateNamespace": _CLUSTER,  # a tenant must not raise its own limits
    "deleteNamespace": _CLUSTER,
    "listNamespaces": _CLUSTER,
    "exportConfig": _CLUSTER,
    "importConfig": _CLUSTER,
    "listShards": _CLUSTER,
    "addShard": _CLUSTER,
    "removeShard": _CLUSTER,
    "moveShard": _CLUSTER,
    "drainShard": _CLUSTER,
    "undrainShard": _CLUSTER,
    "listHosts": _CLUSTER,
    "drainHost": _CLUSTER,
    "undrainHost": _CLUSTER,
    "gossip": _CLUSTER,
    "listAudit": _CLUSTER,
    "rankItem": _CLUSTER,
}
"""The requirement of each call of the contract, by its name."""
