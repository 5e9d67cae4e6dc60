"""Calls about whole topics and namespaces, answered for the whole tier by any of its hosts.

Holds `Scatter`. Always true: an answer covers every shard of the tier, each told
of by the host that owns it, once; where a shard is told of by nobody, the call
fails and says so. What was refused may be asked again, of whoever owns the shard
by then; what may have been written is not. Knows nothing of what a shard holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any, Final, NoReturn, Protocol

from foqs.core.errors import (
    HANDOVER_MS,
    DeadlineExceeded,
    FoqsError,
    NamespaceNotFound,
    NotOwner,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from foqs.service.api import Pending
from foqs.service.walk import beginning
from foqs.tier.pages import best_first, first, merged, walked
from foqs.tier.peers import Peer, Peers
from foqs.wire.methods import Caller, Serve, in_task
from foqs.wire.methods import Method as Served
from foqs.wire.page import page_of
from foqs_client.idl import ttypes
from foqs_client.message import Method

PATIENCE_S: Final = 1.0
"""A shard that is handed over is served again within about that; one that is not is told of by an error."""
_PAUSE_S: Final = HANDOVER_MS / 1_000


class ShardMap(Protocol):
    """Who should own which shard of this host's tier."""

    @property
    def nonce(self) -> str:
        """Of this host."""
        ...

    def owners(self) -> Mapping[int, str | None]:
        """Of each shard the nonce of its owner, as it was read last; None: nobody. Raises Unavailable."""
        ...

    async def newest(self, deadline: float) -> Collection[int]:
        """The shards that there are, no earlier than now, by a deadline on the loop's clock. Raises Unavailable."""
        ...


_ELSEWHERE: Final = (NotOwner, Unavailable, Overloaded)
"""What is said of a shard that another host, or the same in a moment, may answer for."""
_STRANGERS: Final = (Unauthenticated, PermissionDenied)


class Scatter:
    """Args:
    alone: the calls as this host serves them by itself.
    bytes_max: what a page with payloads carries.
    """

    def __init__(self, alone: Mapping[bytes, Served], peers: Peers, shards: ShardMap, bytes_max: int) -> None:
        self._alone = alone
        self._peers = peers
        self._map = shards
        self._bytes_max = bytes_max

    @property
    def served(self) -> Mapping[bytes, Serve]:
        """The calls by name."""
        calls: Mapping[bytes, Callable[[Any, float], Any]] = {
            b"peek": self._peek,
            b"listDead": self._list_dead,
            b"countItems": self._count_items,
            b"getUsage": self._get_usage,
            b"bulk": self._bulk,
            b"purgeTopic": self._purge_topic,
        }
        return {name: _unless_forwarded(self._alone[name].serve, in_task(call)) for name, call in calls.items()}

    # ------------------------------------------------------------------- the calls

    async def _peek(self, request: Any, deadline: float) -> Any:
        limit, _ = page_of(request.page)
        return merged(await self._ask("peek", request, deadline), best_first, limit, self._bytes_max)

    async def _list_dead(self, request: Any, deadline: float) -> Any:
        limit, cursor = page_of(request.page)
        return walked(await self._ask("listDead", request, deadline), limit, self._bytes_max, cursor)

    async def _count_items(self, request: Any, deadline: float) -> Any:
        replies = await self._ask("countItems", request, deadline)
        return ttypes.CountItemsReply(_sum(replies, "items"), _sum(replies, "payload_bytes"))

    async def _get_usage(self, request: Any, deadline: float) -> Any:
        replies = await self._ask("getUsage", request, deadline)
        lists = [reply.topic_names for reply in replies]
        return ttypes.UsageReply(
            items=_sum(replies, "items"),
            bytes=_sum(replies, "bytes"),
            topics=None if None in lists else len(set().union(*lists)),
            enqueues_last_minute=_sum(replies, "enqueues_last_minute"),
        )

    async def _bulk(self, request: Any, deadline: float) -> Any:
        """A page of one shard: that at which the walks of all hosts together stand."""
        limit, cursor = page_of(request.page)
        asked = copy(request)
        asked.page = ttypes.Page(0, None if cursor is None else cursor.encode())
        found = await self._ask("bulk", asked, deadline)
        cursors = [reply.next_cursor for reply in found if reply.next_cursor is not None]
        if not cursors:
            return ttypes.BulkReply(0, None, 0)
        place = first(cursors)
        asked.page = ttypes.Page(limit, str(place).encode())
        (reply,) = await self._ask("bulk", asked, deadline, [place.shard], writes=True)
        if reply.next_cursor is None and any(shard > place.shard for shard in self._map.owners()):
            reply.next_cursor = str(beginning(place.begun_ms, place.shard + 1))
        return reply

    async def _purge_topic(self, request: Any, deadline: float) -> Any:
        """Of every shard there is when the call comes, whatever was read before."""
        shards = await self._map.newest(deadline)
        replies = await self._ask("purgeTopic", request, deadline, shards, writes=True)
        return ttypes.PurgeReply(_sum(replies, "items"))

    # ------------------------------------------------------------------- of whom

    async def _ask(
        self, name: str, request: Any, deadline: float, shards: Collection[int] | None = None, *, writes: bool = False
    ) -> list[Any]:
        """What the owners of these shards, or of all, answer.

        Raises:
            UnknownOutcome: with a call that writes: some of it is, or may be, done.
            FoqsError: nothing was written.
        """
        loop = asyncio.get_running_loop()
        until_s = min(deadline, loop.time() + PATIENCE_S)
        left = set(self._map.owners() if shards is None else shards)
        replies: list[Any] = []
        while True:
            refusals: list[FoqsError] = []
            final: list[FoqsError] = []
            try:
                parts = self._parts(left)
            except Unavailable as error:
                refusals.append(error)
                parts = []
            asked = [self._part(name, request, deadline, writes, peer, numbers) for peer, numbers in parts]
            for (peer, numbers), told in zip(parts, await asyncio.gather(*asked), strict=True):
                if not isinstance(told, FoqsError):
                    replies.append(told)
                    left.difference_update(numbers)
                elif isinstance(told, _ELSEWHERE) or (isinstance(told, NamespaceNotFound) and peer is not None):
                    refusals.append(told)
                else:
                    final.append(told)
            if not left:
                return replies
            if final or loop.time() + _PAUSE_S >= until_s:
                _fail([*final, *refusals], some_are_done=writes and bool(replies))
            await asyncio.sleep(_PAUSE_S)

    def _parts(self, shards: Collection[int]) -> list[tuple[Peer | None, list[int]]]:
        """Whom to ask about which of these shards; None: this host. Raises Unavailable where one of them is nobody's."""
        owners, peers = self._map.owners(), self._peers.others
        parts: dict[str, list[int]] = {}
        for number in sorted(shards):
            nonce = owners.get(number)
            if nonce is None or (nonce != self._map.nonce and nonce not in peers):
                raise Unavailable(
                    f"shard {number} has no owner now; try again, or see foqs cluster status",
                    retry_after_ms=HANDOVER_MS,
                )
            parts.setdefault(nonce, []).append(number)
        return [(peers.get(nonce), numbers) for nonce, numbers in parts.items()]

    async def _part(
        self, name: str, request: Any, deadline: float, writes: bool, peer: Peer | None, shards: list[int]
    ) -> Any | FoqsError:
        """What one host answers, or why it does not."""
        request = copy(request)
        request.forwarded = True
        request.shards = shards
        try:
            if peer is None:
                return await self._here(name, request, deadline)
            return await self._peers.call(peer, _method(name, writes), request, deadline)
        except FoqsError as error:
            return error if peer is None else _named(peer, error)

    async def _here(self, name: str, request: Any, deadline: float) -> Any:
        asker = _Asker()
        pending = self._alone[name.encode()].serve(request, deadline, asker)
        try:
            return await asker.reply
        except asyncio.CancelledError:
            if pending is not None:
                pending.abandon()
            raise


