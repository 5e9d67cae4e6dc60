"""Tests of foqs cluster init, and of foqs schema apply in a cluster, with a registry in the process and SQLite files."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from foqs.cli.commands.cluster_init import spread_over_databases
from foqs.cli.host_session import UNREACHABLE
from foqs.core.flush.fence import ownership_nonce
from shardmgr import layout_changes
from shardmgr.cluster_identity import read_identity
from shardmgr.documents import LAYOUT
from shardmgr.model import Layout, ShardSpec
from shardmgr.registry.port import RegistryError, RegistryFailed, RegistryOutcomeUnknown, RegistryUnreachable
from tests.support.local_ensemble import LocalEnsemble
from tests.unit.cli.commands.test_item_commands import client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]


class Place:
    """A coordination service and a configuration that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ensemble = LocalEnsemble(None, lambda: 0)
        self.file = folder / "host1.toml"
        self.write('[cluster]\nzookeeper = "zk:1"\n')

    def write(self, text: str) -> None:
        databases = "".join(f'[databases.{n}]\nurl = "sqlite:{self.folder / n}"\n' for n in ("db1", "db2"))
        self.file.write_text(text + databases)

    def layout(self) -> Layout | None:
        async def look() -> Layout | None:
            registry = self.ensemble.registry(6_000)
            await registry.open()
            try:
                return (
                    None
                    if await registry.read(LAYOUT) is None
                    else (await layout_changes.read_cluster_view(registry)).layout
                )
            finally:
                await registry.close()

        return asyncio.run(look())

    def epochs(self) -> dict[int, int]:
        async def look() -> dict[int, int]:
            registry = self.ensemble.registry(6_000)
            await registry.open()
            try:
                return dict((await layout_changes.read_cluster_view(registry)).plan.epochs)
            finally:
                await registry.close()

        return asyncio.run(look())

    def tables(self) -> set[str]:
        """The files of shards that have tables."""
        found = set()
        for path in self.folder.glob("db*/shard-*.db"):
            with sqlite3.connect(path) as connection:
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    found.add(str(path.relative_to(self.folder)))
            connection.close()
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)
    monkeypatch.setattr(
        "foqs.cluster.connections.registry_from_config",
        lambda config, clock, session=None: found.ensemble.registry(6_000),
    )
    return found


def test_init_makes_the_tables_and_the_shards_spread_over_the_databases(run: Run, place: Place) -> None:
    result = run("cluster", "init", "--config", str(place.file), "--shards", "3", "--yes")
    assert result.exit_code == 0, result.stderr
    assert place.layout() == Layout({0: ShardSpec(0, "db1"), 1: ShardSpec(1, "db2"), 2: ShardSpec(2, "db1")})
    assert place.tables() == {"db1/shard-0.db", "db1/shard-2.db", "db2/shard-1.db"}


def test_init_shows_what_it_will_do_and_asks_first(run: Run, place: Place) -> None:
    result = run("cluster", "init", "--config", str(place.file), "--shards-per-database", "2", stdin="n\n")
    assert result.exit_code == 1
    assert "database db1" in result.stderr
    assert "shards 0, 2" in result.stderr
    assert place.layout() is None
    assert place.tables() == set()
    assert run("cluster", "init", "--config", str(place.file), "--shards-per-database", "2", stdin="y\n").exit_code == 0
    assert place.layout() is not None


def test_init_can_be_repeated(run: Run, place: Place) -> None:
    for word in ("Created", "There is already"):
        result = run("cluster", "init", "--config", str(place.file), "--yes")
        assert result.exit_code == 0
        assert f"{word} a cluster of 8 shards" in result.stderr


def test_init_leaves_a_cluster_of_other_shards_as_it_is(run: Run, place: Place) -> None:
    assert run("cluster", "init", "--config", str(place.file), "--shards", "2", "--yes").exit_code == 0
    before = place.layout()
    result = run("cluster", "init", "--config", str(place.file), "--shards", "4", "--yes")
    assert result.exit_code == 2
    assert "with other shards (2)" in result.stderr
    assert place.layout() == before
    assert len(place.tables()) == 2


