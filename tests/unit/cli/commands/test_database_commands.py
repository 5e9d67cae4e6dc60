"""Tests of the commands for databases and regions with a registry in the process: what they show and what they refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
from click.testing import Result

from foqs.cli.commands.primary_runs import PrimarySession, RunUntil
from foqs.cli.host_session import CommandFailed
from foqs.options.config import Config
from shardmgr.documents import MEMBERS, render_member
from shardmgr.layout_changes import create_layout
from shardmgr.loss_report import LastFlush, LossReport, write_loss_report
from shardmgr.model import Member, ShardSpec
from shardmgr.positions import LostRange
from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import abort
from shardmgr.primary_document import FOLDER, change_primary, replace_primary
from shardmgr.primary_moves import ELECTION_FOLDER
from shardmgr.promoter import PromoterRound
from shardmgr.promotion import AwaitChange
from shardmgr.registry.port import Registry
from shardmgr.suspicion import Suspicion
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import World
from tests.unit.cli.commands.test_cluster_init import Place, place
from tests.unit.cli.commands.test_item_commands import client, run

__all__ = ["client", "place", "run"]

Run = Callable[..., Result]

SERVERS: Final = {name: DatabaseServer(f"r-{name}", number) for number, name in enumerate("abc", 11)}
ENTRY: Final = Primary(3, "a", LossPolicy.SEMI_SYNC, {"b": "1.1", "c": "1.1"}, servers=SERVERS)


@pytest.fixture
def in_cluster(run: Run, place: Place) -> Callable[..., Result]:
    """Runs a command in a cluster of one entry and two hosts, one of them in the region of `b`."""
    registry = place.ensemble.registry(6_000)

    async def prepare(registry: Registry) -> None:
        await registry.open()
        await create_layout(registry, [ShardSpec(number, f"db{1 + number % 2}", weight=3) for number in range(4)])
        await replace_primary(registry, "db1", ENTRY, None)
        for name, region in (("one", "r-a"), ("two", "r-b")):
            member = Member(name, f"n-{name}", "h:1", region=region)
            await registry.announce(MEMBERS, member.nonce, render_member(member))

    asyncio.run(prepare(registry))
    return lambda *arguments: run(*arguments, "--config", str(place.file))


def test_region_list_names_the_primary_of_each_database_with_an_entry(in_cluster: Callable[..., Result]) -> None:
    [row] = json.loads(in_cluster("region", "list", "-o", "json").stdout)
    assert row == {
        "database": "db1",
        "region": "r-a",
        "primary": "a",
        "term": 3,
        "state": "serving",
        "target": "",
        "policy": "semi-sync",
        "ackers": ["b", "c"],
        "proven": None,
        "lacks_if_lost": None,
        "blocked": None,
    }


@pytest.mark.parametrize(
    ("lacks", "shown"),
    [
        (None, ["unknown", "of", "2", "ackers", "unknown"]),
        ([], ["1", "of", "2", "ackers", "replaced"]),
        (["c is away", "d"], ["1", "of", "2", "ackers", "not replaced: c is away; d"]),
    ],
)
def test_region_list_says_whether_hosts_would_replace_the_primary_as_its_promoter_has_published_it(
    in_cluster: Callable[..., Result], place: Place, lacks: list[str] | None, shown: list[str]
) -> None:
    async def publish() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        found = {"nonce": "n", "version": 0, "at_rest": True, "text": "", "proven": ["b"], "lacks_if_lost": lacks}
        if lacks is not None:
            await registry.announce(ELECTION_FOLDER, "db1", json.dumps(found).encode())

    asyncio.run(publish())
    _, line = in_cluster("region", "list").stdout.splitlines()
    assert line.partition("semi-sync")[2].split(maxsplit=4) == shown


def test_region_list_says_that_writes_wait(in_cluster: Callable[..., Result], place: Place) -> None:
    async def publish() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        found = {"nonce": "n", "version": 0, "at_rest": True, "text": "", "blocked": "writes wait: none acknowledges"}
        await registry.announce(ELECTION_FOLDER, "db1", json.dumps(found).encode())

    asyncio.run(publish())
    assert in_cluster("region", "list").stderr == "db1: writes wait: none acknowledges\n"


@pytest.mark.parametrize("command", [("region", "drain", "r-a"), ("database", "move", "db1", "--to", "r-b")])
def test_dry_run_says_what_would_move_and_what_its_hosts_would_carry(
    in_cluster: Callable[..., Result], command: tuple[str, ...]
) -> None:
    said = in_cluster(*command, "--dry-run").stderr
    assert "db1: b in r-b would take the place of a; shards 0, 2 would move" in said
    assert "the hosts of r-b would have shards of weight 6 and a capacity of 1, of 12 and 2 in the cluster\n" in said


def test_dry_run_says_that_a_region_has_no_host(in_cluster: Callable[..., Result]) -> None:
    assert "r-c has no host" in in_cluster("database", "move", "db1", "--to", "r-c", "--dry-run").stderr


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        (("database", "move", "db2", "--to", "r-b"), 2, "foqs database adopt db2"),
        (("database", "move", "db1", "--to", "moon", "--dry-run"), 2, "no server in region moon"),
        (("database", "move", "db1", "--to", "r-b"), 2, "databases.db1.servers and promoter_user are not both set"),
        (("database", "promote", "db2", "--lost", "a"), 2, "foqs database adopt db2"),
        (("database", "promote", "db1", "--lost", "b"), 2, "a is the primary in term 3; nothing is to be replaced"),
        (("database", "promote", "db1", "--lost", "a", "--to", "r-b"), 2, "leave the region out"),
        (
            ("database", "promote", "db1", "--lost", "a", "--accept-loss", "--to", "moon", "--yes"),
            2,
            "no server in region moon",
        ),
        (("database", "rejoin", "db2", "a"), 2, "foqs database adopt db2"),
        (("database", "rejoin", "db1", "a"), 2, "databases.db1.servers and promoter_user are not both set"),
        (("database", "remove-acker", "db2", "b", "--yes"), 2, "foqs database adopt db2"),
        (
            ("database", "remove-acker", "db1", "b", "--yes"),
            2,
            "databases.db1.servers and promoter_user are not both set",
        ),
        (("database", "adopt", "db2", "--primary", "a", "--region", "a", "--yes"), 2, "'a' is not SERVER=REGION"),
        (("database", "forget", "db2", "--yes"), 2, "foqs database adopt db2"),
        (("database", "forget", "db1", "--yes"), 2, "databases.db1.servers and promoter_user are not both set"),
        (("region", "drain", "r-b"), 0, "No primary is in r-b."),
    ],
)
def test_command_says_what_is_missing(
    in_cluster: Callable[..., Result], command: tuple[str, ...], code: int, sentence: str
) -> None:
    result = in_cluster(*command)
    assert (result.exit_code, sentence in result.stderr) == (code, True), result.stderr


def test_commands_need_a_cluster(run: Run, place: Place) -> None:
    place.write("")
    result = run("region", "list", "--config", str(place.file))
    assert (result.exit_code, "cluster.zookeeper: it is not set" in result.stderr) == (2, True)


def test_move_that_is_aborted_ends_with_a_sentence(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def promoter(session: PrimarySession, database: str) -> AsyncIterator[RunUntil]:
        async def run(is_done: Callable[[PromoterRound], bool]) -> None:
            entry = await session.entry(database)
            if entry.state is PrimaryState.DRAINING:
                assert not is_done(PromoterRound(entry, AwaitChange(("shards of the database are still owned",))))
                entry = await change_primary(session.registry, database, abort)
            assert is_done(PromoterRound(entry, AwaitChange(), reached=["a", "b", "c"]))

        yield run

    async def story() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        await replace_primary(registry, "db1", ENTRY, None)
        aborted = "db1 was not moved to r-b, because the move was aborted .* a in r-a serves in term 3"
        with pytest.raises(CommandFailed, match=aborted) as found:
            await PrimarySession(Config(), registry).move("db1", lambda entry, reached: "r-b")
        assert found.value.code == 1

    monkeypatch.setattr(PrimarySession, "_promoter", promoter)
    asyncio.run(story())


def test_command_watches_the_primary_too_and_stands_for_election_after_the_hosts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts look at the election at least every five seconds, and rest for ten when they have withdrawn."""
    found: list[tuple[object, int]] = []

    async def run_promoter(*arguments: Any, vacant_ms: int) -> None:
        found.append((arguments[3]._suspicion, vacant_ms))

    async def story() -> None:
        async with PrimarySession(Config(), place.ensemble.registry(6_000))._promoter("db1") as run:
            await run(lambda done: True)

    monkeypatch.setattr("shardmgr.primary_moves.run_promoter", run_promoter)
    monkeypatch.setattr(PrimarySession, "servers", lambda *_: PlainDatabaseServers(World(ENTRY), "r2"))
    asyncio.run(story())
    [(suspicion, vacant_ms)] = found
    assert isinstance(suspicion, Suspicion)
    assert 5_000 < vacant_ms < 10_000


