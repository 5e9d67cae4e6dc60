"""Forwards items that this host cannot enqueue: because it refuses items, or because another host owns their key slots.

Holds `EnqueueForwarder`. Always true: an item is forwarded only after this host
has refused it, and to the next peer only after the previous one has refused it, so
it is written at most once; a forwarded item that is not answered is UNKNOWN_OUTCOME
and is not sent again; other items of the call are not affected. An item without a
key may go to any peer; if all refuse it, its error is this host's own. An item with
a key goes to the owner of its slot, whose result is final.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Final, TypeVar

from foqs.cluster.peers import REPLY_MARGIN_S, Peer, Peers, PeerUnreachable
from foqs.queue.port import PendingCall
from foqs.rpc import codec
from foqs.rpc.methods import Caller, CallerSession, MethodHandler
from foqs_contract.contract_version import HostTooOld
from foqs_contract.errors import ERROR_BY_CODE, FoqsError, TemporaryRefusal, UnknownOutcome
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

_T = TypeVar("_T")
_RETRYABLE_ELSEWHERE: Final = frozenset(code for code, kind in ERROR_BY_CODE.items() if kind.retryable_elsewhere)
"""The item was not written, and another host may accept it."""


class EnqueueForwarder:
    """Serves `enqueue` by this host first.

    Args:
        local: serves an enqueue by this host alone.
    """

    method: ClassVar = ThriftMethod("enqueue")

    def __init__(self, local: MethodHandler, peers: Peers) -> None:
        self._local = local
        self._peers = peers
        self.forwarded_count = 0
        """Items sent to another host."""

    def handle(self, request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        """Serve `enqueue`; see `MethodHandler`."""
        if request.forwarded or not self._peers.by_nonce:
            return self._local(request, deadline, caller)
        call = _ForwardedEnqueue(self, request, deadline, caller)
        try:
            call.pending = self._local(request, deadline, call)
        except TemporaryRefusal as error:
            call.on_refused(error)
        return call

    # ----------------------------------------------------------------- forwarding

    def has_slot(self, item: Any) -> bool:
        """Return whether the item belongs to the owner of a key slot."""
        return item.idempotency_key is not None

    def routes(self, items: Sequence[Any], results: Sequence[Any]) -> dict[Peer | None, list[int]]:
        """Return the places of the items to forward, by peer; None: any peer with capacity."""
        routes: dict[Peer | None, list[int]] = {}
        for place, result in enumerate(results):
            error = result.error
            if error is None:
                continue
            if not self.has_slot(items[place]):
                if error.code in _RETRYABLE_ELSEWHERE:
                    routes.setdefault(None, []).append(place)
            elif error.code == ttypes.ErrorCode.NOT_OWNER and error.owner is not None:
                peer = self._peers.by_address((error.owner.host, error.owner.port))
                if peer is not None:
                    routes.setdefault(peer, []).append(place)
        return routes

    async def forward(
        self, request: Any, results: list[Any], routes: Mapping[Peer | None, list[int]], deadline: float
    ) -> None:
        """Send items to the peers of their routes, and store the results at their places."""
        await asyncio.gather(
            *(self._forward_to(peer, request, results, places, deadline) for peer, places in routes.items())
        )

    async def _forward_to(
        self, peer: Peer | None, request: Any, results: list[Any], places: list[int], deadline: float
    ) -> None:
        for host in self._peers.enqueue_candidates() if peer is None else (peer,):
            if peer is None and self._peers.is_suspect(host):
                continue  # another call has marked it meanwhile
            if deadline - asyncio.get_running_loop().time() <= REPLY_MARGIN_S:
                return  # no time is left; the peer must not be marked as suspect
            part = copy(request)
            part.forwarded = True
            part.items = [request.items[place] for place in places]
            try:
                reply = await self._peers.call(host, self.method, part, deadline)
            except PeerUnreachable:
                self._peers.mark_suspect(host)
                continue
            except HostTooOld as error:
                if peer is None:
                    continue  # another peer may know the items
                known = _refuse_unknown(self.method, peer, part, error, results, places)
                if known:
                    await self._forward_to(peer, request, results, known, deadline)
                return
            except FoqsError as error:
                struct = codec.error_struct(error)
                if peer is None and error.retryable_elsewhere:
                    self._peers.mark_suspect(host)
                    continue  # if no peer accepts the items, this host's own error stays
                for place in places:
                    results[place] = ttypes.EnqueueResult(None, struct)
                return
            refused = self._merge_results(results, places, reply.results or [], is_owner=peer is not None)
            if not refused:
                return
            self._peers.mark_suspect(host)
            places = refused

    def _merge_results(
        self, merged: list[Any], places: list[int], results: Sequence[Any], *, is_owner: bool
    ) -> list[int]:
        """Store a peer's results at their places. Return the places of items that another peer may accept; none for an owner."""
        refused = []
        self.forwarded_count += len(results)
        for peer_index, (place, result) in enumerate(zip(places, results, strict=False)):
            if not is_owner and result.error is not None and result.error.code in _RETRYABLE_ELSEWHERE:
                refused.append(place)
            else:
                merged[place] = _with_caller_index(result, peer_index, place)
        for place in places[len(results) :]:
            missing = UnknownOutcome("the peer's reply has no result for this item; it may be written")
            merged[place] = ttypes.EnqueueResult(None, codec.error_struct(missing))
        return refused


