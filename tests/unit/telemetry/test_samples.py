"""Tests of a host's samples: each metric of the table has the value that its text promises."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import State
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine
from foqs.routing.port import HostIdentity, StandaloneCluster
from foqs.rpc.host_service import host_service
from foqs.rpc.server import RpcServer
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.port import StoreLost
from foqs.telemetry import metric_table, named_topics, samples
from foqs.telemetry.metrics import Metrics
from foqs.telemetry.samples import HostSampler
from tests.support.builders import NAMESPACE, engine_settings, keyed_item, rpc_limits
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import writer_of
from tests.unit.shard.test_limited_topics import grouped, set_rules

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
ONE = engine_settings(1)


def rpc_server_of(engine: Engine) -> RpcServer:
    identity = HostIdentity("127.0.0.1", 1, 1, "local", "default", "0")
    limits = rpc_limits(connections_max=3, calls_in_flight_max=20, in_flight_bytes_max=1_000_000)
    return RpcServer(
        asyncio.get_running_loop(),
        host_service(engine.queue, StandaloneCluster(identity, engine.queue.shard_statuses), Random(1)),
        limits,
    )


def sampler_of(engine: Engine) -> HostSampler:
    return HostSampler(engine, rpc_server_of(engine), asyncio.get_running_loop().time)


def shown(engine: Engine, sampler: HostSampler | None = None) -> dict[tuple[Any, ...], float]:
    """Return all samples by (metric, label values in the order of the labels' names)."""
    metrics = Metrics()
    metrics.add_sampler((sampler or sampler_of(engine)).sample)
    page = b"".join(metrics.render()).decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_metrics_page_is_generated_from_the_table() -> None:
    assert DOCUMENT.read_text() == metric_table.render_page()


def test_host_shows_all_metrics_of_the_table_and_no_others() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        metrics = Metrics()
        metrics.add_sampler(sampler_of(engine).sample)
        await Caller(world, engine).put(count=2)
        families = list(text_string_to_metric_families(b"".join(metrics.render()).decode()))
        # The parser takes the `_total` off a counter's name.
        ours = {family.name: family for family in families if family.name.startswith("foqs_")}
        assert {(name, family.type) for name, family in ours.items()} == {
            (each.name, each.kind) for each in metric_table.METRICS
        }
        for each in metric_table.METRICS:
            for sample in ours[each.name].samples:
                assert set(sample.labels) - {"le"} == set(each.labels)
        assert {family.name for family in families} - set(ours) <= {
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_cpu_seconds",
            "process_open_fds",
            "process_max_fds",
        }
        assert set(sampler_of(engine).sample()) <= {each.name for each in metric_table.SAMPLED_METRICS}

    run_in_world(story)


def test_every_sampled_metric_of_a_serving_host_has_a_value() -> None:
    async def story(world: World) -> None:
        world.facts, world.journal = NullObserver(), JournalSettings(1_000, 100, world.clock.monotonic_ms)
        engine = await world.engine(ONE)
        set_rules(engine, {"t": GroupRules(1)})
        await Caller(world, engine).put(count=2)
        await world.pass_s(2)
        await Caller(world, engine).get()
        found = {name for name, samples in sampler_of(engine).sample().items() if samples}
        assert found == {each.name for each in metric_table.SAMPLED_METRICS}

    run_in_world(story)


def test_samples_match_the_state_of_the_host() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.put("t", 5)
        await caller.put("t", 2, delay_ms=60_000)
        delivered = await caller.get("t", 2)
        await caller.do(EventKind.ACK, delivered.items[:1])
        await world.pass_s(3)
        found = shown(engine)
        for sample, value in {
            ("foqs_ready_items", "1"): 3,
            ("foqs_deferred_items", "1"): 2,
            ("foqs_leased_items", "1"): 1,
            ("foqs_ready_index_items", "1"): 3,
            ("foqs_ready_index_bytes", "1"): 3 * samples.ORDER_KEY_BYTES,
            ("foqs_ready_index_reserved_items", "1"): 0,
            ("foqs_ready_index_topics", "1"): 1,
            ("foqs_shard_epoch", "1"): 1,
            ("foqs_shard_state", "1", "owned"): 1,
            ("foqs_shard_state", "1", "lost"): 0,
            ("foqs_database_up", "1"): 1,
            ("foqs_counts_lag", "1"): 0,
            ("foqs_namespace_items", "default", "ready"): 3,
            ("foqs_namespace_items", "default", "leased"): 1,
            ("foqs_namespace_items", "other", "ready"): 0,
            ("foqs_topic_items", "default", "ready", "t"): 3,
            ("foqs_topic_items", "default", "deferred", "t"): 2,
            ("foqs_topic_items", "default", "leased", "t"): 1,
            ("foqs_topic_items", "other", "ready", "other"): 0,
            ("foqs_topic_acked_items_total", "other", "other"): 1,
            ("foqs_lease_ranges_limit", "1"): 262_144,
            ("foqs_lease_walk_running", "1"): 0,
            ("foqs_lease_walks_total", "1"): 1,
            ("foqs_order_samples_total",): 1,
            ("foqs_order_deliveries_total",): 2,
            ("foqs_order_passed_over_deliveries_total", "priority"): 0,
            ("foqs_order_passed_over_deliveries_total", "age"): 0,
            ("foqs_order_passed_over_seconds_total",): 0,
            ("foqs_order_displacement_items_total",): 0,
            ("foqs_topic_displacement_items", "default", "0.99", "t"): 0,
            ("foqs_topic_passed_over_age_seconds", "default", "0.5", "t"): 0,
            ("foqs_writer_queue_items", "ack", "1"): 0,
            ("foqs_row_cache_items", "written"): 6,
            ("foqs_connections_limit",): 3,
            ("foqs_calls_in_flight_limit",): 20,
            ("foqs_calls_in_flight_limit_bytes",): 1_000_000,
            ("foqs_waiting_dequeues",): 0,
        }.items():
            assert found[sample] == value, sample
        assert found["foqs_oldest_ready_age_seconds", "1"] >= 3
        assert found["foqs_topic_oldest_ready_age_seconds", "default", "t"] >= 3
        assert ("foqs_topic_oldest_ready_age_seconds", "other", "other") not in found
        assert found["foqs_lease_ranges", "1"] >= 1
        assert found["foqs_timer_sweep_age_seconds", "1"] >= 2
        assert found["foqs_timer_watermark_age_seconds", "1"] >= 2
        assert found["foqs_timer_overdue_seconds", "1"] == 0
        assert found["foqs_row_cache_bytes", "written"] > 0

    run_in_world(story)


def test_groups_of_named_topics_are_shown_and_others_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        monkeypatch.setattr(named_topics, "LEADERS", 2)
        engine = await world.counted_engine(engine_settings(1, 2))
        set_rules(
            engine,
            {
                "strict": GroupRules(1),
                "fair": GroupRules(fair=Fairness.ITEMS),
                "small": GroupRules(2),
                "none": GroupRules(3),
            },
        )
        caller = Caller(world, engine)
        for topic, group_count, items in (("strict", 6, 30), ("fair", 5, 20), ("plain", 4, 10), ("small", 3, 3)):
            await caller.enqueue([grouped(f"group {n % group_count}", topic) for n in range(items)])
        for _ in range(3):
            for topic in ("strict", "fair", "small"):
                await caller.get(topic)
            await world.pass_s(1)
        found = shown(engine)

        def values(name: str) -> dict[str, float]:
            return {labels[-1]: value for (metric, *labels), value in found.items() if metric == name}

        limited = [shard.memory.limited_topics for shard in engine.shards.values()]
        assert values("foqs_topic_groups") == {
            "strict": 6,
            "fair": sum(len(each["default", "fair"].groups) for each in limited),
            "other": sum(len(each["default", "small"].groups) for each in limited),
        }
        assert values("foqs_topic_deliverable_items") == {"strict": 3}, "three of six groups have a leased item"

    run_in_world(story)


def test_unserved_shard_has_no_breaker_state(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(self: MemoryStore, epoch: int, nonce: str) -> Any:
        raise StoreLost("the database is down")

    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        assert shown(engine)["foqs_shard_breaker_state", "1", "closed"] == 1
        monkeypatch.setattr(MemoryStore, "take_over", lost)
        writer_of(engine.shards[1]).give_up("it must be taken over again")
        await world.until(lambda: 1 not in engine.shards)
        found = shown(engine)
        assert found["foqs_shard_state", "1", "owned"] == 0
        assert found["foqs_database_up", "1"] == 0
        assert ("foqs_shard_breaker_state", "1", "closed") not in found

    run_in_world(story)


def test_operations_that_wait_for_an_unresponsive_database_are_shown() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        [seen] = (await caller.put("t"), await caller.get("t"))[1].items
        world.stall()
        begun: list[asyncio.Future[Any]] = [asyncio.ensure_future(caller.put("t", 3, payload=b"x" * 100, timeout_s=30))]
        await world.pass_s(0.01)
        begun += [asyncio.ensure_future(caller.put("t", 4, payload=b"x" * 100, timeout_s=30))]
        begun += [asyncio.ensure_future(caller.get("nothing", 1, 20_000, timeout_s=30))]
        acks = [asyncio.ensure_future(caller.do(EventKind.ACK, [seen], 30)) for _ in range(2)]
        await world.pass_s(1)
        found = shown(engine)
        assert found["foqs_writer_queue_items", "insert", "1"] == 4
        assert found["foqs_writer_queue_bytes", "insert", "1"] >= 400
        assert found["foqs_writer_queue_items", "ack", "1"] == 1
        assert found["foqs_writer_blocked_items", "1"] == 1
        assert found["foqs_waiting_dequeues",] == 1
        world.resume()
        await asyncio.gather(*begun, *acks)
        assert shown(engine)["foqs_writer_blocked_items", "1"] == 0

    run_in_world(story)


def test_due_items_are_counted_by_cause() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.put("delayed", 3, delay_ms=100)
        await caller.put("short", 2, ttl_ms=200)
        await caller.put("once", 1)
        [seen] = (await caller.get("once", lease_ms=100)).items
        await caller.put("given up", 1)
        [dead] = (await caller.get("given up")).items
        await caller.do(EventKind.NACK, [dead], dead=True)
        await world.pass_s(NAMESPACE.dead_retention_ms / 1_000 + 400)
        found = shown(engine)
        counts = {kind: found["foqs_due_items_total", kind, "1"] for kind in samples.DUE_KINDS}
        assert counts == {"deliver_after": 3, "lease": 1, "ttl": 2, "retention": 1}
        assert seen.row.attempt == 1

    run_in_world(story, until_s=1e7)


def test_repeats_and_conflicts_of_keys_are_counted() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.enqueue([keyed_item("a"), keyed_item("b")])
        await caller.enqueue([keyed_item("a")])
        await caller.enqueue([keyed_item("a"), keyed_item("b", payload=b"another")])
        found = shown(engine)
        assert found["foqs_repeated_enqueues_total", "1"] == 2
        assert found["foqs_key_conflicts_total", "1"] == 1
        assert found["foqs_key_flush_retries_total", "1"] == 1
        await world.pass_s(NAMESPACE.key_window_ms / 1_000 + 400)
        assert shown(engine)["foqs_key_expiry_flushes_total", "1"] >= 1

    run_in_world(story)


def test_labels_are_capped_and_the_rest_is_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        for number in range(6):
            await caller.put(f"t{number}", number + 1)
        await caller.put("other", 40)
        monkeypatch.setattr(named_topics, "LEADERS", 3)
        found = shown(engine)
        topics = {(key[1], key[3]): value for key, value in found.items() if key[:3:2] == ("foqs_topic_items", "ready")}
        assert topics == {
            ("default", "other"): 40,
            ("default", "t5"): 6,
            ("default", "t4"): 5,
            ("other", "other"): 10,
        }
        counts_of_shard = engine.shards[1].memory.counts
        counts_of_shard.add(("other", "other"), State.READY, 7)
        found = shown(engine)
        assert found["foqs_topic_items", "other", "ready", "other"] == 10 + 7
        assert found["foqs_namespace_items", "other", "ready"] == 7
        page = [name for name, _ in sampler_of(engine).sample()["foqs_namespace_items"]]
        assert len(page) == len(set(page))
        counts_of_shard.add(("other", "other"), State.READY, -7)
        monkeypatch.setattr(samples, "NAMESPACES_MAX", 0)
        found = shown(engine)
        assert {key[1] for key in found if key[0] == "foqs_namespace_items"} == {"other"}
        assert found["foqs_namespace_items", "other", "ready"] == 61
        monkeypatch.setattr(samples, "TOPICS_SCANNED_MAX", 2)
        found = shown(engine)
        assert sum(value for key, value in found.items() if key[0] == "foqs_topic_items") == 61
        assert len([key for key in found if key[::2] == ("foqs_topic_items", "ready")]) == 3

    run_in_world(story)


def test_other_has_an_age_only_if_it_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_topics, "LEADERS", 1)
    metric = "foqs_topic_oldest_ready_age_seconds"

    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.put("large", 5)
        assert shown(engine)[metric, "default", "large"] == pytest.approx(0, abs=0.5)
        await world.pass_s(10)
        await caller.put("young", 1)
        found = shown(engine)
        assert found[metric, "default", "large"] == pytest.approx(10, abs=0.5)
        assert (metric, "other", "other") not in found
        [*items] = (await caller.get("large", 5)).items
        await world.pass_s(10)
        await caller.do(EventKind.ACK, items[:2])
        await caller.do(EventKind.RELEASE, items[2:])
        await caller.put("large", 1)
        found = shown(engine)
        assert found[metric, "default", "large"] == pytest.approx(20, abs=0.5)
        await caller.do(EventKind.ACK, (await caller.get("large", 3)).items)
        await caller.put("large", 1)
        found = shown(engine)
        assert found[metric, "default", "large"] == pytest.approx(0, abs=0.5)
        assert found[metric, "other", "other"] == pytest.approx(10, abs=0.5)

    run_in_world(story)


def test_acks_count_for_topics_with_series_and_no_counter_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_topics, "LEADERS", 1)
    metric = "foqs_topic_acked_items_total"

    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller, sampler = Caller(world, engine), sampler_of(engine)

        async def work(topic: str, count: int) -> dict[str, float]:
            await caller.put(topic, count)
            await caller.do(EventKind.ACK, (await caller.get(topic, count)).items)
            return {key[2]: value for key, value in shown(engine, sampler).items() if key[0] == metric}

        assert await work("a", 3) == {"a": 0, "other": 3}
        assert await work("a", 2) == {"a": 2, "other": 3}
        # Among the two busiest, `a` keeps its series although `b` is busier.
        assert await work("b", 20) == {"a": 2, "b": 0, "other": 23}
        assert await work("b", 1) == {"a": 2, "b": 1, "other": 23}
        await work("c", 50)
        assert await work("c", 5) == {"b": 1, "c": 5, "other": 73}
        assert await work("a", 1) == {"b": 1, "c": 5, "other": 74}

    run_in_world(story)