def test_entry_that_cannot_be_read_is_left_out_and_named(in_cluster: Callable[..., Result], place: Place) -> None:
    async def damage() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        await registry.replace(f"{FOLDER}/db2", b"{}", None)

    asyncio.run(damage())
    result = in_cluster("region", "list", "-o", "json")
    assert [row["database"] for row in json.loads(result.stdout)] == ["db1"]
    assert "db2: its entry cannot be read, so it is left out: primaries/db2" in result.stderr
    result = in_cluster("region", "drain", "r-b")
    assert (result.exit_code, "db2 may be in r-b: correct the entry" in result.stderr) == (1, True)


def test_database_that_has_an_entry_is_not_adopted_with_another_primary(in_cluster: Callable[..., Result]) -> None:
    result = in_cluster("database", "adopt", "db1", "--primary", "b", "--region", "b=r-b", "--yes")
    assert result.exit_code == 2
    assert "db1 has an entry already, and a is its primary; move it with foqs database move" in result.stderr


@pytest.mark.parametrize("options", [(), ("--accept-loss", "--to", "r-b")])
def test_primary_that_may_serve_is_replaced_only_after_a_question(
    in_cluster: Callable[..., Result], place: Place, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    async def accepts_commits(session: PrimarySession, *_: object, **__: object) -> bool:
        return True

    monkeypatch.setattr(PrimarySession, "check_lost", accepts_commits)
    result = in_cluster("database", "promote", "db1", "--lost", "a", *options)
    assert "db1: a is reached from here and accepts commits, so its shards may be served" in result.stderr
    assert "The shards of db1 are not served until a replica has taken its place" in result.stderr
    assert "without a question, add --yes" in result.stderr
    assert json.loads(in_cluster("region", "list", "-o", "json").stdout)[0]["state"] == "serving"


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, "Remove c from the ackers of db1? The others must catch up once more before they are proven."),
        ({"policy": LossPolicy.ASYNC}, "Remove c from the ackers of db1? [y/N]"),
        (
            {"policy": LossPolicy.ASYNC, "ackers": {"c": ""}},
            "Remove c, the last replica of db1? A lost primary is then lost with all its items, until a server has rejoined.",
        ),
    ],
)
def test_removal_of_an_acker_asks_first_and_says_what_it_costs(
    in_cluster: Callable[..., Result], place: Place, changes: dict[str, Any], asked: str
) -> None:
    async def change() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        await change_primary(registry, "db1", lambda entry: replace(entry, **changes))

    asyncio.run(change())
    result = in_cluster("database", "remove-acker", "db1", "c")
    assert asked in result.stderr
    assert "without a question, add --yes" in result.stderr
    assert "c" in json.loads(in_cluster("region", "list", "-o", "json").stdout)[0]["ackers"]


