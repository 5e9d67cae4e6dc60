"""Calls by id that this host passes on: those of items whose shards another host owns.

Holds `by_id`. Always true: an entry is passed on once, to the owner that this
host knows of, and only after this host has refused it as not its own; its
neighbours are answered as ever. What cannot be passed on stays NOT_OWNER, so
that a caller who knows the other hosts may go there; what was sent and not
answered is UNKNOWN_OUTCOME. A call whose items are all here costs a look at the
types of its results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeVar

from foqs.core.errors import FoqsError, NotOwner, UnknownOutcome
from foqs.service.api import Pending
from foqs.tier.peers import Peer, Peers, Unreached
from foqs.wire import codec
from foqs.wire.methods import Caller, Serve, as_it_is
from foqs.wire.methods import Method as Served
from foqs.wire.visitor import Visitor
from foqs_client.idl import ttypes
from foqs_client.message import Method

_T = TypeVar("_T")

_ENTRIES: Final = {
    "ack": "leases",
    "nack": "nacks",
    "extendLease": "extensions",
    "release": "leases",
    "cancel": "ids",
    "update": "ids",
    "redrive": "ids",
}
"""The calls that answer for each entry of a list, and the list."""
_LOOKS: Final = ("getItem", "explain")
"""Those about one item."""


def by_id(alone: Mapping[bytes, Served], peers: Peers) -> Mapping[bytes, Serve]:
    """The calls by name, served by this host first; `alone`: by this host alone."""
    served: dict[bytes, Serve] = {}
    for name, entries in _ENTRIES.items():
        method = Method(name, writes=True)
        served[name.encode()] = _together(alone[name.encode()].serve, peers, method, entries)
    for name in _LOOKS:
        served[name.encode()] = _together(alone[name.encode()].serve, peers, Method(name), None)
    return served


def _together(alone: Serve, peers: Peers, method: Method, entries: str | None) -> Serve:
    def serve(request: Any, deadline: float, caller: Caller) -> Pending | None:
        if request.forwarded or not peers.others:
            return alone(request, deadline, caller)
        call = _Call(peers, method, entries, request, deadline, caller)
        call.pending = alone(request, deadline, call)
        return call

    return serve


class _Call:
    """One call: the `Caller` of this host's own serving, and what is under way for the real one.

    Args:
        entries: the request's list; None with a call about one item.
    """

    __slots__ = ("_caller", "_deadline", "_entries", "_method", "_passing", "_peers", "_request", "pending")

    def __init__(
        self, peers: Peers, method: Method, entries: str | None, request: Any, deadline: float, caller: Caller
    ) -> None:
        self._peers = peers
        self._method = method
        self._entries = entries
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
        peer = self._owner(error) if self._entries is None else None
        if peer is None:
            self._caller.fail(error)
        else:
            self._passing = asyncio.ensure_future(self._whole(peer, error))

    def answer(self, shape: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """This host has done its part."""
        if self._entries is None or NotOwner not in set(map(type, value)):  # type: ignore[call-overload]
            self._caller.answer(shape, value, give_back)
            return
        told = list(shape(value).outcomes)
        ways: dict[Peer, list[int]] = {}
        for place, outcome in enumerate(told):
            peer = None if outcome.error is None else self._owner(outcome.error)
            if peer is not None:
                ways.setdefault(peer, []).append(place)
        if ways:
            self._passing = asyncio.ensure_future(self._parts(told, ways, self._entries))
        else:
            self._caller.answer(ttypes.OutcomesReply, told)

    def abandon(self) -> None:
        """What was passed on may still be written."""
        if self._passing is not None:
            self._passing.cancel()
        elif self.pending is not None:
            self.pending.abandon()

    # ------------------------------------------------------------------ elsewhere

    def _owner(self, error: Any) -> Peer | None:
        """Who may answer in place of this error, an exception or a struct."""
        owner = error.owner if isinstance(error, NotOwner | ttypes.Error) else None
        if owner is None:
            return None
        return self._peers.at(owner if isinstance(owner, tuple) else (owner.host, owner.port))

    async def _whole(self, peer: Peer, refusal: Exception) -> None:
        request = copy(self._request)
        request.forwarded = True
        try:
            reply = await self._peers.call(peer, self._method, request, self._deadline)
        except Unreached:
            self._caller.fail(refusal)
        except Exception as error:
            self._caller.fail(error)
        else:
            self._caller.answer(as_it_is, reply)

    async def _parts(self, told: list[Any], ways: Mapping[Peer, list[int]], entries: str) -> None:
        try:
            await asyncio.gather(*(self._to(peer, told, places, entries) for peer, places in ways.items()))
        except Exception as error:
            self._caller.fail(error)
        else:
            self._caller.answer(ttypes.OutcomesReply, told)

    async def _to(self, peer: Peer, told: list[Any], places: Sequence[int], entries: str) -> None:
        """Puts what the owner says of its entries in their places."""
        part = copy(self._request)
        part.forwarded = True
        given = getattr(part, entries)
        setattr(part, entries, [given[place] for place in places])
        try:
            outcomes = (await self._peers.call(peer, self._method, part, self._deadline)).outcomes or []
        except UnknownOutcome as error:
            outcomes = [ttypes.Outcome(codec.error(error)) for _ in places]
        except FoqsError:
            return
        for inner, (place, outcome) in enumerate(zip(places, outcomes, strict=False)):
            told[place] = _placed(outcome, entries, inner, place)
        for place in places[len(outcomes) :]:
            told[place] = ttypes.Outcome(codec.error(UnknownOutcome("the owner does not say what became of it")))


def _placed(outcome: Any, entries: str, inner: int, place: int) -> Any:
    """A peer's outcome, which names the field by its place in what the peer got."""
    error = outcome.error
    head = f"{entries}[{inner}]"
    if error is not None and error.field and error.field.startswith(head):
        error.field = f"{entries}[{place}]{error.field[len(head) :]}"
    return outcome
