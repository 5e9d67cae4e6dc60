"""The dequeues whose callers have left, until their hosts have replied.

Holds `AbandonedDequeues`. Always true: the host is asked once to end such a dequeue; if
its reply has items, they are released. A host that does not know the call `abandonDequeues`
replies when the wait of the dequeue is over. Knows nothing of the callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from foqs_client.credentials import check_served
from foqs_client.errors import FoqsError
from foqs_client.host_connection import HostConnection, LateReply, NoReply, NotSent
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import Refused, ThriftMethod, Unreadable

ABANDON_S_MAX: Final = 5.0
"""The longest wait for the reply of an `abandonDequeues`. Nothing depends on it."""

_ABANDON: Final = ThriftMethod("abandonDequeues")

ReleaseItems: TypeAlias = Callable[[Sequence[Any]], None]
"""Releases the items of a reply, in the background."""


class AbandonedDequeues:
    """The abandoned dequeues of one client, or of one host to its peers.

    Args:
        dequeue: reads the replies.
    """

    def __init__(self, dequeue: ThriftMethod) -> None:
        self._dequeue = dequeue
        self._open: set[tuple[HostConnection, int]] = set()
        self._unreported: dict[HostConnection, list[int]] = {}
        """The dequeues that were abandoned in this turn of the event loop."""
        self._reporting: set[asyncio.Task[None]] = set()
        self._on_all_ended: asyncio.Future[None] | None = None

    def late_reply(self, release: ReleaseItems) -> LateReply:
        """Return a handler of late replies to dequeues. `release` gets their items."""
        return _LateDequeueReply(self, release)

    async def wait_ended(self, until_s: float) -> None:
        """Wait until every abandoned dequeue has its reply, or until this moment on the loop's clock."""
        loop = asyncio.get_running_loop()
        if self._open and (left_s := until_s - loop.time()) > 0:
            self._on_all_ended = loop.create_future()
            await asyncio.wait((self._on_all_ended,), timeout=left_s)

    def on_left(self, connection: HostConnection, seqid: int) -> None:
        """Record a dequeue, and ask its host in the next turn to end it."""
        if (connection, seqid) in self._open:
            return
        self._open.add((connection, seqid))
        if not self._unreported:
            asyncio.get_running_loop().call_soon(self._report)
        self._unreported.setdefault(connection, []).append(seqid)

    def on_ended(self, connection: HostConnection, seqid: int, body: bytes | None, release: ReleaseItems) -> None:
        """Release the items of a reply."""
        if body is not None and (items := self._items_of(body)):
            release(items)
        self._open.discard((connection, seqid))
        waiting = self._on_all_ended
        if waiting is not None and not self._open and not waiting.done():
            waiting.set_result(None)

    def _items_of(self, body: bytes) -> Sequence[Any]:
        try:
            reply = self._dequeue.decode(body).success
        except Unreadable:
            return ()
        return () if reply is None else reply.items or ()

    def _report(self) -> None:
        unreported, self._unreported = self._unreported, {}
        for connection, seqids in unreported.items():
            task = asyncio.ensure_future(_abandon(connection, seqids))
            self._reporting.add(task)
            task.add_done_callback(self._reporting.discard)


class _LateDequeueReply:
    """The `LateReply` of some dequeues."""

    __slots__ = ("_dequeues", "_release")

    def __init__(self, dequeues: AbandonedDequeues, release: ReleaseItems) -> None:
        self._dequeues = dequeues
        self._release = release

    def on_left(self, connection: HostConnection, seqid: int) -> None:
        self._dequeues.on_left(connection, seqid)

    def on_ended(self, connection: HostConnection, seqid: int, body: bytes | None) -> None:
        self._dequeues.on_ended(connection, seqid, body, self._release)


async def _abandon(connection: HostConnection, seqids: Sequence[int]) -> None:
    """Ask a host to end dequeues. If it does not, they end by themselves."""
    deadline = asyncio.get_running_loop().time() + ABANDON_S_MAX
    request = ttypes.AbandonDequeuesRequest(seqids)
    try:
        async with asyncio.timeout_at(deadline):
            await connection.wait_writable()
        if connection.is_ready:
            await check_served(connection, _ABANDON, request, deadline)
        if connection.is_ready:
            await connection.call(_ABANDON, _ABANDON.encode(request), deadline)
    except (FoqsError, NoReply, NotSent, OSError, Refused, TimeoutError):
        return
