"""Calls of the Thrift contract that are made inside the host, without a connection.

Always true: a call takes the way of a call over Thrift, forwarding included; it is
answered once or raises; if its caller is cancelled, the call is abandoned, and items
that were leased for it are released. Knows nothing of what the calls are for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from foqs.access.call_permissions import Principal
from foqs.queue.port import ItemView, PendingCall
from foqs.rpc import codec
from foqs.rpc.call import deadline_error, internal_error
from foqs.rpc.methods import Caller, CallerSession, RpcService, ServerMethod
from foqs_contract.errors import FoqsError, Unauthenticated

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class InHostSession:
    """The session of a principal whose requests are signed one by one."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    @property
    def principal_name(self) -> str | None:
        return self._principal.name

    @property
    def is_administrator(self) -> bool:
        return self._principal.is_admin

    def authenticate(self, token: bytes | None, caller: Caller) -> PendingCall | None:
        raise Unauthenticated("requests are signed one by one; there is nothing to authenticate")


class InHostCalls:
    """Makes calls of one service.

    Args:
        reply_grace_s: a call that is not done this long after its deadline is ended.
    """

    def __init__(self, service: RpcService, reply_grace_s: float) -> None:
        self._service = service
        self._reply_grace_s = reply_grace_s
        self._loop = asyncio.get_running_loop()

    async def call(
        self,
        name: str,
        request: Any,
        timeout_s: float,
        session: CallerSession | None,
        on_unsent: list[Callable[[], None]] | None = None,
    ) -> Any:
        """Return the reply struct. The caller must have checked the permission.

        Args:
            on_unsent: gets what releases the items of the reply, if they do not reach their consumer.

        Raises:
            FoqsError: the call failed as a whole.
        """
        method = self._service.methods[name.encode()]
        deadline = self._loop.time() + timeout_s
        caller = _InHostCaller(self._loop, session)
        pending: PendingCall | None = None
        try:
            pending = method.handle(request, deadline, caller)
            async with asyncio.timeout_at(deadline + self._reply_grace_s):
                reply = await caller.reply_future
        except TimeoutError:
            caller.drop(pending)
            raise deadline_error(method) from None
        except asyncio.CancelledError:
            caller.drop(pending)
            raise
        except FoqsError:
            raise
        except Exception:
            _raise_internal_error(method)
        if on_unsent is not None and caller.on_unsent is not None:
            on_unsent.append(caller.on_unsent)
        return reply


def _raise_internal_error(method: ServerMethod) -> NoReturn:
    log.exception("%s failed with an unexpected error", method.row.name)
    raise internal_error(method) from None


class _InHostCaller:
    """The `Caller` of one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: CallerSession | None) -> None:
        self.reply_future: asyncio.Future[Any] = loop.create_future()
        self._session = session
        self.on_unsent: Callable[[], None] | None = None

    @property
    def session(self) -> CallerSession | None:
        return self._session

    @property
    def peer(self) -> str:
        return "this host"

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        if self.reply_future.done():
            if on_unsent is not None:
                on_unsent()
            return
        self.on_unsent = on_unsent
        self.reply_future.set_result(to_struct(value))

    def fail(self, error: Exception) -> None:
        if not self.reply_future.done():
            self.reply_future.set_exception(error)

    def log_malformed(self, text: str) -> None:
        log.warning("a call inside the host was answered INVALID_ARGUMENT: %s", text)

    def drop(self, pending: PendingCall | None) -> None:
        """End the call, because nobody waits for its reply any more."""
        is_answered = self.reply_future.done() and not self.reply_future.cancelled()
        if is_answered and self.reply_future.exception() is None:
            if self.on_unsent is not None:
                self.on_unsent()
            return
        self.reply_future.cancel()
        if pending is not None:
            pending.abandon()


def raw_id(item_id: str | bytes) -> bytes:
    """Return the id of an item as requests have it."""
    return item_id if isinstance(item_id, bytes) else item_id.encode()


def delivery_structs(reply: Any) -> list[Any]:
    """Return the `Delivery` structs of a dequeue's reply, which holds items of this host or structs of a peer."""
    return [codec.delivery_struct(item) if isinstance(item, ItemView) else item for item in reply.items or ()]
