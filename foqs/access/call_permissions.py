"""Who may make which call: one table.

Holds what every call of the contract needs, and the judgement of a principal by
it. Always true: what the table does not name is allowed to nobody; whether a
namespace exists changes no answer. Knows nothing of secrets, connections or how
grants are stored.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from foqs.access.permission import Permission as Permission
from foqs.core.errors import PermissionDenied

PermissionLookup: TypeAlias = Callable[[str, str], Collection[int]]
"""(principal, namespace) to the permissions granted; asked at every call, so it must be a look-up."""


@dataclass(slots=True, frozen=True)
class Principal:
    """Who calls. One with `is_admin` may do everything, in every namespace and to the cluster."""

    name: str
    is_admin: bool = False


class Scope(enum.Enum):
    """What a call concerns."""

    PUBLIC = enum.auto()
    """Allowed before a principal is known."""
    AUTHENTICATED = enum.auto()
    """Nothing that is somebody's: allowed to every principal."""
    NAMESPACE = enum.auto()
    """One namespace: a grant on it is needed."""
    CLUSTER = enum.auto()
    """All namespaces, or the hosts: for administrators."""


@dataclass(slots=True, frozen=True)
class Requirement:
    """What a call needs.

    Attributes:
        any_of: with NAMESPACE, one of these; the first is named in a refusal.
        namespace: the path of the request's field that names the namespace.
    """

    scope: Scope
    any_of: tuple[Permission, ...] = ()
    namespace_field: str = "namespace_name"

    def refusal(self, principal: Principal, granted: Collection[int]) -> PermissionDenied | None:
        """Why the principal may not; None when it may. `granted` is on the call's namespace."""
        if principal.is_admin or self.scope is Scope.AUTHENTICATED or self.scope is Scope.PUBLIC:
            return None
        for permission in self.any_of:
            if permission in granted:
                return None
        if self.scope is Scope.CLUSTER:
            return PermissionDenied(
                f"this concerns the whole cluster and {principal.name!r} is no administrator; set admin = true for it in "
                "[auth.principals]",
                field="admin",
            )
        wanted = " or ".join(permission.name for permission in self.any_of)
        return PermissionDenied(
            f"{principal.name!r} needs the grant {wanted} on the namespace; somebody with ADMIN on it can give it",
            field=self.any_of[0].name,
        )


_PUBLIC: Final = Requirement(Scope.PUBLIC)
_AUTHENTICATED: Final = Requirement(Scope.AUTHENTICATED)
_CLUSTER: Final = Requirement(Scope.CLUSTER)
_ENQUEUE: Final = Requirement(Scope.NAMESPACE, (Permission.ENQUEUE,))
_CONSUME: Final = Requirement(Scope.NAMESPACE, (Permission.CONSUME,))
_READ: Final = Requirement(Scope.NAMESPACE, (Permission.CONSUME, Permission.ADMIN))
_ADMIN: Final = Requirement(Scope.NAMESPACE, (Permission.ADMIN,))

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    "authenticate": _PUBLIC,
    "getRouting": _AUTHENTICATED,
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
    "listDead": _READ,
    "cancel": _ADMIN,
    "update": _ADMIN,
    "bulk": _ADMIN,
    "redrive": _ADMIN,
    "getNamespace": _ADMIN,
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
}
"""What each call of the contract needs, by its name."""
