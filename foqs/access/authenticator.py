"""Who may come in: a host's principals, and what is granted to them.

Holds the keyring in force. Always true: a peer is known by a token or a verified
certificate and by nothing else; who is known may do what `rules` and the grants
of this moment say. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from foqs.access.call_permissions import PermissionLookup, Principal
from foqs.access.keyring import Keyring, common_name
from foqs.options.auth_options import PRINCIPAL_NAME_BYTES_MAX


@dataclass(slots=True, frozen=True)
class AuthenticationLimits:
    """What a peer that nobody knows may cost; see `[auth]` in configs/foqs.toml."""

    timeout_s: float = 10.0
    failure_delay_s: float = 0.5
    failures_max: int = 3


class AuthenticationObserver(Protocol):
    """Who counts."""

    def authenticated(self, principal: str) -> None:
        """A connection has this principal from now on."""
        ...

    def authentication_failed(self) -> None:
        """A wrong token, or none, was shown."""
        ...


@dataclass(slots=True, frozen=True)
class AuthenticatedPrincipal:
    """A principal, and what it was known by."""

    principal: Principal
    credential_digest: bytes


class Authenticator:
    """What one host knows of its peers.

    Args:
        administrators: the principals that may do everything.
        permissions_of: what the others may do.

    Attributes:
        keyring: replaced when the files are read again.
    """

    def __init__(
        self,
        keyring: Keyring,
        administrators: Collection[str],
        permissions_of: PermissionLookup,
        observer: AuthenticationObserver,
        limits: AuthenticationLimits | None = None,
    ) -> None:
        self.keyring = keyring
        self.permissions_of = permissions_of
        self.observer = observer
        self.limits = limits or AuthenticationLimits()
        self._administrators = frozenset(administrators)

    def authenticate_token(self, token: bytes) -> AuthenticatedPrincipal | None:
        """Whose token it is; None: nobody's."""
        found = self.keyring.find_token(token)
        return None if found is None else AuthenticatedPrincipal(self._principal(found[0]), found[1])

    def authenticate_certificate(self, certificate: Mapping[str, object] | None) -> AuthenticatedPrincipal | None:
        """Whose verified certificate (as `ssl` gives it) it is; None: nobody's."""
        name, proof = common_name(certificate), self.keyring.client_ca_digest
        if proof is None or not name or not name.isprintable() or len(name.encode()) > PRINCIPAL_NAME_BYTES_MAX:
            return None
        return AuthenticatedPrincipal(self._principal(name), proof)

    def _principal(self, name: str) -> Principal:
        return Principal(name, name in self._administrators)
