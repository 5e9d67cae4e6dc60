"""Tests of doctor's checks of a host in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from foqs.cli.doctor import cluster_checks
from foqs.cli.doctor.cluster_checks import check_cluster, primary_finding
from foqs.cluster.connections import RegistryReading
from foqs.options.config import Config, load
from foqs.telemetry.findings import Finding
from shardmgr.cluster_reader import ClusterReading
from shardmgr.model import Layout, MalformedDocument, Member, Plan, ShardSpec
from shardmgr.primary import DatabaseServer, LossPolicy, Primaries, Primary, PrimaryState
from shardmgr.promoter import ElectedPromoter
from shardmgr.registry.port import RegistryFailed
from tests.support.certificates import secret_file

HERE: Final = Member("host1", "n1", "127.0.0.1:7411")
LAYOUT: Final = Layout({0: ShardSpec(0, "one"), 1: ShardSpec(1, "two"), 9: ShardSpec(9, "theirs", "gold")})
WELL: Final = ClusterReading(LAYOUT, Plan(), None, [HERE], {})
NO_ENTRIES: Final = Primaries()

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    def look(
        reading: ClusterReading | Exception = WELL, primaries: Primaries = NO_ENTRIES, **options: object
    ) -> dict[str, Finding]:
        async def read(config: Config) -> RegistryReading:
            if isinstance(reading, Exception):
                raise reading
            return RegistryReading(reading, primaries)

        monkeypatch.setattr(cluster_checks, "read_registry", read)
        text = (
            f'[server]\nname = "host1"\n[cluster]\nzookeeper = "127.0.0.1:2181"\n'
            f'[databases.one]\nurl = "sqlite:{tmp_path}/one"\n[databases.two]\nurl = "sqlite:{tmp_path}/two"\n'
        )
        (tmp_path / "foqs.toml").write_text(text)
        overrides: dict[str, Any] = {key.replace("__", "."): value for key, value in options.items()}
        found = asyncio.run(check_cluster(load(tmp_path / "foqs.toml", {}, overrides)))
        return {each.check: each for each in found}

    return look


def test_healthy_cluster_is_ok_with_each_database(examine: Examine) -> None:
    found = examine()
    assert {each.state for each in found.values()} == {"ok"}
    assert set(found) == {
        "Address",
        "ZooKeeper",
        "Hosts",
        "Peers",
        "Layout",
        "Store one",
        "Schema one",
        "Store two",
        "Schema two",
    }
    assert found["Hosts"].detail == "running: host1"
    assert found["Peers"].detail == "no other host of tier default is running"
    assert found["Layout"].detail == "2 shards of tier default in 2 databases"
    assert "1 of 1 shard has no tables yet" in found["Schema two"].detail


@pytest.mark.parametrize(
    ("reading", "what", "detail", "remedy"),
    [
        (RegistryFailed("it gave no session"), "ZooKeeper", "gave no session", "correct cluster.zookeeper"),
        (
            MalformedDocument("layout.format", "2 is not one"),
            "ZooKeeper",
            "layout.format",
            "run the foqs that wrote it",
        ),
        (replace(WELL, layout=None), "Layout", "no cluster at /foqs", "foqs cluster init"),
        (
            replace(WELL, layout=Layout({3: ShardSpec(3, "three"), 4: ShardSpec(4, "three")})),
            "Layout",
            "2 shards are in databases that are not configured here: three",
            "[databases.three]",
        ),
    ],
)
def test_problem_is_bad_and_has_a_remedy(
    examine: Examine, reading: ClusterReading | Exception, what: str, detail: str, remedy: str
) -> None:
    found = examine(reading)
    assert [each.check for each in found.values() if each.state == "bad"] == [what]
    assert detail in found[what].detail
    assert remedy in found[what].remedy
    assert found["Store one"].state == "ok"  # looked at all the same


def test_second_host_with_the_same_name_is_reported(examine: Examine) -> None:
    found = examine(replace(WELL, members=[HERE, replace(HERE, nonce="n2", address="10.0.0.2:7411")]))
    assert found["Hosts"].state == "warning"
    assert "10.0.0.2:7411, 127.0.0.1:7411" in found["Hosts"].detail
    assert "server.name" in found["Hosts"].remedy


def test_second_host_with_the_same_address_is_reported(examine: Examine) -> None:
    found = examine(replace(WELL, members=[replace(HERE, name="host7")]), server__advertise="127.0.0.1:7411")
    assert found["Hosts"].state == "warning"
    assert "127.0.0.1:7411: host1, host7" in found["Hosts"].detail
    assert "server.advertise" in found["Hosts"].remedy
    assert examine(server__advertise="127.0.0.1:7411")["Hosts"].state == "ok"


def test_open_zookeeper_is_reported_when_authentication_is_on(examine: Examine, tmp_path: Path) -> None:
    token = secret_file(tmp_path / "token", b"0123456789abcdef0123456789abcdef\n")
    asked = {
        "auth__enabled": True,
        "auth__principals__operator__token_file": str(token),
        "cluster__token_file": str(token),
    }
    found = examine(**asked)["ZooKeeper"]
    assert (found.state, "cluster.credentials_file" in found.remedy) == ("warning", True)
    credentials = secret_file(tmp_path / "credentials", b"user:secret\n")
    assert examine(**asked, cluster__credentials_file=str(credentials))["ZooKeeper"].state == "ok"


def test_tier_without_shards_is_reported(examine: Examine) -> None:
    assert examine(server__tier="silver")["Layout"].state == "warning"


def test_address_that_others_cannot_call_is_reported(examine: Examine) -> None:
    there = {"cluster__zookeeper": "zk1.example:2181"}
    assert examine()["Address"].state == "ok"
    assert examine(**there)["Address"].state == "warning"
    assert "server.advertise" in examine(**there)["Address"].remedy
    assert examine(**there, server__advertise="192.0.2.1:7411")["Address"].state == "ok"
    nowhere = examine(**there, server__advertise="no-such-host.invalid:7411")["Address"]
    assert (nowhere.state, "server.advertise" in nowhere.remedy) == ("bad", True)


def test_entry_that_cannot_be_read_is_bad_and_other_checks_go_on(examine: Examine) -> None:
    found = examine(primaries=Primaries(malformed={"one": "primaries/one: term: Field required"}))
    assert found["Primary one"].state == "bad"
    assert "primaries/one: term" in found["Primary one"].detail
    assert "restore it from a backup" in found["Primary one"].remedy
    assert found["Store one"].state == "ok"


ENTRY: Final = Primary(3, "a", LossPolicy.SEMI_SYNC, {"b": ""}, servers={"a": DatabaseServer("r-a", 1)})
ASYNC: Final = replace(ENTRY, policy=LossPolicy.ASYNC)
FENCED: Final = replace(ENTRY, state=PrimaryState.FENCED)
ELECTED: Final = ElectedPromoter("n", text="serving: at rest", lacks_if_lost=(), reached=("a", "b"))
LACKING: Final = replace(ELECTED, lacks_if_lost=("b is not reached", "c lags"))
WITHOUT_PRIMARY: Final = replace(ELECTED, text="serving: waits: a is not reached", reached=("b",))


@pytest.mark.parametrize(
    ("entry", "elected", "state", "detail"),
    [
        (ENTRY, ELECTED, "ok", "a in r-a, term 3"),
        (ENTRY, replace(ELECTED, reached=None), "ok", "a in r-a, term 3"),
        (ASYNC, LACKING, "ok", "a in r-a, term 3"),
        (
            ENTRY,
            LACKING,
            "warning",
            "if a were lost now, hosts would not replace it: b is not reached; c lags",
        ),
        (ENTRY, replace(ELECTED, blocked="writes wait: none; bring b back"), "bad", "writes wait: none"),
        (FENCED, replace(ELECTED, text="fenced: waits: b"), "warning", "its entry is fenced: waits: b"),
        (FENCED, ELECTED, "warning", "its entry is fenced"),
    ],
)
def test_primary_has_one_finding_by_its_elected_promoter(
    entry: Primary, elected: ElectedPromoter, state: str, detail: str
) -> None:
    found = primary_finding("main", entry, elected)
    assert (found.check, found.state, found.detail) == ("Primary main", state, detail)
    assert (found.state == "ok") == (not found.remedy)


@pytest.mark.parametrize("entry", [ENTRY, ASYNC])
def test_primary_that_its_elected_promoter_does_not_reach_is_bad(entry: Primary) -> None:
    found = primary_finding("main", entry, WITHOUT_PRIMARY)
    assert found.state == "bad"
    assert found.detail == "the host that watches a does not reach it: serving: waits: a is not reached"
    assert "FoqsPrimaryAway" in found.remedy


@pytest.mark.parametrize("entry", [ENTRY, ASYNC])
@pytest.mark.parametrize(
    ("elected", "detail"),
    [
        (ElectedPromoter(""), "whether hosts would replace a if it were lost now is not known"),
        (None, "its entry is serving, and no host watches a: nobody would replace it"),
    ],
)
def test_primary_of_which_no_host_says_anything_is_a_warning(
    entry: Primary, elected: ElectedPromoter | None, detail: str
) -> None:
    found = primary_finding("main", entry, elected)
    assert (found.state, found.detail) == ("warning", detail)
    assert found.remedy


def test_entry_without_an_elected_promoter_is_reported(examine: Examine) -> None:
    assert examine(primaries=Primaries({"one": ENTRY}))["Primary one"].state == "warning"
