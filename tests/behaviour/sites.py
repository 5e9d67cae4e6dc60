"""The sites of the behavioural suite: a host or a tier of some kind, a client of it, and a way to let time pass.

Always true: a story uses only the public asynchronous client. Every kind of host has
the same options. The suite defines what a queue does: the fake, and a real host over
each database, pass the same stories.

A story is written once, as `async def test_...(site)` with `@story`, and runs on every
kind of host.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from itertools import count
from typing import Any, Final, cast

from foqs.testing import FakeHost, SyncFakeHost
from foqs_client import Client, Delivery, Item, Namespace, SyncClient
from foqs_contract.key_slots import group_slot_of, key_slot_of
from tests.support.aio import run
from tests.support.poll import pass_ms
from tests.support.processes import RestartableHost, quick_host
from tests.support.virtual_tier import SPREAD_MS, VirtualTier

SPAN_MS: Final = 1_000
"""Short enough to wait for, and longer than the usual stall of a machine, so that tests see items that are not due."""
BACKOFF_MS_MAX: Final = 2 * SPAN_MS
DEAD_RETENTION_MS: Final = 3 * SPAN_MS
PAYLOAD_BYTES_MAX: Final = 10_240

OPTIONS: Final = {
    "shard.breaker_latency_ms_max": 30_000,
    "namespace.lease_ms_default": 30_000,
    "namespace.backoff_ms_min": BACKOFF_MS_MAX,
    "namespace.backoff_ms_max": BACKOFF_MS_MAX,
    "namespace.payload_bytes_max": PAYLOAD_BYTES_MAX,
}
"""The backoff is at least twice SPAN_MS, because a nacked item is deferred for at least half of it. The breaker
does not open on a slow machine, so that no enqueue is refused."""
PATIENT_HOST: Final = quick_host(shard={"sweep_interval_ms": 60_000}, calls={"delivery_wait_ms_max": 30_000})
"""The command of a host that waits for late commits of a slow machine, so that no dequeue returns too little."""
NAMESPACES: Final = (
    Namespace("other", weight=2),
    Namespace("brief", dead_retention_ms=DEAD_RETENTION_MS, attempts_max_default=2),
)
PATIENCE_S: Final = 20.0

_names = count(1)

Connect = Callable[[str], AbstractAsyncContextManager[Client]]
Run = Callable[[Coroutine[Any, Any, None]], None]


class Site:
    """A host, and what a story needs of it.

    Args:
        spread_ms: the time until each host of the site knows of what another one acknowledged.
        in_real_time: whether time also passes while the story does not let it pass.

    Attributes:
        client: a client of the namespace `default`.
        topic: a topic that no other story uses.
    """

    def __init__(
        self,
        connect: Connect,
        pass_ms: Callable[[int], Awaitable[None]],
        client: Client,
        *,
        spread_ms: int = 0,
        in_real_time: bool = False,
    ) -> None:
        self._connect = connect
        self._pass_ms = pass_ms
        self._spread_ms = spread_ms
        self._in_real_time = in_real_time
        self.client = client
        self.topic = f"topic-{next(_names)}"

    def namespace(self, name: str) -> AbstractAsyncContextManager[Client]:
        """Return a client of another namespace: `other`, or `brief` with a short retention and two attempts."""
        return self._connect(name)

    async def pass_ms(self, ms: int) -> None:
        """Let this time pass, or a little more. On a real host it takes as long."""
        await self._pass_ms(ms)

    async def spread(self) -> None:
        """Let all hosts of the site know of what was acknowledged: a reply without a wait, a list of topics and an explanation need it."""
        if self._spread_ms:
            await self._pass_ms(self._spread_ms)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass until the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await self.pass_ms(20)

    async def keys_of_one_host(self, count: int) -> list[str]:
        """Return idempotency keys for items that one host will acknowledge: their order is exact."""
        slots = await self._slots_of_one_host()
        names = (f"{self.topic}-{n}" for n in range(100 * count))
        return [name for name in names if not slots or key_slot_of(name.encode()) in slots][:count]

    async def groups_of_one_host(self, count: int) -> list[str]:
        """Return groups of the namespace `default` that are in shards of the same host."""
        slots = await self._slots_of_one_host()
        names = (f"{self.topic}-{n}" for n in range(100 * count))
        return [name for name in names if not slots or group_slot_of(b"default", name.encode()) in slots][:count]

    async def _slots_of_one_host(self) -> set[int]:
        """Return the key slots of a host; none if the routing names none, because there is one host."""
        shards = (await self.client.routing()).shards
        return {slot for shard in shards if shard.owner == shards[0].owner for slot in shard.key_slots}

    # ----------------------------------------------------------------- shortcuts

    async def put(self, *items: Item) -> list[str]:
        """Enqueue items and return their ids; every item must succeed."""
        return [result.require() for result in await self.client.enqueue(items)]

    async def get(self, count: int = 1, *, lease_ms: int | None = None) -> list[Delivery]:
        """Dequeue from the topic, with a wait; at least one item must be delivered."""
        deliveries = await self.client.dequeue({self.topic: count}, wait_ms=5_000, lease_ms=lease_ms)
        assert deliveries
        return deliveries

    async def one(self, *, lease_ms: int | None = None) -> Delivery:
        [delivery] = await self.get(lease_ms=lease_ms)
        return delivery

    def stood_still(self, since_s: float) -> bool:
        """Return whether SPAN_MS has passed since this moment of `time.monotonic`, as on a machine that stands still.

        Then a delay or a lease of SPAN_MS may be over.
        """
        return self._in_real_time and time.monotonic() >= since_s + SPAN_MS / 1_000

    async def states(self, ids: Sequence[str]) -> list[str]:
        return [(await self.client.item(id_)).state for id_ in ids]


Story = Callable[[Site], Coroutine[Any, Any, None]]
Stage = Callable[[Story], None]
"""Plays a story on a host of one kind."""


def story(play: Story) -> Callable[[Stage], None]:
    """Return a test that runs this story on each kind of host."""

    @wraps(play)
    def test(stage: Stage) -> None:
        stage(play)

    del test.__wrapped__  # pytest must see the parameters of the test, not of the story
    return test


def stage(open_site: Callable[[], AbstractAsyncContextManager[Site]], run: Run = run) -> Stage:
    """Return what plays a story on a site of this kind. `run` runs a coroutine to its end."""

    async def played(play: Story) -> None:
        async with open_site() as site:
            await play(site)

    return lambda play: run(played(play))


@asynccontextmanager
async def fake_site() -> AsyncIterator[Site]:
    """Yield the fake, with the asynchronous client."""
    async with FakeHost(OPTIONS) as fake:
        await _prepare(fake.client())
        yield Site(lambda namespace: fake.client(namespace=namespace), fake.advance, fake.client())


@asynccontextmanager
async def sync_site() -> AsyncIterator[Site]:
    """Yield the fake, with the synchronous host and client."""
    fake = SyncFakeHost(OPTIONS)
    await asyncio.to_thread(fake.__enter__)

    @asynccontextmanager
    async def connect(namespace: str) -> AsyncIterator[Client]:
        with_namespace = fake.client(namespace=namespace)
        yield awaited(with_namespace)
        await asyncio.to_thread(with_namespace.close)

    async def advance(ms: int) -> None:
        await asyncio.to_thread(fake.advance, ms)

    try:
        await _prepare(awaited(fake.client()))
        yield Site(connect, advance, awaited(fake.client()))
    finally:
        await asyncio.to_thread(fake.__exit__, None, None, None)


@asynccontextmanager
async def host_site(host: RestartableHost) -> AsyncIterator[Site]:
    """A real host."""

    def connect(namespace: str) -> Client:
        return Client(host.address, namespace=namespace)

    async with connect("default") as client:
        await _prepare(client)
        yield Site(connect, pass_ms, client, in_real_time=True)


@asynccontextmanager
async def tier_site(tier: VirtualTier) -> AsyncIterator[Site]:
    """Three hosts, of which the client knows one."""
    tier.refused.clear()
    async with tier.client("default") as client:
        await _prepare(client)
        yield Site(tier.client, tier.pass_ms, client, spread_ms=SPREAD_MS)
    assert tier.refused == []


async def _prepare(client: Client) -> None:
    for namespace in NAMESPACES:
        await client.create_namespace(namespace)


def awaited(client: SyncClient) -> Client:
    """Return an asynchronous client that makes each call of a synchronous one in a thread."""
    return cast(Client, _Awaited(client))


class _Awaited:
    def __init__(self, client: SyncClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call
