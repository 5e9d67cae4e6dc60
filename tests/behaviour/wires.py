"""The sites of bad input: a host of some kind, and a client that sends any request.

Always true: a story has its own namespace, so that only the story changes it. Every
kind of host has the same options. There is one connection, and it is still open when
the story ends. Knows nothing of what is bad.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from functools import wraps
from itertools import count
from typing import Any, Final

from foqs.testing import FakeHost
from foqs.testing.fake_host import PORT
from foqs_client import Client, Namespace
from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import ErrorCode
from tests.behaviour.sites import OPTIONS, Run
from tests.support.aio import run
from tests.support.poll import pass_ms
from tests.support.processes import RestartableHost
from tests.support.requests import Names
from tests.support.rpc_server import call, parse_any, parse_reply
from tests.support.virtual_tier import ADDRESSES, VirtualTier
from tests.support.virtual_tier import PORT as TIER_PORT

Outcome = tuple[str, str | None]
"""OK, ALREADY_GONE, REPEATED or the code of an error; and the field at fault."""

OK: Final[Outcome] = ("OK", None)
STATES: Final = [1, 2, 3, 4]
RUNNING: Final = {"age_ms", "first_delivery_age_ms", "due_in_ms", "lease_remaining_ms", "ttl_remaining_ms"}
"""The fields of an item that change by themselves."""
COMPACT: Final = 0x82
"""The first byte of a message in the compact protocol."""
REPLY_S_MAX: Final = 20.0

_names = count(1)
_seqids = count(1)


class Line(asyncio.Protocol):
    """A connection that sends any bytes and returns whole frames."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._transport: asyncio.Transport
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= (end := 4 + int.from_bytes(self._data[:4], "big")):
            self.frames.put_nowait(self._data[4:end])
            self._data = self._data[end:]

    def connection_lost(self, error: Exception | None) -> None:
        self.frames.put_nowait(None)

    async def ask(self, frame: bytes) -> bytes | None:
        """Send these bytes and return the next message; None if the host closed the connection."""
        self._transport.write(frame)
        async with asyncio.timeout(REPLY_S_MAX):
            return await self.frames.get()

    def close(self) -> None:
        self._transport.close()


class WireSite:
    """A host and a connection for bad input.

    Attributes:
        namespace: the namespace of this story.
        client: a client of that namespace, for good calls.
    """

    def __init__(
        self,
        line: Line,
        client: Client,
        pass_ms: Callable[[int], Coroutine[Any, Any, None]],
        connect: Callable[[], Coroutine[Any, Any, Line]],
    ) -> None:
        self.namespace = client.namespace
        self.client = client
        self.pass_ms = pass_ms
        self._line = line
        self._connect = connect

    def other(self, namespace: str) -> WireSite:
        """Return the same connection for another namespace."""
        site = copy(self)
        site.namespace = namespace
        return site

    async def call(self, method: str, request: Any) -> Any:
        """Make a call and return its result struct."""
        own = next(_seqids)
        message = await self._line.ask(call(method, request, own))
        assert message is not None, f"the host closed the connection at {method}"
        seqid, result = parse_reply(message, method)
        assert seqid == own
        return result

    async def outcome(self, method: str, request: Any) -> Outcome:
        """Return the outcome of a call; for a batch, of the first entry that is not a plain success."""
        return next((each for each in await self.outcomes(method, request) if each != OK), OK)

    async def outcomes(self, method: str, request: Any) -> list[Outcome]:
        """Return the outcome of each entry of a call; one outcome if the call failed as a whole."""
        return _outcomes(await self.call(method, request))

    async def outcomes_of(self, method: str, frame: bytes) -> list[Outcome]:
        """Return the outcomes of a call that is given as bytes."""
        message = await self._line.ask(frame)
        assert message is not None, f"the host closed the connection at {method}"
        return _outcomes(parse_reply(message, method, compact=message[0] == COMPACT)[1])

    async def anything(self, frame: bytes) -> Any:
        """Send the bytes of a call and return its result struct. If the host closes the connection, reconnect and return None."""
        message = await self._line.ask(frame)
        if message is not None:
            return parse_any(message)
        self._line = await self._connect()
        return None

    async def put(self, *items: Any) -> list[str]:
        """Enqueue `NewItem` structs; every one must succeed."""
        result = await self.call("enqueue", ttypes.EnqueueRequest(self.namespace, list(items)))
        assert result.failed is None, result.failed
        assert all(each.error is None for each in result.success.results), result.success.results
        return [each.id for each in result.success.results]

    async def get(self, topic: str, count: int = 100, lease_ms: int | None = None) -> list[Any]:
        """Dequeue from a topic; at least one item must be delivered."""
        request = ttypes.DequeueRequest(
            self.namespace, [ttypes.TopicCount(topic, count)], wait_ms=5_000, lease_ms=lease_ms
        )
        result = await self.call("dequeue", request)
        assert result.failed is None, result.failed
        assert result.success.items
        return list(result.success.items)

    async def enqueue_in_each_state(self, topic: str) -> Names:
        """Enqueue an item of each state. Return the names of the leased one."""
        new = ttypes.NewItem
        await self.put(new(topic, 1, b"dead"), new(topic, 2, b"leased"))
        dead, leased = sorted(await self.get(topic, lease_ms=3_600_000), key=lambda each: each.priority)
        await self.put(new(topic, 3, b"ready", b"meta"), new(topic, 4, b"deferred", delay_ms=3_600_000))
        give_up = ttypes.NackRequest(self.namespace, [ttypes.Nack(dead.id, dead.token, dead=True)])
        assert await self.outcome("nack", give_up) == OK
        return Names(self.namespace, topic, leased.id, leased.token)

    async def all(self) -> dict[str, Any]:
        """Return everything that a call could change: the items except their running times, and the configuration."""
        held: dict[str, Any] = {}
        cursor: str | None = None
        while True:
            request = ttypes.GetActiveTopicsRequest(
                self.namespace, ttypes.TopicFilter(states=STATES), ttypes.Page(1_000, cursor)
            )
            page = (await self.call("getActiveTopics", request)).success
            for stats in page.topics:
                counts = (stats.ready, stats.deferred, stats.leased, stats.dead, stats.paused)
                held[f"topic {stats.topic!r}"] = counts
                await self._items(stats.topic, held)
            cursor = page.next_cursor
            if cursor is None:
                break
        held["config"] = (await self.call("exportConfig", ttypes.ListRequest())).success.json
        return held

    async def _items(self, topic: str, held: dict[str, Any]) -> None:
        for state in STATES:
            request = ttypes.PeekRequest(self.namespace, topic, state, ttypes.Page(1_000), with_payload=True)
            for view in (await self.call("peek", request)).success.items:
                held[view.id] = {name: getattr(view, name) for name in view.__slots__ if name not in RUNNING}


