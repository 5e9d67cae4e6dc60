"""The entry of a primary survives a round trip, is replaced by compare-and-set only, and keeps what a newer version wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmgr.model import TERM_MAX, MalformedDocument
from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState, ReplicationPosition
from shardmgr.primary_changes import PromotionRefused, start_drain
from shardmgr.primary_document import (
    ATTEMPTS_MAX,
    FOLDER,
    change_primary,
    name_part,
    parse_primary,
    read_primaries,
    read_primary,
    render_primary,
    replace_primary,
)
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed
from tests.support.local_ensemble import LocalEnsemble

SERVERS = {"a": DatabaseServer("r1", 11), "b": DatabaseServer("r2", 12), "c": DatabaseServer("r3", 13)}
ENTRY = Primary(7, "a", LossPolicy.SEMI_SYNC, {"b": "1.2", "c": ""}, servers=SERVERS)
ORIGINS = st.text("0123456789-abcdef:", min_size=1, max_size=40)
POSITIONS = st.builds(
    ReplicationPosition, st.dictionaries(ORIGINS, st.integers(1, (1 << 64) - 1), min_size=1, max_size=3)
)


@st.composite
def entries(draw: st.DrawFn) -> Primary:
    state = draw(st.sampled_from(PrimaryState))
    return replace(
        ENTRY,
        term=draw(st.integers(1, TERM_MAX)),
        policy=draw(st.sampled_from(LossPolicy)),
        ackers=draw(st.dictionaries(st.sampled_from("bc"), st.text("0123456789.", max_size=40))),
        servers=SERVERS | {"d": DatabaseServer("r4", 14)},
        shut_out=draw(st.sampled_from([(), ("d",)])),
        state=state,
        target=draw(st.sampled_from(["", "a", "b"])),
        position=draw(POSITIONS) if state in (PrimaryState.FENCED, PrimaryState.PROMOTING) else None,
        loss_accepted=draw(st.booleans()),
        has_served=draw(st.booleans()),
    )


@given(entries())
def test_entry_survives_rendering_and_parsing(entry: Primary) -> None:
    parsed = parse_primary(render_primary(entry))
    assert parsed == entry
    assert (parsed.ackers, parsed.servers, parsed.position) == (entry.ackers, entry.servers, entry.position)
    assert render_primary(parsed) == render_primary(entry)


def raw(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(render_primary(ENTRY))
    return whole | changes


def test_changed_entry_keeps_the_fields_of_a_newer_version() -> None:
    newer = raw(reason="storm")
    newer["servers"]["b"]["zone"] = 4
    changed = start_drain(parse_primary(json.dumps(newer).encode()), "b")
    written = json.loads(render_primary(changed))
    assert (written["reason"], written["servers"]["b"]["zone"], written["state"]) == ("storm", 4, "draining")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"format": 2}, "format"),
        ({"term": 0}, "term"),
        ({"term": True}, "term"),
        ({"policy": "sync"}, "policy"),
        ({"state": "lost"}, "state"),
        ({"server": "d"}, "server"),
        ({"target": "d", "state": "draining"}, "target"),
        ({"ackers": {"d": ""}}, "ackers.d"),
        ({"ackers": {"a": ""}}, "ackers.a"),
        ({"shut_out": ["d"]}, "shut_out[0]"),
        ({"shut_out": "b"}, "shut_out"),
        ({"state": "fenced", "target": "b"}, "position"),
        ({"position": {"0-1": 0}}, "position.0-1"),
        ({"servers": {"a": {"region": "r1"}}}, "servers.a.server_id"),
        ({"servers": {name: {"region": "r", "server_id": 11} for name in "abc"}}, "servers.b.server_id"),
    ],
)
def test_error_names_the_malformed_place(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(MalformedDocument) as raised:
        parse_primary(json.dumps(raw(**changes)).encode())
    assert raised.value.path == place


@pytest.mark.parametrize(
    ("changes", "shut_out"),
    [
        ({"ackers": {"b": "", "c": ""}}, ()),
        ({"server": "c", "ackers": {"a": "", "b": ""}}, ()),
        ({"server": "a", "ackers": {"b": ""}}, ("c",)),
    ],
)
def test_server_is_not_shut_out_that_the_version_before_has_admitted(
    changes: dict[str, Any], shut_out: tuple[str, ...]
) -> None:
    """It keeps the field and does not know it, so the entry must stay readable."""
    entry = parse_primary(json.dumps(raw(shut_out=["c"], **changes)).encode())
    assert entry.shut_out == shut_out
    assert parse_primary(render_primary(entry)) == entry


def with_registries(story: Callable[[Registry, Registry], Awaitable[None]]) -> None:
    async def main() -> None:
        ensemble = LocalEnsemble(None, lambda: 0)
        one, two = ensemble.registry(6_000), ensemble.registry(6_000)
        for registry in (one, two):
            await registry.open()
        await story(one, two)
        for registry in (one, two):
            await registry.close()

    asyncio.run(main())


def test_equal_entry_of_another_time_is_not_replaced() -> None:
    """An abort and a second drain make an entry equal to an earlier one, which a frozen promoter has read."""

    async def story(one: Registry, two: Registry) -> None:
        version = await replace_primary(one, "main", ENTRY, None)
        drained = start_drain(ENTRY, "b")
        later = await replace_primary(one, "main", drained, version)
        await replace_primary(one, "main", ENTRY, later)
        with pytest.raises(RegistryConflict):
            await replace_primary(two, "main", drained, version)
        found = await read_primary(two, "main")
        assert found is not None
        assert found.entry == ENTRY

    with_registries(story)


def test_entry_that_nobody_could_read_is_not_written() -> None:
    async def story(one: Registry, two: Registry) -> None:
        version = await replace_primary(one, "main", ENTRY, None)
        with pytest.raises(MalformedDocument, match="target"):
            await replace_primary(one, "main", replace(ENTRY, target="bb"), version)
        found = await read_primary(two, "main")
        assert found is not None
        assert found.version == version

    with_registries(story)


def test_databases_have_entries_of_their_own() -> None:
    async def story(one: Registry, two: Registry) -> None:
        version = await replace_primary(one, "main", ENTRY, None)
        await replace_primary(two, "other", replace(ENTRY, term=1), None)
        await replace_primary(one, "main", replace(ENTRY, term=8), version)
        other = await read_primary(one, "other")
        assert other is not None
        assert other.entry.term == 1
        assert await read_primary(one, "third") is None
        await one.replace(f"{FOLDER}/fourth", b"{}", None)
        found = await read_primaries(two, ["third", "main", "other", "main", "fourth"])
        assert found.entries.keys() == {"main", "other"}
        assert found.malformed.keys() == {"fourth"}
        assert found.malformed["fourth"].startswith("primaries/fourth: ")

    with_registries(story)


def test_each_database_that_a_layout_allows_has_an_entry_of_its_own() -> None:
    names = ["main", "main.1", "main.2e1", "shop eu", "shop_eu", "a/b", "a", "..", "\u65e5" * 42, "\u65e5" * 41]

    async def story(one: Registry, two: Registry) -> None:
        for term, name in enumerate(names, 1):
            await replace_primary(one, name, replace(ENTRY, term=term), None)
            await two.announce("promoters", name_part(name), b"n1")
        for term, name in enumerate(names, 1):
            found = await read_primary(two, name)
            assert found is not None
            assert found.entry.term == term

    with_registries(story)
    assert [name_part(name) for name in names[:4]] == ["main", "main.2e1", "main.2e2e1", "shop.20eu"]


def test_change_is_made_to_the_entry_that_another_change_left() -> None:
    async def story(one: Registry, two: Registry) -> None:
        await replace_primary(one, "main", ENTRY, None)
        terms = []

        def change(entry: Primary) -> Primary:
            terms.append(entry.term)
            return replace(entry, ackers={})

        class Disturbed:
            def __getattr__(self, name: str) -> Any:
                return getattr(one, name)

            async def replace(self, name: str, data: bytes, version: int | None) -> int:
                if len(terms) == 1:
                    await change_primary(two, "main", lambda entry: replace(entry, term=9))
                return await one.replace(name, data, version)

        assert (await change_primary(Disturbed(), "main", change)).term == 9
        assert terms == [7, 9]

    with_registries(story)


def test_change_that_is_refused_or_overtaken_each_time_writes_nothing() -> None:
    async def story(one: Registry, two: Registry) -> None:
        version = await replace_primary(one, "main", ENTRY, None)
        with pytest.raises(PromotionRefused):
            await change_primary(one, "main", lambda entry: start_drain(entry, "a"))
        assert await change_primary(one, "main", lambda entry: entry) == ENTRY
        with pytest.raises(RegistryFailed, match="has no entry"):
            await change_primary(one, "other", lambda entry: entry)
        found = await read_primary(one, "main")
        assert found is not None
        assert found.version == version

        class Overtaken:
            def __getattr__(self, name: str) -> Any:
                return getattr(one, name)

            async def replace(self, name: str, data: bytes, version: int | None) -> int:
                raise RegistryConflict(name)

        with pytest.raises(RegistryFailed, match=f"{ATTEMPTS_MAX} times"):
            await change_primary(Overtaken(), "main", lambda entry: start_drain(entry, "b"))

    with_registries(story)


def test_malformed_entry_is_an_error_and_stays() -> None:
    async def story(one: Registry, two: Registry) -> None:
        await one.replace(f"{FOLDER}/main", b"{", None)
        with pytest.raises(MalformedDocument, match=f"{FOLDER}/main"):
            await change_primary(two, "main", lambda entry: entry)

    with_registries(story)


def test_entries_of_many_databases_are_read_side_by_side_and_never_too_many_at_once() -> None:
    async def story(one: Registry, two: Registry) -> None:
        names = [f"d{number}" for number in range(150)]
        for name in names[1:]:
            await replace_primary(one, name, ENTRY, None)
        await one.replace(f"{FOLDER}/d7", b"{", 0)
        reading, most = 0, 0

        class Counting:
            async def read(self, name: str) -> Any:
                nonlocal reading, most
                reading += 1
                most = max(most, reading)
                await asyncio.sleep(0)
                reading -= 1
                return await one.read(name)

        found = await read_primaries(Counting(), names)  # type: ignore[arg-type]
        assert most == 64
        assert set(found.malformed) == {"d7"}
        assert found.entries == dict.fromkeys((name for name in names[1:] if name != "d7"), ENTRY)

    with_registries(story)
