"""What doctor says about one thing that it looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

Health: TypeAlias = Literal["ok", "warning", "bad"]


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do, unless all is well."""

    check: str
    state: Health
    detail: str
    remedy: str = ""


@dataclass(slots=True, frozen=True)
class StoreLocation:
    """Where shards are kept.

    Attributes:
        key: of its options: `store`, or `databases.NAME`.
        shards: the numbers of those that are served from there.
        weak_is_accepted: the configuration would let weak durability pass.
    """

    key: str
    shards: Collection[int]
    accepts_unsafe_durability: bool

    @property
    def is_single_host(self) -> bool:
        """All of it is one host's."""
        return self.key == "store"


def schema_finding(versions: dict[int, int], newest: int, location: StoreLocation, may_upgrade: bool) -> Finding:
    """What the versions of the shards' tables mean for a program that knows versions up to `newest`.

    Args:
        versions: of each shard that has tables.
    """
    served = location.shards
    newer = {shard: version for shard, version in versions.items() if version > newest and shard in served}
    if newer:
        told = _describe_versions(newer)
        remedy = "run the newer foqs that wrote it, or restore a backup made before its upgrade"
        return Finding("Schema", "bad", f"{told}; this program knows versions up to {newest}", remedy)
    older = {shard: versions.get(shard, 0) for shard in served if versions.get(shard, 0) < newest}
    if older and not may_upgrade:
        remedy = "run foqs schema apply as a user who may make tables (docs/runbook.md, SQL grants)"
        return Finding(
            "Schema",
            "bad",
            f"{_describe_versions(older)}; {newest} is needed and this user may not make tables",
            remedy,
        )
    if any(older.values()):
        remedy = "stop the hosts, make a backup, then start this program: it brings the tables to its version"
        return Finding(
            "Schema", "warning", f"{_describe_versions(older)}; this program brings them to {newest}", remedy
        )
    if older:
        return Finding(
            "Schema", "ok", f"{len(older)} of {len(served)} shards have no tables yet; the first start makes them"
        )
    beyond = sorted(shard for shard in versions if shard not in served)
    if beyond:
        shards = ", ".join(map(str, beyond))
        remedy = (
            f"set store.shards to {beyond[-1] + 1}, unless these items are not wanted"
            if location.is_single_host
            else "unless these items are not wanted: foqs shard add NUMBER --database NAME"
        )
        return Finding("Schema", "warning", f"there are tables of shards that nobody serves: {shards}", remedy)
    return Finding("Schema", "ok", f"every shard has version {newest}")


def durability_finding(detail: str, accepts_unsafe_durability: bool) -> Finding:
    """The store keeps what it acknowledges; `accepts_unsafe_durability`: the configuration would let it pass if it did not."""
    if accepts_unsafe_durability:
        remedy = "store.unsafe_durability is set: weaker settings would be accepted too"
        return Finding("Store", "warning", detail, remedy)
    return Finding("Store", "ok", detail)


def _describe_versions(versions: dict[int, int]) -> str:
    first = min(versions)
    more = f" (and {len(versions) - 1} more)" if len(versions) > 1 else ""
    return f"shard {first}{more} has schema version {versions[first]}"
