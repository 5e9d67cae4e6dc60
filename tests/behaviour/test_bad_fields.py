"""Tests bad values of every field of every request: the error, and that nothing was changed.

The fields are those of the contract; the name of a field decides its bad values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from thrift.Thrift import TType

from foqs.catalog.document import WEIGHTS_MAX
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.items.item import SHARD_MAX, TIME_MS_MAX
from foqs.rpc.filters import FILTER_TOPICS_MAX
from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import BulkAction, ItemState
from tests.behaviour.wires import Outcome, WireSite, wire_story
from tests.support.requests import METHODS, Field, Names, fields, good

pytestmark = pytest.mark.timeout(1_200)
"""A test makes some thousand calls."""

I32_MIN, I32_MAX = -(1 << 31), (1 << 31) - 1
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
INVALID, LIMIT = "INVALID_ARGUMENT", "LIMIT_EXCEEDED"
ITEMS_MAX: Final = 1_000
TOPICS_MAX: Final = 100

LATER: Final = {
    "bindTopic",
    "addShard",
    "removeShard",
    "moveShard",
    "drainShard",
    "undrainShard",
    "drainHost",
    "undrainHost",
    "gossip",
    "rankItem",
}
"""The calls that may return NOT_IMPLEMENTED."""

NOT_NAMES: Final = ["", "x" * 256, "é" * 128, "a\0b", "\0", b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80"]
"""Empty, too long, with NUL; not UTF-8: an invalid byte, a truncated character, a surrogate, NUL in two bytes."""
NUMBER: Final = 8_796_093_022_209
"""The number of the first item of the first epoch."""
NOT_IDS: Final = [
    "", "x", "0", "-", "0-", f"-{NUMBER}", f"{NUMBER}", f"0_{NUMBER}", f"00-{NUMBER}", f"0-0{NUMBER}", f"+0-{NUMBER}",
    f"0-+{NUMBER}", f" 0-{NUMBER}", f"0-{NUMBER} ", f"0-{NUMBER}\0", f"0--{NUMBER}", f"0-{NUMBER}-1", f"65536-{NUMBER}",
    f"-1-{NUMBER}", "0-0", "0-1", f"0-{1 << 43}", f"0-{1 << 63}", f"0-{1 << 64}", "0-" + "9" * 70, "0-" + "9" * 100_000,
    f"0x0-{NUMBER}", f"0-{NUMBER}".replace("9", "٩"), f"0-8_{NUMBER % 10**12}", "0-1e15", b"\xff-\xfe", f"A-{NUMBER}",
]  # fmt: skip
TOO_SMALL: Final = [0, -1]

BAD: Final[Mapping[str, list[tuple[Any, str]]]] = {
    **{name: [(value, INVALID) for value in NOT_NAMES] for name in ("namespace_name", "topic", "principal", "name")},
    "tier": [(value, INVALID) for value in [*NOT_NAMES, "another"]],
    "idempotency_key": [(value, INVALID) for value in NOT_NAMES],
    "group": [(value, INVALID) for value in NOT_NAMES],
    "prefix": [(value, INVALID) for value in ("x" * 256, b"\xff", b"a\xc3")],
    "cursor": [(value, INVALID) for value in ("x" * 4_097, b"\xff", b"\xed\xa0\x80")],
    "id": [(value, INVALID) for value in NOT_IDS],
    "ids": [(value, INVALID) for value in NOT_IDS],
    "payload": [(b"x" * 10_241, LIMIT), (b"x" * 1_000_000, LIMIT)],
    "metadata": [(b"x" * 1_025, LIMIT), (b"x" * 1_000_000, LIMIT)],
    "delay_ms": [(value, INVALID) for value in (-1, I64_MIN, TIME_MS_MAX + 1, I64_MAX)],
    "deliver_after_ms": [(value, INVALID) for value in (TIME_MS_MAX + 1, I64_MAX)],
    "lease_ms": [*[(value, INVALID) for value in (0, -1, I64_MIN)], (1 << 50, LIMIT), (I64_MAX, LIMIT)],
    "ttl_ms": [(value, INVALID) for value in (0, -1, I64_MIN, TIME_MS_MAX + 1, I64_MAX)],
    "ttl_remaining_ms": [(value, INVALID) for value in (0, -1, I64_MIN)],
    "attempts_max": [(-1, INVALID), (I32_MIN, INVALID)],
    "attempt": [(-1, INVALID), (I32_MIN, INVALID), (I32_MAX, LIMIT)],
    "restore_key": [*[(value, INVALID) for value in ("", "a\0", b"\xff")], ("x" * 201, LIMIT)],
    "trace_context": [(b"x" * 513, INVALID)],
    "item_count": [(value, INVALID) for value in (0, -1, I32_MIN)],
    "shard": [(-1, INVALID), (I32_MIN, INVALID), (SHARD_MAX + 1, LIMIT), (I32_MAX, LIMIT)],
    "count": [*[(value, INVALID) for value in (0, -1, I32_MIN)], *[(n, LIMIT) for n in (1_001, 10**9, I32_MAX)]],
    "items_max": [*[(value, INVALID) for value in (0, -1, I32_MIN)], *[(n, LIMIT) for n in (1_001, 10**9, I32_MAX)]],
    "run_max": [*[(value, INVALID) for value in (0, -1, I32_MIN)], (101, LIMIT), (I32_MAX, LIMIT)],
    "limit": [*[(value, INVALID) for value in (0, -1, I32_MIN)], *[(n, LIMIT) for n in (1_001, 10**9, I32_MAX)]],
    "timeout_ms": [(value, INVALID) for value in (0, -1, I64_MIN)],
    "wait_ms": [(value, INVALID) for value in (-1, I64_MIN)],
    "group_leases_max": [*[(value, INVALID) for value in (0, -1, I32_MIN)], (1_001, LIMIT), (I32_MAX, LIMIT)],
    "order": [(value, INVALID) for value in (0, 3, -1, I32_MIN, I32_MAX)],
    "fair": [(value, INVALID) for value in (0, 3, -1, I32_MIN, I32_MAX)],
    "policy.weights[0].weight": [*[(value, INVALID) for value in (0, -1, I32_MIN)], (101, LIMIT), (I32_MAX, LIMIT)],
    "age_min_ms": [(value, INVALID) for value in (-1, I64_MIN, TIME_MS_MAX + 1, I64_MAX)],
    "age_max_ms": [(value, INVALID) for value in (-1, I64_MIN, TIME_MS_MAX + 1, I64_MAX)],
    "delivery_policy": [(value, INVALID) for value in (0, 3, -1, I32_MIN, I32_MAX)],
    "state": [(value, INVALID) for value in (0, 5, -1, I32_MIN, I32_MAX)],
    "action": [(value, INVALID) for value in (0, 5, -1, I32_MIN, I32_MAX)],
    "command": [(value, INVALID) for value in (0, 4, -1, I32_MIN, I32_MAX)],
    "rate_per_s": [(value, INVALID) for value in (0, -1, I32_MIN)],
    "expected": [(value, INVALID) for value in (-1, I64_MIN)],
    "start_key": [(value, INVALID) for value in ("", "x" * 65, b"\xff", b"a\xc3")],
    "permissions": [(value, INVALID) for value in (0, 4, -1, I32_MIN, I32_MAX)],
    "states": [(value, INVALID) for value in (0, 5, -1, I32_MIN, I32_MAX)],
}  # fmt: skip
"""By a field's path or name: bad values, each with the expected error code."""

