"""FIFO queues that remove duplicates among all groups: their keys, their one shard, and moves between queues."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from foqs.catalog.document import Document, PolicyRecord, render
from foqs.core.groups.group_rules import Fairness
from foqs.queue.port import Repeated
from foqs.rpc import request_structs
from foqs.rpc.in_host_calls import InHostCall
from foqs.rpc.restored_items import parse_restored_items
from foqs.sqs.errors import SqsError
from foqs.sqs.identifiers import item_id_of_message
from foqs_contract.errors import Unavailable
from foqs_contract.idl import ttypes
from tests.support.builders import catalog, engine_settings, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.sqs_world import SqsWorld, arn, policy
from tests.unit.queue.test_placement_groups import grouped

GROUPS: Final = [f"group-{number}" for number in range(20)]
FIFO: Final = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
BY_GROUP: Final = {**FIFO, "DeduplicationScope": "messageGroup"}
Story = Callable[[World, SqsWorld], Awaitable[None]]


def play(story: Story) -> None:
    """Play a story on a host with three shards and two FIFO queues: `q.fifo`, and `groups.fifo` with the scope `messageGroup`."""

    async def main(world: World) -> None:
        world.catalog = catalog()
        sqs = SqsWorld(world, await world.counted_engine(engine_settings(1, 2, 3)))
        await sqs.create("q.fifo", **FIFO)
        await sqs.create("groups.fifo", **BY_GROUP)
        await story(world, sqs)

    run_in_world(main)


async def send(sqs: SqsWorld, body: str, group: str, queue: str = "q.fifo") -> Any:
    return await sqs.call("SendMessage", QueueUrl=queue, MessageBody=body, MessageGroupId=group)


def shard_of(reply: Any) -> int:
    return int(item_id_of_message(reply["MessageId"]).split("-")[0])


async def refused(sqs: SqsWorld, action: str, **parameters: Any) -> str:
    with pytest.raises(SqsError) as error:
        await sqs.call(action, **parameters)
    return f"{error.value.shape}: {error.value.message}"


def test_duplicate_in_another_group_is_removed_by_the_scope_of_the_queue() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for group in GROUPS:
            await send(sqs, "same", group)
            await send(sqs, "same", group, "groups.fifo")
        assert len(await sqs.receive("q.fifo")) == 1
        assert len(await sqs.receive("groups.fifo")) == 10, "one receive returns at most ten"
        await send(sqs, "other", GROUPS[1])
        assert [each["Body"] for each in await sqs.receive("q.fifo")] == ["other"]

    play(story)


def test_all_groups_of_queues_with_the_scope_of_the_queue_are_in_one_shard_in_order() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("r.fifo", **FIFO)
        sent = [await send(sqs, f"{group} {step}", group) for step in ("1", "2") for group in GROUPS]
        sent += [await send(sqs, "one", group, "r.fifo") for group in GROUPS[:1]]
        assert len({shard_of(reply) for reply in sent}) == 1
        by_group = [await send(sqs, group, group, "groups.fifo") for group in GROUPS]
        assert {shard_of(reply) for reply in by_group} == {1, 2, 3}
        found = [each["Body"] for _ in GROUPS for each in await sqs.receive("q.fifo")]
        assert found == [f"{group} {step}" for group in GROUPS for step in ("1", "2")]
        assert await sqs.receive("q.fifo") == []

    play(story)


def test_native_and_restored_items_of_such_a_topic_are_with_their_group() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        engine = world.newest
        assert engine is not None
        message = await send(sqs, "one", "ada")
        settings, keys = engine.namespaces.settings_of("default"), engine.namespaces.topic_keys_of("default")
        raw = ttypes.NewItem(topic=b"q.fifo", group=b"ada", idempotency_key=b"key")
        restored = ttypes.RestoredItem(topic=b"q.fifo", group=b"bob", restore_key=b"r")
        items, _ = request_structs.parse_new_items([raw], "default", settings, keys)
        with_history, _ = parse_restored_items([restored], "default", settings, keys)
        caller = Caller(world, engine)
        ids = [ok(each) for each in await caller.enqueue([*items, grouped("eve", "q.fifo")])]
        ids += [ok(each) for each in await caller.enqueue(with_history)]
        assert {int(each.split("-")[0]) for each in ids} == {shard_of(message)}
        # The key is unique in the topic, and free in others.
        again = ttypes.NewItem(topic=b"q.fifo", group=b"bob", idempotency_key=b"key")
        other = ttypes.NewItem(topic=b"groups.fifo", group=b"bob", idempotency_key=b"key")
        repeats, _ = request_structs.parse_new_items([again, other], "default", settings, keys)
        repeat, new = await caller.enqueue(repeats)
        assert isinstance(repeat, Repeated)
        assert repeat.id == ids[0]
        assert isinstance(new, str)
        await caller.enqueue([new_item("q.fifo")])  # without a group it may be anywhere

    play(story)


@pytest.mark.parametrize("queue", ["q.fifo", "groups.fifo"])
@pytest.mark.parametrize("former_scope", [None, "queue", "messageGroup"])
def test_message_is_refused_by_an_owner_that_has_not_read_its_queue_and_its_repeat_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, queue: str, former_scope: str | None
) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        scope = (await sqs.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"]))["Attributes"]
        await sqs.call("DeleteQueue", QueueUrl=queue)
        if former_scope is not None:
            await sqs.create(queue, **FIFO, DeduplicationScope=former_scope)
        before = world.newest.namespaces.document
        if former_scope is not None:
            await sqs.call("DeleteQueue", QueueUrl=queue)
        await world.pass_s(0.01)
        await sqs.create(queue, **FIFO, DeduplicationScope=scope["DeduplicationScope"])
        for group in GROUPS:
            with monkeypatch.context() as patched:
                let_owners_know(patched, world, before)
                refusal = await refused(sqs, "SendMessage", QueueUrl=queue, MessageBody=group, MessageGroupId=group)
                assert refusal.startswith("ServiceUnavailable")
                assert "has not read the queue" in refusal
            first, again = [await send(sqs, group, group, queue) for _ in range(2)]
            assert again == first
            await send(sqs, f"{group} later", group, queue)
        received = [each["Body"] for _ in range(4) for each in await sqs.receive(queue)]
        assert sorted(received) == sorted([*GROUPS, *[f"{group} later" for group in GROUPS]])

    play(story)


def let_owners_know(monkeypatch: pytest.MonkeyPatch, world: World, document: Document) -> None:
    """Let the calls of the actions find this version of the catalog, as at an owner that is behind."""
    assert world.newest is not None
    namespaces, make = world.newest.namespaces, InHostCall.make

    async def make_there(call: InHostCall, grace_s: float | None = None) -> Any:
        known = namespaces.document
        namespaces.apply(document)
        try:
            return await make(call, grace_s)
        finally:
            namespaces.apply(known)

    monkeypatch.setattr(InHostCall, "make", make_there)


@pytest.mark.parametrize("topic", ["q.fifo", "native"])
def test_native_item_with_a_group_has_no_key_of_a_fifo_queue(topic: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        namespaces = world.newest.namespaces
        raw = ttypes.NewItem(topic=topic.encode(), group=b"ada", idempotency_key=b"sqs-fifo-17-x")
        settings, keys = namespaces.settings_of("default"), namespaces.topic_keys_of("default")
        raw_without_group = ttypes.NewItem(topic=topic.encode(), idempotency_key=b"sqs-fifo-17-x")
        (item,), errors = request_structs.parse_new_items([raw, raw_without_group], "default", settings, keys)
        assert item.item_group is None
        assert isinstance(errors[0], Unavailable)
        assert errors[0].field == "items[0].idempotency_key"
        assert errors[0].retry_after_ms

    play(story)


@pytest.mark.parametrize("scope", ["queue", "messageGroup"])
def test_queue_of_a_topic_with_items_is_not_created_until_they_have_ended(scope: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        caller = Caller(world, world.newest)
        ids = [ok(each) for each in await caller.enqueue([grouped(group, "old.fifo") for group in GROUPS[:2]])]
        wanted = {"QueueName": "old.fifo", "Attributes": {**FIFO, "DeduplicationScope": scope}}
        says = await refused(sqs, "CreateQueue", **wanted)
        assert says.startswith("UnsupportedOperation")
        assert "has 2 items already" in says
        assert "foqs topic purge old.fifo" in says
        assert "old.fifo" not in world.newest.admin.namespace("default").queues
        assert "old.fifo" not in world.newest.admin.namespace("default").policies
        await caller.cancel(ids[0])
        assert "has 1 item already" in await refused(sqs, "CreateQueue", **wanted)
        await caller.cancel(ids[1])
        await sqs.call("CreateQueue", **wanted)
        await send(sqs, "body", "ada", "old.fifo")
        await sqs.call("CreateQueue", **wanted)  # it exists, so its messages are no obstacle

    play(story)


def test_queue_with_messages_is_created_again_at_a_host_that_has_not_read_it_yet() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        namespaces = world.newest.namespaces
        before = namespaces.document
        await sqs.create("new.fifo", **FIFO)
        await send(sqs, "body", "ada", "new.fifo")
        namespaces.apply(before)
        await sqs.create("new.fifo", **FIFO)
        assert [each["Body"] for each in await sqs.receive("new.fifo")] == ["body"]

    play(story)


@pytest.mark.parametrize(("limit", "is_accepted"), [(1, True), (3, False)])
def test_policy_of_a_topic_is_not_replaced_by_a_new_queue(limit: int, is_accepted: bool) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        admin = world.newest.admin
        await admin.set_policy("default", "old.fifo", PolicyRecord(limit), world.deadline_in(5))
        if is_accepted:
            await sqs.create("old.fifo", **FIFO)
        else:
            says = await refused(sqs, "CreateQueue", QueueName="old.fifo", Attributes=FIFO)
            assert says.startswith("UnsupportedOperation")
            assert "foqs topic policy old.fifo --remove" in says
        assert admin.namespace("default").policies["old.fifo"].group_leases_max == limit
        assert ("old.fifo" in admin.namespace("default").queues) is is_accepted

    play(story)


def test_changes_of_a_queue_keep_the_other_rules_of_its_policy_until_it_is_deleted() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        admin = world.newest.admin
        own = PolicyRecord(1, Fairness.ITEMS, {"ada": 3}, is_relaxed=True)
        await admin.set_policy("default", "q.fifo", own, world.deadline_in(5))
        await sqs.call("TagQueue", QueueUrl="q.fifo", Tags={"team": "red"})
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"VisibilityTimeout": "60"})
        assert admin.namespace("default").policies["q.fifo"] == own
        await sqs.call("DeleteQueue", QueueUrl="q.fifo")
        assert "q.fifo" not in admin.namespace("default").policies

    play(story)


def test_dead_letter_is_in_the_shard_of_its_group_in_the_other_queue() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("dead.fifo", **FIFO)
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"RedrivePolicy": policy("dead.fifo", 1)})
        await send(sqs, "poison", "ada")
        await sqs.receive_times(world, "q.fifo", 1)
        assert await sqs.receive("q.fifo", WaitTimeSeconds=1) == []
        await send(sqs, "later", "ada", "dead.fifo")
        assert [each["Body"] for each in await sqs.receive("dead.fifo")] == ["poison", "later"]
        assert await sqs.receive("dead.fifo") == [], "the group is locked"

    play(story)


def test_queues_of_two_scopes_exchange_no_messages() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("dead.fifo", **FIFO)
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"RedrivePolicy": policy("dead.fifo", 1)})
        wrong = {"RedrivePolicy": policy("dead.fifo", 1)}
        remedy = "the DeduplicationScope messageGroup of the source, and the scope of a queue is fixed: create dead.fifo again"
        assert remedy in await refused(sqs, "SetQueueAttributes", QueueUrl="groups.fifo", Attributes=wrong)
        assert remedy in await refused(sqs, "CreateQueue", QueueName="more.fifo", Attributes={**BY_GROUP, **wrong})
        assert "the DeduplicationScope queue of the source queue; name a queue" in await refused(
            sqs, "StartMessageMoveTask", SourceArn=arn("dead.fifo"), DestinationArn=arn("groups.fifo")
        )
        await sqs.call("DeleteQueue", QueueUrl="dead.fifo")
        await sqs.create("dead.fifo", **BY_GROUP)
        assert "the DeduplicationScope messageGroup of the source queue" in await refused(
            sqs, "StartMessageMoveTask", SourceArn=arn("dead.fifo")
        )
        assert not sqs.jobs.jobs.by_id
        await send(sqs, "poison", "ada")
        await sqs.receive_times(world, "q.fifo", 1)
        (again,) = await sqs.receive("q.fifo")
        assert again["Attributes"]["ApproximateReceiveCount"] == "2", "the policy is not in force"

    play(story)


def test_scope_of_a_queue_does_not_change() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for queue, other in (("q.fifo", "messageGroup"), ("groups.fifo", "queue")):
            change = {"DeduplicationScope": other}
            says = await refused(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes=change)
            assert says.startswith("InvalidAttributeValue: Invalid value for the parameter DeduplicationScope")
            assert "QueueNameExists" in await refused(
                sqs, "CreateQueue", QueueName=queue, Attributes={"FifoQueue": "true", **change}
            )
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"DeduplicationScope": "queue"})
        shown = (await sqs.call("GetQueueAttributes", QueueUrl="q.fifo", AttributeNames=["All"]))["Attributes"]
        assert (shown["DeduplicationScope"], shown["FifoThroughputLimit"]) == ("queue", "perQueue")

    play(story)


@pytest.mark.parametrize("scope", ["queue", "messageGroup"])
def test_import_does_not_change_the_scope_of_a_queue_that_exists(scope: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        engine = world.newest
        assert engine is not None
        await sqs.create(
            "again.fifo", **FIFO, DeduplicationScope="queue" if scope == "messageGroup" else "messageGroup"
        )
        exported = render(engine.namespaces.document)
        await sqs.call("DeleteQueue", QueueUrl="again.fifo")
        await world.pass_s(0.01)
        await sqs.create("again.fifo", **FIFO, DeduplicationScope=scope)
        entry = engine.namespaces.document.namespaces["default"].queues["again.fifo"]
        first = [await send(sqs, f"{group} 1", group, "again.fifo") for group in GROUPS[:5]]
        await engine.admin.restore(exported, world.deadline_in(5))
        assert (
            engine.namespaces.document.namespaces["default"].queues["again.fifo"].keys_since_ms == entry.keys_since_ms
        )
        repeats = [await send(sqs, f"{group} 1", group, "again.fifo") for group in GROUPS[:5]]
        assert repeats == first
        for group in GROUPS[:5]:
            await send(sqs, f"{group} 2", group, "again.fifo")
        received = await sqs.receive("again.fifo")
        assert sorted(each["Body"] for each in received) == sorted(f"{g} {step}" for g in GROUPS[:5] for step in "12")
        shown = (await sqs.call("GetQueueAttributes", QueueUrl="again.fifo", AttributeNames=["All"]))["Attributes"]
        assert shown["DeduplicationScope"] == scope
        await sqs.call("SetQueueAttributes", QueueUrl="again.fifo", Attributes={"DelaySeconds": "1"})
        await sqs.create("again.fifo", **FIFO, DeduplicationScope=scope, DelaySeconds="1")

    play(story)


@pytest.mark.parametrize("queue", ["q.fifo", "groups.fifo"])
def test_queue_that_an_import_lacks_is_not_created_beside_its_messages_and_comes_back_with_the_next_import(
    queue: str,
) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        engine = world.newest
        assert engine is not None
        first = [await send(sqs, f"{group} 1", group, queue) for group in GROUPS[:5]]
        exported = json.loads(render(engine.namespaces.document))
        lacking = json.loads(json.dumps(exported))
        del lacking["namespaces"]["default"]["queues"][queue]
        await engine.admin.restore(json.dumps(lacking), world.deadline_in(5))
        scope = {"DeduplicationScope": "messageGroup" if queue == "q.fifo" else "queue"}
        says = await refused(sqs, "CreateQueue", QueueName=queue, Attributes={**FIFO, **scope})
        assert "has 5 items already" in says
        await engine.admin.restore(json.dumps(exported), world.deadline_in(5))
        assert [await send(sqs, f"{group} 1", group, queue) for group in GROUPS[:5]] == first
        for group in GROUPS[:5]:
            await send(sqs, f"{group} 2", group, queue)
        received = sorted(each["Body"] for each in await sqs.receive(queue))
        assert received == sorted(f"{group} {step}" for group in GROUPS[:5] for step in "12")

    play(story)


def test_scope_of_an_imported_queue_is_that_of_its_keys_whatever_its_attributes_say() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        engine = world.newest
        assert engine is not None
        exported = json.loads(render(engine.namespaces.document))
        exported["namespaces"]["default"]["queues"]["groups.fifo"]["attributes"]["DeduplicationScope"] = "queue"
        for queue in ("q.fifo", "groups.fifo"):
            await sqs.call("DeleteQueue", QueueUrl=queue)
        await engine.admin.restore(json.dumps(exported), world.deadline_in(5))
        for queue, scope in (("q.fifo", "queue"), ("groups.fifo", "messageGroup")):
            shown = (await sqs.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"]))["Attributes"]
            assert shown["DeduplicationScope"] == scope
            sent = [await send(sqs, "body", group, queue) for group in GROUPS]
            assert len({each["MessageId"] for each in sent}) == (1 if scope == "queue" else len(GROUPS))

    play(story)


def test_throughput_limit_of_each_group_needs_the_scope_of_the_group() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        limit = {"FifoThroughputLimit": "perMessageGroupId"}
        for action, parameters in (
            ("CreateQueue", {"QueueName": "more.fifo", "Attributes": {**FIFO, **limit}}),
            ("SetQueueAttributes", {"QueueUrl": "q.fifo", "Attributes": limit}),
        ):
            assert "only when the value for DeduplicationScope is messageGroup" in await refused(
                sqs, action, **parameters
            )
        await sqs.call("SetQueueAttributes", QueueUrl="groups.fifo", Attributes=limit)
        await sqs.create("more.fifo", **BY_GROUP, **limit)

    play(story)
