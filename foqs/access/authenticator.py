"""Authenticates the peers of a host by its current keyring.

Always true: a peer is authenticated only by a token or a verified certificate;
what it may do depends on `call_permissions` and the grants at that moment. Knows
nothing of connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from foqs.access.call_permissions import PermissionLookup, Principal
from foqs.access.keyring import Keyring, common_name
from foqs.options.auth_options import PRINCIPAL_NAME_BYTES_MAX


@dataclass(slots=True, frozen=True)
class AuthenticationLimits:
    """Limits for peers that are not authenticated. The defaults are those of a host."""

    timeout_s: float = 10.0
    """A connection without a principal is closed after this time, so that it occupies no place."""
    failure_delay_s: float = 0.5
    """A wrong token is refused after this delay, so that guessing takes long."""
    failures_max: int = 3
    """A connection is closed after this number of wrong tokens: a person can correct a mistake."""


class AuthenticationObserver(Protocol):
    """Counts authentications."""

    def authenticated(self, principal: str) -> None:
        """Count a connection that was authenticated as this principal."""
        ...

    def authentication_failed(self) -> None:
        """Count a wrong or missing token."""
        ...


@dataclass(slots=True, frozen=True)
class AuthenticatedPrincipal:
    """A principal, and the digest of the credential that proved it."""

    principal: Principal
    credential_digest: bytes


class Authenticator:
    """Authenticates the peers of one host.

    Args:
        administrators: the principals that may make all calls.
        permissions_of: returns the permissions of the others.

    Attributes:
        keyring: the keyring, which is replaced when the files are read again.
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
        """Return the principal that owns the token; None if there is none."""
        found = self.keyring.find_token(token)
        return None if found is None else AuthenticatedPrincipal(self.principal(found[0]), found[1])

    def authenticated_by_token(self, name: str) -> list[AuthenticatedPrincipal]:
        """Return the principal of this name once for each of its tokens."""
        return [
            AuthenticatedPrincipal(self.principal(name), digest)
            for digest, owner in self.keyring.principal_by_digest.items()
            if owner == name
        ]

    def authenticate_certificate(self, certificate: Mapping[str, object] | None) -> AuthenticatedPrincipal | None:
        """Return the principal of a verified certificate, in the form of `ssl`; None if there is none."""
        name, ca_digest = common_name(certificate), self.keyring.client_ca_digest
        if ca_digest is None or not name or not name.isprintable() or len(name.encode()) > PRINCIPAL_NAME_BYTES_MAX:
            return None
        return AuthenticatedPrincipal(self.principal(name), ca_digest)

    def signing_secrets_of(self, name: str) -> Sequence[str]:
        """Return the secrets of which each may sign a request of this principal; none if there is no such principal."""
        return self.keyring.signing_secrets.get(name, ())

    def principal(self, name: str) -> Principal:
        """Return the principal of a name that was authenticated."""
        return Principal(name, name in self._administrators)
