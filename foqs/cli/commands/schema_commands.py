"""The commands for the tables of shards: status, plan and apply.

Always true: no shard is taken over, so hosts may run meanwhile; an interrupted command
may be repeated. Tables are expanded only if no member is more than one version away, and
contracted only if no host of an older version is a member.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from foqs.cli.commands.host_process_commands import without_none
from foqs.cli.commands.schema_places import SchemaPlaces, ShardPlace, find_places
from foqs.cli.host_session import USAGE, CommandFailed, configuration
from foqs.cli.output import Column, Format, Row, confirm, output_option, print_message, show_rows
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs.options.config import Config
    from foqs.store.migrations import SchemaState
    from foqs.store.port import Store

_PROGRESS_S: Final = 1.0

STATUS_COLUMNS: Final[Sequence[Column]] = (
    ("SHARD", lambda row: str(row["shard"])),
    ("DATABASE", lambda row: row["database"] or "-"),
    ("VERSION", lambda row: str(row["version"])),
    ("PHASE", lambda row: row["phase"]),
    ("FILLED", lambda row: "-" if row["filled_rows"] is None else f"{row['filled_rows']:,} of about {row['rows']:,}"),
    ("JOURNAL", lambda row: _describe_journal(row["journal_flushes"], row["journal_bytes"])),
    ("HOSTS OF VERSION", lambda row: row["hosts"]),
)
PLAN_COLUMNS: Final[Sequence[Column]] = (
    ("SHARD", lambda row: str(row["shard"])),
    ("STEP", lambda row: row["step"]),
    ("STATEMENT", lambda row: row["statement"]),
)


def _schema_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a configuration, and the resulting `Config` as its first argument."""

    @click.option(
        "--config", "file", type=click.Path(path_type=Path), envvar="FOQS_CONFIG", help="The configuration of the host."
    )
    @click.option("--store", default=None, help="A store URL that replaces the configuration's, for another user.")
    @click.option("--password-file", default=None, help="The file with that user's password.")
    @output_option
    @wraps(command)
    def with_config(file: Path | None, store: str | None, password_file: str | None, **arguments: Any) -> None:
        config = configuration(file, without_none({"store.url": store, "store.password_file": password_file}))
        if config.cluster.zookeeper and (store is not None or password_file is not None):
            raise CommandFailed(
                "--store and --password-file are for a host without a cluster: give --config with URLs and password files "
                "of that user in [databases]",
                USAGE,
            )
        command(config, **arguments)

    return with_config


@click.group()
def schema() -> None:
    """The tables of a host's shards, and their upgrades."""


@schema.command(epilog="\b\nExamples:\n  foqs schema status --config foqs.toml\n  foqs schema status -o json")
@_schema_options
def status(config: Config, form: Format) -> None:
    """Show the version and the phase of each shard's tables.

    empty: they do not exist yet. creating: a program creates them, or was interrupted: the next start or foqs schema apply
    finishes it. stable: hosts of one version use them. expanded: hosts of two versions may use them. contracting: hosts of the older
    version are refused, and foqs schema apply --contract is to be repeated. FILLED says about how many rows have their
    timer entries. JOURNAL says how many flushes the shard's journal has and about how much disk its table takes; of a
    SQLite file it is not read: foqs doctor shows the journals of a running host. The last column is the range of schema
    versions that the hosts of the cluster use.
    """
    show_rows(asyncio.run(_status_rows(config)), STATUS_COLUMNS, form)


@schema.command(
    epilog="\b\nExamples:\n  foqs schema plan --config foqs.toml\n  foqs schema plan --config foqs.toml --contract"
)
@click.option("--contract", is_flag=True, help="Show the statements of apply --contract.")
@_schema_options
def plan(config: Config, form: Format, contract: bool) -> None:
    """Show the statements that foqs schema apply would run, with the algorithm and lock that the server must use."""
    rows = asyncio.run(_plan_rows(config, contract=contract))
    show_rows(rows, PLAN_COLUMNS, form)
    if not rows:
        print_message("There is nothing to do.")


