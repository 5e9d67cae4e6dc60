"""Tests the client over a real connection: its results, and how calls end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

import foqs_client
from foqs_client import (
    Change,
    Client,
    InvalidArgument,
    Item,
    ItemFilter,
    NamespaceNotFound,
    NotImplementedYet,
    StaleLease,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.host_connection import HostConnection
from foqs_client.host_connector import Connect, ProtocolFactory
from foqs_client.routed_calls import REPLY_GRACE_S
from foqs_contract import errors
from foqs_contract.call_table import FIRST_VERSION
from foqs_contract.contract_version import CONTRACT_VERSION
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.inner_parts import pool_of
from tests.support.poll import soon
from tests.support.ports import free_port
from tests.support.rpc_server import serve_queue


def recorded(opened: list[HostConnection]) -> Connect:
    """Return a `connect` that adds each connection to a list."""

    async def connect(factory: ProtocolFactory, host: str, port: int) -> Any:
        transport, connection = await asyncio.get_running_loop().create_connection(factory, host, port)
        assert isinstance(connection, HostConnection)
        opened.append(connection)
        return transport, connection

    return connect


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.enqueue([Item("t", priority=1 << 31)]),
        lambda c: c.enqueue([Item("t", payload=cast(bytes, "text"))]),
        lambda c: c.enqueue([Item("\ud800")]),
        lambda c: c.enqueue([Item("t")], timeout_ms=0),
        lambda c: c.topics(states=["asleep"]),
        lambda c: c.count(ItemFilter(states=["asleep"])),
        lambda c: c.update(["3-8796093022209"], Change(metadata=cast(bytes, "text"))),
    ],
)
def test_value_that_cannot_be_sent_is_refused(call: Callable[[Client], Any]) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            with pytest.raises(InvalidArgument):
                await call(client)

    run(main())


def test_error_of_an_item_is_in_its_place_and_names_its_field() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            good, bad, keyed = await client.enqueue([Item("t"), Item(""), Item("t", idempotency_key="")])
            assert good.error is None
            assert isinstance(bad.error, InvalidArgument)
            assert bad.error.field == "items[1].topic"
            assert isinstance(keyed.error, InvalidArgument)
            assert keyed.error.field == "items[2].idempotency_key"

    run(main())


def test_error_of_the_host_keeps_all_its_fields() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.topics()  # connected
            queue.failure = errors.NotOwner("elsewhere", field="f", retry_after_ms=5, owner=("h", 9))
            with pytest.raises(foqs_client.NotOwner) as caught:
                await client.enqueue([Item("t")], timeout_ms=300)
            error = caught.value
            assert (error.code, error.message, error.field) == ("NOT_OWNER", "elsewhere", "f")
            assert (error.retry_after_ms, error.owner) == (5, ("h", 9))
        async with serve_queue(FakeQueue()) as host, Client(host.url, namespace="other") as client:
            with pytest.raises(NamespaceNotFound):
                await client.topics()

    run(main())


def test_every_code_of_the_contract_has_its_class() -> None:
    names = {code.value: code.name for code in ttypes.ErrorCode}
    assert {number: kind.code for number, kind in errors.ERROR_BY_CODE.items()} == names
    assert issubclass(StaleLease, foqs_client.FoqsError)
    assert all(name in vars(foqs_client) for name in foqs_client.__all__)


def test_calls_of_many_tasks_share_one_connection_and_get_their_own_replies() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            results = await asyncio.gather(*(client.enqueue([Item(f"t{n}")]) for n in range(200)))
            ids = [result[0].require() for result in results]
            assert len(set(ids)) == 200
            views = await asyncio.gather(*(client.item(id_) for id_ in ids))
            assert [view.topic for view in views] == [f"t{n}" for n in range(200)]
            assert len(host.server.connections) == 1

    run(main())


def test_large_reply_is_complete() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            payloads = [bytes([n]) * 10_000 for n in range(200)]
            await client.enqueue([Item("t", payload) for payload in payloads])
            deliveries = await client.dequeue({"t": 1_000})
            assert [delivery.payload for delivery in deliveries] == payloads

    run(main())


WRITES: list[Callable[[Client], Any]] = [
    lambda c: c.enqueue([Item("t")], timeout_ms=50),
    lambda c: c.dequeue({"t": 1}, timeout_ms=50),
    lambda c: c.ack([("3-8796093022209", 1)], timeout_ms=50),
    lambda c: c.nack([("3-8796093022209", 1)], timeout_ms=50),
    lambda c: c.extend([("3-8796093022209", 1)], timeout_ms=50),
    lambda c: c.release([("3-8796093022209", 1)], timeout_ms=50),
    lambda c: c.cancel(["3-8796093022209"], timeout_ms=50),
]
READS: list[Callable[[Client], Any]] = [
    lambda c: c.topics(timeout_ms=50),
    lambda c: c.item("3-8796093022209", timeout_ms=50),
    lambda c: c.peek("t", timeout_ms=50),
]


class Mute:
    """A host that reads everything and never replies."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.received = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                self.received += len(data)
        writer.close()

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            yield f"foqs://127.0.0.1:{port}"
        finally:
            self.hang_up()
            server.close()
            await server.wait_closed()


