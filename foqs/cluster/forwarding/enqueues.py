"""Forwards items that this host cannot enqueue: because it refuses items, or because another host owns their key slots.

Holds `EnqueueForwarder`. Always true: an item is forwarded only after this host
has refused it, and to the next peer only after the previous one has refused it, so
it is written at most once; a forwarded item that is not answered is UNKNOWN_OUTCOME
and is not sent again; other items of the call are not affected. An item without a
key or a group may go to any peer; if all refuse it, its error is this host's own. An item with
one of them goes to the owner of its slot, whose result is final. An atomic call is forwarded
as a whole, and has one error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final

from foqs.cluster.peers import REPLY_MARGIN_S, Peer, Peers, PeerUnreachable
from foqs.queue.port import PendingCall
from foqs.rpc import reply_structs
from foqs.rpc.call import Call, Handler, ServerMethod, WrappedCall, unchanged
from foqs_contract.call_table import CallRow
from foqs_contract.contract_version import HostTooOld
from foqs_contract.errors import ERROR_BY_CODE, FoqsError, NotOwner, TemporaryRefusal, UnknownOutcome
from foqs_contract.idl import ttypes
from foqs_contract.request import RequestOfItems
from foqs_contract.thrift_method import ThriftMethod

_RETRYABLE_ELSEWHERE: Final = frozenset(code for code, kind in ERROR_BY_CODE.items() if kind.retryable_elsewhere)
"""The codes of the errors after which an item is not written, and another host may accept it."""


class EnqueueForwarder:
    """Serves the calls that add items by this host first."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def layer(self, method: ServerMethod) -> Handler:
        """See `Layer`. Raises ValueError for a call whose items are not known here."""
        peers, local, routes = self._peers, method.handle, ItemRoutes(self._peers, method.row)
        has_atomic_calls = "atomic" in method.request_fields

        def serve(call: Call) -> PendingCall | None:
            if call.request.forwarded or not peers.by_nonce:
                return local(call)
            if has_atomic_calls and call.request.atomic:
                whole = _ForwardedAtomicEnqueue(call, routes)
                try:
                    whole.pending = local(whole)
                except (TemporaryRefusal, NotOwner) as error:
                    whole.fail(error)
                return whole
            forwarded = _ForwardedEnqueue(call, routes)
            try:
                forwarded.pending = local(forwarded)
            except TemporaryRefusal as error:
                forwarded.on_refused(error)
            return forwarded

        return serve


