"""The findings of doctor about schema versions and durability."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from foqs.store.migrations import Migration, Phase, SchemaState, steps_to_use
from foqs.store.port import StoreUnusable
from foqs.telemetry.findings import Finding
from foqs_contract.plurals import counted


@dataclass(slots=True, frozen=True)
class StoreLocation:
    """A database or folder with shards, as the configuration names it.

    Attributes:
        key: the key of its options: `store`, or `databases.NAME`.
        shards: the numbers of the shards that are served from it.
        accepts_unsafe_durability: whether the configuration accepts unsafe durability.
    """

    key: str
    shards: Collection[int]
    accepts_unsafe_durability: bool

    @property
    def is_single_host(self) -> bool:
        """Whether the shards belong to a single host."""
        return self.key == "store"


def schema_finding(versions: dict[int, int], newest: int, location: StoreLocation, may_upgrade: bool) -> Finding:
    """Check the versions of the shards' tables for a program that knows versions up to `newest`.

    Args:
        versions: the version by shard, for each shard that has tables; 0 if their creation is not finished.
    """
    served = location.shards
    newer = {shard: version for shard, version in versions.items() if version > newest and shard in served}
    if newer:
        found = _describe_versions(newer)
        remedy = "run the newer foqs that wrote it, or restore a backup made before its upgrade"
        return Finding("Schema", "bad", f"{found}; this program knows versions up to {newest}", remedy)
    older = {shard: versions.get(shard, 0) for shard in served if versions.get(shard, 0) < newest}
    if older and not may_upgrade:
        remedy = "run foqs schema apply as a user who may create tables (docs/runbook.md, SQL grants)"
        return Finding(
            "Schema",
            "bad",
            f"{_describe_versions(older)}; {newest} is needed and this user may not create tables",
            remedy,
        )
    if any(older.values()):
        remedy = "make a backup, then upgrade as docs/runbook.md says (Upgrade)"
        return Finding(
            "Schema", "warning", f"{_describe_versions(older)}; this program upgrades them to {newest}", remedy
        )
    unfinished = [shard for shard in served if versions.get(shard) == 0]
    if unfinished:
        return Finding(
            "Schema",
            "warning",
            f"{_describe_shards(unfinished)} has incomplete tables: a program creates them, or was interrupted",
            "start the host, or run foqs schema apply: both finish what is there",
        )
    if older:
        return Finding(
            "Schema",
            "ok",
            f"{len(older)} of {counted(len(served), 'shard')} {'has' if len(older) == 1 else 'have'} no tables yet; the first start creates them",
        )
    beyond = sorted(shard for shard in versions if shard not in served)
    if beyond:
        shards = ", ".join(map(str, beyond))
        remedy = (
            f"set store.shards to {beyond[-1] + 1}, unless these items are obsolete"
            if location.is_single_host
            else "run foqs shard add NUMBER --database NAME, unless these items are obsolete"
        )
        return Finding("Schema", "warning", f"there are tables of shards that no host serves: {shards}", remedy)
    return Finding("Schema", "ok", f"every shard has version {newest}")


def rolling_schema_finding(
    states: Mapping[int, SchemaState], migrations: Sequence[Migration], location: StoreLocation, may_upgrade: bool
) -> Finding:
    """Check the states of the shards' tables, which may be between two versions, for this program."""
    newest = migrations[-1].number
    served = {shard: state for shard, state in states.items() if shard in location.shards}
    for shard, state in served.items():
        try:
            steps_to_use(state, migrations, f"shard {shard}")
        except StoreUnusable as error:
            if state.version < newest:
                return Finding("Schema", "bad", str(error), "docs/runbook.md, Upgrade")
    between = [state for state in served.values() if state.phase in (Phase.EXPANDED, Phase.CONTRACTING)]
    if between:
        return Finding(
            "Schema",
            "warning",
            f"{len(between)} of {counted(len(location.shards), 'shard')} {'is' if len(between) == 1 else 'are'} between schema versions {between[0].contracted} and "
            f"{between[0].expanded}",
            "when all hosts run the newer version and none will go back: foqs schema apply --contract",
        )
    versions = {shard: state.version for shard, state in states.items()}
    return schema_finding(versions, newest, location, may_upgrade)


def durability_finding(detail: str, accepts_unsafe_durability: bool) -> Finding:
    """Return the finding of a durable store; a warning if the configuration would also accept an unsafe one."""
    if accepts_unsafe_durability:
        remedy = "store.unsafe_durability is set: unsafe settings would be accepted too"
        return Finding("Store", "warning", detail, remedy)
    return Finding("Store", "ok", detail)


def _describe_versions(versions: dict[int, int]) -> str:
    return f"{_describe_shards(versions)} has schema version {versions[min(versions)]}"


def _describe_shards(shards: Collection[int]) -> str:
    more = f" (and {len(shards) - 1} more)" if len(shards) > 1 else ""
    return f"shard {min(shards)}{more}"