@pytest.mark.parametrize(
    ("call", "kind"), [*((call, UnknownOutcome) for call in WRITES), *((call, Unreachable) for call in READS)]
)
@pytest.mark.parametrize("hang_up", [True, False])
def test_call_without_a_reply_is_unknown_only_if_it_may_have_written(
    call: Callable[[Client], Any], kind: type[Exception], hang_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs_client.routed_calls.REPLY_GRACE_S", 0.02)

    async def main() -> None:
        mute = Mute()
        async with mute.listen() as url, Client(url) as client:
            await pool_of(client).wait_for_connection(asyncio.get_running_loop().time() + 30)
            task = asyncio.ensure_future(call(client))
            if hang_up:
                await soon(lambda: mute.received > 0)
                mute.hang_up()
            with pytest.raises(kind):
                await task

    run(main())


@pytest.mark.parametrize("call", WRITES + READS)
def test_call_that_could_not_be_sent_is_unreachable(call: Callable[[Client], Any]) -> None:
    async def main() -> None:
        async with Client(f"foqs://127.0.0.1:{free_port()}") as client:
            error = "there was no time"
            while "there was no time" in error:  # for one attempt
                with pytest.raises(Unreachable) as caught:
                    await call(client)
                error = caught.value.message
            assert "connection refused" in error

    run(main())


def test_the_next_address_is_tried_when_one_refuses() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            url = f"foqs://127.0.0.1:{free_port()},127.0.0.1:{host.port}"
            async with Client(url) as client:
                assert (await client.enqueue([Item("t")]))[0].id is not None

    run(main())


def test_host_that_starts_in_time_is_found() -> None:
    async def main() -> None:
        port = free_port()
        attempts = asyncio.Event()

        async def connect(factory: Any, host: str, port: int) -> Any:
            attempts.set()
            return await asyncio.get_running_loop().create_connection(factory, host, port)

        async with Client(f"foqs://127.0.0.1:{port}", connect=connect) as client:
            task = asyncio.ensure_future(client.topics())
            await attempts.wait()
            async with serve_queue(FakeQueue(), port=port):
                assert (await task).topics == []
                await client.close()

    run(main())


def test_connection_is_opened_again_and_no_item_without_a_key_is_sent_twice() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host, Client(host.url, automatic_keys=False) as client:
            task = asyncio.ensure_future(client.enqueue([Item("t")]))
            await soon(lambda: queue.running == 1)
            for connection in list(host.server.connections):
                connection.abort()
            with pytest.raises(UnknownOutcome):
                await task
            queue.gate.set()
            assert (await client.topics()).topics == []
            assert [name for name, _ in queue.calls] == ["enqueue", "topics"]

    run(main())


def test_call_not_yet_sent_when_its_connection_is_lost_uses_the_next_one() -> None:
    async def main() -> None:
        queue = FakeQueue()
        opened: list[HostConnection] = []
        async with serve_queue(queue) as host, Client(host.url, connect=recorded(opened)) as client:
            await client.topics()
            task = asyncio.ensure_future(client.enqueue([Item("t")]))
            asyncio.get_running_loop().call_soon(opened[0].connection_lost, None)
            assert (await task)[0].id is not None
            assert [name for name, _ in queue.calls] == ["topics", "enqueue"]

    run(main())


def test_call_sends_the_items_as_they_were_when_it_began() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            items = [Item("t")]

            async def connect(factory: Any, name: str, port: int) -> Any:
                items.append(Item("u"))
                return await asyncio.get_running_loop().create_connection(factory, name, port)

            async with Client(host.url, connect=connect) as client:
                assert len(await client.enqueue(items)) == 1
                assert len(items) == 2

    run(main())


def test_cancelled_call_takes_nothing_from_another() -> None:
    async def main() -> None:
        queue = FakeQueue()
        opened: list[HostConnection] = []
        async with serve_queue(queue) as host, Client(host.url, coalesce=False, connect=recorded(opened)) as client:
            await client.enqueue([Item("t")])
            queue.gate = asyncio.Event()
            tasks = [asyncio.ensure_future(client.dequeue({"t": 1})) for _ in range(2)]
            await soon(lambda: queue.running == 2)
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            await soon(lambda: [link.in_flight_count for link in opened] == [1])
            queue.gate.set()
            [delivery] = await tasks[1]
            assert delivery.attempt == 1

    run(main())


def test_cancelling_the_first_of_two_calls_while_connecting_does_not_stop_the_second() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            go = asyncio.Event()
            waiting = asyncio.Event()

            async def connect(factory: Any, name: str, port: int) -> Any:
                waiting.set()
                await go.wait()
                return await asyncio.get_running_loop().create_connection(factory, name, port)

            async with Client(host.url, connect=connect) as client:
                tasks = [asyncio.ensure_future(client.topics()) for _ in range(2)]
                await waiting.wait()
                tasks[0].cancel()
                await asyncio.wait([tasks[0]])
                go.set()
                assert (await tasks[1]).topics == []
                assert tasks[0].cancelled()

    run(main())


def test_closing_the_client_ends_its_calls_as_errors() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host:
            client = Client(host.url)
            sent = asyncio.ensure_future(client.enqueue([Item("t")]))
            await soon(lambda: queue.running == 1)
            await client.close()
            with pytest.raises(UnknownOutcome):
                await sent
            with pytest.raises(Unreachable, match="closed"):
                await client.topics()

            connecting = asyncio.Event()

            async def never(factory: Any, name: str, port: int) -> Any:
                connecting.set()
                await asyncio.Event().wait()

            client = Client(host.url, connect=never)
            unsent = asyncio.ensure_future(client.enqueue([Item("t")]))
            await connecting.wait()
            await client.close()
            with pytest.raises(Unreachable, match="closed"):
                await unsent

    run(main())


def test_deadline_error_of_the_host_arrives_before_the_client_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rpc_limits().reply_grace_ms / 1_000 < REPLY_GRACE_S
    monkeypatch.setattr("foqs_client.routed_calls.REPLY_GRACE_S", 30.0)  # for a machine that stands still

    async def main() -> None:
        queue = FakeQueue()
        queue.failure = errors.DeadlineExceeded("withdrawn")
        async with serve_queue(queue) as host, Client(host.url) as client:
            with pytest.raises(foqs_client.DeadlineExceeded):
                await client.enqueue([Item("t")], timeout_ms=1_000)
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.topics()  # connected
            queue.gate = asyncio.Event()
            with pytest.raises(UnknownOutcome, match="deadline"):
                await client.enqueue([Item("t")], timeout_ms=20)

    run(main())


def test_host_gets_the_remaining_time_of_the_call() -> None:
    async def main() -> None:
        seen: list[int] = []
        async with serve_queue(FakeQueue()) as host:
            service = host.server.service

            def timeout_s(request: Any) -> float:
                seen.append(request.timeout_ms)
                return service.timeout_s(request)

            host.server.service = replace(service, timeout_s=timeout_s)
            refusals = [True, True]

            async def connect(factory: Any, name: str, port: int) -> Any:
                if refusals:
                    refusals.pop()
                    raise ConnectionRefusedError
                return await asyncio.get_running_loop().create_connection(factory, name, port)

            async with Client(host.url, connect=connect) as client:
                await client.topics(timeout_ms=5_000)
                await client.topics(timeout_ms=5_000)
        assert seen[0] < 5_000 - 100
        assert seen[1] == 5_000

    run(main())


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x0chello, world", b"\xff\xff\xff\xff", b"\0\0\0\x01x"],
)
def test_peer_that_is_no_host_ends_the_call_with_a_clear_error(answer: bytes) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(answer)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Client(f"foqs://127.0.0.1:{port}") as client:
            with pytest.raises(Unreachable, match="not a FOQS host"):
                await client.topics()
        server.close()

    run(main())


