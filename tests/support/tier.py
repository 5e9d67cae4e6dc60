"""Hosts of one tier under virtual time, each a fake queue behind a real wire, which pass calls on to each other.

Holds `Tier` and its `TierHost`s. Always true: every host knows all others by the
same map, which a test changes as it likes; what a host is refused, or made to
wait, is the test's. Knows nothing of shards.
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
from foqs.core.errors import FoqsError, NotOwner
from foqs.core.item import KeyedItem, NewItem
from foqs.service.api import Enqueued, Pending
from foqs.service.cluster import Address, HostView
from foqs.tier.calls import TierCalls
from foqs.tier.enqueues import Enqueues
from foqs.tier.peers import Peers
from foqs.wire.handlers import Handlers, Identity
from foqs.wire.limits import WireLimits
from foqs.wire.methods import Calls, Method
from foqs.wire.server import WireServer
from foqs_client import Client, Item, convert
from foqs_client import Enqueued as Told
from foqs_client.credentials import greeting
from foqs_client.pool import Pool
from tests.simulation import principals
from tests.support.fake_queue import FakeQueue
from tests.support.network import Network
from tests.support.virtual import run_virtual

PORT: Final = 7411
GRACE_S: Final = 0.2


class TierQueue(FakeQueue):
    """A queue that takes what it shall take.

    Attributes:
        refusal: what an item is told in its place; None: it is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refusal: Callable[[NewItem], FoqsError | None] = lambda item: None

    def enqueue(
        self, namespace: str, items: Sequence[NewItem], deadline: float, done: Callable[[list[Enqueued]], None]
    ) -> Pending:
        refused = [self.refusal(item) for item in items]
        good = [item for item, error in zip(items, refused, strict=True) if error is None]

        def whole(taken: list[Enqueued]) -> None:
            rest = iter(taken)
            done([next(rest) if error is None else error for error in refused])

        return super().enqueue(namespace, good, deadline, whole)

    def holds(self, *keys: str) -> None:
        """Of items with keys it takes only these; of the others it says who owns them, where `owners` does."""
        mine = {key.encode() for key in keys}

        def refusal(item: NewItem) -> FoqsError | None:
            if not isinstance(item, KeyedItem) or item.key in mine:
                return None
            return NotOwner("another's", owner=self.owners.get(item.key.decode()))

        self.refusal = refusal

    owners: dict[str, Address]


class TierHost:
    """One host.

    Attributes:
        asked: how often each call reached it, and whether as one that was passed on.
        times: of the calls that reached it, what time they had.
    """

    def __init__(self, tier: Tier, view: HostView, token: str | None) -> None:
        self.view = view
        self.queue = TierQueue()
        self.queue.owners = tier.owners
        self.asked: Counter[tuple[str, bool]] = Counter()
        self.times: list[int] = []
        greet = greeting(token, None, certified=False)
        connect = tier.network.connector(view.name)
        self.peers = Peers(
            lambda: tier.views, view.nonce, view.tier, view.region, lambda at: Pool([at], 1, connect, greet)
        )
        alone = Handlers(self.queue, Identity(view.name, PORT, 1), Random(1))
        enqueues = Enqueues(alone.methods[b"enqueue"].serve, self.peers)
        calls = TierCalls(alone, {b"enqueue": enqueues.serve})
        self.wire = WireServer(
            asyncio.get_running_loop(),
            self._noted(calls),
            WireLimits(reply_grace_s=GRACE_S),
            gate=principals.gate(lambda *_: frozenset((Permission.ENQUEUE,))) if tier.gated else None,
        )

    @property
    def items(self) -> list[bytes]:
        """The payloads that it took, in order."""
        return [row.payload or b"" for row in self.queue.rows.values()]

    def _noted(self, calls: TierCalls) -> Calls:
        def serve(name: str, method: Method, request: Any, *rest: Any) -> Any:
            if name != "authenticate":
                self.asked[name, bool(getattr(request, "forwarded", False))] += 1
                self.times.append(request.timeout_ms)
            return method.serve(request, *rest)

        calls.methods = {
            name: replace(method, serve=partial(serve, name.decode(), method)) for name, method in calls.methods.items()
        }
        return calls


class Tier:
    """Args:
    gated: hosts ask who calls.
    """

    def __init__(self, stack: AsyncExitStack, *, gated: bool = False) -> None:
        self.gated = gated
        self.network = Network(asyncio.get_running_loop(), Random(1), latency_ms=(0.1, 1.0))
        self.hosts: list[TierHost] = []
        self.views: Sequence[HostView] = ()
        self.owners: dict[str, Address] = {}
        """By key, who takes it."""
        self._stack = stack

    async def host(
        self, name: str, *, token: str | None = principals.token(principals.OPERATOR), listens: bool = True, **view: Any
    ) -> TierHost:
        """One more, which all know."""
        known = HostView(name, (name, PORT), "default", "", 1, f"nonce-{name}")
        host = TierHost(self, replace(known, **view), token)
        self.hosts.append(host)
        self.views = (*self.views, host.view)
        if listens:
            await self.network.listen(name, PORT, host.wire.connection)
        self._stack.push_async_callback(host.peers.close)
        return host

    def change(self, host: TierHost, **view: Any) -> None:
        """All read another map."""
        host.view = replace(host.view, **view)
        self.views = [host.view for host in self.hosts]

    async def client(self, host: TierHost, **more: Any) -> Client:
        """Of one host, without keys of its own."""
        shown = principals.token(principals.OPERATOR) if self.gated else None
        given = {"automatic_keys": False, "token": shown, "connect": self.network.connector("client"), **more}
        return await self._stack.enter_async_context(Client(f"foqs://{host.view.name}", **given))


async def send(client: Client, *items: Item, timeout_ms: int = 3_000) -> list[Told]:
    """One attempt at an enqueue. Raises the FoqsError of the whole call."""
    return await client._send_to(None, convert.items(items), timeout_ms)


def in_tier(story: Callable[[Tier], Coroutine[Any, Any, None]], *, gated: bool = False) -> None:
    """Plays a story under virtual time."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            tier = Tier(stack, gated=gated)
            await story(tier)

    run_virtual(main, until_s=600.0)


def names(hosts: Collection[Any]) -> list[str]:
    """Of peers, in order."""
    return [each.view.name for each in hosts]
