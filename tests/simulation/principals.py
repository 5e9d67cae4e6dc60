"""The principals of a simulated run and their grants.

Holds the principals, their tokens, an authenticator for them, and the catalog
document with the grants that they need. Always true: the guest begins without
grants. The tokens are not secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.access.call_permissions import PermissionLookup
from foqs.access.keyring import Keyring
from foqs.catalog.document import Document, NamespaceRecord, Permission
from tests.support.access import RecordingObserver

OPERATOR: Final = "operator"
"""An administrator, which may make every call."""
PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
GUEST: Final = "guest"
"""Its grants change all the time."""
_GRANTS: Final = {
    PRODUCER: frozenset((Permission.ENQUEUE, Permission.ADMIN)),
    CONSUMER: frozenset((Permission.CONSUME,)),
}
"""The grants in every namespace that exists from the beginning."""
_LIMITS: Final = AuthenticationLimits(timeout_s=2.0, failure_delay_s=0.02)


def token(principal: str) -> str:
    """Return the token of a principal."""
    return f"token of {principal}"


def gate(grants: PermissionLookup) -> Authenticator:
    """Return the authenticator of a host, which knows all principals."""
    names = (OPERATOR, PRODUCER, CONSUMER, GUEST)
    keyring = Keyring({hashlib.sha256(token(name).encode()).digest(): name for name in names}, None, None)
    return Authenticator(keyring, [OPERATOR], grants, RecordingObserver(), _LIMITS)


def document(weights: Mapping[str, int]) -> Document:
    """Return a catalog document with these namespaces."""
    namespaces = {
        name: NamespaceRecord(settings={"weight": weight}, grants=_GRANTS) for name, weight in weights.items()
    }
    return Document(1, namespaces)