def test_region_report_says_which_flush_of_each_shard_is_left_and_what_is_lost(
    in_cluster: Callable[..., Result], place: Place
) -> None:
    result = in_cluster("region", "report")
    assert "No loss was accepted: nothing that was acknowledged is lost" in result.stderr

    async def lose() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        left = [
            LastFlush(2, 7, 19, 1_500),
            LastFlush(3, 8, 20, 1_500, LostRange(4, 30, 1_040)),
            LastFlush(4, 9, 21, 1_500, LostRange(5, 50, None)),
            LastFlush(5, 9, 22, 1_500, LostRange(0, 0, 0)),
            LastFlush(6, 0, 0, 0, LostRange(2, 20, None)),
            LastFlush(8, 1, 0, 0, LostRange(1, 3, 1_003)),
            LastFlush(7, 0, 0, 0, problem="1034: its index is damaged"),
        ]
        await write_loss_report(registry, "db1", LossReport(4, "b", left))

    asyncio.run(lose())
    row, *rows = json.loads(in_cluster("region", "report", "-o", "json").stdout)
    lost = ("lost_flushes_min", "lost_enqueues_min", "lost_enqueues_max")
    unread = rows.pop()
    assert (unread["problem"], [unread[name] for name in lost]) == ("1034: its index is damaged", [None, None, None])
    assert [[each[name] for name in lost] for each in rows] == [
        [4, 30, 1_040],
        [5, 50, None],
        [0, 0, 0],
        [2, 20, None],
        [1, 3, 1_003],
    ]
    result = in_cluster("region", "report")
    assert "shard 7: its owner row could not be read at b: 1034: its index is damaged" in result.stderr
    header, *lines = result.stdout.splitlines()
    assert lines.pop().split()[3:] == ["7", "-", "-", "not", "read", "unknown", "unknown"]
    assert header.endswith("LOST FLUSHES  LOST ENQUEUES")
    for never in (rows[-1], rows[-2]):
        assert (never["written"], "never" in lines.pop()) == ("", True)
    shown = [line.partition("+00:00")[2].split(maxsplit=3) for line in lines]
    assert shown == [
        ["unknown", "unknown"],
        ["at", "least", "4", "30 to 1040"],
        ["at", "least", "5", "at least 50"],
        ["at", "least", "0", "0"],
    ]
    assert row == {
        "database": "db1",
        "term": 4,
        "server": "b",
        "shard": 2,
        "epoch": 7,
        "flush": 19,
        "written": "1970-01-01T00:00:01.500+00:00",
        "problem": "",
        "lost_flushes_min": None,
        "lost_enqueues_min": None,
        "lost_enqueues_max": None,
    }
