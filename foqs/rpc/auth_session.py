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
from typing import Final, Protocol

from foqs.access.authenticator import AuthenticatedPrincipal, Authenticator
from foqs.access.call_permissions import Principal, denial
from foqs.queue.port import PendingCall
from foqs.rpc import request_structs
from foqs.rpc.call import Call, ServerMethod
from foqs_contract.call_table import Scope
from foqs_contract.contract_version import CONTRACT_VERSION
from foqs_contract.errors import Unauthenticated
from foqs_contract.idl import ttypes
from foqs_contract.request import Request

UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 8_192
"""The longest frame of a peer without a principal, which has only its token to send. Longer ones are shed."""


class SessionConnection(Protocol):
    """The part of a connection that its auth session uses."""

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
        "principal",
    )

    def __init__(
        self, authenticator: Authenticator, connection: SessionConnection, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._authenticator = authenticator
        self._connection = connection
        self._loop = loop
        self._authenticated: AuthenticatedPrincipal | None = None
        self.principal: Principal | None = None
        """The principal of the peer; None if it has none."""
        self._failure_count = 0
        self._is_failure_reply_pending = False

    def on_connected(
        self, certificate: Mapping[str, object] | None, known: AuthenticatedPrincipal | None = None
    ) -> None:
        """Start the session.

        Args:
            certificate: the peer's verified certificate, if there is one.
            known: the principal, if the peer is a part of this host that has authenticated it.
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

    def require_principal(self, method: ServerMethod) -> None:
        """Check, before the request is decoded, that the peer is authenticated. Raises Unauthenticated."""
        if self.principal is None and method.row.requirement.scope is not Scope.PUBLIC:
            raise Unauthenticated(
                "this host requires authentication; authenticate with a token or a client certificate first"
            )

    def authorize(self, method: ServerMethod, request: Request) -> None:
        """Check the decoded request. Raises PermissionDenied, or InvalidArgument if it names no namespace."""
        principal = self.principal
        if principal is None or principal.is_admin:
            return
        requirement = method.row.requirement
        granted: Collection[int] = ()
        if requirement.scope is Scope.NAMESPACE:
            namespace = request_structs.parse_name(method.namespace_of(request), requirement.namespace_field)
            granted = self._authenticator.permissions_of(principal.name, namespace)
        refusal = denial(requirement, principal, granted)
        if refusal is not None:
            raise refusal
        method.check(request)

    def authenticate(self, token: bytes | None, call: Call) -> PendingCall | None:
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
            self._loop.call_later(self._authenticator.limits.failure_delay_s, self._reply_failure, token is None, call)
            return _DELAYED_REPLY
        call.reply(authenticate_reply, authenticated.principal.name)
        return None

    def _on_authenticated(self, authenticated: AuthenticatedPrincipal) -> None:
        self._authenticated = authenticated
        self.principal = authenticated.principal
        self._authenticator.observer.authenticated(authenticated.principal.name)
        self._connection.set_principal(authenticated.principal.name)

    def _on_authentication_failed(self, credential: str) -> None:
        self._is_failure_reply_pending = True
        self._authenticated = self.principal = None
        self._failure_count += 1
        self._authenticator.observer.authentication_failed()
        self._connection.set_principal(None)
        self._connection.log_warning(
            f"sent {credential} ({self._failure_count} of {self._authenticator.limits.failures_max})"
        )

    def _reply_failure(self, without_token: bool, call: Call) -> None:
        call.fail(
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


def authenticate_reply(principal_name: str | None) -> ttypes.AuthenticateReply:
    return ttypes.AuthenticateReply(principal_name, CONTRACT_VERSION)
