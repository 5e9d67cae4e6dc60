"""Dead letters: a message that was received too often is moved, once, whatever fails in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from foqs.core.items.item import State
from foqs.core.items.life import EventKind
from foqs.sqs import dead_letter_sweep, dead_letters, origin
from foqs.sqs.errors import SqsError
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import FAULT_POINTS, StoreLost
from foqs_contract.errors import FoqsError, Unavailable
from tests.support.builders import catalog, engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle
from tests.support.sqs_world import SqsWorld, arn, policy

READY, LEASED, DEAD = State.READY, State.LEASED, State.DEAD
DAY_MS = 86_400_000

Story = Callable[[World, SqsWorld], Coroutine[Any, Any, None]]


def run_story(story: Story) -> None:
    """Run a story in a world with the queues `mail`, whose messages are received twice at most, and `dead`."""

    async def run(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        sqs = SqsWorld(world, engine)
        await make_queues(sqs)
        await story(world, sqs)
        assert world.newest is not None
        await wait_until_idle(world, world.newest)

    run_in_world(run)


async def make_queues(sqs: SqsWorld, receives_max: int = 2) -> None:
    await sqs.create("dead", MessageRetentionPeriod=str(14 * 86_400))
    await sqs.create("mail", RedrivePolicy=policy("dead", receives_max))


def test_a_message_is_received_as_often_as_the_policy_says_and_then_moved() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        (sent,) = await sqs.send("mail", "poison")
        first = (await sqs.receive("mail", VisibilityTimeout=1))[0]["Attributes"]
        await world.pass_s(1.5)
        await sqs.receive_times(world, "mail", 1)
        assert await sqs.receive("mail") == []
        assert world.rows() == [("dead", READY)]
        (letter,) = await sqs.receive("dead")
        assert (letter["Body"], letter["MessageId"]) == ("poison", sent)
        found = letter["Attributes"]
        assert found["ApproximateReceiveCount"] == "3"
        assert found["DeadLetterQueueSourceArn"] == arn("mail")
        for name in ("SentTimestamp", "ApproximateFirstReceiveTimestamp"):
            assert abs(int(found[name]) - int(first[name])) <= 5

    run_story(story)


def test_a_dead_letter_has_the_retention_of_its_queue_from_the_move_on() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.send("mail", "poison")
        await sqs.receive_times(world, "mail", 2)
        await sqs.receive("mail")
        (row,) = world.database.tables[1].rows.values()
        assert row.expires_at_ms is not None
        assert 14 * DAY_MS - 2_000 < row.expires_at_ms - world.clock.wall_ms() <= 14 * DAY_MS

    run_story(story)


def test_the_messages_beside_dead_letters_are_received() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.send("mail", "poison", "poison")
        await sqs.receive_times(world, "mail", 2)
        await sqs.send("mail", "good")
        assert [message["Body"] for message in await sqs.receive("mail")] == ["good"]
        assert world.rows() == [("dead", READY)] * 2 + [("mail", LEASED)]

    run_story(story)


def test_a_long_poll_continues_after_dead_letters() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.send("mail", *["poison"] * 25)
        for _ in range(2):
            while await sqs.receive("mail", VisibilityTimeout=1):
                pass
            await world.pass_s(1.5)
        started_s = world.loop.time()
        polling = start_task(sqs.receive("mail", WaitTimeSeconds=20))
        await world.pass_s(3)
        assert world.rows() == [("dead", READY)] * 25
        assert not polling.done()
        await sqs.send("mail", "good")
        assert [message["Body"] for message in await polling] == ["good"]
        polling = start_task(sqs.receive("mail", WaitTimeSeconds=1))
        assert await polling == []
        assert world.loop.time() - started_s < 10

    run_story(story)


def test_a_delete_with_the_last_receipt_wins_until_the_message_is_moved() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for is_deleted in (True, False):
            await sqs.send("mail", "poison")
            await sqs.receive_times(world, "mail", 1)
            (last,) = await sqs.receive("mail", VisibilityTimeout=1)
            await world.pass_s(1.5)
            if is_deleted:
                await sqs.call("DeleteMessage", QueueUrl="mail", ReceiptHandle=last["ReceiptHandle"])
            assert await sqs.receive("mail") == []
            await sqs.call("DeleteMessage", QueueUrl="mail", ReceiptHandle=last["ReceiptHandle"])
            assert len(await sqs.receive("dead")) == (0 if is_deleted else 1)

    run_story(story)


def test_the_policy_is_the_present_one() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        async def set_policy(value: str) -> None:
            await sqs.call("SetQueueAttributes", QueueUrl="mail", Attributes={"RedrivePolicy": value})

        await sqs.send("mail", "a")
        await sqs.receive_times(world, "mail", 2)
        await set_policy(policy("dead", 4))
        await sqs.receive_times(world, "mail", 1)
        await set_policy("")
        await sqs.receive_times(world, "mail", 3)
        await set_policy(policy("dead", 1))
        assert await sqs.receive("mail") == []
        assert (await sqs.receive("dead"))[0]["Attributes"]["ApproximateReceiveCount"] == "7"

    run_story(story)


@pytest.mark.parametrize("why", ["deleted", "denied"])
def test_without_a_target_that_allows_it_messages_are_received_on(why: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.send("mail", "a")
        if why == "deleted":
            await sqs.call("DeleteQueue", QueueUrl="dead")
        else:
            attributes = {"RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"})}
            await sqs.call("SetQueueAttributes", QueueUrl="dead", Attributes=attributes)
        await sqs.receive_times(world, "mail", 4)
        assert world.rows() == [("mail", READY)]

    run_story(story)


def test_a_policy_needs_another_queue_that_allows_it() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [arn("mail")]}
        await sqs.create("picky", RedriveAllowPolicy=json.dumps(allowed))
        await sqs.call("SetQueueAttributes", QueueUrl="mail", Attributes={"RedrivePolicy": policy("picky", 3)})
        await sqs.create("other")
        for target, why in (("picky", "does not allow"), ("other", "its own"), ("absent", "does not exist")):
            with pytest.raises(SqsError, match=why):
                await sqs.call("SetQueueAttributes", QueueUrl="other", Attributes={"RedrivePolicy": policy(target, 3)})
        found = await sqs.call("ListDeadLetterSourceQueues", QueueUrl="picky")
        assert found["queueUrls"] == ["http://sqs.example/000000000000/mail"]
        assert (await sqs.call("ListDeadLetterSourceQueues", QueueUrl="dead"))["queueUrls"] == []

    run_story(story)


def test_a_dead_letter_that_becomes_one_again_keeps_its_id_and_names_the_last_queue() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("last")
        await sqs.call("SetQueueAttributes", QueueUrl="dead", Attributes={"RedrivePolicy": policy("last", 1)})
        (sent,) = await sqs.send("mail", "a")
        await sqs.receive_times(world, "mail", 2)
        assert await sqs.receive("mail") == []
        await sqs.receive_times(world, "dead", 1)
        assert await sqs.receive("dead") == []
        (letter,) = await sqs.receive("last")
        assert letter["MessageId"] == sent
        assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn("dead")
        assert letter["Attributes"]["ApproximateReceiveCount"] == "4"

    run_story(story)


# ------------------------------------------------------------------ what fails


@pytest.mark.parametrize("point", FAULT_POINTS)
@pytest.mark.parametrize("skipped", range(3))
def test_there_is_one_copy_if_the_connection_breaks_at(point: str, skipped: int) -> None:
    """The flushes are those of the lease, of the end of the lease, and of the move."""

    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.send("mail", "a")
        await sqs.receive_times(world, "mail", 2)
        left = [skipped]

        def fault(at: str) -> None:
            if at == point and left:
                left[0] -= 1
                if left[0] < 0:
                    left.clear()
                    raise StoreLost("broken by the test")

        world.faults = fault
        await finish(world, sqs)
        assert world.rows() == [("dead", READY)]

    run_story(story)


async def finish(world: World, sqs: SqsWorld) -> None:
    """Receive and sweep until the queue `mail` is empty. No receive may return the message."""
    for _ in range(20):
        with suppress(FoqsError):
            assert await sqs.receive("mail", VisibilityTimeout=1) == []
        await sqs.sweep.sweep()
        if all(topic == "dead" for topic, _ in world.rows()):
            return
        await world.pass_s(1)
    raise AssertionError(world.rows())


@pytest.mark.parametrize("flush", range(3))
@pytest.mark.parametrize("is_committed", [False, True])
def test_there_is_one_copy_if_the_host_dies_in(flush: int, is_committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flushes are those of the lease, of the nack, and of the move."""

    async def run(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        sqs = SqsWorld(world, engine)
        await make_queues(sqs)
        await sqs.send("mail", "a")
        await sqs.receive_times(world, "mail", 2)
        await wait_until_idle(world, engine)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=is_committed)
        before = commits.passed
        receiving = start_task(sqs.receive("mail", VisibilityTimeout=1))
        await world.until(lambda: commits.passed - before == flush or receiving.done())
        with closed(commits):
            await world.until(lambda: commits.held == 1 or receiving.done())
            receiving.cancel()
            await asyncio.wait((receiving,))
            await engine.abort()
        engine = await world.engine(settings)
        sqs = SqsWorld(world, engine)
        await world.pass_s(2)
        await finish(world, sqs)
        await wait_until_idle(world, engine)
        assert world.rows() == [("dead", READY)]

    run_in_world(run)


