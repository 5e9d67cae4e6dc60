"""The queue of a relay over a host in memory: each row gets its own answer, whatever is wrong with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from foqs.testing import FakeHost
from foqs_client import Client, Item
from foqs_client.errors import FoqsError, LimitExceeded, Unavailable
from foqs_client.outbox import relay_queue
from foqs_client.outbox.relay_memory import SendCall
from foqs_client.outbox.relay_queue import ClientQueue
from foqs_client.outbox.row_groups import OutboxRow


def rows_of(*items: Item) -> tuple[OutboxRow, ...]:
    return tuple(OutboxRow(place, item=item) for place, item in enumerate(items, 1))


def keyed(number: int, payload: bytes = b"") -> Item:
    return Item("t", payload, idempotency_key=f"key {number}")


def codes(answers: Any) -> dict[int, str | None]:
    return {id: None if error is None else error.code for id, error in answers.items()}


def with_queue(story: Callable[[FakeHost, Client, ClientQueue], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        async with FakeHost({name.replace("__", "."): value for name, value in options.items()}) as fake:
            client = fake.client()
            await story(fake, client, ClientQueue(client))

    asyncio.run(main())


def test_a_row_is_sent_with_the_end_of_its_stamp_and_is_a_repeat_until_its_key_is_forgotten() -> None:
    async def story(fake: FakeHost, client: Client, queue: ClientQueue) -> None:
        until_ms = await queue.keys_until_ms()
        call = SendCall(rows_of(keyed(1), keyed(2)), until_ms)
        assert codes(await queue.send(call)) == {1: None, 2: None}
        assert codes(await queue.send(call)) == {1: None, 2: None}
        assert (await client.usage()).items == 2

        await fake.advance(600_000)
        assert codes(await queue.send(call)) == {1: "KEY_ENDED", 2: "KEY_ENDED"}
        assert (await client.usage()).items == 2

    with_queue(story)


def test_a_row_that_a_host_refuses_refuses_no_other() -> None:
    async def story(fake: FakeHost, client: Client, queue: ClientQueue) -> None:
        until_ms = await queue.keys_until_ms()
        answers = await queue.send(SendCall(rows_of(keyed(1), keyed(2, b"x" * 101), keyed(3)), until_ms))
        assert codes(answers) == {1: None, 2: "LIMIT_EXCEEDED", 3: None}

    with_queue(story, namespace__payload_bytes_max=100)


def test_rows_that_are_too_many_for_one_call_are_sent_in_several() -> None:
    async def story(fake: FakeHost, client: Client, queue: ClientQueue) -> None:
        until_ms = await queue.keys_until_ms()
        answers = await queue.send(SendCall(rows_of(*map(keyed, range(9))), until_ms))
        assert set(answers.values()) == {None}

    with_queue(story, calls__items_per_call_max=2)


class ScriptedClient:
    """A client that fails some calls, and records the items of all."""

    def __init__(self, *errors: FoqsError | None) -> None:
        self.errors = list(errors)
        self.calls: list[int] = []

    async def enqueue(self, items: Sequence[Item]) -> list[Any]:
        self.calls.append(len(items))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return [type("Result", (), {"error": None}) for _ in items]


def test_a_call_that_fails_says_nothing_of_the_part_that_was_written(monkeypatch: Any) -> None:
    monkeypatch.setattr(relay_queue, "_CALL_BYTES_MAX", 10)
    client: Any = ScriptedClient(None, Unavailable("x"))
    rows = rows_of(keyed(1, b"x" * 6), keyed(2, b"x" * 4), keyed(3, b"x"), keyed(4, b"x"))

    assert codes(asyncio.run(ClientQueue(client).send(SendCall(rows, 1)))) == {
        1: None,
        2: None,
        3: "UNAVAILABLE",
        4: "UNAVAILABLE",
    }
    assert client.calls == [2, 2]


def test_a_refusal_of_a_call_is_a_refusal_of_the_row_that_is_refused_alone() -> None:
    client: Any = ScriptedClient(LimitExceeded("two"), None, LimitExceeded("one"))

    assert codes(asyncio.run(ClientQueue(client).send(SendCall(rows_of(keyed(1), keyed(2)), 1)))) == {
        1: None,
        2: "LIMIT_EXCEEDED",
    }
