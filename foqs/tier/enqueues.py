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

from foqs.core.errors import FoqsError, Overloaded, Unavailable, UnknownOutcome
from foqs.service.api import Pending
from foqs.tier.peers import MARGIN_S, Peer, Peers, Unreached
from foqs.wire import codec
from foqs.wire.methods import Caller, Serve
from foqs.wire.visitor import Visitor
from foqs_client.idl import ttypes
from foqs_client.message import Method

_T = TypeVar("_T")
_ENQUEUE: Final = Method("enqueue", writes=True)
_NOT_HERE: Final = (ttypes.ErrorCode.OVERLOADED, ttypes.ErrorCode.UNAVAILABLE, ttypes.ErrorCode.NOT_OWNER)
"""Nothing was written, and another host may take it."""


class Enqueues:
    """Serves `enqueue` by this host first.

    Args:
        local: by this host alone.
    """

    def __init__(self, local: Serve, peers: Peers) -> None:
        self._local = local
        self._peers = peers
        self.passed_on = 0
        """Items that were sent to another host."""

    def serve(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        """See `Serve`."""
        if request.forwarded or not self._peers.others:
            return self._local(request, deadline, caller)
        call = _Call(self, request, deadline, caller)
        try:
            call.pending = self._local(request, deadline, call)
        except (Overloaded, Unavailable) as error:
            call.refused(error)
        return call

    # ------------------------------------------------------------------ elsewhere

    def ways(self, items: Sequence[Any], told: Sequence[Any]) -> dict[Peer | None, list[int]]:
        """By peer, the places of items that it may take; None: any that has capacity."""
        ways: dict[Peer | None, list[int]] = {}
        for place, result in enumerate(told):
            error = result.error
            if error is None:
                continue
            if items[place].idempotency_key is None:
                if error.code in _NOT_HERE:
                    ways.setdefault(None, []).append(place)
            elif error.code == ttypes.ErrorCode.NOT_OWNER and error.owner is not None:
                peer = self._peers.at((error.owner.host, error.owner.port))
                if peer is not None:
                    ways.setdefault(peer, []).append(place)
        return ways

    async def pass_on(
        self, request: Any, told: list[Any], ways: Mapping[Peer | None, list[int]], deadline: float
    ) -> None:
        """Sends items to those who may take them, and puts what they say in its places."""
        await asyncio.gather(*(self._to(peer, request, told, places, deadline) for peer, places in ways.items()))

    async def _to(self, peer: Peer | None, request: Any, told: list[Any], places: list[int], deadline: float) -> None:
        for host in self._peers.with_capacity() if peer is None else (peer,):
            if peer is None and self._peers.is_shunned(host):
                continue  # another call has found that out meanwhile
            if deadline - asyncio.get_running_loop().time() <= MARGIN_S:
                return  # no time is left, which is not this peer's fault
            part = copy(request)
            part.forwarded = True
            part.items = [request.items[place] for place in places]
            try:
                reply = await self._peers.call(host, _ENQUEUE, part, deadline)
            except Unreached:
                self._peers.shun(host)
                continue
            except FoqsError as error:
                said = codec.error(error)
                if peer is None and said.code in _NOT_HERE:
                    self._peers.shun(host)
                    continue  # where nobody takes it, what this host said stands
                for place in places:
                    told[place] = ttypes.EnqueueResult(None, said)
                return
            refused = self._take_in(told, places, reply.results or [], owner=peer is not None)
            if not refused:
                return
            self._peers.shun(host)
            places = refused

    def _take_in(self, told: list[Any], places: list[int], results: Sequence[Any], *, owner: bool) -> list[int]:
        """Puts what a peer said in its places. Returns those of items that another peer may take; none if it is their owner."""
        refused = []
        self.passed_on += len(results)
        for inner, (place, result) in enumerate(zip(places, results, strict=False)):
            if not owner and result.error is not None and result.error.code in _NOT_HERE:
                refused.append(place)
            else:
                told[place] = _placed(result, inner, place)
        for place in places[len(results) :]:
            nameless = UnknownOutcome("the host that got this item does not name it; it may be written")
            told[place] = ttypes.EnqueueResult(None, codec.error(nameless))
        return refused


class _Call:
    """One enqueue: the `Caller` of this host's own serving, and what is under way for the real one."""

    __slots__ = ("_caller", "_deadline", "_enqueues", "_passing", "_request", "pending")

    def __init__(self, enqueues: Enqueues, request: Any, deadline: float, caller: Caller) -> None:
        self._enqueues = enqueues
        self._request = request
        self._deadline = deadline
        self._caller = caller
        self._passing: asyncio.Task[None] | None = None
        self.pending: Pending | None = None

    @property
    def visitor(self) -> Visitor | None:
        return self._caller.visitor

    def complain(self, text: str) -> None:
        self._caller.complain(text)

    def fail(self, error: Exception) -> None:
        if isinstance(error, Overloaded | Unavailable):
            try:
                self.refused(error)
                return
            except FoqsError:
                pass  # nobody else may take any of it
        self._caller.fail(error)

    def answer(self, shape: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """This host has done its part."""
        if set(map(type, value)) == {str}:  # type: ignore[call-overload]
            self._caller.answer(shape, value, give_back)
            return
        told = list(shape(value).results)
        ways = self._enqueues.ways(self._request.items, told)
        if ways:
            self._passing = asyncio.ensure_future(self._pass_on(told, ways, None))
        else:
            self._caller.answer(ttypes.EnqueueReply, told)

    def refused(self, error: Overloaded | Unavailable) -> None:
        """This host takes none of it. Raises the error where nobody else may."""
        told = [ttypes.EnqueueResult(None, codec.error(error)) for _ in self._request.items]
        ways = self._enqueues.ways(self._request.items, told)
        if not ways:
            raise error
        self._passing = asyncio.ensure_future(self._pass_on(told, ways, error))

    async def _pass_on(self, told: list[Any], ways: Mapping[Peer | None, list[int]], refusal: FoqsError | None) -> None:
        before = list(told)
        try:
            await self._enqueues.pass_on(self._request, told, ways, self._deadline)
        except Exception as error:
            self._caller.fail(error)
            return
        if refusal is not None and all(new is old for new, old in zip(told, before, strict=True)):
            self._caller.fail(refusal)
        else:
            self._caller.answer(ttypes.EnqueueReply, told)

    def abandon(self) -> None:
        """What was passed on may still be written."""
        if self._passing is not None:
            self._passing.cancel()
        elif self.pending is not None:
            self.pending.abandon()


def _placed(result: Any, inner: int, place: int) -> Any:
    """A peer's result, which names the field by its place in what the peer got."""
    error = result.error
    if error is not None and error.field:
        head = f"items[{inner}]"
        if error.field.startswith(head):
            error.field = f"items[{place}]{error.field[len(head) :]}"
    return result