def _outcomes(result: Any) -> list[Outcome]:
    if getattr(result, "failed", None) is not None:
        return [_of_error(result.failed.error)]
    assert getattr(result, "success", None) is not None, result
    reply = result.success
    if getattr(reply, "absent", None):
        return [("NOT_FOUND", None)]  # explain also replies for a missing item
    entries = getattr(reply, "results", None) or getattr(reply, "outcomes", None)
    return [OK] if entries is None else [_of_entry(entry) for entry in entries]


def _of_error(error: Any) -> Outcome:
    assert error.message
    return ErrorCode(error.code).name, error.field


def _of_entry(entry: Any) -> Outcome:
    if entry.error is not None:
        return _of_error(entry.error)
    if getattr(entry, "already_gone", None):
        return "ALREADY_GONE", None
    return ("REPEATED", None) if getattr(entry, "repeated", None) else OK


WireStory = Callable[[WireSite], Coroutine[Any, Any, None]]
WireStage = Callable[[WireStory], None]
"""Plays a story of bad input on a host of one kind."""


def wire_story(play: WireStory) -> Callable[[WireStage], None]:
    """Return a test that runs this story on each kind of host."""

    @wraps(play)
    def test(wire_stage: WireStage) -> None:
        wire_stage(play)

    del test.__wrapped__  # pytest must see the parameters of the test, not of the story
    return test


def run_wire(coro: Coroutine[Any, Any, None]) -> None:
    """Run a story of some thousand calls to its end. Each call has a time limit, so the whole story needs none but that of pytest."""
    run(coro, 1_100.0)


def wire_stage(open_wire: Callable[[], AbstractAsyncContextManager[WireSite]], run: Run = run_wire) -> WireStage:
    """Return what plays a story on a site of this kind. `run` runs a coroutine to its end."""

    async def played(play: WireStory) -> None:
        async with open_wire() as site:
            await play(site)
            assert await site.outcome("getRouting", ttypes.GetRoutingRequest()) == OK

    return lambda play: run(played(play))


@asynccontextmanager
async def fake_wire() -> AsyncIterator[WireSite]:
    async with FakeHost(OPTIONS) as fake:
        client = fake.client(namespace=_name())
        async with _site(client, fake.advance, lambda line: fake._network.connect(line, "127.0.0.1", PORT)) as site:
            yield site


@asynccontextmanager
async def host_wire(host: RestartableHost) -> AsyncIterator[WireSite]:
    """A real host."""

    loop = asyncio.get_running_loop()
    async with (
        Client(host.address, namespace=_name()) as client,
        _site(client, pass_ms, lambda line: loop.create_connection(line, "127.0.0.1", host.port)) as site,
    ):
        yield site


@asynccontextmanager
async def tier_wire(tier: VirtualTier) -> AsyncIterator[WireSite]:
    """Three hosts, of which the client knows one."""
    tier.refused.clear()
    async with (
        tier.client(_name()) as client,
        _site(client, tier.pass_ms, lambda line: tier.connect(line, ADDRESSES[0], TIER_PORT)) as site,
    ):
        yield site
    assert tier.refused == []


@asynccontextmanager
async def _site(
    client: Client,
    pass_ms: Callable[[int], Coroutine[Any, Any, None]],
    connect: Callable[[Callable[[], Line]], Coroutine[Any, Any, Any]],
) -> AsyncIterator[WireSite]:
    lines: list[Line] = []

    async def connected() -> Line:
        line = Line()
        lines.append(line)
        await connect(lambda: line)
        return line

    try:
        line = await connected()
        await client.create_namespace(Namespace(client.namespace))
        yield WireSite(line, client, pass_ms, connected)
    finally:
        for line in lines:
            line.close()


def _name() -> str:
    return f"bad-{next(_names)}"
