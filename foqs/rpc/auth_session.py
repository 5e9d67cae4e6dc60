"""Who is at the other end of a connection, and what he may call.

Holds one connection's principal. Always true: without a principal nothing but
`authenticate` is called; a permission is judged when its call begins, by the
grants of that moment; a wrong token costs the connection its principal, is
answered late, and one at a time; a token is never told to anybody. Knows
nothing of bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from foqs.access.authenticator import AuthenticatedPrincipal, Authenticator
from foqs.access.call_permissions import Scope
from foqs.core.errors import Unauthenticated
from foqs.rpc import codec
from foqs_client.idl import ttypes

if TYPE_CHECKING:
    from foqs.queue.port import PendingCall
    from foqs.rpc.methods import Caller, ServerMethod

UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 8_192
"""Of a frame of a peer without a principal, no more is kept than this: it has nothing to say but its token."""


class SessionConnection(Protocol):
    """What a visitor asks of its connection."""

    def set_principal(self, name: str | None) -> None:
        """The peer is this principal from now on, or nobody."""
        ...

    def log_warning(self, text: str) -> None: ...

    def close(self) -> None: ...


class AuthSession:
    """The peer of one connection of a host that wants to know its peers."""

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

    def on_connected(self, certificate: Mapping[str, object] | None) -> None:
        """The connection begins; `certificate` is what TLS has verified, if anything."""
        known = self._authenticator.authenticate_certificate(certificate)
        if known is not None:
            self._on_authenticated(known)
            return
        self._connection.set_principal(None)
        if certificate:
            self._connection.log_warning("its certificate has not one printable common name, and so no principal")

    @property
    def is_revoked(self) -> bool:
        """Whether what it was known by is not valid any more."""
        return self._authenticated is not None and not self._authenticator.keyring.is_valid_credential(
            self._authenticated.credential_digest
        )

    @property
    def is_administrator(self) -> bool:
        """Whether it may do everything, as other hosts of the tier may."""
        return self._authenticated is not None and self._authenticated.principal.is_admin

    def require_principal(self, method: ServerMethod) -> None:
        """Before the call is read. Raises Unauthenticated."""
        if self._authenticated is None and method.requirement.scope is not Scope.PUBLIC:
            raise Unauthenticated(
                "this host wants to know who calls; authenticate with a token or a client certificate first"
            )

    def authorize(self, method: ServerMethod, request: Any) -> None:
        """After the call was read. Raises PermissionDenied, and InvalidArgument where it names no namespace."""
        known = self._authenticated
        if known is None or known.principal.is_admin:
            return
        need = method.requirement
        granted: Collection[int] = ()
        if need.scope is Scope.NAMESPACE:
            namespace = codec.parse_name(method.namespace_of(request), need.namespace_field)
            granted = self._authenticator.permissions_of(known.principal.name, namespace)
        refusal = need.refusal(known.principal, granted)
        if refusal is not None:
            raise refusal

    def authenticate(self, token: bytes | None, caller: Caller) -> PendingCall | None:
        """Answers with the principal that the token belongs to; without a token, with the one there is.

        Raises:
            Unauthenticated: the answer to a wrong token is still to come.
        """
        if self._is_failure_reply_pending:
            raise Unauthenticated("the answer to a wrong token is still to come; wait for it")
        known = self._authenticated
        if token is not None:
            known = self._authenticator.authenticate_token(token)
            if known is not None:
                self._on_authenticated(known)
        if known is None:
            self._on_authentication_failed("no token" if token is None else "a wrong token")
            self._loop.call_later(
                self._authenticator.limits.failure_delay_s, self._reply_failure, token is None, caller
            )
            return _DELAYED_REPLY
        caller.reply(ttypes.AuthenticateReply, known.principal.name)
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
            f"showed {credential} ({self._failure_count} of {self._authenticator.limits.failures_max})"
        )

    def _reply_failure(self, without_token: bool, caller: Caller) -> None:
        caller.fail(
            Unauthenticated("there is neither a token nor a client certificate that names a principal; show one")
            if without_token
            else Unauthenticated(
                "this token is no principal's; see that client and host have files with the same secret"
            )
        )
        self._is_failure_reply_pending = False
        if self._failure_count >= self._authenticator.limits.failures_max:
            self._connection.close()


class _DelayedReply:
    """A call that is answered a little later, whatever becomes of its caller."""

    def abandon(self) -> None:
        """Nothing was leased."""


_DELAYED_REPLY: Final = _DelayedReply()


def authenticate(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
    """Serves the call. A host that asks nobody who he is answers without a principal."""
    visitor = caller.session
    if visitor is None:
        caller.reply(ttypes.AuthenticateReply, None)
        return None
    return visitor.authenticate(request.token, caller)
