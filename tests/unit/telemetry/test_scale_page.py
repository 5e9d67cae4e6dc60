"""Tests of the page /scale: what it answers, what it refuses, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.access.keyring import Keyring
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import State, TopicName
from foqs.core.items.life import EventKind
from foqs.core.memory.topic_rates import NO_RATES, Rates
from foqs.queue.port import TopicStats
from foqs.telemetry.scale_page import ScalePage
from foqs_contract.call_table import Permission
from foqs_contract.errors import NamespaceNotFound, Unavailable
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.unit.shard.test_limited_topics import grouped, set_rules

MAIL = TopicStats("mail", 600, 5, 20, 1, 0, 41_250, None, False, False)


class Observer:
    def __init__(self) -> None:
        self.failures = 0

    def authenticated(self, principal: str) -> None:
        pass

    def authentication_failed(self) -> None:
        self.failures += 1


class Topics:
    """A tier with one topic. `error` is raised instead of an answer."""

    def __init__(
        self, stats: TopicStats | None = MAIL, error: Exception | None = None, *, is_partial: bool = False
    ) -> None:
        self.stats = stats
        self.error = error
        self.is_partial = is_partial

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        assert (namespace, cursor, limit) == ("default", None, 1)
        assert states is not None
        assert set(states) == {State.READY, State.DEFERRED, State.LEASED, State.DEAD}
        if self.error is not None:
            raise self.error
        return ([self.stats] if self.stats is not None and self.stats.topic.startswith(prefix) else []), None


def rates_of(topic: TopicName) -> Rates:
    return Rates(20.0004, 19.5) if topic == ("default", "mail") else Rates(0.0, 0.0)


def check_namespace(name: str) -> None:
    if name != "default":
        raise NamespaceNotFound(f"there is no namespace {name!r}")


def asked(
    query: Mapping[str, str],
    topics: Topics | None = None,
    authenticator: Authenticator | None = None,
    authorization: str | None = None,
) -> tuple[int, Mapping[str, Any]]:
    topics = topics or Topics()
    page = ScalePage(topics.list_topics, lambda: topics.is_partial, rates_of, check_namespace, authenticator)
    return asyncio.run(page.answer(query, authorization))


def test_page_has_the_facts_of_the_topic_and_the_wanted_number() -> None:
    status, found = asked({"topic": "mail", "rate": "2"})
    assert status == 200
    assert found == {
        "namespace": "default",
        "topic": "mail",
        "ready": 600,
        "deliverable": 600,
        "leased": 20,
        "deferred": 5,
        "dead": 1,
        "paused": False,
        "oldest_ready_age_s": 41.25,
        "ready_per_s": 20.0,
        "acked_per_s": 19.5,
        "wanted": 11,
    }
    assert asked({"topic": "mail", "rate": "2", "target_age_s": "6"})[1]["wanted"] == 56
    assert asked({"topic": "mail", "rate": "2", "in_flight": "1"})[1]["wanted"] == 20
    assert "wanted" not in asked({"topic": "mail"})[1]


def test_topic_without_items_has_zeros() -> None:
    for topic in ("mai", "mails", "none"):
        status, found = asked({"topic": topic, "rate": "2"})
        assert status == 200
        assert {
            found[name]
            for name in ("ready", "leased", "deferred", "dead", "deliverable", "wanted", "oldest_ready_age_s")
        } == {0}


def test_consumers_of_a_paused_topic_only_finish_what_they_hold() -> None:
    paused = TopicStats("mail", 600, 5, 20, 1, 0, 41_250, None, True, False)
    assert asked({"topic": "mail", "rate": "2"}, Topics(paused))[1]["wanted"] == 1
    idle = TopicStats("mail", 600, 5, 0, 1, 0, 41_250, None, True, False)
    assert asked({"topic": "mail", "rate": "2"}, Topics(idle))[1]["wanted"] == 0


@pytest.mark.parametrize(
    ("stats", "deliverable", "wanted"),
    [
        (replace(MAIL, group_leases_max=1, deliverable=7), 7, 27),
        (replace(MAIL, group_leases_max=1, deliverable=0), 0, 20),
        (replace(MAIL, group_leases_max=9, deliverable=7), 7, 27),
        (replace(MAIL, group_leases_max=9, fair=Fairness.TIME, deliverable=7), 63, 83),
        (replace(MAIL, group_leases_max=9, fair=Fairness.TIME, deliverable=70), 600, 101),
        (replace(MAIL, fair=Fairness.ITEMS), 600, 101),
        (replace(MAIL, group_leases_max=1, deliverable=7, paused=True), 7, 1),
    ],
)
def test_no_more_consumers_are_wanted_than_groups_let_work(stats: TopicStats, deliverable: int, wanted: int) -> None:
    found = asked({"topic": "mail", "rate": "0.2"}, Topics(stats))[1]
    assert (found["ready"], found["deliverable"], found["wanted"]) == (600, deliverable, wanted)


def test_consumers_of_a_strict_topic_are_as_many_as_its_groups_until_they_have_ended() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        set_rules(engine, {"t": GroupRules(1), "fair": GroupRules(3, Fairness.ITEMS)})
        reads = engine.queue.reads
        page = ScalePage(reads.list_topics, reads.is_partial, lambda _: NO_RATES, check_namespace, None)

        async def found(topic: str = "t") -> tuple[int, int]:
            status, answer = await page.answer({"topic": topic, "rate": "0.001"}, None)
            assert status == 200
            return answer["deliverable"], answer["wanted"]

        for topic in ("t", "fair", "plain"):
            await caller.enqueue([grouped(f"group {n % 5}", topic) for n in range(50)])
        assert await found("plain") == (50, 50)
        await found()
        await world.pass_s(5)  # the list has the groups read
        assert await found() == (5, 5)
        first = (await caller.get("t", 3)).items
        assert await found() == (2, 5)
        await caller.do(EventKind.NACK, first[:1], delay_ms=60_000)
        assert await found() == (2, 4), "nobody can work for the group that backs off"
        await caller.do(EventKind.ACK, first[1:])
        assert await found() == (4, 4)
        while (await caller.get("fair", 50)).items:
            await world.pass_s(1)
        assert await found("fair") == (0, 15)
        await caller.do(EventKind.ACK, (await caller.get("t", 4)).items)
        await world.pass_s(60)
        while held := (await caller.get("t", 50)).items:
            assert await found() == (0, len(held))
            await caller.do(EventKind.ACK, held)
        assert await found() == (0, 0)

    run_in_world(story)


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({}, 400, "topic"),
        ({"topic": ""}, 400, "topic"),
        ({"topic": "mail", "rate": "0"}, 400, "rate"),
        ({"topic": "mail", "rate": "-1"}, 400, "rate"),
        ({"topic": "mail", "rate": "nan"}, 400, "rate"),
        ({"topic": "mail", "rate": "inf"}, 400, "rate"),
        ({"topic": "mail", "rate": "fast"}, 400, "rate"),
        ({"topic": "mail", "rate": "1", "target_age_s": "0"}, 400, "target_age_s"),
        ({"topic": "mail", "target_age_s": "60"}, 400, "rate"),
        ({"topic": "mail", "rates": "1"}, 400, "parameter"),
        ({"topic": "mail", "namespace": "nowhere"}, 404, "nowhere"),
    ],
)
def test_wrong_request_is_refused(query: Mapping[str, str], status: int, text: str) -> None:
    found = asked(query)
    assert found[0] == status
    assert text in found[1]["error"]


def test_incomplete_counts_are_no_answer() -> None:
    lagging = TopicStats("mail", 6, 0, 0, 0, 0, None, None, False, True)
    assert asked({"topic": "mail", "rate": "2"}, Topics(lagging))[0] == 503
    assert asked({"topic": "mail", "rate": "2"}, Topics(error=Unavailable("no shard", retry_after_ms=1)))[0] == 503


def test_topic_that_is_not_listed_has_no_zeros_while_shards_are_not_served() -> None:
    """Its items may all be in those shards."""
    assert asked({"topic": "mail", "rate": "2"}, Topics(None, is_partial=True))[0] == 503
    assert asked({"topic": "mai", "rate": "2"}, Topics(is_partial=True))[0] == 503
    assert asked({"topic": "none"}, Topics(None))[0] == 200
    # The stats of a topic that is listed say themselves whether they are complete.
    assert asked({"topic": "mail"}, Topics(is_partial=True))[0] == 200


@pytest.mark.parametrize("moments", [(False, True), (True, False)])
def test_topic_that_is_not_listed_has_no_zeros_if_a_shard_was_not_served_for_a_moment(
    moments: tuple[bool, bool],
) -> None:
    partial = iter(moments)
    page = ScalePage(Topics(None).list_topics, lambda: next(partial), rates_of, check_namespace, None)
    assert asyncio.run(page.answer({"topic": "none"}, None))[0] == 503


def test_token_needs_a_principal_that_may_read_the_topic() -> None:
    observer = Observer()
    keyring = Keyring(
        {sha256(token).digest(): name for token, name in ((b"s1", "scaler"), (b"s2", "mailer"), (b"s3", "root"))}
    )
    grants = {("scaler", "default"): [Permission.CONSUME], ("mailer", "default"): [Permission.ENQUEUE]}
    authenticator = Authenticator(
        keyring,
        ["root"],
        lambda name, space: grants.get((name, space), []),
        observer,
        AuthenticationLimits(failure_delay_s=0.0),
    )

    def status(authorization: str | None, namespace: str = "default") -> int:
        return asked({"topic": "mail", "namespace": namespace}, None, authenticator, authorization)[0]

    assert status("Bearer s1") == status("bearer  s1 ") == status("Bearer s3") == 200
    assert status("Bearer s2") == 403
    assert status("Bearer s1", "nowhere") == 403  # whether it exists is nobody's business
    assert observer.failures == 0
    assert status("Bearer wrong") == 401
    assert observer.failures == 1
    assert status("Bearer \udcff") == 401
    assert observer.failures == 2
    for other in (None, "", "Bearer", "Basic s1", "s1"):
        assert status(other) == 401
    assert asked({"nonsense": "1"}, None, authenticator, None)[0] == 401
