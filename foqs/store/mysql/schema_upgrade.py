"""Takes a shard's tables through the phases of a migration: creates, expands and contracts them.

Always true: the state is stored after all steps of a kind have run, and steps may run
again. While statements run, the version row is locked over a second connection, because
a change of a table commits by itself: another program that wants to change the tables
waits, and then finds nothing to do. Knows nothing of the decision to contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from foqs.store.migrations import (
    CREATING_TABLES,
    NO_TABLES,
    SchemaState,
    Step,
    StepKind,
    in_groups,
    steps_to_contract,
    steps_to_use,
)
from foqs.store.mysql import mysql_migrations as sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, ServerError
from foqs.store.mysql.mysql_session_sql import BEGIN, COMMIT, session_settings
from foqs.store.mysql.mysql_sql import Statements
from foqs.store.mysql.online_statement import run_online
from foqs.store.mysql.timer_filling import OnProgress, fill_timers, no_progress
from foqs.store.port import StoreUnusable

NO_SUCH_TABLE_CODE: Final = 1146
DENIED_CODES: Final = frozenset({1044, 1142, 1143, 1370})
"""Server errors for a right that the user lacks."""
_STEP_TIMEOUT_S: Final = 24 * 3_600.0
"""The time limit of a step: an index of a large table takes long to build, and a timeout would only start it again."""
RUN_RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"
"""The rights that the user of a host needs on its database. Ending its own connections needs no right."""
SCHEMA_RIGHTS: Final = f"{RUN_RIGHTS}, CREATE, ALTER, INDEX"
"""The rights that a user needs to create or migrate the tables."""


ChooseSteps = Callable[[SchemaState], list[Step]]


def location_of(settings: MysqlSettings, shard: int) -> str:
    """Return the name of a shard's tables for messages."""
    return f"shard {shard} in {settings.location}"


async def read_states(link: MysqlLink) -> dict[int, SchemaState]:
    """Return the state of every shard that has tables in this database, or whose tables are being created."""
    for statement in (sql.READ_STATES, sql.READ_VERSIONS):
        try:
            (found,) = await link.run(statement)
        except ServerError as error:
            if error.code not in (NO_SUCH_TABLE_CODE, *DENIED_CODES):
                raise
            continue
        return {shard: SchemaState(*numbers) if any(numbers) else CREATING_TABLES for shard, *numbers in found.rows}
    return {}


async def read_state(link: MysqlLink, shard: int) -> SchemaState:
    """Return the state of a shard's tables."""
    return (await read_states(link)).get(shard, NO_TABLES)


def check_usable(state: SchemaState, settings: MysqlSettings, shard: int) -> None:
    """Raise `StoreUnusable` if this program may not use the tables any more, or if older ones took their place.

    Tables that are missing are no reason: opening the shard again would create empty ones.
    """
    location = location_of(settings, shard)
    if steps_to_use(state, sql.MIGRATIONS, location) and state.has_tables:
        raise StoreUnusable(
            f"{location} lost its expansion to schema version {sql.MIGRATIONS[-1].number}, as after a failover to a "
            "replica that lagged; this host opens the shard again, which expands it. Check what else the database lost"
        )


async def steps_to_expand(link: MysqlLink, settings: MysqlSettings, shard: int) -> list[Step]:
    """Return the steps that `expand_tables` runs. Raises StoreUnusable."""
    states = await read_states(link)
    state, newest = states.pop(shard, NO_TABLES), sql.MIGRATIONS[-1].number
    beside_older = any(other.has_tables and other.contracted < newest for other in states.values())
    return steps_to_use(state, sql.MIGRATIONS, location_of(settings, shard), beside_older=beside_older)


async def expand_tables(link: MysqlLink, settings: MysqlSettings, shard: int) -> None:
    """Create the tables, or expand them for this program, if that is necessary.

    Raises:
        StoreUnusable: the tables have a version that this program does not use, or the user may not change tables.
        ServerError, MysqlLinkLost: from the driver.
    """
    steps = await steps_to_expand(link, settings, shard)
    if not steps:
        return
    await _check_can_migrate(link, settings, shard)
    await link.run(sql.CREATE_VERSIONS, sql.CREATE_STEPS, sql.add_version(shard), COMMIT)
    # The state of a new shard is stored at its end, so that an interrupted creation begins again.
    runner = _StepRunner(link, settings, shard, no_progress)
    await runner.run(steps, lambda state: steps_to_use(state, sql.MIGRATIONS, location_of(settings, shard)))


