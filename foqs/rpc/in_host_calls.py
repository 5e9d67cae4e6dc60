"""Calls of the Thrift contract that are made inside the host, without a connection.

The callers are the SQS server, the bulk jobs, and this host's own part of a call that is
forwarded to several hosts. Always true: a call is handled like a call over Thrift, forwarding
included; it is answered once or raises; if its caller is cancelled, the call is abandoned, and
items that were leased for it are released. The caller has checked the grants of the principal,
and writes the audit. Knows nothing of what the calls are for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from foqs.access.call_permissions import Principal
from foqs.queue.port import PendingCall, RowView
from foqs.rpc import reply_structs
from foqs.rpc.call import Call, ServerMethod, deadline_error, internal_error
from foqs.rpc.methods import RpcService
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.request import Request

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class InHostCalls:
    """Makes calls of one service.

    Args:
        reply_grace_s: a call that is not done this long after its deadline is ended.
    """

    def __init__(self, service: RpcService, reply_grace_s: float) -> None:
        self._service = service
        self._reply_grace_s = reply_grace_s

    async def call(
        self,
        name: str,
        request: Request,
        timeout_s: float,
        principal: Principal | None = None,
        give_backs: list[Callable[[], None]] | None = None,
    ) -> Any:
        """Make a call, and return its reply struct.

        Args:
            principal: the principal for whom the call is made.
            give_backs: gets the `give_back` of the reply, if it has one.

        Raises:
            FoqsError: the call failed as a whole.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        call = InHostCall(self._service.methods[name.encode()], request, deadline, principal)
        reply = await call.make(self._reply_grace_s)
        if give_backs is not None and call.give_back is not None:
            give_backs.append(call.give_back)
        return reply


class InHostCall(Call):
    """One call of a part of this host. Arguments are those of `Call`.

    Attributes:
        give_back: releases the items of the reply; None if there are none.
    """

    __slots__ = ("_reply", "give_back")

    def __init__(
        self, method: ServerMethod, request: Request, deadline: float, principal: Principal | None = None
    ) -> None:
        self.method = method
        self.request = request
        self.deadline = deadline
        self.principal = principal
        self.peer = "this host"
        self.give_back: Callable[[], None] | None = None
        self._reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def make(self, grace_s: float | None = None) -> Any:
        """Make the call, and return the reply struct.

        Args:
            grace_s: the call is ended this long after its deadline; None: only its caller ends it, by cancelling.

        Raises:
            FoqsError: the call failed as a whole.
        """
        pending: PendingCall | None = None
        try:
            pending = self.method.handle(self)
            async with asyncio.timeout_at(None if grace_s is None else self.deadline + grace_s):
                return await self._reply
        except TimeoutError:
            self._drop(pending)
            raise deadline_error(self.method) from None
        except asyncio.CancelledError:
            self._drop(pending)
            raise
        except FoqsError:
            raise
        except Exception:
            log.exception("a call of %s inside the host failed with an unexpected error", self.method.row.name)
            raise internal_error(self.method) from None

    def reply(self, to_struct: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        if self._reply.done():
            if give_back is not None:
                give_back()
            return
        self.give_back = give_back
        self._reply.set_result(to_struct(value))

    def fail(self, error: Exception) -> None:
        if not self._reply.done():
            self._reply.set_exception(error)

    def log_malformed(self, text: str) -> None:
        log.warning("a call of %s inside the host was answered INVALID_ARGUMENT: %s", self.method.row.name, text)

    def _drop(self, pending: PendingCall | None) -> None:
        """End the call, because nobody waits for its reply any more."""
        is_answered = self._reply.done() and not self._reply.cancelled()
        if is_answered and self._reply.exception() is None:
            if self.give_back is not None:
                self.give_back()
            return
        if pending is not None:
            pending.abandon()


def raw_id(item_id: str | bytes) -> bytes:
    """Return the id of an item as requests have it."""
    return item_id if isinstance(item_id, bytes) else item_id.encode()


def delivery_structs(reply: ttypes.DequeueReply) -> list[ttypes.Delivery]:
    """Return the `Delivery` structs of a dequeue's reply, which holds items of this host or structs of a peer."""
    return [reply_structs.delivery_struct(item) if isinstance(item, RowView) else item for item in reply.items or ()]
