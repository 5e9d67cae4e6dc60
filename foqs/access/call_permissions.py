"""Who may make a call: what its row needs, compared with what a principal has.

Always true: a decision does not depend on whether the namespace exists. Knows nothing of
secrets, connections or how grants are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from foqs_contract.call_table import Requirement, Scope
from foqs_contract.errors import PermissionDenied

PermissionLookup: TypeAlias = Callable[[str, str], Collection[int]]
"""Returns the permissions of (principal, namespace). It is called for every request, so it must be fast."""


@dataclass(slots=True, frozen=True)
class Principal:
    """The owner of a token or certificate. With `is_admin` it may make all calls, on every namespace and the cluster."""

    name: str
    is_admin: bool = False


def denial(needed: Requirement, principal: Principal, granted: Collection[int]) -> PermissionDenied | None:
    """Return the error if the principal may not make a call. `granted`: its permissions on the namespace."""
    if principal.is_admin or needed.scope is Scope.AUTHENTICATED or needed.scope is Scope.PUBLIC:
        return None
    if needed.scope is Scope.CLUSTER:
        return PermissionDenied(
            f"this call affects the whole cluster, and {principal.name!r} is not an administrator; "
            "set admin = true for it in [auth.principals]",
            field="admin",
        )
    missing = needed.missing(granted)
    if missing is None:
        return None
    return PermissionDenied(
        f"{principal.name!r} needs the grant {needed} on the namespace; a principal with ADMIN on it can set it",
        field=missing.name,
    )