class ItemRoutes:
    """Chooses the peers to which items of one call are forwarded, and sends them."""

    def __init__(self, peers: Peers, row: CallRow) -> None:
        has_slot = _HAS_SLOT.get(row.name)
        if has_slot is None:
            raise ValueError(f"say in _HAS_SLOT of {__name__} which items of the call {row.name} have a key slot")
        self._has_slot = has_slot
        self._peers = peers
        self._method = ThriftMethod(row.name)

    def routes(self, items: Sequence[Any], results: Sequence[ttypes.EnqueueResult]) -> dict[Peer | None, list[int]]:
        """Return the places of the items to forward, by peer; None: any peer with capacity."""
        routes: dict[Peer | None, list[int]] = {}
        for place, result in enumerate(results):
            error = result.error
            if error is None:
                continue
            if not self._has_slot(items[place]):
                if error.code in _RETRYABLE_ELSEWHERE:
                    routes.setdefault(None, []).append(place)
            elif error.code == ttypes.ErrorCode.NOT_OWNER and error.owner is not None:
                peer = self._peers.by_address((error.owner.host, error.owner.port))
                if peer is not None:
                    routes.setdefault(peer, []).append(place)
        return routes

    def peers_for_all(self, items: Sequence[Any], refusal: FoqsError) -> Sequence[Peer]:
        """Return the peers that may take all items of an atomic call, which this host refused, in the order to ask them."""
        if not any(map(self._has_slot, items)):
            return self._peers.enqueue_candidates() if isinstance(refusal, TemporaryRefusal) else ()
        peer = None if refusal.owner is None else self._peers.by_address(refusal.owner)
        return () if peer is None else (peer,)

    async def forward_all(
        self, request: RequestOfItems, peers: Sequence[Peer], refusal: FoqsError, deadline: float
    ) -> Any:
        """Send an atomic call to one peer after the other until one does not refuse it, and return the reply.

        Raises the error of that peer, or `refusal` if all refuse it.
        """
        is_owner = refusal.owner is not None
        part = copy(request)
        part.forwarded = True
        for peer in peers:
            if deadline - asyncio.get_running_loop().time() <= REPLY_MARGIN_S:
                break
            try:
                reply: ttypes.EnqueueReply = await self._peers.call(peer, self._method, part, deadline)
                if len(reply.results or ()) < len(request.items or ()):
                    raise UnknownOutcome(
                        "the reply of another host lacks results; all items may be written, so check before you repeat it"
                    )
                return reply
            except PeerUnreachable:
                self._peers.mark_suspect(peer)
            except HostTooOld:
                if is_owner:
                    raise
            except FoqsError as error:
                if is_owner or not error.retryable_elsewhere:
                    raise
                self._peers.mark_suspect(peer)
        raise refusal

    async def forward(
        self,
        request: RequestOfItems,
        results: list[ttypes.EnqueueResult],
        routes: Mapping[Peer | None, list[int]],
        deadline: float,
    ) -> None:
        """Send items to the peers of their routes, and store the results at their places."""
        await asyncio.gather(
            *(self._forward_to(peer, request, results, places, deadline) for peer, places in routes.items())
        )

    async def _forward_to(
        self,
        peer: Peer | None,
        request: RequestOfItems,
        results: list[ttypes.EnqueueResult],
        places: list[int],
        deadline: float,
    ) -> None:
        items = request.items or ()
        for host in self._peers.enqueue_candidates() if peer is None else (peer,):
            if peer is None and self._peers.is_suspect(host):
                continue  # another call has marked it meanwhile
            if deadline - asyncio.get_running_loop().time() <= REPLY_MARGIN_S:
                return  # no time is left; the peer must not be marked as suspect
            part = copy(request)
            part.forwarded = True
            part.items = [items[place] for place in places]
            try:
                reply: ttypes.EnqueueReply = await self._peers.call(host, self._method, part, deadline)
            except PeerUnreachable:
                self._peers.mark_suspect(host)
                continue
            except HostTooOld as error:
                if peer is None:
                    continue  # another peer may know the items
                known = _refuse_unknown(self._method, peer, part, error, results, places)
                if known:
                    await self._forward_to(peer, request, results, known, deadline)
                return
            except FoqsError as error:
                struct = reply_structs.error_struct(error)
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
        self,
        merged: list[ttypes.EnqueueResult],
        places: list[int],
        results: Sequence[ttypes.EnqueueResult],
        *,
        is_owner: bool,
    ) -> list[int]:
        """Store a peer's results at their places. Return the places of items that another peer may accept; none for an owner."""
        refused = []
        for peer_index, (place, result) in enumerate(zip(places, results, strict=False)):
            if not is_owner and result.error is not None and result.error.code in _RETRYABLE_ELSEWHERE:
                refused.append(place)
            else:
                merged[place] = _with_caller_index(result, peer_index, place)
        for place in places[len(results) :]:
            missing = UnknownOutcome(
                "the reply of another host has no result for this item; it may be written, so check before you repeat it"
            )
            merged[place] = ttypes.EnqueueResult(None, reply_structs.error_struct(missing))
        return refused


_HAS_SLOT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "enqueue": lambda item: item.idempotency_key is not None or item.group is not None,
    "restoreItems": lambda item: True,
}
"""By call: whether an item belongs to the owner of a key slot."""


class _ForwardedItems(WrappedCall):
    """A call with new items that may be forwarded."""

    __slots__ = ("_forwarding", "_routes")

    def __init__(self, outer: Call, routes: ItemRoutes) -> None:
        super().__init__(outer)
        self._routes = routes
        self._forwarding: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        """End the call without a reply; forwarded items may still be written."""
        if self._forwarding is not None:
            self._forwarding.cancel()
        else:
            super().abandon()