def test_what_is_left_dead_is_moved_by_the_sweep_of_the_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise Unavailable("made by the test")

    async def run(world: World) -> None:
        settings = engine_settings(1, 2)
        engine = await world.engine(settings)
        sqs = SqsWorld(world, engine)
        await make_queues(sqs)
        sent = await sqs.send("mail", *"abcdef")
        await sqs.receive_times(world, "mail", 2)
        monkeypatch.setattr(dead_letters, "move_dead_letters", fail)
        assert await sqs.receive("mail") == []
        assert world.rows() == [("mail", DEAD)] * 6
        engine = await restarted(world, engine, settings)
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        sqs = SqsWorld(world, engine)
        sweeping = start_task(sqs.sweep.run())
        await world.until(lambda: world.rows() == [("dead", READY)] * 6)
        sweeping.cancel()
        await asyncio.wait((sweeping,))
        letters = await sqs.receive("dead")
        assert sorted(letter["MessageId"] for letter in letters) == sorted(sent)
        await wait_until_idle(world, engine)

    run_in_world(run)


# ------------------------------------------------------- items of other clients


def test_items_that_a_native_consumer_gives_up_are_dead_letters_with_their_metadata() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        caller = Caller(world, world.newest)
        await caller.put("mail", metadata=b"own")
        await caller.do(EventKind.NACK, (await caller.get("mail")).items, dead=True)
        assert await sqs.sweep.sweep()
        (letter,) = await sqs.receive("dead", VisibilityTimeout=0)
        assert "DeadLetterQueueSourceArn" not in letter["Attributes"]
        (seen,) = (await caller.get("dead")).items
        assert seen.row.metadata == b"own"

    run_story(story)


