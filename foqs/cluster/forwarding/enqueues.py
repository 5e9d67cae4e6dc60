"""Enqueues that this host passes on: what it cannot take itself, and keyed items of others' slots.

Holds `Enqueues`. Always true: an item is passed on only after this host has
refused it, and to another peer only after the last one has, so nothing was
written of it; what was passed on and not answered is UNKNOWN_OUTCOME and goes
nowhere else; neighbours of an item are answered as ever. An item without a key
goes where there is room, and one that no host takes ends with this host's own refusal; one with a key goes to the owner of
its slot, whose answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeVar

from foqs.cluster.peers import REPLY_MARGIN_S, Peer, Peers, PeerUnreachable
from foqs.core.errors import FoqsError, Overloaded, Unavailable, UnknownOutcome
from foqs.queue.port import PendingCall
from foqs.rpc import codec
from foqs.rpc.auth_session import AuthSession
from foqs.rpc.methods import Caller, MethodHandler
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod

_T = TypeVar("_T")
_ENQUEUE: Final = ThriftMethod("enqueue", is_write=True)
_RETRYABLE_ELSEWHERE: Final = (ttypes.ErrorCode.OVERLOADED, ttypes.ErrorCode.UNAVAILABLE, ttypes.ErrorCode.NOT_OWNER)
"""Nothing was written, and another host may take it."""


class EnqueueForwarder:
    """Serves `enqueue` by this host first.

    Args:
        local: by this host alone.
    """

    def __init__(self, local: MethodHandler, peers: Peers) -> None:
        self._local = local
        self._peers = peers
        self.forwarded_count = 0
        """Items that were sent to another host."""

    def handle(self, request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        """See `Serve`."""
        if request.forwarded or not self._peers.by_nonce:
            return self._local(request, deadline, caller)
        call = _ForwardedEnqueue(self, request, deadline, caller)
        try:
            call.pending = self._local(request, deadline, call)
        except (Overloaded, Unavailable) as error:
            call.on_refused(error)
        return call

    # ------------------------------------------------------------------ elsewhere

    def routes(self, items: Sequence[Any], results: Sequence[Any]) -> dict[Peer | None, list[int]]:
        """By peer, the places of items that it may take; None: any that has capacity."""
        ways: dict[Peer | None, list[int]] = {}
        for place, result in enumerate(results):
            error = result.error
            if error is None:
                continue
            if items[place].idempotency_key is None:
                if error.code in _RETRYABLE_ELSEWHERE:
                    ways.setdefault(None, []).append(place)
            elif error.code == ttypes.ErrorCode.NOT_OWNER and error.owner is not None:
                peer = self._peers.by_address((error.owner.host, error.owner.port))
                if peer is not None:
                    ways.setdefault(peer, []).append(place)
        return ways

    async def forward(
        self, request: Any, results: list[Any], routes: Mapping[Peer | None, list[int]], deadline: float
    ) -> None:
        """Sends items to those who may take them, and puts what they say in its places."""
        await asyncio.gather(
            *(self._forward_to(peer, request, results, places, deadline) for peer, places in routes.items())
        )

    async def _forward_to(
        self, peer: Peer | None, request: Any, results: list[Any], places: list[int], deadline: float
    ) -> None:
        for host in self._peers.enqueue_candidates() if peer is None else (peer,):
            if peer is None and self._peers.is_suspect(host):
                continue  # another call has found that out meanwhile
            if deadline - asyncio.get_running_loop().time() <= REPLY_MARGIN_S:
                return  # no time is left, which is not this peer's fault
            part = copy(request)
            part.forwarded = True
            part.items = [request.items[place] for place in places]
            try:
                reply = await self._peers.call(host, _ENQUEUE, part, deadline)
            except PeerUnreachable:
                self._peers.mark_suspect(host)
                continue
            except FoqsError as error:
                said = codec.error_struct(error)
                if peer is None and said.code in _RETRYABLE_ELSEWHERE:
                    self._peers.mark_suspect(host)
                    continue  # where nobody takes it, what this host said stands
                for place in places:
                    results[place] = ttypes.EnqueueResult(None, said)
                return
            refused = self._merge_results(results, places, reply.results or [], is_owner=peer is not None)
            if not refused:
                return
            self._peers.mark_suspect(host)
            places = refused

    def _merge_results(
        self, merged: list[Any], places: list[int], results: Sequence[Any], *, is_owner: bool
    ) -> list[int]:
        """Puts what a peer said in its places. Returns those of items that another peer may take; none if it is their owner."""
        refused = []
        self.forwarded_count += len(results)
        for inner, (place, result) in enumerate(zip(places, results, strict=False)):
            if not is_owner and result.error is not None and result.error.code in _RETRYABLE_ELSEWHERE:
                refused.append(place)
            else:
                merged[place] = _with_caller_index(result, inner, place)
        for place in places[len(results) :]:
            nameless = UnknownOutcome("the host that got this item does not name it; it may be written")
            merged[place] = ttypes.EnqueueResult(None, codec.error_struct(nameless))
        return refused


class _ForwardedEnqueue:
    """One enqueue: the `Caller` of this host's own serving, and what is under way for the real one."""

    __slots__ = ("_caller", "_deadline", "_forwarder", "_forwarding", "_request", "pending")

    def __init__(self, forwarder: EnqueueForwarder, request: Any, deadline: float, caller: Caller) -> None:
        self._forwarder = forwarder
        self._request = request
        self._deadline = deadline
        self._caller = caller
        self._forwarding: asyncio.Task[None] | None = None
        self.pending: PendingCall | None = None

    @property
    def session(self) -> AuthSession | None:
        return self._caller.session

    def log_malformed(self, text: str) -> None:
        self._caller.log_malformed(text)

    def fail(self, error: Exception) -> None:
        if isinstance(error, Overloaded | Unavailable):
            try:
                self.on_refused(error)
                return
            except FoqsError:
                pass  # nobody else may take any of it
        self._caller.fail(error)

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        """This host has done its part."""
        if set(map(type, value)) == {str}:  # type: ignore[call-overload]
            self._caller.reply(to_struct, value, on_unsent)
            return
        told = list(to_struct(value).results)
        ways = self._forwarder.routes(self._request.items, told)
        if ways:
            self._forwarding = asyncio.ensure_future(self._forward(told, ways, None))
        else:
            self._caller.reply(ttypes.EnqueueReply, told)

    def on_refused(self, error: Overloaded | Unavailable) -> None:
        """This host takes none of it. Raises the error where nobody else may."""
        told = [ttypes.EnqueueResult(None, codec.error_struct(error)) for _ in self._request.items]
        ways = self._forwarder.routes(self._request.items, told)
        if not ways:
            raise error
        self._forwarding = asyncio.ensure_future(self._forward(told, ways, error))

    async def _forward(
        self, results: list[Any], routes: Mapping[Peer | None, list[int]], refusal: FoqsError | None
    ) -> None:
        before = list(results)
        try:
            await self._forwarder.forward(self._request, results, routes, self._deadline)
        except Exception as error:
            self._caller.fail(error)
            return
        if refusal is not None and all(new is old for new, old in zip(results, before, strict=True)):
            self._caller.fail(refusal)
        else:
            self._caller.reply(ttypes.EnqueueReply, results)

    def abandon(self) -> None:
        """What was passed on may still be written."""
        if self._forwarding is not None:
            self._forwarding.cancel()
        elif self.pending is not None:
            self.pending.abandon()


def _with_caller_index(result: Any, peer_index: int, caller_index: int) -> Any:
    """A peer's result, which names the field by its place in what the peer got."""
    error = result.error
    if error is not None and error.field:
        head = f"items[{peer_index}]"
        if error.field.startswith(head):
            error.field = f"items[{caller_index}]{error.field[len(head) :]}"
    return result