class _Asker:
    """The `Caller` of this host's own part."""

    visitor = None

    def __init__(self) -> None:
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def complain(self, text: str) -> None:
        """The bytes were read before."""

    def fail(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def answer(self, shape: Callable[[Any], Any], value: Any, give_back: Callable[[], None] | None = None) -> None:
        if not self.reply.done():
            self.reply.set_result(shape(value))


@cache
def _method(name: str, writes: bool) -> Method:
    return Method(name, writes=writes)


def _unless_forwarded(alone: Serve, together: Serve) -> Serve:
    def serve(request: Any, deadline: float, caller: Caller) -> Pending | None:
        return (alone if request.forwarded else together)(request, deadline, caller)

    return serve


def _named(peer: Peer, error: FoqsError) -> FoqsError:
    """What a peer says, as this host tells it."""
    if isinstance(error, _STRANGERS):
        return Unavailable(f"{peer.view.name} does not take this host for one: {error.message}", retry_after_ms=1_000)
    if isinstance(error, NotOwner):
        return Unavailable(f"{peer.view.name}: {error.message}", retry_after_ms=HANDOVER_MS)
    if isinstance(error, Unavailable | Overloaded | DeadlineExceeded | UnknownOutcome):
        error.message = f"{peer.view.name}: {error.message}"
    return error


def _fail(errors: Sequence[FoqsError], *, some_are_done: bool) -> NoReturn:
    """Raises what is told of a call that not all hosts answered.

    Args:
        errors: what they said instead, at least one.
        some_are_done: other hosts have written their part.
    """
    error = next((error for error in errors if isinstance(error, UnknownOutcome)), errors[0])
    if some_are_done:
        raise UnknownOutcome(f"it is done in part; call again: {error.message}")
    if isinstance(error, NotOwner):
        raise Unavailable(error.message, retry_after_ms=HANDOVER_MS)
    raise error


def _sum(replies: Sequence[Any], field: str) -> int | None:
    """None where somebody did not count it."""
    values = [getattr(reply, field) for reply in replies]
    return None if None in values else sum(values)
