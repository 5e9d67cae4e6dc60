"""Forwards calls by item id, or about one shard, to the hosts that own the shards.

Always true: an entry is forwarded once, to the owner that this host knows, and
only after this host has refused it as NOT_OWNER (`OwnedShards.not_owner_error`); other entries are not affected.
An entry that cannot be forwarded stays NOT_OWNER, so that the caller may ask the
other host itself. If no owner is known, as between the loss of a host and the
takeover, the error names none, and the caller tries again with a newer routing table.
If the owner is of a version that does not know the call, the entry is NOT_IMPLEMENTED.
An entry that was sent and not answered is UNKNOWN_OUTCOME. A call whose items are all
local costs one check of its results' types.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

from foqs.cluster.peers import Peer, Peers, PeerUnreachable
from foqs.queue.port import PendingCall
from foqs.rpc import reply_structs
from foqs.rpc.call import Call, Handler, ServerMethod, WrappedCall, unchanged
from foqs_contract.call_table import CallRow, Route
from foqs_contract.contract_version import HostTooOld
from foqs_contract.errors import FoqsError, NotOwner, UnknownOutcome
from foqs_contract.idl import ttypes
from foqs_contract.method_table import METHODS
from foqs_contract.thrift_method import ThriftMethod

_LEASE_ENDS: Final = frozenset(("ack", "complete", "nack", "release"))
"""The calls that end leases."""
_INDEXED: Final = re.compile(r"\b(\w+)\[([0-9]+)\]")
"""Matches the place of an entry in the field or the message of an error."""


OnLeasesEnded: TypeAlias = Callable[[Peer, Sequence[bytes]], None]


class _Entries(NamedTuple):
    """The list of a call with an outcome per entry, and the structs of reply and outcome.

    `has_items`: each entry has some of the request's `items`, one after the other, and says how many.
    """

    field: str
    reply: Any
    outcome: Any
    has_items: bool


class ByIdCalls:
    """Serves calls by item id, and about one shard, by this host first.

    Args:
        on_leases_ended: called with a peer and the ids of items whose leases it has ended for a call here.
    """

    def __init__(self, peers: Peers, on_leases_ended: OnLeasesEnded) -> None:
        self._peers = peers
        self._on_leases_ended = on_leases_ended

    def layer(self, method: ServerMethod) -> Handler:
        """See `Layer`."""
        peers, local, client_method = self._peers, method.handle, ThriftMethod(method.row.name)
        entries = _entries(method.row) if method.row.route is Route.BY_ID else None
        on_leases_ended = self._on_leases_ended if method.row.name in _LEASE_ENDS else None

        def serve(call: Call) -> PendingCall | None:
            if call.request.forwarded or not peers.by_nonce:
                return local(call)
            forwarded = _ForwardedByIdCall(call, peers, client_method, entries, on_leases_ended)
            forwarded.pending = local(forwarded)
            return forwarded

        return serve


def _entries(row: CallRow) -> _Entries:
    reply = METHODS[row.name].reply_class
    [outcome] = [field[3][1][0] for field in filter(None, reply.thrift_spec) if field[2] == "outcomes"]
    has_items = any(field[2] == "items" for field in filter(None, METHODS[row.name].request_spec[1]))
    return _Entries(row.entries, reply, outcome, has_items)


class _ForwardedByIdCall(WrappedCall):
    """One call: its local part, and its forwarded parts.

    Args:
        entries: None for a call that is forwarded whole.
        on_leases_ended: see `ByIdCalls`; None for a call that ends no lease.
    """

    __slots__ = ("_client_method", "_entries", "_forwarding", "_on_leases_ended", "_peers")

    def __init__(
        self,
        outer: Call,
        peers: Peers,
        client_method: ThriftMethod,
        entries: _Entries | None,
        on_leases_ended: OnLeasesEnded | None,
    ) -> None:
        super().__init__(outer)
        self._on_leases_ended = on_leases_ended
        self._peers = peers
        self._client_method = client_method
        self._entries = entries
        self._forwarding: asyncio.Task[None] | None = None

    def fail(self, error: Exception) -> None:
        peer = self._owner_peer(error) if self._entries is None else None
        if peer is None:
            self.outer.fail(error)
        else:
            self._forwarding = asyncio.ensure_future(self._forward_whole(peer, error))

    def reply(self, to_struct: Callable[[Any], Any], value: Any, give_back: Callable[[], None] | None = None) -> None:
        """Reply, or forward the entries that this host refused as NOT_OWNER."""
        if self._entries is None or NotOwner not in set(map(type, value)):
            self.outer.reply(to_struct, value, give_back)
            return
        outcomes = list(to_struct(value).outcomes)
        routes: dict[Peer, list[int]] = {}
        for place, outcome in enumerate(outcomes):
            peer = None if outcome.error is None else self._owner_peer(outcome.error)
            if peer is not None:
                routes.setdefault(peer, []).append(place)
        if routes:
            self._forwarding = asyncio.ensure_future(self._forward_parts(outcomes, routes, self._entries))
        else:
            self.outer.reply(self._entries.reply, outcomes)

    def abandon(self) -> None:
        """End the call without a reply; forwarded entries may still be written."""
        if self._forwarding is not None:
            self._forwarding.cancel()
        else:
            super().abandon()

    # ----------------------------------------------------------------- forwarding

    def _owner_peer(self, error: Any) -> Peer | None:
        """Return the peer that owns the item, by an error as exception or struct."""
        owner = error.owner if isinstance(error, NotOwner | ttypes.Error) else None
        if owner is None:
            return None
        return self._peers.by_address(owner if isinstance(owner, tuple) else (owner.host, owner.port))

    async def _forward_whole(self, peer: Peer, refusal: Exception) -> None:
        request = copy(self.request)
        request.forwarded = True
        try:
            reply = await self._peers.call(peer, self._client_method, request, self.deadline)
        except PeerUnreachable:
            self.outer.fail(refusal)
        except Exception as error:
            self.outer.fail(error)
        else:
            self.outer.reply(unchanged, reply)

    async def _forward_parts(self, outcomes: list[Any], routes: Mapping[Peer, list[int]], entries: _Entries) -> None:
        try:
            await asyncio.gather(
                *(self._forward_part(peer, outcomes, places, entries) for peer, places in routes.items())
            )
        except Exception as error:
            self.outer.fail(error)
        else:
            self.outer.reply(entries.reply, outcomes)

    async def _forward_part(self, peer: Peer, merged: list[Any], places: Sequence[int], entries: _Entries) -> None:
        """Forward entries to their owner and store the outcomes at their places."""
        part = copy(self.request)
        part.forwarded = True
        all_entries = getattr(part, entries.field)
        part_entries = [all_entries[place] for place in places]
        setattr(part, entries.field, part_entries)
        item_places = _item_places(all_entries, places) if entries.has_items else ()
        if entries.has_items:
            part.items = [self.request.items[place] for place in item_places]
        try:
            outcomes = (await self._peers.call(peer, self._client_method, part, self.deadline)).outcomes or []
        except (HostTooOld, UnknownOutcome) as error:
            outcomes = [entries.outcome(reply_structs.error_struct(error)) for _ in places]
        except FoqsError:
            return
        for peer_index, (place, outcome) in enumerate(zip(places, outcomes, strict=False)):
            merged[place] = _with_caller_index(outcome, entries.field, peer_index, place, item_places)
        if self._on_leases_ended is not None:
            ended = [entry.id for entry, outcome in zip(part_entries, outcomes, strict=False) if outcome.error is None]
            self._on_leases_ended(peer, ended)
        for place in places[len(outcomes) :]:
            merged[place] = entries.outcome(
                reply_structs.error_struct(
                    UnknownOutcome(
                        "the reply of the item's owner has no outcome for this item; the call may have taken effect, "
                        "so check before you repeat it"
                    )
                )
            )


def _item_places(entries: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Return the places of the items of these entries among the items of the request."""
    ends = [0, *accumulate(max(0, entry.item_count or 0) for entry in entries)]
    return [item for place in places for item in range(ends[place], ends[place + 1])]


def _with_caller_index(
    outcome: Any, entries: str, peer_index: int, caller_index: int, item_places: Sequence[int] = ()
) -> Any:
    """Correct the indexes in the field and the message of a peer's outcome to the indexes in the caller's request."""
    error = outcome.error
    if error is None or not error.field:
        return outcome

    def corrected(found: re.Match[str]) -> str:
        name, place = found[1], int(found[2])
        if name == entries:
            return f"{entries}[{caller_index}]" if place == peer_index else found[0]
        return f"items[{item_places[place]}]" if name == "items" and place < len(item_places) else found[0]

    error.field = _INDEXED.sub(corrected, error.field, count=1)
    if error.message and item_places:  # the error of a completion may name both in its sentence
        error.message = _INDEXED.sub(corrected, error.message)
    return outcome
