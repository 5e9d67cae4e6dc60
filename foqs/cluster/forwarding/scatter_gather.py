"""Serves calls about whole topics and namespaces for the whole tier.

Holds `ScatterGather`. Always true: a reply covers every shard of the tier once,
as reported by its owner; if a shard has no owner, the call fails and says so. A
refused part may be sent again, to the owner by then; a part that may have been
written is not sent again. Knows nothing of what a shard holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any, Final, NoReturn, Protocol

from foqs.cluster.forwarding.merged_pages import first_place, merge_filter_walk_pages, merge_pages, peek_order
from foqs.cluster.peers import Peer, Peers
from foqs.queue.port import PendingCall
from foqs.queue.reads.filter_walk import start_of_shard
from foqs.rpc.call import Call, Handler, ServerMethod
from foqs.rpc.filters import parse_page
from foqs.rpc.group_list_structs import merge_group_lists
from foqs.rpc.in_host_calls import InHostCall
from foqs.rpc.methods import task_handler
from foqs_contract.errors import (
    HANDOVER_RETRY_MS,
    FoqsError,
    NamespaceNotFound,
    NotOwner,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from foqs_contract.idl import ttypes
from foqs_contract.request import ShardsRequest
from foqs_contract.thrift_method import ThriftMethod

RETRY_WITHIN_S: Final = 1.0
"""A shard that is handed over is usually served again within this time; after it, the call fails."""
_RETRY_PAUSE_S: Final = HANDOVER_RETRY_MS / 1_000


class TierShards(Protocol):
    """The planned owners of the tier's shards."""

    @property
    def nonce(self) -> str:
        """The nonce of this host."""
        ...

    def owners(self) -> Mapping[int, str | None]:
        """Return the nonce of each shard's owner, or None, as last read. Raises Unavailable."""
        ...

    async def read_tier_shards(self, deadline: float) -> Collection[int]:
        """Read the current shards of the tier; `deadline` is on the loop's clock. Raises Unavailable."""
        ...


_AUTH_ERRORS: Final = (Unauthenticated, PermissionDenied)