@pytest.mark.parametrize(
    ("error", "code"), [(RegistryFailed, 1), (RegistryOutcomeUnknown, 1), (RegistryUnreachable, UNREACHABLE)]
)
def test_tables_exist_before_the_shards(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch, error: type[RegistryError], code: int
) -> None:
    async def interrupted(*arguments: object) -> bool:
        raise error("it went away")

    with monkeypatch.context() as patch:
        patch.setattr(layout_changes, "create_layout", interrupted)
        result = run("cluster", "init", "--config", str(place.file), "--shards", "2", "--yes")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (code, "Error: it went away")
    assert len(place.tables()) == 2
    assert run("cluster", "init", "--config", str(place.file), "--shards", "2", "--yes").exit_code == 0


def test_tables_can_be_left_to_others(run: Run, place: Place) -> None:
    assert run("cluster", "init", "--config", str(place.file), "--no-tables", "--yes").exit_code == 0
    assert place.tables() == set()


def test_epochs_above_raises_the_next_epochs(run: Run, place: Place) -> None:
    init = ["cluster", "init", "--config", str(place.file), "--shards", "2", "--yes"]
    for above, expected in ((500, 500), (200, 500), (900, 900)):
        assert run(*init, "--epochs-above", str(above)).exit_code == 0
        assert place.epochs() == {0: expected, 1: expected}


def test_epochs_above_leaves_the_shards_of_a_cluster_that_is_there(run: Run, place: Place) -> None:
    """Shards were added in any database, and some have a weight or are drained: the command cannot name them."""

    async def create() -> None:
        registry = place.ensemble.registry(6_000)
        await registry.open()
        await layout_changes.create_layout(
            registry, [ShardSpec(0, "db1", weight=3), ShardSpec(7, "db1", draining=True)]
        )
        await registry.close()

    asyncio.run(create())
    before = place.layout()
    result = run("cluster", "init", "--config", str(place.file), "--epochs-above", "500", "--no-tables", "--yes")
    assert result.exit_code == 0, result.stderr
    assert "There is already a cluster of 2 shards" in result.stderr
    assert place.layout() == before
    assert place.epochs() == {0: 500, 7: 500}
    assert place.tables() == set()