@schema.command(
    epilog="\b\nExamples:\n  foqs schema apply --config foqs.toml\n"
    "  foqs schema apply --config foqs.toml --store mysql://foqs_schema@db:3306/foqs --password-file schema.password\n"
    "  foqs schema apply --config foqs.toml --contract"
)
@click.option("--contract", is_flag=True, help="Finish an upgrade. Hosts of the older version cannot come back.")
@click.option("--yes", is_flag=True, help="With --contract, do not ask.")
@_schema_options
def apply(config: Config, form: Format, contract: bool, yes: bool) -> None:
    """Create the tables of every shard, or expand them for this program.

    Hosts of this version and of the one before use expanded tables, and run meanwhile. A host does the same at its
    start if its user has the rights; this is for hosts whose user may only read and write rows. Safe to repeat and to
    interrupt. Refused if a version would be skipped.

    When all hosts run the new version and none will go back, --contract finishes the upgrade.

    In a cluster the shards are those of the layout in ZooKeeper, in the databases of the configuration.
    """
    if contract and not yes:
        confirm("After this, hosts of the older version cannot use the shards. Contract?")
    asyncio.run(_apply(config, contract=contract))
    rows = asyncio.run(_status_rows(config))
    if form != "table":
        show_rows(rows, STATUS_COLUMNS, form)
    where = f"of the cluster at {config.cluster.root}" if config.cluster.zookeeper else f"in {config.store.url}"
    what = "have the tables of this program alone" if contract else "have tables that this program can use"
    print_message(f"{counted(len(rows), 'shard')} {where} {what}.")


# ----------------------------------------------------------------------- status


async def _status_rows(config: Config) -> list[Row]:
    places = await find_places(config)
    hosts = _host_versions(places)
    return [{**await _shard_status(place), "hosts": hosts} for place in places.shards]


def _host_versions(places: SchemaPlaces) -> str:
    """Return the range of schema versions of the members; "-" if none runs."""
    if places.reading is None or places.versions is None:
        return "-"
    found = {
        f"{places.versions[member.nonce].schema}" if member.nonce in places.versions else "older"
        for member in places.reading.members
    }
    return ", ".join(sorted(found, reverse=True)) or "-"


async def _shard_status(place: ShardPlace) -> dict[str, Any]:
    from foqs.store.migrations import Phase
    from foqs.store.mysql.journal_size import read_journal_size
    from foqs.store.mysql.schema_upgrade import read_state, schema_link
    from foqs.store.mysql.timer_filling import read_filling

    row: dict[str, Any] = {"shard": place.shard, "database": place.database, "filled_rows": None, "rows": None}
    row |= {"journal_flushes": None, "journal_bytes": None}
    if place.settings is None:
        state = _file_state(place)
        return {**row, "version": state.version, "phase": str(state.phase)}
    async with _errors_as_command_failed(place), schema_link(place.settings) as link:
        state = await read_state(link, place.shard)
        if state.phase is Phase.CONTRACTING:
            row["filled_rows"], row["rows"] = await read_filling(link, place.shard)
        size = await read_journal_size(link, place.shard) if state.has_tables else None
        if size is not None:
            row["journal_flushes"], row["journal_bytes"] = size
    return {**row, "version": state.version, "phase": str(state.phase)}


def _describe_journal(flushes: int | None, size: int | None) -> str:
    if flushes is None or size is None:
        return "-"
    return f"{counted(flushes, 'flush', 'flushes')}, {size / (1 << 20):,.1f} MiB" if flushes else "empty"


def _file_state(place: ShardPlace) -> SchemaState:
    from foqs.store.migrations import CREATING_TABLES, NO_TABLES, SchemaState
    from foqs.store.sqlite.sqlite_header import read_header

    assert place.file is not None
    try:
        header = read_header(place.file)
    except OSError:
        return NO_TABLES
    version = 0 if header is None else header.schema_version
    return SchemaState(version, version, version) if version else CREATING_TABLES


# ------------------------------------------------------------------------- plan


async def _plan_rows(config: Config, *, contract: bool) -> list[Row]:
    from foqs.store.migrations import StepKind, steps_to_contract
    from foqs.store.mysql.mysql_migrations import MIGRATIONS
    from foqs.store.mysql.mysql_sql import Statements
    from foqs.store.mysql.schema_upgrade import location_of, read_state, schema_link, steps_to_expand

    rows: list[Row] = []
    for place in (await find_places(config)).shards:
        if place.settings is None:
            rows += [] if contract else _file_plan(place)
            continue
        async with _errors_as_command_failed(place), schema_link(place.settings) as link:
            if contract:
                state = await read_state(link, place.shard)
                steps = steps_to_contract(state, MIGRATIONS, location_of(place.settings, place.shard))
            else:
                steps = await steps_to_expand(link, place.settings, place.shard)
        statements = Statements(place.shard)
        for step in steps:
            text = " ".join(statements.migration(step.statement).decode().split())
            if step.kind is StepKind.FILL:
                text = "the timer entries of all rows, in pages of about 25 ms"
            if text:
                rows.append({"shard": place.shard, "step": f"{step.number} {step.kind}", "statement": text})
    return rows


