"""The auth session of a connection: its principal, and what the principal may call.

Always true: without a principal only `authenticate` may be called; permissions
are checked when a call starts, by the grants of that moment, and while a dequeue waits
again after each change of the catalog; a wrong token
removes the principal, and its reply is delayed, one at a time; tokens are never
logged or returned. Knows nothing of bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from foqs.access.authenticator import AuthenticatedPrincipal, Authenticator
from foqs.access.call_permissions import denial
from foqs.queue.port import PendingCall
from foqs.rpc import codec
from foqs.rpc.methods import Caller, ServerMethod
from foqs_contract.call_table import Scope
from foqs_contract.contract_version import CONTRACT_VERSION
from foqs_contract.errors import Unauthenticated
from foqs_contract.idl import ttypes

UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 8_192
"""Longer frames of a peer without a principal are shed: all that it needs to send is its token."""


class SessionConnection(Protocol):
    """The connection, as its auth session needs it."""

    peer_address: str

    def set_principal(self, name: str | None) -> None:
        """Set the peer's principal, or remove it (None)."""
        ...

    def log_warning(self, text: str) -> None: ...

    def close(self) -> None: ...


class AuthSession:
    """The authentication of one connection's peer."""

    __slots__ = (
        "_authenticated",
        "_authenticator",
        "_connection",
        "_failure_count",
        "_is_failure_reply_pending",
        "_loop",
    )

    def __init__(
        self, authenticator: Authenticator, connection: SessionConnection, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._authenticator = authenticator
        self._connection = connection
        self._loop = loop
        self._authenticated: AuthenticatedPrincipal | None = None
        self._failure_count = 0
        self._is_failure_reply_pending = False

    def on_connected(
        self, certificate: Mapping[str, object] | None, known: AuthenticatedPrincipal | None = None
    ) -> None:
        """Start the session.

        Args:
            certificate: the peer's verified certificate, if there is one.
            known: the peer, if it is a part of this host that has authenticated a principal itself.
        """
        authenticated = known or self._authenticator.authenticate_certificate(certificate)
        if authenticated is not None:
            self._on_authenticated(authenticated)
            return
        self._connection.set_principal(None)
        if certificate:
            self._connection.log_warning(
                "its certificate names no principal: it needs exactly one printable common name"
            )

    @property
    def is_revoked(self) -> bool:
        """Whether the peer's token or certificate is no longer valid."""
        return self._authenticated is not None and not self._authenticator.keyring.is_valid_credential(
            self._authenticated.credential_digest
        )

    @property
    def principal_name(self) -> str | None:
        """The name of the peer's principal; None if it has none."""
        return None if self._authenticated is None else self._authenticated.principal.name

    @property
    def is_administrator(self) -> bool:
        """Whether the peer is an administrator, as other hosts of the tier are."""
        return self._authenticated is not None and self._authenticated.principal.is_admin

    def require_principal(self, method: ServerMethod) -> None:
        """Check, before the request is decoded, that the peer is authenticated. Raises Unauthenticated."""
        if self._authenticated is None and method.row.requirement.scope is not Scope.PUBLIC:
            raise Unauthenticated(
                "this host requires authentication; authenticate with a token or a client certificate first"
            )

    def authorize(self, method: ServerMethod, request: Any) -> None:
        """Check the decoded request. Raises PermissionDenied, or InvalidArgument if it names no namespace."""
        authenticated = self._authenticated
        if authenticated is None or authenticated.principal.is_admin:
            return
        requirement = method.row.requirement
        granted: Collection[int] = ()
        if requirement.scope is Scope.NAMESPACE:
            namespace = codec.parse_name(method.namespace_of(request), requirement.namespace_field)
            granted = self._authenticator.permissions_of(authenticated.principal.name, namespace)
        refusal = denial(requirement, authenticated.principal, granted)
        if refusal is not None:
            if method.on_denied is not None:
                method.on_denied(request, self, self._connection.peer_address)
            raise refusal

    def authenticate(self, token: bytes | None, caller: Caller) -> PendingCall | None:
        """Reply with the token's principal; without a token, with the current principal.

        Raises:
            Unauthenticated: the reply to a wrong token is still pending.
        """
        if self._is_failure_reply_pending:
            raise Unauthenticated("the reply to a wrong token is still pending; wait for it")
        authenticated = self._authenticated
        if token is not None:
            authenticated = self._authenticator.authenticate_token(token)
            if authenticated is not None:
                self._on_authenticated(authenticated)
        if authenticated is None:
            self._on_authentication_failed("no token" if token is None else "a wrong token")
            self._loop.call_later(
                self._authenticator.limits.failure_delay_s, self._reply_failure, token is None, caller
            )
            return _DELAYED_REPLY
        caller.reply(_authenticate_reply, authenticated.principal.name)
        return None

    def _on_authenticated(self, authenticated: AuthenticatedPrincipal) -> None:
        self._authenticated = authenticated
        self._authenticator.observer.authenticated(authenticated.principal.name)
        self._connection.set_principal(authenticated.principal.name)

    def _on_authentication_failed(self, credential: str) -> None:
        self._is_failure_reply_pending = True
        self._authenticated = None
        self._failure_count += 1
        self._authenticator.observer.authentication_failed()
        self._connection.set_principal(None)
        self._connection.log_warning(
            f"sent {credential} ({self._failure_count} of {self._authenticator.limits.failures_max})"
        )

    def _reply_failure(self, without_token: bool, caller: Caller) -> None:
        caller.fail(
            Unauthenticated("there is no token, and no client certificate that names a principal; send one")
            if without_token
            else Unauthenticated(
                "this token belongs to no principal; check that client and host have files with the same secret"
            )
        )
        self._is_failure_reply_pending = False
        if self._failure_count >= self._authenticator.limits.failures_max:
            self._connection.close()


class _DelayedReply:
    """A call whose failure is sent later."""

    def abandon(self) -> None:
        """Do nothing: the failure is still counted."""


_DELAYED_REPLY: Final = _DelayedReply()


def _authenticate_reply(principal: str | None) -> Any:
    return ttypes.AuthenticateReply(principal, CONTRACT_VERSION)


def authenticate(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
    """Serve `authenticate`. A host without authentication replies without a principal."""
    session = caller.session
    if session is None:
        caller.reply(_authenticate_reply, None)
        return None
    return session.authenticate(request.token, caller)
