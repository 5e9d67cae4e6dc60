"""Migrations: a numbered list of changes from an empty database to the current tables, and the phases of the newest.

A migration that *rolls* has phases, so that hosts of two neighbouring versions use the
same tables meanwhile. Always true: numbers are 1, 2, 3, ... without gaps; a released
migration is never edited; of a shard at most one migration is between its phases.
Knows nothing of dialects, or of how a state is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from foqs.store.port import StoreUnusable


class StepKind(enum.StrEnum):
    """The kind of a step of a migration, in the order in which they run."""

    EXPAND = "expand"
    """Adds what the newer version needs. The older version reads and writes the tables as before."""
    EXCLUDE = "exclude"
    """The database refuses owners of the older version from here on. There is no way back."""
    FILL = "fill"
    """Writes, for all rows, what owners of the older version did not write."""
    CONTRACT = "contract"
    """Removes what only the older version needs."""


@dataclass(slots=True, frozen=True)
class Migration:
    """One change of the tables.

    Attributes:
        statements: the statements that add something, in order. If the database cannot run them as one transaction, each must be
            harmless when it runs again after a crash, also beside the statements of later migrations: a creation runs
            all of them, and begins again. Every other statement must be harmless then, too.
        rolls: hosts of the version before use the tables while `statements` are applied and afterwards.
        exclude: makes a takeover by a host of the version before fail. Refused while such a host is the owner.
        fills: rows need something that the version before did not write.
        contract: removes what only the version before needs.
    """

    number: int
    purpose: str
    statements: tuple[str, ...]
    rolls: bool = False
    exclude: tuple[str, ...] = ()
    fills: bool = False
    contract: tuple[str, ...] = ()

    def steps(self) -> Iterator[Step]:
        """Yield all steps in order."""
        for kind, statements in (
            (StepKind.EXPAND, self.statements),
            (StepKind.EXCLUDE, self.exclude or ("",) * self.rolls),
            (StepKind.FILL, ("",) * self.fills),
            (StepKind.CONTRACT, self.contract or ("",) * self.rolls),
        ):
            for statement in statements:
                yield Step(self.number, kind, statement)


@dataclass(slots=True, frozen=True)
class Step:
    """A part of a migration. `statement` is empty for the filling, and if there is nothing to run."""

    number: int
    kind: StepKind
    statement: str


class Phase(enum.StrEnum):
    """The phases of a shard's tables."""

    EMPTY = "empty"
    """There are no tables, and no program has begun to create them."""
    CREATING = "creating"
    """A program creates the tables, or was interrupted there. Opening the shard begins again, and finishes it."""
    STABLE = "stable"
    """No migration is between its phases."""
    EXPANDED = "expanded"
    """Hosts of two versions may use the tables."""
    CONTRACTING = "contracting"
    """Only hosts of the newer version may use the tables, and the contraction is not finished."""


@dataclass(slots=True, frozen=True)
class SchemaState:
    """The progress of the migrations of a shard's tables: contracted <= version <= expanded <= contracted + 1.

    Attributes:
        contracted: the last migration that is finished.
        version: the number that every program compares with its own: an older program refuses a higher one.
        expanded: the last migration whose statements have run.
        is_creating: a program has begun to create the tables, and the state was never stored.
    """

    contracted: int
    version: int
    expanded: int
    is_creating: bool = False

    @property
    def has_tables(self) -> bool:
        """Whether all tables of some version exist."""
        return self.expanded > 0

    @property
    def phase(self) -> Phase:
        if not self.has_tables:
            return Phase.CREATING if self.is_creating else Phase.EMPTY
        if self.contracted == self.expanded:
            return Phase.STABLE
        return Phase.EXPANDED if self.version < self.expanded else Phase.CONTRACTING

    def after(self, migration: Migration, kind: StepKind) -> SchemaState:
        """Return the state when all steps of this kind, and those before, have run."""
        number = migration.number
        if kind is StepKind.CONTRACT or not migration.rolls:
            return SchemaState(number, number, number)
        version = self.version if kind is StepKind.EXPAND else number
        return SchemaState(self.contracted, version, number)


NO_TABLES = SchemaState(0, 0, 0)
CREATING_TABLES = SchemaState(0, 0, 0, is_creating=True)


def pending_migrations(version: int, migrations: Sequence[Migration], location: str) -> list[Migration]:
    """Return the migrations that a database of this version still needs.

    Raises:
        StoreUnusable: the version is newer than this program knows.
    """
    newest = migrations[-1].number
    if version > newest:
        raise StoreUnusable(
            f"{location} has schema version {version}, and this program knows versions up to {newest}: "
            "run the newer foqs that wrote it, or restore a copy made before its upgrade"
        )
    return [step for step in migrations if step.number > version]


def steps_to_use(
    state: SchemaState, migrations: Sequence[Migration], location: str, *, beside_older: bool = False
) -> list[Step]:
    """Return the steps to run before this program can use the tables; none if it can use them now.

    Args:
        beside_older: hosts of the version before may use the database: new tables must be usable for them too.

    Raises:
        StoreUnusable: the tables are newer than this program, or more than one version older.
    """
    pending = pending_migrations(state.version, migrations, location)
    newest = migrations[-1]
    if not state.has_tables:
        steps = [step for migration in pending for step in migration.steps()]
        if not (beside_older and newest.rolls):
            return steps
        return [step for step in steps if step.number < newest.number or step.kind is StepKind.EXPAND]
    if state.version == newest.number:
        return []
    before = newest.number - 1
    if state.version < before or state.contracted < before:
        raise StoreUnusable(_skip_sentence(state, newest.number, location))
    if state.expanded == newest.number:
        return []
    return [step for step in newest.steps() if not newest.rolls or step.kind is StepKind.EXPAND]


def steps_to_contract(state: SchemaState, migrations: Sequence[Migration], location: str) -> list[Step]:
    """Return the steps that remain from the expanded tables to the end of the newest migration.

    Raises:
        StoreUnusable: the tables are not expanded for this program, or for a newer one, or `steps_to_use` refuses them.
    """
    newest = migrations[-1]
    if steps_to_use(state, migrations, location):
        raise StoreUnusable(
            f"{location} is not expanded to schema version {newest.number}: run foqs schema apply first"
        )
    if state.expanded > newest.number:
        raise StoreUnusable(
            f"{location} was expanded to schema version {state.expanded} by a newer foqs, and this program knows versions "
            f"up to {newest.number}: run foqs schema apply --contract of the newer one"
        )
    if state.contracted >= newest.number:
        return []
    done = {StepKind.EXPAND} if state.version < newest.number else {StepKind.EXPAND, StepKind.EXCLUDE}
    return [step for step in newest.steps() if step.kind not in done]


def in_groups(steps: Sequence[Step]) -> Iterator[tuple[int, StepKind, list[Step]]]:
    """Yield the steps of one migration and one kind together: the state is stored after each group."""
    for (number, kind), group in groupby(steps, key=lambda step: (step.number, step.kind)):
        yield number, kind, [*group]


def _skip_sentence(state: SchemaState, newest: int, location: str) -> str:
    before = newest - 1
    if state.version < before:
        return (
            f"{location} has schema version {state.version}, and this program upgrades version {before} to {newest} "
            f"only: no version is skipped. First finish the upgrade to schema version {state.version + 1}, with the foqs "
            "of that version (schema_mysql in foqs version --all)"
        )
    return (
        f"the upgrade of {location} to schema version {before} is not finished: run foqs schema apply --contract of the "
        "foqs of that version (schema_mysql in foqs version --all)"
    )
