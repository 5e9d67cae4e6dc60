"""SQLite and MySQL return the same results as memory after any sequence of flushes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    SHARD_MAX,
    TIME_MS_MAX,
    OrderKey,
    Row,
    State,
    TopicName,
)
from foqs.store.port import DueRow, FencedOut, Store, WriteRefused
from tests.contract.conftest import Bench, make_bench
from tests.support.column_values import column_values
from tests.support.example_counts import examples
from tests.support.mysql9 import BOTH
from tests.support.stores import Ownership, contents, keys_of, make_row, opened, reading

_FEW = 12
"""The number of different ids: few, so that flushes meet each other's rows."""

_shards = itertools.count(1)
_ids = st.integers(1, _FEW)
_new_ids = st.permutations(range(_FEW + 1, _FEW + 5))
"""Ids that moved rows get. A row that was moved before may have one of them."""
_times = st.one_of(st.integers(0, 6), st.just(TIME_MS_MAX))
_names = st.one_of(
    st.sampled_from(["t", "T", "t ", "😀"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20),
)
_key_names = st.tuples(st.sampled_from(["default", "other"]), st.sampled_from([b"k", b"K", b"k ", b"'"]))
_key_rows = st.builds(
    lambda name, *values: IdempotencyKey(*name, *values),
    _key_names,
    _ids,
    st.sampled_from([bytes(16), b"\\'" * 8]),
    _times,
)
_keys = st.lists(_key_rows, max_size=3).flatmap(lambda rows: st.sampled_from([rows, [], []]))
_topics = st.lists(st.tuples(st.sampled_from(["default", "other"]), _names), max_size=3)
_timers = st.lists(st.tuples(_times, _ids), max_size=6)
_rows = st.builds(
    make_row,
    _ids,
    **column_values(
        namespace=st.sampled_from(["default", "other"]),
        topic=_names,
        priority=st.one_of(st.integers(-2, 2), st.sampled_from([PRIORITY_MIN, PRIORITY_MAX])),
        deliver_after_ms=_times,
        enqueued_at_ms=_times,
        lease_ms=_times,
        ttl_ms=st.none() | _times,
        expires_at_ms=st.none() | _times,
        attempts_max=st.sampled_from([0, 1, PRIORITY_MAX]),
        payload=st.binary(max_size=40),
        metadata=st.binary(max_size=40),
        due_ms=st.none() | _times,
        token=st.sampled_from([0, 1, (1 << 63) - 1]),
        attempt=st.integers(0, 3),
    ),
)


@dataclass(frozen=True)
class Step:
    """One flush; a `stale` one repeats a flush number."""

    inserts: list[Row]
    updates: list[Row]
    moves: list[tuple[int, Row]]
    deletes: list[int]
    leases: list[LeaseUpdate]
    topics_added: list[TopicName]
    topics_removed: list[TopicName]
    keys: list[IdempotencyKey]
    keys_replaced: list[IdempotencyKey]
    keys_over_ms: int | None
    slots_added: list[int]
    timers_added: list[tuple[int, int]]
    timers_removed: list[tuple[int, int]]
    stale: bool


@st.composite
def _steps(draw: st.DrawFn) -> Step:
    rows = draw(st.lists(_rows, max_size=8, unique_by=lambda row: row.id))
    roles = draw(st.lists(st.sampled_from("iiudlm"), min_size=len(rows), max_size=len(rows)))
    chosen: dict[str, list[Row]] = {
        role: [row for row, r in zip(rows, roles, strict=True) if r == role] for role in "iudlm"
    }
    return Step(
        inserts=chosen["i"],
        updates=chosen["u"],
        moves=[(row.id, replace(row, id=new_id)) for row, new_id in zip(chosen["m"], draw(_new_ids), strict=False)],
        deletes=[row.id for row in chosen["d"]],
        leases=[
            LeaseUpdate(row.due_ms, row.token, row.attempt, [row.id], row.state, row.first_delivered_at_ms)
            for row in chosen["l"]
        ],
        topics_added=draw(_topics),
        topics_removed=draw(_topics),
        keys=draw(_keys),
        keys_replaced=draw(_keys),
        keys_over_ms=draw(st.none() | _times),
        slots_added=draw(st.lists(st.integers(0, 5), max_size=2)),
        timers_added=draw(_timers),
        timers_removed=draw(_timers),
        stale=draw(st.integers(0, 9)) == 0,
    )


async def _flush(owned: Ownership, step: Step) -> tuple[str, Mapping[int, Row]]:
    """Run a flush, and return its outcome and the rows that it found."""
    number = owned.number
    try:
        owned.number -= step.stale
        found = await owned.write(
            step.inserts,
            step.updates,
            step.deletes,
            step.leases,
            step.topics_added,
            step.topics_removed,
            step.moves,
            idempotency_keys_added=step.keys,
            idempotency_keys_replaced=step.keys_replaced,
            idempotency_keys_expired_by_ms=step.keys_over_ms,
            idempotency_keys_expired_max=500,
            key_slots_added=step.slots_added,
            timers_added=step.timers_added,
            timers_removed=step.timers_removed,
        )
    except (FencedOut, WriteRefused) as error:
        owned.number = number
        return type(error).__name__, {}
    return "committed", found


async def _read_all(owned: Ownership, rows: Mapping[int, Row]) -> dict[str, object]:
    """Call every read of the store, in small pages."""
    store = owned.store
    results: dict[str, object] = {
        "contents": await contents(owned),
        "topics": sorted(await store.topics()),
        "keys": await keys_of(owned, *itertools.product(["default", "other"], [b"k", b"K", b"k ", b"'"])),
        "next key expiry": await store.next_key_expiry_ms(),
        "slots": await store.key_slots(),
        "next due": [await store.next_due_ms(at, TIME_MS_MAX + 1) for at in (-1, 0, 3, TIME_MS_MAX)],
    }
    past = owned.past
    for low, high in ((None, TIME_MS_MAX), (2, 5)):
        due: list[DueRow] = []
        while page := await store.due_rows(low, high, due[-1] if due else None, 3):
            due += page
        results[f"due {low}"] = due
    async with reading(store) as reads:
        found = await reads.rows(past, [*rows, *rows, 99])
        results["rows"] = sorted(found, key=lambda row: row.id)
        for topic in sorted({(row.namespace, row.topic) for row in rows.values()}):
            keys: list[OrderKey] = []
            while keys_page := await reads.ready_order_keys(past, topic, keys[-1] if keys else None, 2):
                keys += keys_page
            results[f"ready {topic!r}"] = keys
            results[f"leases {topic!r}"] = await reads.leases_of(past, [(topic, None)], 2 * _FEW)
            for state in State:
                listed: list[Row] = []
                while rows_page := await reads.list_rows(
                    past, topic, state, listed[-1].order_key if listed else None, 2, with_payload=True
                ):
                    listed += rows_page
                results[f"listed {topic!r} {state}"] = listed
        results["leases"] = sorted((each.id, each.due_ms) for each in await reads.leases_in(past, [(1, 5), (7, 9)], 5))
        await reads.begin_snapshot(past)
        results["counts"] = sorted((c.namespace, c.topic, c.state, c.rows) for c in await reads.counts())
    return results


async def _compare(plain: Store, fast: Store, steps: list[Step]) -> None:
    first, second = await opened(plain), await opened(fast)
    for step in steps:
        assert await _flush(first, step) == await _flush(second, step)
    rows = await contents(first)
    assert await _read_all(second, rows) == await _read_all(first, rows)
    one, other = await plain.read_owner(), await fast.read_owner()
    assert replace(one, connection=0) == replace(other, connection=0)


def _check(bench: Bench, memory: Bench, steps: list[Step]) -> None:
    shard = next(_shards)
    assert shard <= SHARD_MAX
    bench.run(_compare(memory.store(shard), bench.store(shard), steps))


_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
"""The fixtures hold servers and folders; each example uses its own shard there."""


@pytest.fixture
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return make_bench("memory", request, tmp_path)


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return make_bench("sqlite", request, tmp_path)


@pytest.fixture(params=BOTH)
def mysql(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return make_bench(str(request.param), request, tmp_path)


@given(steps=st.lists(_steps(), min_size=1, max_size=8))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=_CHECKS, derandomize=True)
def test_sqlite_behaves_as_memory(sqlite: Bench, memory: Bench, steps: list[Step]) -> None:
    _check(sqlite, memory, steps)


@given(steps=st.lists(_steps(), min_size=1, max_size=8))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=_CHECKS, derandomize=True)
def test_mysql_behaves_as_memory(mysql: Bench, memory: Bench, steps: list[Step]) -> None:
    _check(mysql, memory, steps)