class ScatterGather:
    """Sends calls to the owners of all shards and merges the replies.

    Args:
        bytes_max: the size limit of a page with payloads.
    """

    def __init__(self, peers: Peers, tier_shards: TierShards, bytes_max: int) -> None:
        self._peers = peers
        self._tier_shards = tier_shards
        self._bytes_max = bytes_max

    def layer(self, method: ServerMethod) -> Handler:
        """See `Layer`. Raises ValueError for a call that has no merge."""
        merges: Mapping[str, Callable[[Call], Coroutine[Any, Any, Any]]] = {
            "listGroups": self._list_groups,
            "peek": self._peek,
            "listDead": self._list_dead,
            "countItems": self._count_items,
            "getUsage": self._get_usage,
            "bulk": self._bulk,
            "purgeTopic": self._purge_topic,
        }
        name = method.row.name
        merge = merges.get(name)
        if merge is None:
            raise ValueError(f"the call {name} goes to all shards, and {__name__} has no merge of its replies; add one")
        local, gather = method.handle, task_handler(merge)

        def serve(call: Call) -> PendingCall | None:
            return (local if call.request.forwarded else gather)(call)

        return serve

    # ------------------------------------------------------------------- the calls

    async def _list_groups(self, call: Call) -> ttypes.ListGroupsReply:
        return merge_group_lists(await self._ask_owners(call, call.request), call.request)

    async def _peek(self, call: Call) -> ttypes.ItemsReply:
        request: ttypes.PeekRequest = call.request
        limit, _ = parse_page(request.page)
        return merge_pages(await self._ask_owners(call, request), peek_order, limit, self._bytes_max)

    async def _list_dead(self, call: Call) -> ttypes.ItemsReply:
        request: ttypes.ListDeadRequest = call.request
        limit, cursor = parse_page(request.page)
        return merge_filter_walk_pages(await self._ask_owners(call, request), limit, self._bytes_max, cursor)

    async def _count_items(self, call: Call) -> ttypes.CountItemsReply:
        replies = await self._ask_owners(call, call.request)
        return ttypes.CountItemsReply(_sum_or_none(replies, "items"), _sum_or_none(replies, "payload_bytes"))

    async def _get_usage(self, call: Call) -> ttypes.UsageReply:
        replies = await self._ask_owners(call, call.request)
        lists = [reply.topic_names for reply in replies]
        return ttypes.UsageReply(
            items=_sum_or_none(replies, "items"),
            bytes=_sum_or_none(replies, "bytes"),
            topics=None if None in lists else len(set().union(*lists)),
            enqueues_last_minute=_sum_or_none(replies, "enqueues_last_minute"),
        )

    async def _bulk(self, call: Call) -> ttypes.BulkReply:
        """Change a page of items of one shard: the first shard at which any host's filter walk has items left."""
        part: ttypes.BulkRequest = copy(call.request)
        limit, cursor = parse_page(part.page, limit_min=0)
        part.page = ttypes.Page(0, None if cursor is None else cursor.encode())
        replies: list[ttypes.BulkReply] = await self._ask_owners(call, part)
        cursors = [reply.next_cursor for reply in replies if reply.next_cursor is not None]
        if not cursors:
            return ttypes.BulkReply(0, None, 0)
        place = first_place(cursors)
        if not limit:
            return ttypes.BulkReply(0, str(place), 0)
        part.page = ttypes.Page(limit, str(place).encode())
        reply: ttypes.BulkReply
        (reply,) = await self._ask_owners(call, part, [place.shard], writes=True)
        if reply.next_cursor is None and any(shard > place.shard for shard in self._tier_shards.owners()):
            reply.next_cursor = str(start_of_shard(place.started_ms, place.shard + 1))
        return reply

    async def _purge_topic(self, call: Call) -> ttypes.PurgeReply:
        """Purge the topic in every shard that exists when the call arrives; the layout is read again."""
        shards = await self._tier_shards.read_tier_shards(call.deadline)
        replies = await self._ask_owners(call, call.request, shards, writes=True)
        return ttypes.PurgeReply(_sum_or_none(replies, "items"))

    # -------------------------------------------------------------------- asking

    async def _ask_owners(
        self, call: Call, request: ShardsRequest, shards: Collection[int] | None = None, *, writes: bool = False
    ) -> list[Any]:
        """Ask the owners of these shards, or of all, and return their replies.

        Args:
            request: the request of each part; the shards of the part are added to a copy.
            writes: the parts can change something.

        Raises:
            UnknownOutcome: the call writes, and a part of it is, or may be, done.
            FoqsError: nothing was written.
        """
        loop = asyncio.get_running_loop()
        retry_until_s = min(call.deadline, loop.time() + RETRY_WITHIN_S)
        missing_shards = set(self._tier_shards.owners() if shards is None else shards)
        replies: list[Any] = []
        while True:
            refusals: list[FoqsError] = []
            final: list[FoqsError] = []
            try:
                parts = self._group_by_owner(missing_shards)
            except Unavailable as error:
                refusals.append(error)
                parts = []
            calls = [self._ask_host(call, request, writes, peer, numbers) for peer, numbers in parts]
            for (peer, numbers), reply in zip(parts, await asyncio.gather(*calls), strict=True):
                if not isinstance(reply, FoqsError):
                    replies.append(reply)
                    missing_shards.difference_update(numbers)
                elif reply.retryable_elsewhere or (isinstance(reply, NamespaceNotFound) and peer is not None):
                    refusals.append(reply)
                else:
                    final.append(reply)
            if not missing_shards:
                return replies
            if final or loop.time() + _RETRY_PAUSE_S >= retry_until_s:
                _raise_failure([*final, *refusals], partly_written=writes and bool(replies))
            await asyncio.sleep(_RETRY_PAUSE_S)

    def _group_by_owner(self, shards: Collection[int]) -> list[tuple[Peer | None, list[int]]]:
        """Group shards by the peer to ask; None: this host. Raises Unavailable if a shard has no owner."""
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
        self, call: Call, request: ShardsRequest, writes: bool, peer: Peer | None, shards: list[int]
    ) -> Any | FoqsError:
        """Ask one host, and return its reply or its error."""
        request = copy(request)
        request.forwarded = True
        request.shards = shards
        try:
            if peer is None:
                return await InHostCall(call.method, request, call.deadline, call.principal).make()
            return await self._peers.call(peer, _client_method(call.method.row.name, writes), request, call.deadline)
        except FoqsError as error:
            return error if peer is None else _peer_error(peer, error)


@cache
def _client_method(name: str, writes: bool) -> ThriftMethod:
    return ThriftMethod(name, is_write=writes)


def _peer_error(peer: Peer, error: FoqsError) -> FoqsError:
    """Convert a peer's error for the caller."""
    if isinstance(error, _AUTH_ERRORS):
        return Unavailable(
            f"host {peer.view.name} does not accept this host as an administrator: {error.message}; "
            "foqs doctor --config FILE checks this",
            retry_after_ms=1_000,
        )
    if isinstance(error, NotOwner):
        return Unavailable(f"host {peer.view.name}: {error.message}", retry_after_ms=HANDOVER_RETRY_MS)
    if error.retryable or error.hides_write:
        error.message = f"host {peer.view.name}: {error.message}"
    return error


def _raise_failure(errors: Sequence[FoqsError], *, partly_written: bool) -> NoReturn:
    """Raise the error of a call that some hosts did not serve.

    Args:
        errors: the errors of these hosts, at least one.
        partly_written: whether other hosts have written their part.
    """
    error = next((error for error in errors if isinstance(error, UnknownOutcome)), errors[0])
    if partly_written:
        raise UnknownOutcome(f"the call is done in part; call again: {error.message}")
    if isinstance(error, NotOwner):
        raise Unavailable(error.message, retry_after_ms=HANDOVER_RETRY_MS)
    raise error


def _sum_or_none(replies: Sequence[Any], field: str) -> int | None:
    """Return the sum of a field; None if a reply does not have it."""
    values = [getattr(reply, field) for reply in replies]
    return None if None in values else sum(values)