def test_a_native_item_that_is_received_too_often_keeps_its_metadata() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        await Caller(world, world.newest).put("mail", metadata=b"own")
        await sqs.receive_times(world, "mail", 2)
        assert await sqs.receive("mail") == []
        (row,) = world.database.tables[1].rows.values()
        assert (row.topic, row.metadata) == ("dead", b"own")

    run_story(story)


def test_a_namespace_without_metadata_has_dead_letters_without_origin() -> None:
    async def run(world: World) -> None:
        world.catalog = catalog(default={"metadata_bytes_max": 0})
        engine = await world.engine(engine_settings(1))
        sqs = SqsWorld(world, engine)
        await make_queues(sqs)
        await sqs.send("mail", "a")
        await sqs.receive_times(world, "mail", 2)
        assert await sqs.receive("mail") == []
        (letter,) = await sqs.receive("dead")
        assert letter["Attributes"]["ApproximateReceiveCount"] == "1"
        await wait_until_idle(world, engine)

    run_in_world(run)


def test_a_sweep_moves_a_page_of_each_queue_in_each_shard_and_leaves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_sweep, "PAGE_ITEMS", 100)

    async def run(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        sqs = SqsWorld(world, engine)
        await make_queues(sqs)
        await sqs.create("more", RedrivePolicy=policy("dead", 1))
        await sqs.create("plain")
        caller = Caller(world, engine)
        for topic, count in (("mail", 260), ("more", 20), ("plain", 5)):
            await caller.put(topic, count=count)
            while found := (await caller.get(topic, 100)).items:
                await caller.do(EventKind.NACK, found, dead=True)
        in_shards = [shard.counts.count(("default", "mail"), DEAD) for shard in engine.shards.values()]
        assert max(in_shards) > 100
        for done in range(100, max(in_shards), 100):
            assert not await sqs.sweep.sweep(), done
        assert await sqs.sweep.sweep()
        await wait_until_idle(world, engine)
        assert world.rows() == [("dead", READY)] * 280 + [("plain", DEAD)] * 5

    run_in_world(run)


# ------------------------------------------------------------------ the origin


def test_an_origin_counts_in_its_queue_only() -> None:
    letter = origin.Origin("dead", "mail", "id", 3, 7)
    assert origin.decode(origin.encode(letter), "dead") == letter
    assert origin.decode(origin.encode(letter), "mail") is None
    longest = origin.Origin("q" * 80, "s" * 80, "m" * 36, 1_000_000, 253_402_300_799_999)
    assert len(origin.encode(longest)) < 1_024


@pytest.mark.parametrize(
    "metadata",
    [
        b"own",
        b"{",
        b'{"sqs_origin":1}',
        b'{"sqs_origin":{}}',
        b'{"sqs_origin":{"queue":"dead","source":"mail","message_id":"id","receives":true,"first_received_ms":1}}',
        b'{"sqs_origin":{"queue":"dead","source":1,"message_id":"id","receives":1,"first_received_ms":1}}',
        b'{"sqs_origin":' + b"[" * 900,
        b'{"sqs_origin":\xff',
    ],
)
def test_metadata_of_another_producer_is_no_origin_and_is_not_replaced(metadata: bytes) -> None:
    assert origin.decode(metadata, "dead") is None
    assert not origin.may_be_replaced(metadata)