class RestoreForwarder(EnqueueForwarder):
    """Serves `restoreItems` by this host first. Every restored item has a slot."""

    method: ClassVar = ThriftMethod("restoreItems")

    def has_slot(self, item: Any) -> bool:
        return True


class _ForwardedEnqueue:
    """One enqueue: the `Caller` of its local part, and its forwarded parts."""

    __slots__ = ("_caller", "_deadline", "_forwarder", "_forwarding", "_request", "pending")

    def __init__(self, forwarder: EnqueueForwarder, request: Any, deadline: float, caller: Caller) -> None:
        self._forwarder = forwarder
        self._request = request
        self._deadline = deadline
        self._caller = caller
        self._forwarding: asyncio.Task[None] | None = None
        self.pending: PendingCall | None = None

    @property
    def session(self) -> CallerSession | None:
        return self._caller.session

    @property
    def peer(self) -> str:
        return self._caller.peer

    def log_malformed(self, text: str) -> None:
        self._caller.log_malformed(text)

    def fail(self, error: Exception) -> None:
        if isinstance(error, TemporaryRefusal):
            try:
                self.on_refused(error)
                return
            except FoqsError:
                pass  # no peer may accept any of the items
        self._caller.fail(error)

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        """Reply, or forward the items that this host refused."""
        if set(map(type, value)) == {str}:  # type: ignore[call-overload]
            self._caller.reply(to_struct, value, on_unsent)
            return
        results = list(to_struct(value).results)
        routes = self._forwarder.routes(self._request.items, results)
        if routes:
            self._forwarding = asyncio.ensure_future(self._forward(results, routes, None))
        else:
            self._caller.reply(ttypes.EnqueueReply, results)

    def on_refused(self, error: TemporaryRefusal) -> None:
        """Forward all items, because this host refused the call. Raises the error if no item can be forwarded."""
        results = [ttypes.EnqueueResult(None, codec.error_struct(error)) for _ in self._request.items]
        routes = self._forwarder.routes(self._request.items, results)
        if not routes:
            raise error
        self._forwarding = asyncio.ensure_future(self._forward(results, routes, error))

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
        """End the call without a reply; forwarded items may still be written."""
        if self._forwarding is not None:
            self._forwarding.cancel()
        elif self.pending is not None:
            self.pending.abandon()


def _refuse_unknown(
    method: ThriftMethod, owner: Peer, part: Any, refusal: HostTooOld, results: list[Any], places: list[int]
) -> list[int]:
    """Store the errors of the items that an owner of an older version does not know. Return the places of the others."""
    refused = method.unserved_entries(part, refusal.served_version, owner.view.name)
    if not refused:  # it does not know the call
        refused = dict.fromkeys(range(len(places)), refusal)
    for peer_index, error in refused.items():
        result = ttypes.EnqueueResult(None, codec.error_struct(error))
        results[places[peer_index]] = _with_caller_index(result, peer_index, places[peer_index])
    return [place for peer_index, place in enumerate(places) if peer_index not in refused]


def _with_caller_index(result: Any, peer_index: int, caller_index: int) -> Any:
    """Correct the index in the field of a peer's result to the index in the caller's request."""
    error = result.error
    if error is not None and error.field:
        prefix = f"items[{peer_index}]"
        if error.field.startswith(prefix):
            error.field = f"items[{caller_index}]{error.field[len(prefix) :]}"
    return result