def test_unavailable_host_sets_retry_after() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            await client.topics()
            host.server.is_stopping = True
            with pytest.raises(Unavailable) as caught:
                await client.enqueue([Item("t")], timeout_ms=300)
            assert caught.value.retry_after_ms
            host.server.is_stopping = False

    run(main())


def test_newer_field_is_not_sent_to_a_host_of_an_older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.rpc.auth_session.CONTRACT_VERSION", FIRST_VERSION)

    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            known, newer = await client.enqueue([Item("t", b"known"), Item("t", b"newer", trace_context=b"x")])
            assert known.require()
            assert isinstance(newer.error, NotImplementedYet)
            assert newer.error.field == "items[1].trace_context"
            assert "serves version 1 of the contract" in newer.error.message
            with pytest.raises(NotImplementedYet):
                await client.enqueue([Item("t", b"newer", trace_context=b"x")])
            assert [row.payload for row in queue.rows.values()] == [b"known"]

    run(main())


def test_host_is_asked_for_its_version_once_per_connection_and_only_for_a_newer_field() -> None:
    async def main() -> None:
        opened: list[HostConnection] = []
        async with serve_queue(FakeQueue()) as host, Client(host.url, connect=recorded(opened)) as client:
            await client.enqueue([Item("t")])
            assert [connection.contract_version for connection in opened] == [None]
            for _ in range(2):
                [result] = await client.enqueue([Item("t", trace_context=b"x")])
                assert result.require()
            assert [connection.contract_version for connection in opened] == [CONTRACT_VERSION]

    run(main())
