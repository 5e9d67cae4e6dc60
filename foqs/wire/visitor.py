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

from foqs.access.gate import Gate, Known
from foqs.access.rules import Scope
from foqs.core.errors import Unauthenticated
from foqs.wire import codec
from foqs_client.idl import ttypes

if TYPE_CHECKING:
    from foqs.service.api import Pending
    from foqs.wire.methods import Caller, Method

UNKNOWN_FRAME_BYTES_MAX: Final = 8_192
"""Of a frame of a peer without a principal, no more is kept than this: it has nothing to say but its token."""


class Host(Protocol):
    """What a visitor asks of its connection."""

    def known_as(self, name: str | None) -> None:
        """The peer is this principal from now on, or nobody."""
        ...

    def complain(self, text: str) -> None: ...

    def close(self) -> None: ...


class Visitor:
    """The peer of one connection of a host that wants to know its peers."""

    __slots__ = ("_failures", "_gate", "_host", "_known", "_loop", "_waits")

    def __init__(self, gate: Gate, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = gate
        self._host = host
        self._loop = loop
        self._known: Known | None = None
        self._failures = 0
        self._waits = False

    def arrive(self, certificate: Mapping[str, object] | None) -> None:
        """The connection begins; `certificate` is what TLS has verified, if anything."""
        known = self._gate.by_certificate(certificate)
        if known is not None:
            self._bind(known)
            return
        self._host.known_as(None)
        if certificate:
            self._host.complain("its certificate has not one printable common name, and so no principal")

    @property
    def is_outdated(self) -> bool:
        """Whether what it was known by is not valid any more."""
        return self._known is not None and not self._gate.keyring.holds(self._known.proof)

    @property
    def is_administrator(self) -> bool:
        """Whether it may do everything, as other hosts of the tier may."""
        return self._known is not None and self._known.principal.admin

    def challenge(self, method: Method) -> None:
        """Before the call is read. Raises Unauthenticated."""
        if self._known is None and method.need.scope is not Scope.NOTHING:
            raise Unauthenticated(
                "this host wants to know who calls; authenticate with a token or a client certificate first"
            )

    def permit(self, method: Method, request: Any) -> None:
        """After the call was read. Raises PermissionDenied, and InvalidArgument where it names no namespace."""
        known = self._known
        if known is None or known.principal.admin:
            return
        need = method.need
        granted: Collection[int] = ()
        if need.scope is Scope.NAMESPACE:
            namespace = codec.name(method.namespace_of(request), need.namespace)
            granted = self._gate.grants(known.principal.name, namespace)
        refusal = need.refusal(known.principal, granted)
        if refusal is not None:
            raise refusal

    def authenticate(self, token: bytes | None, caller: Caller) -> Pending | None:
        """Answers with the principal that the token belongs to; without a token, with the one there is.

        Raises:
            Unauthenticated: the answer to a wrong token is still to come.
        """
        if self._waits:
            raise Unauthenticated("the answer to a wrong token is still to come; wait for it")
        known = self._known
        if token is not None:
            known = self._gate.by_token(token)
            if known is not None:
                self._bind(known)
        if known is None:
            self._fail("no token" if token is None else "a wrong token")
            self._loop.call_later(self._gate.limits.failure_delay_s, self._refuse, token is None, caller)
            return _LATER
        caller.answer(ttypes.AuthenticateReply, known.principal.name)
        return None

    def _bind(self, known: Known) -> None:
        self._known = known
        self._gate.observer.authenticated(known.principal.name)
        self._host.known_as(known.principal.name)

    def _fail(self, what: str) -> None:
        self._waits = True
        self._known = None
        self._failures += 1
        self._gate.observer.authentication_failed()
        self._host.known_as(None)
        self._host.complain(f"showed {what} ({self._failures} of {self._gate.limits.failures_max})")

    def _refuse(self, tokenless: bool, caller: Caller) -> None:
        caller.fail(
            Unauthenticated("there is neither a token nor a client certificate that names a principal; show one")
            if tokenless
            else Unauthenticated(
                "this token is no principal's; see that client and host have files with the same secret"
            )
        )
        self._waits = False
        if self._failures >= self._gate.limits.failures_max:
            self._host.close()


class _Later:
    """A call that is answered a little later, whatever becomes of its caller."""

    def abandon(self) -> None:
        """Nothing was leased."""


_LATER: Final = _Later()


def authenticate(request: Any, deadline: float, caller: Caller) -> Pending | None:
    """Serves the call. A host that asks nobody who he is answers without a principal."""
    visitor = caller.visitor
    if visitor is None:
        caller.answer(ttypes.AuthenticateReply, None)
        return None
    return visitor.authenticate(request.token, caller)