class _ForwardedEnqueue(_ForwardedItems):
    """One call: its local part, and its forwarded parts."""

    __slots__ = ()

    def fail(self, error: Exception) -> None:
        if isinstance(error, TemporaryRefusal):
            try:
                self.on_refused(error)
                return
            except FoqsError:
                pass  # no peer may accept any of the items
        self.outer.fail(error)

    def reply(self, to_struct: Callable[[Any], Any], value: Any, give_back: Callable[[], None] | None = None) -> None:
        """Reply, or forward the items that this host refused."""
        if set(map(type, value)) == {str}:
            self.outer.reply(to_struct, value, give_back)
            return
        results: list[ttypes.EnqueueResult] = list(to_struct(value).results)
        routes = self._routes.routes(self.request.items, results)
        if routes:
            self._forwarding = asyncio.ensure_future(self._forward(results, routes, None))
        else:
            self.outer.reply(ttypes.EnqueueReply, results)

    def on_refused(self, error: TemporaryRefusal) -> None:
        """Forward all items, because this host refused the call. Raises the error if no item can be forwarded."""
        results = [ttypes.EnqueueResult(None, reply_structs.error_struct(error)) for _ in self.request.items]
        routes = self._routes.routes(self.request.items, results)
        if not routes:
            raise error
        self._forwarding = asyncio.ensure_future(self._forward(results, routes, error))

    async def _forward(
        self, results: list[ttypes.EnqueueResult], routes: Mapping[Peer | None, list[int]], refusal: FoqsError | None
    ) -> None:
        before = list(results)
        try:
            await self._routes.forward(self.request, results, routes, self.deadline)
        except Exception as error:
            self.outer.fail(error)
            return
        if refusal is not None and all(new is old for new, old in zip(results, before, strict=True)):
            self.outer.fail(refusal)
        else:
            self.outer.reply(ttypes.EnqueueReply, results)


class _ForwardedAtomicEnqueue(_ForwardedItems):
    """One atomic call: served here, or forwarded as a whole after this host has refused it."""

    __slots__ = ()

    def fail(self, error: Exception) -> None:
        """Fail the call, or forward it if another host may take it."""
        if isinstance(error, TemporaryRefusal | NotOwner):
            peers = self._routes.peers_for_all(self.request.items, error)
            if peers:
                self._forwarding = asyncio.ensure_future(self._forward(peers, error))
                return
        self.outer.fail(error)

    async def _forward(self, peers: Sequence[Peer], refusal: FoqsError) -> None:
        try:
            reply = await self._routes.forward_all(self.request, peers, refusal, self.deadline)
        except Exception as error:
            self.outer.fail(error)
        else:
            self.outer.reply(unchanged, reply)


def _refuse_unknown(
    method: ThriftMethod,
    owner: Peer,
    part: RequestOfItems,
    refusal: HostTooOld,
    results: list[ttypes.EnqueueResult],
    places: list[int],
) -> list[int]:
    """Store the errors of the items that an owner of an older version does not know. Return the places of the others."""
    refused = method.unserved_entries(part, refusal.served_version, owner.view.name)
    if not refused:  # it does not know the call
        refused = dict.fromkeys(range(len(places)), refusal)
    for peer_index, error in refused.items():
        result = ttypes.EnqueueResult(None, reply_structs.error_struct(error))
        results[places[peer_index]] = _with_caller_index(result, peer_index, places[peer_index])
    return [place for peer_index, place in enumerate(places) if peer_index not in refused]


def _with_caller_index(result: ttypes.EnqueueResult, peer_index: int, caller_index: int) -> ttypes.EnqueueResult:
    """Correct the index in the field of a peer's result to the index in the caller's request."""
    error = result.error
    if error is not None and error.field:
        prefix = f"items[{peer_index}]"
        if error.field.startswith(prefix):
            error.field = f"items[{caller_index}]{error.field[len(prefix) :]}"
    return result