def _file_plan(place: ShardPlace) -> list[Row]:
    from foqs.store.migrations import pending_migrations
    from foqs.store.sqlite.sqlite_sql import MIGRATIONS

    return [
        {"shard": place.shard, "step": f"{migration.number} at open", "statement": " ".join(statement.split())}
        for migration in pending_migrations(_file_state(place).version, MIGRATIONS, str(place.file))
        for statement in migration.statements
    ]


# ------------------------------------------------------------------------ apply


async def _apply(config: Config, *, contract: bool) -> None:
    places = await find_places(config)
    if not contract:
        _check_no_distant_hosts(places)
        for place in places.shards:
            await _expand(config, place)
        return
    _check_no_older_hosts(places)
    for place in places.shards:
        if place.settings is not None:
            await _contract(place)


def _check_no_distant_hosts(places: SchemaPlaces) -> None:
    """Raise CommandFailed if a member of the cluster is more than one version away from this program."""
    from foqs.cluster.membership import own_versions
    from shardmgr.versions import distant_hosts

    if places.reading is None or places.versions is None:
        return
    own = own_versions()
    distant = distant_hosts(places.reading, places.versions, own)
    if distant:
        raise CommandFailed(
            f"hosts of version {', '.join(each.program for each in distant)} are members of the cluster, and this program "
            f"has version {own.program}: no version is skipped. First run all hosts with each version between them; "
            "nothing was changed"
        )


def _check_no_older_hosts(places: SchemaPlaces) -> None:
    """Raise CommandFailed if a member of the cluster does not use the tables of this program."""
    from foqs.store.mysql.mysql_migrations import MIGRATIONS
    from shardmgr.versions import older_hosts

    if places.reading is None or places.versions is None:
        return
    newest = MIGRATIONS[-1].number
    older = older_hosts(places.reading, places.versions, newest)
    if older:
        raise CommandFailed(
            f"hosts of an older version are members of the cluster: {', '.join(older)}. Upgrade or stop them first; "
            f"nothing was changed. A host that died counts until its registry session ends (cluster.session_timeout_ms)"
        )


async def _expand(config: Config, place: ShardPlace) -> None:
    store = _store(config, place)
    async with _errors_as_command_failed(place):
        try:
            await store.open()
        finally:
            await store.close()


def _store(config: Config, place: ShardPlace) -> Store:
    """Return a store for a shard, at the server where its tables are: the factories know of no entry."""
    from foqs.runtime.clock import SystemClock
    from foqs.store.factories import database_store_factory, local_store_factory
    from foqs.store.mysql.mysql_store import MysqlStore

    if place.settings is not None:
        return MysqlStore(place.settings, place.shard)
    if place.database:
        return database_store_factory(config, place.database)(place.shard)
    return local_store_factory(config, SystemClock())(place.shard)


async def _contract(place: ShardPlace) -> None:
    from foqs.store.mysql.schema_upgrade import contract_tables, schema_link

    assert place.settings is not None
    async with _errors_as_command_failed(place), schema_link(place.settings) as link:
        await contract_tables(link, place.settings, place.shard, _ShardProgress(place.shard).show)


class _ShardProgress:
    """Shows the progress of one shard, at most once a second."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._shown_s = time.monotonic()

    def show(self, done: int, total: int) -> None:
        if time.monotonic() - self._shown_s >= _PROGRESS_S:
            self._shown_s = time.monotonic()
            print_message(f"shard {self._shard}: {done:,} of about {total:,} rows have their timer entries")


@asynccontextmanager
async def _errors_as_command_failed(place: ShardPlace) -> AsyncIterator[None]:
    """Turn the errors of a shard's database into CommandFailed."""
    from foqs.store.mysql.mysql_driver import MysqlLinkLost, ServerError
    from foqs.store.port import StoreError

    try:
        yield
    except (StoreError, ServerError, MysqlLinkLost) as error:
        where = f"database {place.database}: " if place.database else ""
        raise CommandFailed(f"{where}{error}") from None
