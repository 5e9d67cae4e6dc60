"""Who the clients of a simulated run are, and what is granted to them.

Holds the principals, their tokens, the gate that knows them and the catalog's document that
grants what they need for their work. Always true: the guest begins without any
grant; nothing of a secret is secret here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.access.call_permissions import PermissionLookup
from foqs.access.keyring import Keyring
from foqs.catalog.document import Document, Namespace, Permission
from tests.support.access import RecordingObserver

OPERATOR: Final = "operator"
"""An administrator: may do everything."""
PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
GUEST: Final = "guest"
"""Whose grants change all the time."""
_GRANTS: Final = {
    PRODUCER: frozenset((Permission.ENQUEUE, Permission.ADMIN)),
    CONSUMER: frozenset((Permission.CONSUME,)),
}
"""In every namespace that is there from the beginning."""
_LIMITS: Final = AuthenticationLimits(timeout_s=2.0, failure_delay_s=0.02)


def token(principal: str) -> str:
    """By which it is known."""
    return f"token of {principal}"


def gate(grants: PermissionLookup) -> Authenticator:
    """A host's, which knows all of them."""
    names = (OPERATOR, PRODUCER, CONSUMER, GUEST)
    keyring = Keyring({hashlib.sha256(token(name).encode()).digest(): name for name in names}, None, None)
    return Authenticator(keyring, [OPERATOR], grants, RecordingObserver(), _LIMITS)


def document(weights: Mapping[str, int]) -> Document:
    """A catalog's, with these namespaces."""
    namespaces = {name: Namespace(settings={"weight": weight}, grants=_GRANTS) for name, weight in weights.items()}
    return Document(1, namespaces)
