"""Tests of the phases of a migration, and of what each program does with each state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from foqs.store.migrations import (
    CREATING_TABLES,
    NO_TABLES,
    Migration,
    Phase,
    SchemaState,
    Step,
    StepKind,
    in_groups,
    steps_to_contract,
    steps_to_use,
)
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs.store.port import StoreUnusable

OLD = (Migration(1, "one", ("a",)), Migration(2, "two", ("b",)))
NEW = (*OLD, Migration(3, "three", ("c", "d"), rolls=True, exclude=("x",), fills=True, contract=("z",)))
NEXT = (*NEW, Migration(4, "four", ("e",), rolls=True, exclude=("y",), contract=("w",)))


def texts(steps: list[Step]) -> list[str]:
    return [step.statement or "fill" for step in steps]


def applied(state: SchemaState, steps: list[Step], migrations: tuple[Migration, ...]) -> Iterator[SchemaState]:
    """Yield the state after each group of steps."""
    for number, kind, _ in in_groups(steps):
        state = state.after(migrations[number - 1], kind)
        yield state


def test_new_tables_run_every_step_and_are_stable() -> None:
    steps = steps_to_use(NO_TABLES, NEW, "here")
    assert texts(steps) == ["a", "b", "c", "d", "x", "fill", "z"]
    *_, last = applied(NO_TABLES, steps, NEW)
    assert (last, last.phase) == (SchemaState(3, 3, 3), Phase.STABLE)


def test_an_interrupted_creation_is_a_phase_of_its_own_and_runs_every_step_again() -> None:
    assert (NO_TABLES.phase, CREATING_TABLES.phase) == (Phase.EMPTY, Phase.CREATING)
    assert steps_to_use(CREATING_TABLES, NEW, "here") == steps_to_use(NO_TABLES, NEW, "here")


def test_new_tables_beside_older_hosts_stay_usable_for_them() -> None:
    steps = steps_to_use(NO_TABLES, NEW, "here", beside_older=True)
    assert texts(steps) == ["a", "b", "c", "d"]
    *_, last = applied(NO_TABLES, steps, NEW)
    assert (last, last.phase) == (SchemaState(2, 2, 3), Phase.EXPANDED)
    assert steps_to_use(last, OLD, "here") == []


def test_an_upgrade_goes_through_the_phases_and_each_state_says_what_remains() -> None:
    old = SchemaState(2, 2, 2)
    expand = steps_to_use(old, NEW, "here")
    assert texts(expand) == ["c", "d"]
    [expanded] = applied(old, expand, NEW)
    assert (expanded.phase, steps_to_use(expanded, NEW, "here")) == (Phase.EXPANDED, [])
    contract = steps_to_contract(expanded, NEW, "here")
    assert texts(contract) == ["x", "fill", "z"]
    excluded, filled, contracted = applied(expanded, contract, NEW)
    assert (excluded.phase, filled) == (Phase.CONTRACTING, excluded)
    assert steps_to_use(excluded, NEW, "here") == []
    assert texts(steps_to_contract(excluded, NEW, "here")) == ["fill", "z"]
    assert (contracted, contracted.phase) == (SchemaState(3, 3, 3), Phase.STABLE)
    assert steps_to_contract(contracted, NEW, "here") == []


def test_the_older_program_uses_expanded_tables_and_refuses_them_after_the_first_step_of_contraction() -> None:
    assert steps_to_use(SchemaState(2, 2, 3), OLD, "here") == []
    with pytest.raises(StoreUnusable, match="here has schema version 3, and this program knows versions up to 2"):
        steps_to_use(SchemaState(2, 3, 3), OLD, "here")


def test_a_program_uses_tables_that_a_newer_one_expanded_and_leaves_their_contraction_to_it() -> None:
    assert steps_to_use(SchemaState(3, 3, 4), NEW, "here") == []
    with pytest.raises(StoreUnusable, match="here was expanded to schema version 4 by a newer foqs"):
        steps_to_contract(SchemaState(3, 3, 4), NEW, "here")


@pytest.mark.parametrize("state", [SchemaState(1, 1, 1), SchemaState(2, 2, 2), SchemaState(2, 2, 3)])
def test_a_skipped_version_is_refused_with_the_version_to_take_first(state: SchemaState) -> None:
    sentence = f"no version is skipped. First finish the upgrade to schema version {state.version + 1}"
    with pytest.raises(StoreUnusable, match=sentence):
        steps_to_use(state, NEXT, "here")


def test_an_upgrade_begins_only_after_the_one_before_was_contracted() -> None:
    with pytest.raises(StoreUnusable, match=r"the upgrade of here to schema version 3 is not finished: .* --contract"):
        steps_to_use(SchemaState(2, 3, 3), NEXT, "here")
    assert texts(steps_to_use(SchemaState(3, 3, 3), NEXT, "here")) == ["e"]


def test_tables_that_are_not_expanded_are_not_contracted() -> None:
    for state in (NO_TABLES, SchemaState(2, 2, 2)):
        with pytest.raises(StoreUnusable, match="not expanded to schema version 3: run foqs schema apply"):
            steps_to_contract(state, NEW, "here")


def test_a_migration_without_phases_is_one_step_that_older_programs_refuse_afterwards() -> None:
    plain = (*OLD, Migration(3, "three", ("c",)))
    steps = steps_to_use(SchemaState(2, 2, 2), plain, "here")
    assert [*applied(SchemaState(2, 2, 2), steps, plain)] == [SchemaState(3, 3, 3)]
    assert [step.kind for step in steps] == [StepKind.EXPAND]


ADDITIVE = re.compile(
    r"CREATE TABLE IF NOT EXISTS [^;]*"
    r"|ALTER TABLE \S+ ADD COLUMN \w+ [\w()]+ (NULL|NOT NULL DEFAULT -?\d+)"
    r"(, ADD COLUMN \w+ [\w()]+ (NULL|NOT NULL DEFAULT -?\d+))*, ALGORITHM = INSTANT"
)
"""The statements that leave everything as the version before needs it, and change no row."""


def is_additive(migration: Migration) -> bool:
    return all(ADDITIVE.fullmatch(statement) for statement in migration.statements)


def test_migrations_that_roll_only_add_before_older_hosts_are_excluded() -> None:
    rolling = [migration for migration in MIGRATIONS if migration.rolls]
    assert rolling
    assert all(map(is_additive, rolling))


@pytest.mark.parametrize(
    "mistake",
    [
        "ALTER TABLE {item} DROP COLUMN metadata, ALGORITHM = INSTANT",
        "ALTER TABLE {item} DROP KEY item_due, ALGORITHM = INPLACE, LOCK = NONE",
        "ALTER TABLE {item} ADD COLUMN a INT NOT NULL, ALGORITHM = INSTANT",
        "ALTER TABLE {item} ADD COLUMN a INT NULL",
        "ALTER TABLE {item} RENAME COLUMN token TO lease_token, ALGORITHM = INSTANT",
        "UPDATE {owner} SET nonce = ''",
    ],
)
def test_a_planted_statement_that_takes_something_away_is_found(mistake: str) -> None:
    [migration] = [migration for migration in MIGRATIONS if migration.rolls]
    assert not is_additive(replace(migration, statements=(*migration.statements, mistake)))
