"""Hosts of one tier under virtual time, each a fake queue behind a real server, which forward calls to each other.

Always true: every host knows all others by one routing table, which a test may
change. The test decides which calls a host refuses or delays. Knows nothing of
shards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from foqs.catalog.document import Permission
from foqs.cluster.forwarding.enqueues import EnqueueForwarder
from foqs.cluster.peers import Peers
from foqs.core.items.item import KeyedItem, NewItem
from foqs.queue.port import EnqueueOutcome, PendingCall
from foqs.routing.port import Address, HostIdentity, HostView, StandaloneCluster
from foqs.rpc.call import Call, Handler, ServerMethod
from foqs.rpc.host_service import host_service
from foqs.rpc.server import RpcServer
from foqs_client import Client, Enqueued, Item
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import make_handshake
from foqs_contract.errors import FoqsError, NotOwner
from tests.simulation import principals
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.faulty_network import FaultyNetwork
from tests.support.raw_calls import enqueue_once
from tests.support.virtual_time import run_virtual

PORT: Final = 7411
GRACE_S: Final = 0.2


class SelectiveQueue(FakeQueue):
    """A queue that accepts the items that the test chooses.

    Attributes:
        refusal: returns the error of an item; None: it is accepted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refusal: Callable[[NewItem], FoqsError | None] = lambda item: None

    def enqueue(
        self,
        namespace: str,
        items: Sequence[NewItem],
        deadline: float,
        on_done: Callable[[list[EnqueueOutcome]], None],
        *,
        is_atomic: bool = False,
    ) -> PendingCall:
        refused = [self.refusal(item) for item in items]
        if is_atomic and any(refused):
            refused = [next(filter(None, refused))] * len(items)
        good = [item for item, error in zip(items, refused, strict=True) if error is None]

        def reply_to_all(taken: list[EnqueueOutcome]) -> None:
            rest = iter(taken)
            on_done([next(rest) if error is None else error for error in refused])

        return super().enqueue(namespace, good, deadline, reply_to_all, is_atomic=is_atomic)

    def accept_only(self, *keys: str) -> None:
        """Refuse items with other groups or keys than these, with the owner of group or key if `owners` has one."""
        mine = {key.encode() for key in keys}

        def refusal(item: NewItem) -> FoqsError | None:
            name = item.item_group or (item.idempotency_key if isinstance(item, KeyedItem) else None)
            if name is None or name in mine:
                return None
            return NotOwner("another's", owner=self.owners.get(name.decode()))

        self.refusal = refusal

    owners: dict[str, Address]


class EnqueueTierHost:
    """One host.

    Attributes:
        asked: how often each call reached it, and whether as one that was passed on.
        times: of the calls that reached it, what time they had.
    """

    def __init__(self, tier: EnqueueTier, view: HostView, token: str | None) -> None:
        self.view = view
        self.queue = SelectiveQueue()
        self.queue.owners = tier.owners
        self.asked: Counter[tuple[str, bool]] = Counter()
        self.times: list[int] = []
        greet = make_handshake(token, None, has_certificate=False)
        connect = tier.network.connector(view.name)
        self.peers = Peers(
            lambda: tier.views, view.nonce, view.tier, view.region, lambda at: ConnectionPool([at], 1, connect, greet)
        )
        forwarder = EnqueueForwarder(self.peers)

        def layer(method: ServerMethod) -> Handler:
            served = forwarder.layer(method) if method.row.name == "enqueue" else method.handle
            return partial(self._record, served)

        calls = host_service(
            self.queue,
            StandaloneCluster(HostIdentity(view.name, PORT, 1), self.queue.shard_statuses),
            Random(1),
            layer=layer,
        )
        self.server = RpcServer(
            asyncio.get_running_loop(),
            calls,
            rpc_limits(reply_grace_ms=int(GRACE_S * 1_000)),
            authenticator=principals.gate(lambda *_: frozenset((Permission.ENQUEUE,))) if tier.gated else None,
        )

    @property
    def items(self) -> list[bytes]:
        """The payloads that it took, in order."""
        return [row.payload or b"" for row in self.queue.rows.values()]

    def _record(self, serve: Handler, call: Call) -> PendingCall | None:
        name = call.method.row.name
        if name != "authenticate":
            self.asked[name, bool(getattr(call.request, "forwarded", False))] += 1
            self.times.append(call.request.timeout_ms)
        return serve(call)


class EnqueueTier:
    """Args:
    gated: hosts ask who calls.
    """

    def __init__(self, stack: AsyncExitStack, *, gated: bool = False) -> None:
        self.gated = gated
        self.network = FaultyNetwork(asyncio.get_running_loop(), Random(1), latency_ms=(0.1, 1.0))
        self.hosts: list[EnqueueTierHost] = []
        self.views: Sequence[HostView] = ()
        self.owners: dict[str, Address] = {}
        """The owner of each key."""
        self._stack = stack

    async def host(
        self, name: str, *, token: str | None = principals.token(principals.OPERATOR), listens: bool = True, **view: Any
    ) -> EnqueueTierHost:
        """Start one more host, known to all."""
        known = HostView(name, (name, PORT), "default", "", 1, f"nonce-{name}")
        host = EnqueueTierHost(self, replace(known, **view), token)
        self.hosts.append(host)
        self.views = (*self.views, host.view)
        if listens:
            await self.network.listen(name, PORT, host.server.connection)
        self._stack.push_async_callback(host.peers.close)
        return host

    def change(self, host: EnqueueTierHost, **view: Any) -> None:
        """Change what all hosts read of one host."""
        host.view = replace(host.view, **view)
        self.views = [host.view for host in self.hosts]

    async def client(self, host: EnqueueTierHost, **more: Any) -> Client:
        """Return a client of one host, without automatic keys."""
        shown = principals.token(principals.OPERATOR) if self.gated else None
        given = {"automatic_keys": False, "token": shown, "connect": self.network.connector("client"), **more}
        return await self._stack.enter_async_context(Client(f"foqs://{host.view.name}", **given))


async def send(client: Client, *items: Item, timeout_ms: int = 3_000) -> list[Enqueued]:
    """One attempt at an enqueue. Raises the FoqsError of the whole call."""
    return await enqueue_once(client, *items, timeout_ms=timeout_ms)


def in_tier(story: Callable[[EnqueueTier], Coroutine[Any, Any, None]], *, gated: bool = False) -> None:
    """Run a story under virtual time."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            tier = EnqueueTier(stack, gated=gated)
            await story(tier)

    run_virtual(main, until_s=600.0)


def names(hosts: Collection[Any]) -> list[str]:
    """Return the names of peers in order."""
    return [each.view.name for each in hosts]