BAD_LISTS: Final[Mapping[str, list[tuple[int, str]]]] = {
    **{
        name: [(0, INVALID), (ITEMS_MAX + 1, LIMIT)]
        for name in ("items", "leases", "nacks", "completions", "extensions", "ids")
    },
    "topics": [(0, INVALID), (TOPICS_MAX + 1, LIMIT)],
    "filter.topics": [(0, INVALID), (FILTER_TOPICS_MAX + 1, LIMIT)],
    "states": [(0, INVALID)],
    "weights": [(WEIGHTS_MAX + 1, LIMIT)],
}
"""By a list's path or name: bad numbers of entries, each with the expected error code."""
FAR_TOO_MANY: Final = 100_000

ALSO_MUST: Final = (
    {"settings.name", "grant.namespace_name", "grant.principal", "grant.permissions", "json"}
    | {f"{entries}[0].token" for entries in ("leases", "nacks", "completions", "extensions")}
    | {"completions[0].item_count"}
)
"""Required fields whose comments do not say so."""
NO_PAGES: Final = "exportConfig"
"""This call ignores the page."""


def cases(method: str, names: Names) -> Iterator[tuple[str, Any, Outcome]]:
    """Yield (description, request, expected outcome)."""
    request = good(method, names)
    for field in fields(request):
        if field.must or field.path in ALSO_MUST:
            yield f"no {field.path}", field.changed(request, None), (INVALID, field.path)
        if method == NO_PAGES and field.path != "timeout_ms":
            continue
        for value, outcome in bad_values(method, field):
            yield f"{field.path} = {value!r:.60}", field.changed(request, value), outcome


