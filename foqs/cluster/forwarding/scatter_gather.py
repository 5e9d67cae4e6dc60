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

from foqs.cluster.forwarding.merged_pages import first_place, merge_pages, merge_walk_pages, peek_order
from foqs.cluster.peers import Peer, Peers
from foqs.core.errors import (
    HANDOVER_RETRY_MS,
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
from foqs.queue.filter_walk import start_of_shard
from foqs.queue.port import PendingCall
from foqs.rpc.filters import parse_page
from foqs.rpc.methods import Caller, MethodHandler, task_handler
from foqs.rpc.methods import ServerMethod as Served
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod

RETRY_WITHIN_S: Final = 1.0
"""A shard that is handed over is served again within about that; one that is not is told of by an error."""
_RETRY_PAUSE_S: Final = HANDOVER_RETRY_MS / 1_000


class TierShards(Protocol):
    """Who should own which shard of this host's tier."""

    @property
    def nonce(self) -> str:
        """Of this host."""
        ...

    def owners(self) -> Mapping[int, str | None]:
        """Of each shard the nonce of its owner, as it was read last; None: nobody. Raises Unavailable."""
        ...

    async def read_tier_shards(self, deadline: float) -> Collection[int]:
        """The shards that there are, no earlier than now, by a deadline on the loop's clock. Raises Unavailable."""
        ...


_RETRYABLE: Final = (NotOwner, Unavailable, Overloaded)
"""What is said of a shard that another host, or the same in a moment, may answer for."""
_AUTH_ERRORS: Final = (Unauthenticated, PermissionDenied)


class ScatterGather:
    """Args:
    local: the calls as this host serves them by itself.
    bytes_max: what a page with payloads carries.
    """

    def __init__(self, local: Mapping[bytes, Served], peers: Peers, tier_shards: TierShards, bytes_max: int) -> None:
        self._local = local
        self._peers = peers
        self._tier_shards = tier_shards
        self._bytes_max = bytes_max

    @property
    def handlers(self) -> Mapping[bytes, MethodHandler]:
        """The calls by name."""
        calls: Mapping[bytes, Callable[[Any, float], Any]] = {
            b"peek": self._peek,
            b"listDead": self._list_dead,
            b"countItems": self._count_items,
            b"getUsage": self._get_usage,
            b"bulk": self._bulk,
            b"purgeTopic": self._purge_topic,
        }
        return {name: _local_if_forwarded(self._local[name].handle, task_handler(call)) for name, call in calls.items()}

    # ------------------------------------------------------------------- the calls

    async def _peek(self, request: Any, deadline: float) -> Any:
        limit, _ = parse_page(request.page)
        return merge_pages(await self._ask_owners("peek", request, deadline), peek_order, limit, self._bytes_max)

    async def _list_dead(self, request: Any, deadline: float) -> Any:
        limit, cursor = parse_page(request.page)
        return merge_walk_pages(await self._ask_owners("listDead", request, deadline), limit, self._bytes_max, cursor)

    async def _count_items(self, request: Any, deadline: float) -> Any:
        replies = await self._ask_owners("countItems", request, deadline)
        return ttypes.CountItemsReply(_sum_or_none(replies, "items"), _sum_or_none(replies, "payload_bytes"))

    async def _get_usage(self, request: Any, deadline: float) -> Any:
        replies = await self._ask_owners("getUsage", request, deadline)
        lists = [reply.topic_names for reply in replies]
        return ttypes.UsageReply(
            items=_sum_or_none(replies, "items"),
            bytes=_sum_or_none(replies, "bytes"),
            topics=None if None in lists else len(set().union(*lists)),
            enqueues_last_minute=_sum_or_none(replies, "enqueues_last_minute"),
        )

    async def _bulk(self, request: Any, deadline: float) -> Any:
        """A page of one shard: that at which the walks of all hosts together stand."""
        limit, cursor = parse_page(request.page)
        asked = copy(request)
        asked.page = ttypes.Page(0, None if cursor is None else cursor.encode())
        found = await self._ask_owners("bulk", asked, deadline)
        cursors = [reply.next_cursor for reply in found if reply.next_cursor is not None]
        if not cursors:
            return ttypes.BulkReply(0, None, 0)
        place = first_place(cursors)
        asked.page = ttypes.Page(limit, str(place).encode())
        (reply,) = await self._ask_owners("bulk", asked, deadline, [place.shard], writes=True)
        if reply.next_cursor is None and any(shard > place.shard for shard in self._tier_shards.owners()):
            reply.next_cursor = str(start_of_shard(place.started_ms, place.shard + 1))
        return reply

    async def _purge_topic(self, request: Any, deadline: float) -> Any:
        """Of every shard there is when the call comes, whatever was read before."""
        shards = await self._tier_shards.read_tier_shards(deadline)
        replies = await self._ask_owners("purgeTopic", request, deadline, shards, writes=True)
        return ttypes.PurgeReply(_sum_or_none(replies, "items"))

    # ------------------------------------------------------------------- of whom

    async def _ask_owners(
        self, name: str, request: Any, deadline: float, shards: Collection[int] | None = None, *, writes: bool = False
    ) -> list[Any]:
        """What the owners of these shards, or of all, answer.

        Raises:
            UnknownOutcome: with a call that writes: some of it is, or may be, done.
            FoqsError: nothing was written.
        """
        loop = asyncio.get_running_loop()
        until_s = min(deadline, loop.time() + RETRY_WITHIN_S)
        left = set(self._tier_shards.owners() if shards is None else shards)
        replies: list[Any] = []
        while True:
            refusals: list[FoqsError] = []
            final: list[FoqsError] = []
            try:
                parts = self._group_by_owner(left)
            except Unavailable as error:
                refusals.append(error)
                parts = []
            asked = [self._ask_host(name, request, deadline, writes, peer, numbers) for peer, numbers in parts]
            for (peer, numbers), told in zip(parts, await asyncio.gather(*asked), strict=True):
                if not isinstance(told, FoqsError):
                    replies.append(told)
                    left.difference_update(numbers)
                elif isinstance(told, _RETRYABLE) or (isinstance(told, NamespaceNotFound) and peer is not None):
                    refusals.append(told)
                else:
                    final.append(told)
            if not left:
                return replies
            if final or loop.time() + _RETRY_PAUSE_S >= until_s:
                _raise_failure([*final, *refusals], partly_written=writes and bool(replies))
            await asyncio.sleep(_RETRY_PAUSE_S)

    def _group_by_owner(self, shards: Collection[int]) -> list[tuple[Peer | None, list[int]]]:
        """Whom to ask about which of these shards; None: this host. Raises Unavailable where one of them is nobody's."""
        owners, peers = self._tier_shards.owners(), self._peers.by_nonce
        parts: dict[str, list[int]] = {}
        for number in sorted(shards):
            nonce = owners.get(number)
            if nonce is None or (nonce != self._tier_shards.nonce and nonce not in peers):
                raise Unavailable(
                    f"shard {number} has no owner now; try again, or see foqs cluster status",
                    retry_after_ms=HANDOVER_RETRY_MS,
                )
            parts.setdefault(nonce, []).append(number)
        return [(peers.get(nonce), numbers) for nonce, numbers in parts.items()]

    async def _ask_host(
        self, name: str, request: Any, deadline: float, writes: bool, peer: Peer | None, shards: list[int]
    ) -> Any | FoqsError:
        """What one host answers, or why it does not."""
        request = copy(request)
        request.forwarded = True
        request.shards = shards
        try:
            if peer is None:
                return await self._ask_local(name, request, deadline)
            return await self._peers.call(peer, _client_method(name, writes), request, deadline)
        except FoqsError as error:
            return error if peer is None else _peer_error(peer, error)

    async def _ask_local(self, name: str, request: Any, deadline: float) -> Any:
        asker = _LocalCaller()
        pending = self._local[name.encode()].handle(request, deadline, asker)
        try:
            return await asker.result
        except asyncio.CancelledError:
            if pending is not None:
                pending.abandon()
            raise


class _LocalCaller:
    """The `Caller` of this host's own part."""

    session = None

    def __init__(self) -> None:
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def log_malformed(self, text: str) -> None:
        """The bytes were read before."""

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def reply(self, to_struct: Callable[[Any], Any], value: Any, on_unsent: Callable[[], None] | None = None) -> None:
        if not self.result.done():
            self.result.set_result(to_struct(value))


@cache
def _client_method(name: str, writes: bool) -> ThriftMethod:
    return ThriftMethod(name, is_write=writes)


def _local_if_forwarded(local: MethodHandler, scatter: MethodHandler) -> MethodHandler:
    def serve(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        return (local if request.forwarded else scatter)(request, deadline, caller)

    return serve


def _peer_error(peer: Peer, error: FoqsError) -> FoqsError:
    """What a peer says, as this host tells it."""
    if isinstance(error, _AUTH_ERRORS):
        return Unavailable(f"{peer.view.name} does not take this host for one: {error.message}", retry_after_ms=1_000)
    if isinstance(error, NotOwner):
        return Unavailable(f"{peer.view.name}: {error.message}", retry_after_ms=HANDOVER_RETRY_MS)
    if isinstance(error, Unavailable | Overloaded | DeadlineExceeded | UnknownOutcome):
        error.message = f"{peer.view.name}: {error.message}"
    return error


def _raise_failure(errors: Sequence[FoqsError], *, partly_written: bool) -> NoReturn:
    """Raises what is told of a call that not all hosts answered.

    Args:
        errors: what they said instead, at least one.
        partly_written: other hosts have written their part.
    """
    error = next((error for error in errors if isinstance(error, UnknownOutcome)), errors[0])
    if partly_written:
        raise UnknownOutcome(f"it is done in part; call again: {error.message}")
    if isinstance(error, NotOwner):
        raise Unavailable(error.message, retry_after_ms=HANDOVER_RETRY_MS)
    raise error


def _sum_or_none(replies: Sequence[Any], field: str) -> int | None:
    """None where somebody did not count it."""
    values = [getattr(reply, field) for reply in replies]
    return None if None in values else sum(values)
