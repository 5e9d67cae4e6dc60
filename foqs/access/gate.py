"""Who may come in: a host's principals, and what is granted to them.

Holds the keyring in force. Always true: a peer is known by a token or a verified
certificate and by nothing else; who is known may do what `rules` and the grants
of this moment say. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from foqs.access.keyring import Keyring, common_name
from foqs.access.options import NAME_BYTES_MAX
from foqs.access.rules import Grants, Principal


@dataclass(slots=True, frozen=True)
class GateLimits:
    """What a peer that nobody knows may cost; see `[auth]` in configs/foqs.toml."""

    timeout_s: float = 10.0
    failure_delay_s: float = 0.5
    failures_max: int = 3


class Observer(Protocol):
    """Who counts."""

    def authenticated(self, principal: str) -> None:
        """A connection has this principal from now on."""
        ...

    def authentication_failed(self) -> None:
        """A wrong token, or none, was shown."""
        ...


@dataclass(slots=True, frozen=True)
class Known:
    """A principal, and what it was known by."""

    principal: Principal
    proof: bytes


class Gate:
    """What one host knows of its peers.

    Args:
        administrators: the principals that may do everything.
        grants: what the others may do.

    Attributes:
        keyring: replaced when the files are read again.
    """

    def __init__(
        self,
        keyring: Keyring,
        administrators: Collection[str],
        grants: Grants,
        observer: Observer,
        limits: GateLimits | None = None,
    ) -> None:
        self.keyring = keyring
        self.grants = grants
        self.observer = observer
        self.limits = limits or GateLimits()
        self._administrators = frozenset(administrators)

    def by_token(self, token: bytes) -> Known | None:
        """Whose token it is; None: nobody's."""
        found = self.keyring.holder(token)
        return None if found is None else Known(self._principal(found[0]), found[1])

    def by_certificate(self, certificate: Mapping[str, object] | None) -> Known | None:
        """Whose verified certificate (as `ssl` gives it) it is; None: nobody's."""
        name, proof = common_name(certificate), self.keyring.client_ca
        if proof is None or not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
            return None
        return Known(self._principal(name), proof)

    def _principal(self, name: str) -> Principal:
        return Principal(name, name in self._administrators)