def bad_values(method: str, field: Field) -> Iterator[tuple[Any, Outcome]]:
    """Yield values for the field with their expected outcomes."""
    if field.ttype == TType.LIST:
        entries = field.steps[-1]
        for count, code in BAD_LISTS.get(field.path) or BAD_LISTS.get(field.name) or []:
            yield [_entry(method, str(entries), n) for n in range(count)], (code, field.path)
        yield [_entry(method, str(entries), n) for n in range(FAR_TOO_MANY)], (LIMIT, None)
        return
    if method == "authenticate" and field.name == "token":
        return  # a host without authentication reads no token
    if method == "addShard" and field.name == "tier":
        yield from ((name, (INVALID, field.path)) for name in NOT_NAMES)
        return  # it may be of another tier
    if field.path.startswith("settings.") and field.name in SETTING_RANGES:
        least, most = SETTING_RANGES[field.name]
        for value in {least - 1, I32_MIN if field.ttype == TType.I32 else I64_MIN}:
            yield value, (INVALID, field.path)
        top = I32_MAX if field.ttype == TType.I32 else I64_MAX
        for value in {min(most + 1, top), top}:
            if value > most:
                yield value, (LIMIT, field.path)
        return
    for value, code in BAD.get(field.path) or BAD.get(field.name) or []:
        if (method, field.name, value) == ("extendLease", "lease_ms", 0):
            continue  # it ends the lease
        if method == "bulk" and field.name == "limit" and value == 0:
            continue  # it starts a walk and changes nothing
        yield value, (code, field.path)


def _entry(method: str, name: str, place: int) -> Any:
    """Return the n-th entry of a list that is valid except for its length."""
    id_ = f"0-{NUMBER + place}"
    makers: dict[str, Callable[[], Any]] = {
        "items": lambda: ttypes.RestoredItem("t", restore_key="1") if method == "restoreItems" else ttypes.NewItem("t"),
        "topics": lambda: ttypes.TopicCount(f"t{place}", 1) if method == "dequeue" else f"t{place}",
        "leases": lambda: ttypes.Lease(id_, 1),
        "nacks": lambda: ttypes.Nack(id_, 1),
        "completions": lambda: ttypes.Completion(id_, 1, 1),
        "extensions": lambda: ttypes.Extension(id_, 1),
        "ids": lambda: id_,
        "sequence_ids": lambda: place,
        "states": lambda: ItemState.READY,
        "permissions": lambda: 1,
        "regions": lambda: "here",
        "shards": lambda: place,
        "weights": lambda: ttypes.GroupWeight(f"g{place}", 1),
    }
    return makers[name]()


async def assert_refused(site: WireSite, cases: Iterator[tuple[str, str, Any, Outcome]]) -> int:
    """Check that every case (method, description, request, outcome) has its outcome and changes nothing. Return their number."""
    before = await site.all()
    wrong = []
    count = 0
    for method, words, request, expected in cases:
        count += 1
        outcome = await site.outcome(method, request)
        if outcome != expected and not (method in LATER and outcome == ("NOT_IMPLEMENTED", None)):
            wrong.append(f"{method}: {words}: {outcome}, not {expected}")
        if (after := await site.all()) != before:
            wrong.append(f"{method}: {words} changed something")
            before = after
    assert wrong == []
    return count