async def contract_tables(
    link: MysqlLink, settings: MysqlSettings, shard: int, on_progress: OnProgress = no_progress
) -> None:
    """Exclude owners of the version before, and run the rest of the migration of expanded tables. May be repeated.

    Raises:
        StoreUnusable: the tables are not expanded, the owner is a host of the version before, or a table is in use for
            too long.
        ServerError, MysqlLinkLost: from the driver.
    """

    def choose(state: SchemaState) -> list[Step]:
        return steps_to_contract(state, sql.MIGRATIONS, location_of(settings, shard))

    runner = _StepRunner(link, settings, shard, on_progress)
    for _, kind, group in in_groups(choose(await read_state(link, shard))):
        if kind is StepKind.FILL:  # takes long, and needs no lock of the version row
            await runner.fill()
        else:
            await runner.run(group, choose)


@asynccontextmanager
async def schema_link(settings: MysqlSettings) -> AsyncIterator[MysqlLink]:
    """Yield a connection for changes of tables, with the settings of a store's connections."""
    link = await MysqlLink.connect(settings)
    try:
        await link.run(*session_settings(settings.lock_wait_timeout_s))
        yield link
    finally:
        await link.close()


async def can_create_tables(link: MysqlLink) -> bool:
    """Return whether the user may create tables. Creates none."""
    try:
        await link.run(sql.PROBE_CREATE, sql.END_PROBE)
    except ServerError as error:
        if error.code not in DENIED_CODES:
            raise
        return False
    return True


class _StepRunner:
    """Runs steps of one shard."""

    def __init__(self, link: MysqlLink, settings: MysqlSettings, shard: int, on_progress: OnProgress) -> None:
        self._link = link
        self._settings = settings
        self._shard = shard
        self._statements = Statements(shard)
        self._on_progress = on_progress

    async def fill(self) -> None:
        await fill_timers(self._link, self._shard, self._on_progress)

    async def run(self, steps: Sequence[Step], choose: ChooseSteps) -> None:
        """Run steps and store the state, unless another program did so meanwhile.

        Args:
            choose: returns the steps that a state needs.
        """
        migrations = {migration.number: migration for migration in sql.MIGRATIONS}
        async with self._locked_version() as guard:
            state = await read_state(guard, self._shard)
            if steps[0] not in choose(state):
                return
            is_new = not state.has_tables
            self._link.timeout_s = _STEP_TIMEOUT_S
            try:
                for number, kind, group in in_groups(steps):
                    for step in group:
                        await self._run_step(step, is_new=is_new)
                    state = state.after(migrations[number], kind)
            finally:
                self._link.timeout_s = self._settings.statement_timeout_s
            await guard.run(*sql.set_state(self._shard, state), COMMIT)

    @asynccontextmanager
    async def _locked_version(self) -> AsyncIterator[MysqlLink]:
        guard = await MysqlLink.connect(self._settings)
        try:
            await guard.run(BEGIN, sql.lock_version(self._shard))
            yield guard
        finally:
            await guard.close()

    async def _run_step(self, step: Step, *, is_new: bool) -> None:
        """Run a step. A statement that ran before a crash finds its work done, which is no error.

        Raises:
            StoreUnusable: the last owner is a host of an older version, or a table is in use for too long.
            ServerError, MysqlLinkLost: from the driver.
        """
        if step.kind is StepKind.FILL:
            await self.fill()
        if not step.statement:
            return
        statement = self._statements.migration(step.statement)
        try:
            if is_new or not step.statement.startswith("ALTER"):
                await self._link.run(statement)
            else:
                await run_online(self._settings, statement)
        except ServerError as error:
            if error.code in sql.EXCLUDE_REFUSED_CODES:
                raise StoreUnusable(
                    f"{location_of(self._settings, self._shard)} was last owned by a host of an older version: let a "
                    "host of this version take it over, then run the command again"
                ) from None
            if error.code not in (*sql.EXISTS_CODES, *sql.GONE_CODES):
                raise


async def _check_can_migrate(link: MysqlLink, settings: MysqlSettings, shard: int) -> None:
    """Raise `StoreUnusable` with the remedy if the user may not create tables."""
    if not await can_create_tables(link):
        version, newest = (await read_state(link, shard)).version, sql.MIGRATIONS[-1].number
        raise StoreUnusable(
            f"{location_of(settings, shard)} has schema version {version} and needs {newest}, but user {settings.user} "
            f"may not create tables: run foqs schema apply as a user with that right, or GRANT {SCHEMA_RIGHTS} "
            f"ON `{settings.database}`.* TO '{settings.user}'"
        )
