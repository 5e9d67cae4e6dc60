"""An administrator of one namespace cannot fill the catalog for others, nor keep their changes waiting."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from foqs.access.call_permissions import Principal
from foqs.catalog import changes
from foqs.catalog.document import Document, NamespaceRecord, Permission, PolicyRecord, QueueEntry, render_stored
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.queue_changes import change_queue
from foqs.catalog.shares import GRANTS_MAX, PAUSED_MAX, POLICIES_MAX, RESERVE_PERCENT, check_share
from foqs.options.options import NamespaceOptions
from foqs.rpc.admin_handlers import admin_handlers
from foqs_contract.errors import FoqsError, LimitExceeded
from foqs_contract.idl import ttypes
from tests.support.catalogs import install_gated_catalog, pause
from tests.support.engines import World, run_in_world
from tests.support.method_gate import start_task
from tests.support.recorded_call import RecordedCall
from tests.support.sqs_world import SqsWorld

BYTES_MAX = 100_000
CONSUME = frozenset({Permission.CONSUME})


def fill(document: Document, name: str, weight: int = 1, entry_bytes: int = 500) -> Document:
    """Return a document to which a namespace has added queues until one was refused."""
    entry = QueueEntry({"Policy": "x" * entry_bytes})
    for number in range(BYTES_MAX):
        after = change_queue(document, name, f"q{number}", lambda _: entry, BYTES_MAX)
        try:
            check_share(document, after, name, weight, BYTES_MAX)
        except LimitExceeded:
            return document
        document = after
    raise AssertionError("nothing was refused")


def part(document: Document, name: str) -> int:
    return len(document.namespaces[name].stored())


def test_each_namespace_that_fills_its_share_leaves_as_much_for_the_others_and_a_reserve() -> None:
    names = [f"n{number}" for number in range(5)]
    document = Document(1, dict.fromkeys(names, NamespaceRecord()))
    left = BYTES_MAX * (100 - RESERVE_PERCENT) // 100
    for name in names:
        document = fill(document, name)
        left -= part(document, name)
        assert left - 1_500 <= part(document, name) <= left
    reserve = BYTES_MAX - len(render_stored(document))
    assert reserve > BYTES_MAX * RESERVE_PERCENT // 100


def test_weight_of_a_namespace_gives_it_a_larger_share() -> None:
    document = fill(Document(1, {"a": NamespaceRecord(), "b": NamespaceRecord()}), "a", weight=3)
    assert part(document, "a") > BYTES_MAX * 55 // 100
    assert part(fill(document, "b"), "b") > 5_000


def test_change_that_makes_the_part_smaller_is_allowed_beyond_the_share() -> None:
    paused = frozenset(f"topic-{number}" for number in range(PAUSED_MAX + 10))
    before = Document(1, {"a": NamespaceRecord(paused=paused, queues={"q": QueueEntry({"Policy": "x" * BYTES_MAX})})})
    check_share(before, changes.pause(before, "a", "topic-3", paused=False), "a", 1, BYTES_MAX)
    check_share(before, change_queue(before, "a", "q", lambda _: None, 10), "a", 1, BYTES_MAX)
    with pytest.raises(LimitExceeded, match="resume"):
        check_share(before, changes.pause(before, "a", "one more", paused=True), "a", 1, BYTES_MAX)


def test_topics_with_a_policy_of_a_namespace_have_a_number() -> None:
    policies = {f"t{number}": PolicyRecord(1) for number in range(POLICIES_MAX)}
    before = Document(1, {"a": NamespaceRecord(policies=policies)})
    with pytest.raises(LimitExceeded, match=f"{POLICIES_MAX} topics with a policy"):
        check_share(before, changes.set_policy(before, "a", "one more", PolicyRecord(1)), "a", 1, BYTES_MAX)
    check_share(before, changes.set_policy(before, "a", "t3", PolicyRecord(2)), "a", 1, BYTES_MAX)
    check_share(before, changes.set_policy(before, "a", "t3", PolicyRecord()), "a", 1, BYTES_MAX)


def test_grants_and_paused_topics_of_a_namespace_have_a_number() -> None:
    grants = {f"p{number}": CONSUME for number in range(GRANTS_MAX)}
    paused = frozenset(f"t{number}" for number in range(PAUSED_MAX))
    before = Document(1, {"a": NamespaceRecord(grants=grants, paused=paused)})
    with pytest.raises(LimitExceeded, match=f"{GRANTS_MAX} grants"):
        check_share(before, changes.grant(before, "a", "another", CONSUME), "a", 1, 10 * BYTES_MAX)
    with pytest.raises(LimitExceeded, match=f"{PAUSED_MAX} paused topics"):
        check_share(before, changes.pause(before, "a", "another", paused=True), "a", 1, 10 * BYTES_MAX)
    check_share(before, changes.grant(before, "a", "p3", frozenset(Permission)), "a", 1, 10 * BYTES_MAX)


def test_administrators_of_all_work_on_while_one_namespace_has_filled_its_share() -> None:
    async def story(world: World) -> None:
        stored = await world.catalog.load()
        world.catalog = MemoryCatalog(stored, BYTES_MAX)
        engine = await world.engine()
        admin, deadline = engine.admin, world.deadline_in(60)
        with pytest.raises(LimitExceeded, match="ask an administrator of the whole system"):
            for number in range(1_000):
                await admin.pause("default", f"{number:05}" + "x" * 250, deadline, paused=True)
        before = len(engine.namespaces.document.namespaces["default"].paused)
        await admin.pause("default", "y" * 255, deadline, paused=True, is_administrator=True)
        await admin.grant("default", "z" * 255, CONSUME, deadline, is_administrator=True)
        assert len(engine.namespaces.document.namespaces["default"].paused) == before + 1
        await admin.pause("other", "mail", deadline, paused=True)
        await admin.grant("other", "somebody", CONSUME, deadline)
        await admin.create("new", None, {"weight": 3}, deadline)
        await admin.update("default", None, {"weight": 3}, deadline)
        await admin.pause("default", "w" * 255, deadline, paused=True)

    run_in_world(story)


def test_queues_of_one_namespace_leave_room_for_others_and_administrators_of_all_may_add_more() -> None:
    async def story(world: World) -> None:
        world.catalog = MemoryCatalog(await world.catalog.load(), BYTES_MAX)
        engine = await world.engine()
        sqs = SqsWorld(world, engine)
        sqs.principal = Principal("tenant")
        policy = json.dumps({"a": "x" * 8_100})
        with pytest.raises(FoqsError, match="of the catalog"):
            for number in range(100):
                await sqs.create(f"q{number}", Policy=policy)
        assert len(render_stored(engine.namespaces.document)) < BYTES_MAX / 2
        sqs.principal = Principal("operator", is_admin=True)
        await sqs.create("urgent", Policy=policy)
        await sqs.call("SetQueueAttributes", QueueUrl="urgent", Attributes={"DelaySeconds": "7"})
        await engine.admin.pause("other", "mail", world.deadline_in(5), paused=True)

    run_in_world(story)


@pytest.mark.parametrize(
    ("principal", "is_administrator"),
    [
        (None, False),
        (Principal("tenant"), False),
        (Principal("operator", is_admin=True), True),
    ],
)
def test_calls_say_whether_their_caller_administers_the_whole_system(
    principal: Principal | None, is_administrator: bool
) -> None:
    async def story(world: World) -> None:
        world.catalog = MemoryCatalog(
            Document(1, {"a": NamespaceRecord(paused=frozenset(map(str, range(PAUSED_MAX))))})
        )
        engine = await world.engine()
        handlers = admin_handlers(engine.admin, "default", world.clock.wall_ms)
        request = ttypes.TopicRequest(namespace_name=b"a", topic=b"one more")
        call = RecordedCall("pauseTopic", request, principal, deadline=world.deadline_in(5))
        handlers["pauseTopic"](call)
        await world.until(lambda: bool(call.replies))
        assert isinstance(call.replies[0], LimitExceeded) != is_administrator

    run_in_world(story)


def test_changes_of_one_namespace_that_wait_delay_those_of_others_by_one_change() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.gate.clear()
        done: list[str] = []

        async def change(name: str, topic: str) -> None:
            await engine.admin.pause(name, topic, world.deadline_in(60), paused=True)
            done.append(name)

        waiting = [start_task(change("default", f"{number}")) for number in range(50)]
        await world.pass_s(0.01)
        waiting.append(start_task(change("other", "t")))
        await world.pass_s(0.01)
        catalog.gate.set()
        await asyncio.gather(*waiting)
        assert done.index("other") <= 2
        assert len(engine.namespaces.document.namespaces["default"].paused) == 50

    run_in_world(story)


def test_change_whose_caller_leaves_while_it_waits_keeps_no_other_waiting() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.gate.clear()
        first, second, third = (start_task(pause(engine, topic)) for topic in "abc")
        await world.pass_s(0.01)
        second.cancel()
        catalog.gate.set()
        await asyncio.gather(first, third)
        assert engine.namespaces.document.namespaces["default"].paused == {"a", "c"}

    run_in_world(story)


def test_change_resolves_only_the_namespace_that_it_changes() -> None:
    namespaces = Namespaces(NamespaceOptions())
    before = Document(1, {name: NamespaceRecord(settings={"weight": 2}) for name in "ab"})
    namespaces.apply(before)
    kept, replaced = (namespaces.settings_of(name) for name in "ab")
    namespaces.apply(changes.update(before, "b", None, {"weight": 3}))
    assert namespaces.settings_of("a") is kept
    assert namespaces.settings_of("b") is not replaced
    assert namespaces.weight_of("b") == 3
    assert namespaces.retry_policies["a"] == namespaces.retry_policies["b"]
    namespaces.apply(replace(before, version=3, namespaces={"a": before.namespaces["a"]}))
    assert "b" not in namespaces.retry_policies