@wire_story
async def test_bad_field_is_named_and_changes_nothing(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("field")
    assert {"field", "config"} <= {key.removeprefix("topic '").removesuffix("'") for key in await site.all()}

    def every() -> Iterator[tuple[str, str, Any, Outcome]]:
        for method in METHODS:
            for words, request, outcome in cases(method, names):
                yield method, words, request, outcome

    assert await assert_refused(site, every()) > 800


@wire_story
async def test_incompatible_fields_are_refused(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("pair")

    def new(field: str, **more: Any) -> tuple[str, str, Any, Outcome]:
        request = ttypes.EnqueueRequest(site.namespace, [ttypes.NewItem("pair", **more)])
        return "enqueue", str(more), request, (INVALID, f"items[0].{field}")

    def nack(field: str, **more: Any) -> tuple[str, str, Any, Outcome]:
        request = ttypes.NackRequest(site.namespace, [ttypes.Nack(names.id, names.token, **more)])
        return "nack", str(more), request, (INVALID, f"nacks[0].{field}")

    def bulk(field: str, only: Any = None, **more: Any) -> tuple[str, str, Any, Outcome]:
        request = ttypes.BulkRequest(site.namespace, only or ttypes.ItemFilter("pair"), **more)
        return "bulk", f"{only} {more}", request, (INVALID, field)

    def count(field: str, **more: Any) -> tuple[str, str, Any, Outcome]:
        request = ttypes.CountItemsRequest(site.namespace, ttypes.ItemFilter(**more))
        return "countItems", str(more), request, (INVALID, field)

    def update(field: str, *change: Any) -> tuple[str, str, Any, Outcome]:
        request = ttypes.UpdateRequest(site.namespace, [names.id], ttypes.Change(*change))
        return "update", str(change), request, (INVALID, field)

    change = ttypes.Change(1)
    cancel, redrive = BulkAction.CANCEL, BulkAction.REDRIVE
    assert await assert_refused(
        site,
        iter(
            [
                new("delay_ms", delay_ms=1, deliver_after_ms=1),
                new("delay_ms", delay_ms=0, deliver_after_ms=0),
                new("ttl_ms", delay_ms=10, ttl_ms=9),
                new("ttl_ms", delay_ms=10, ttl_ms=10),
                new("ttl_ms", delay_ms=TIME_MS_MAX, ttl_ms=1),
                new("ttl_ms", deliver_after_ms=TIME_MS_MAX, ttl_ms=1),
                new("ttl_ms", deliver_after_ms=TIME_MS_MAX, ttl_ms=1_000_000),
                new("ttl_ms", deliver_after_ms=TIME_MS_MAX, ttl_ms=1, idempotency_key="dated"),
                nack("delay_ms", delay_ms=1, deliver_after_ms=1),
                nack("dead", delay_ms=0, dead=True),
                nack("dead", deliver_after_ms=1, dead=True),
                ("update", "no change", ttypes.UpdateRequest(site.namespace, [names.id]), (INVALID, "change")),
                update("change"),
                update("change.delay_ms", None, 1, 1),
                update("change.delay_ms", 1, 1),  # a leased item's time
                update("change.deliver_after_ms", 1, None, 1),
                ("bulk", "no filter", ttypes.BulkRequest(site.namespace, None, cancel), (INVALID, "filter")),
                bulk("action"),
                bulk("change", action=cancel, change=change),
                bulk("change", action=redrive, change=change),
                bulk("change", action=BulkAction.UPDATE),
                bulk("change", action=BulkAction.UPDATE, change=ttypes.Change()),
                bulk("filter.states", ttypes.ItemFilter(states=[ItemState.READY]), action=redrive),
                bulk("filter.states", ttypes.ItemFilter(states=[ItemState.DEAD, ItemState.READY]), action=redrive),
                count("filter.priority_min", priority_min=1, priority_max=0),
                count("filter.priority_min", priority_min=I32_MAX, priority_max=I32_MIN),
                count("filter.age_min_ms", age_min_ms=2, age_max_ms=1),
            ]
        ),
    )


@wire_story
async def test_contradictory_settings_are_refused(site: WireSite) -> None:
    def settings(field: str, **more: Any) -> Iterator[tuple[str, str, Any, Outcome]]:
        for method, name in (("createNamespace", "new"), ("updateNamespace", site.namespace)):
            request = ttypes.SetNamespaceRequest(ttypes.NamespaceSettings(name, **more))
            yield method, str(more), request, (INVALID, f"settings.{field}")

    def every() -> Iterator[tuple[str, str, Any, Outcome]]:
        yield from settings("lease_ms_default", lease_ms_default=1_001, lease_ms_max=1_000)
        yield from settings("backoff_ms_min", backoff_ms_min=1_001, backoff_ms_max=1_000)
        existing = ttypes.SetNamespaceRequest(ttypes.NamespaceSettings(site.namespace, weight=7))
        yield "createNamespace", "an existing one with other settings", existing, (INVALID, "settings.name")

    assert await assert_refused(site, every())


@wire_story
async def test_missing_namespace_is_named_by_every_call(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("there")

    def every() -> Iterator[tuple[str, str, Any, Outcome]]:
        for method in METHODS:
            for name in ("nowhere", site.namespace.upper(), site.namespace + " "):
                request = good(method, replace(names, namespace=name))
                for field in fields(request):
                    if field.name == "namespace_name" or (
                        method == "updateNamespace" and field.path == "settings.name"
                    ):
                        yield method, name, request, ("NAMESPACE_NOT_FOUND", field.path)

    assert await assert_refused(site, every()) > 50


@wire_story
async def test_malformed_configuration_is_refused(site: WireSite) -> None:
    await site.enqueue_in_each_state("config")
    name = site.namespace
    texts: list[str | bytes] = [
        "", "{", "[]", "null", "1", "nan", '"x"', b"\xff", "[" * 100_000, '{"a":' * 100_000, "{}", '{"format": 2}',
        '{"format": true, "version": 1, "namespaces": {}}',
        '{"format": 1, "version": -1, "namespaces": {}}',
        '{"format": 1, "version": 1e999, "namespaces": {}}',
        '{"format": 1, "version": 1}',
        '{"format": 1, "version": 1, "namespaces": []}',
        '{"format": 1, "version": 1, "namespaces": {}, "more": 1}',
        '{"format": 1, "version": 1, "namespaces": {}}',  # what holds items would be gone
        '{"format": 1, "version": 1, "namespaces": {"": {}}}',
        '{"format": 1, "version": 1, "namespaces": {"a\\u0000": {}}}',
        '{"format": 1, "version": 1, "namespaces": {"\\ud800": {}}}',
        '{"format": 1, "version": 1, "\\ud800": {}}',
        '{"format": 1, "version": 1, "namespaces": {"a": {"\\udfff": 1}}}',
        '{"format": 1, "version": 1, "%s": {}}' % ("x" * 1_000_000),
        f'{{"format": 1, "version": 1, "namespaces": {{"{name}": {{"settings": {{"weight": 0}}}}}}}}',
        f'{{"format": 1, "version": 1, "namespaces": {{"{name}": {{"settings": {{"nothing": 0}}}}}}}}',
        f'{{"format": 1, "version": 1, "namespaces": {{"{name}": {{}}, "{name}": {{}}}}}}',
        f'{{"format": 1, "version": 1, "namespaces": {{"{name}": {{"grants": {{"x": ["all"]}}}}}}}}',
        f'{{"format": 1, "version": 1, "namespaces": {{"{name}": {{"paused": [""]}}}}}}',
    ]  # fmt: skip

    def every() -> Iterator[tuple[str, str, Any, Outcome]]:
        for text in texts:
            yield "importConfig", repr(text)[:80], ttypes.ConfigDocument(text), (INVALID, "json")

    before = await site.all()
    wrong = []
    for _, words, request, _ in every():
        result = await site.call("importConfig", request)
        error = result.failed.error if result.failed else None
        if error is None or (error.code, error.field) != (1, "json") or len(error.message) > 1_000:
            wrong.append(f"{words}: {str(error)[:200]}")
    assert wrong == []
    assert await site.all() == before