class Tables:
    """The tables of a place, as a host of a cluster has left them."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def name(self, cluster: str, shards: int) -> None:
        for number in range(shards):
            with sqlite3.connect(self._place.folder / f"db{number % 2 + 1}" / f"shard-{number}.db") as connection:
                connection.execute("UPDATE owner SET nonce = ?", (ownership_nonce(cluster, "run"),))
            connection.close()

    def identity(self) -> str | None:
        async def read() -> str | None:
            registry = self._place.ensemble.registry(6_000)
            await registry.open()
            try:
                return await read_identity(registry)
            finally:
                await registry.close()

        return asyncio.run(read())


def test_init_gives_the_cluster_an_identity_and_keeps_it(run: Run, place: Place) -> None:
    tables, init = Tables(place), ["cluster", "init", "--config", str(place.file), "--shards", "2", "--yes"]
    assert run(*init).exit_code == 0
    own = tables.identity()
    assert own is not None
    tables.name(own, 2)
    assert run(*init).exit_code == 0
    assert tables.identity() == own


def test_init_on_the_tables_of_another_cluster_is_refused_unless_it_is_continued(run: Run, place: Place) -> None:
    tables, init = Tables(place), ["cluster", "init", "--config", str(place.file), "--shards", "2", "--yes"]
    assert run(*init).exit_code == 0
    own = tables.identity()
    assert own is not None
    tables.name(own, 2)
    place.ensemble = LocalEnsemble(None, lambda: 0)  # it has lost its data, or is that of another cluster
    result = run(*init)
    assert result.exit_code == 2
    assert f"belong to the cluster {own}" in result.stderr
    assert f"--adopt-cluster {own}" in result.stderr
    assert (place.layout(), tables.identity()) == (None, None)
    assert run(*init, "--adopt-cluster", "0" * 16).exit_code == 2
    assert run(*init, "--adopt-cluster", own).exit_code == 0
    assert tables.identity() == own
    assert place.layout() is not None
    assert run(*init).exit_code == 0


def test_tables_of_two_clusters_are_not_adopted_together(run: Run, place: Place) -> None:
    tables, init = Tables(place), ["cluster", "init", "--config", str(place.file), "--shards", "2", "--yes"]
    assert run(*init).exit_code == 0
    tables.name("a" * 16, 2)
    tables.name("b" * 16, 1)
    for adopted in ("a" * 16, "b" * 16):
        assert run(*init, "--adopt-cluster", adopted).exit_code == 2


def test_identity_is_not_adopted_without_a_look_at_the_tables(run: Run, place: Place) -> None:
    result = run("cluster", "init", "--config", str(place.file), "--no-tables", "--adopt-cluster", "a" * 16, "--yes")
    assert (result.exit_code, "--no-tables" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("config", "arguments", "words"),
    [
        ("", [], "host1.toml: cluster.zookeeper: it is not set"),
        ('[cluster]\nzookeeper = "zk"\n', [], "cluster.zookeeper: 'zk' is not HOST:PORT"),
        ('[cluster]\nzookeeper = "zk:1"\n', ["--shards", "1"], "leaves some of 2 databases without a shard"),
        ('[cluster]\nzookeeper = "zk:1"\n', ["--shards-per-database", "501"], "1,002 shards are more than 1000"),
        ('[cluster]\nzookeeper = "zk:1"\n', ["--shards", "4", "--shards-per-database", "2"], "not both"),
        ('[cluster]\nzookeeper = "zk:1"\n', ["--shards", "0"], "--shards"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    run: Run, place: Place, config: str, arguments: list[str], words: str
) -> None:
    place.write(config)
    result = run("cluster", "init", "--config", str(place.file), "--yes", *arguments)
    assert result.exit_code == 2
    assert [words in line for line in result.stderr.splitlines() if line.startswith(("Error:", "Usage:"))][-1]
    assert place.layout() is None


def test_unreachable_zookeeper_has_its_own_exit_code(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: object) -> None:
        raise RegistryFailed("ZooKeeper at zk:1 gave no session")

    monkeypatch.setattr("tests.support.local_ensemble.LocalRegistry.open", away)
    result = run("cluster", "init", "--config", str(place.file), "--yes")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (3, "Error: ZooKeeper at zk:1 gave no session")


def test_schema_apply_makes_the_tables_of_the_shards_that_are_listed(run: Run, place: Place) -> None:
    apply = ("schema", "apply", "--config", str(place.file))
    none = run(*apply)
    assert (none.exit_code, "foqs cluster init" in none.stderr) == (2, True)
    assert run("cluster", "init", "--config", str(place.file), "--shards", "3", "--no-tables", "--yes").exit_code == 0
    result = run(*apply)
    assert (result.exit_code, "3 shards of the cluster at /foqs" in result.stderr) == (0, True)
    assert place.tables() == {"db1/shard-0.db", "db1/shard-2.db", "db2/shard-1.db"}
    assert run(*apply, "--store", f"sqlite:{place.folder}/other").exit_code == 2
    place.file.write_text(place.file.read_text().replace("databases.db2", "databases.other"))
    unknown = run(*apply)
    assert (unknown.exit_code, "add [databases.db2]" in unknown.stderr) == (2, True)


def test_config_check_shows_the_cluster(run: Run, place: Place) -> None:
    shown = run("config", "check", str(place.file)).stdout
    assert "from the plan at /foqs in ZooKeeper (zk:1), databases db1, db2" in shown


def test_shards_go_to_the_databases_in_turn() -> None:
    assert [spec.database for spec in spread_over_databases(5, ["a", "b"], "gold")] == ["a", "b", "a", "b", "a"]
    assert {spec.tier for spec in spread_over_databases(2, ["a"], "gold")} == {"gold"}
