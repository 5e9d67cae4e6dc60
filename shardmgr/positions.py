"""What the owners of shards have published of their positions, for the report of an accepted loss.

Always true: an owner inserts nothing before its first publication of an epoch is written, and no more than the last one that
was written allows. A host keeps what it has published of shards that it no longer owns. Knows neither SQL nor items.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from shardmgr.primary_document import name_part
from shardmgr.registry.port import Registry
from shardmgr.strict_json import Form, Name, parse_document

FORMAT: Final = 1
FOLDER: Final = "positions"
HOSTS_DOCUMENT: Final = "position-hosts"
HOSTS_MAX: Final = 1_000
"""The hosts whose positions are read. The name of the one that came first is dropped for a further one."""
SHARDS_MAX: Final = 2_500
"""The shards of one host's document, at most about 350 bytes each."""
_NUMBER_MAX: Final = (1 << 63) - 1
_Count = Annotated[int, Field(ge=0, le=_NUMBER_MAX)]


@dataclass(slots=True, frozen=True)
class ShardPosition:
    """What an owner has published of one shard in its epoch.

    Attributes:
        points: (flush, items inserted in this epoch up to it), ascending. The last one is the last flush that was known.
        most: this epoch inserts no more items before another publication is written.
    """

    shard: int
    epoch: int
    points: Sequence[tuple[int, int]]
    most: int


@dataclass(slots=True, frozen=True)
class LostRange:
    """What is lost of a shard.

    Attributes:
        flushes_min: at least so many flushes.
        items_min, items_max: so many items that were inserted; without a maximum if an earlier owner's are lost, too.
    """

    flushes_min: int
    items_min: int
    items_max: int | None


def lost_range(published: ShardPosition | None, epoch: int, flush: int) -> LostRange | None:
    """Return what a shard has lost whose owner row at the next primary has this epoch and flush; None: nothing was published.

    Items that were inserted and whose callers have no answer yet count as well.
    """
    if published is None:
        return None
    last_flush, inserted = published.points[-1]
    if epoch > published.epoch:
        # The later owner inserts nothing before it publishes, and its takeover is behind all of the earlier epoch.
        return LostRange(0, 0, 0)
    if epoch < published.epoch:
        return LostRange(last_flush, inserted, None)
    left_min = max((count for at, count in published.points if at <= flush), default=0)
    left_max = min((count for at, count in published.points if at >= flush), default=None)
    items_min = 0 if left_max is None else inserted - left_max
    return LostRange(max(0, last_flush - flush), items_min, published.most - left_min)


def newest(positions: Iterable[ShardPosition]) -> dict[int, ShardPosition]:
    """Return the position of the latest epoch of each shard."""
    found: dict[int, ShardPosition] = {}
    for each in positions:
        if each.shard not in found or found[each.shard].epoch < each.epoch:
            found[each.shard] = each
    return found


class _PositionForm(Form):
    shard: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=0, le=_NUMBER_MAX)]
    points: Annotated[list[Annotated[list[_Count], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    most: _Count


class _HostForm(Form):
    shards: list[_PositionForm]


class _NamesForm(Form):
    hosts: list[Name]


def render_positions(positions: Iterable[ShardPosition]) -> bytes:
    """Return the JSON text of one host's positions, at most `SHARDS_MAX`; `parse_positions` reads it."""
    shards: list[dict[str, Any]] = [
        {"shard": each.shard, "epoch": each.epoch, "points": [list(point) for point in each.points], "most": each.most}
        for each in sorted(positions, key=lambda each: each.shard)
    ]
    return json.dumps({"format": FORMAT, "shards": shards}, separators=(",", ":")).encode()


def parse_positions(text: bytes) -> list[ShardPosition]:
    """Parse the positions of one host. Raises `MalformedDocument`."""
    form = parse_document(_HostForm, text, FORMAT)
    return [
        ShardPosition(each.shard, each.epoch, [(flush, count) for flush, count in each.points], each.most)
        for each in form.shards
    ]


# Each function below also raises `RegistryError`.


async def write_positions(
    registry: Registry, host: str, positions: Iterable[ShardPosition], version: int | None
) -> int:
    """Replace a host's document, and return its new version. Raises `RegistryConflict`."""
    return await registry.replace(_name(host), render_positions(positions), version)


async def read_positions(registry: Registry, host: str) -> tuple[Sequence[ShardPosition], int | None]:
    """Return what a host has published, and the version of its document; None: it has none. Raises `MalformedDocument`."""
    document = await registry.read(_name(host))
    return ((), None) if document is None else (parse_positions(document.data), document.version)


async def name_host(registry: Registry, host: str) -> None:
    """Add a host to those whose documents `read_all_positions` reads. Raises `RegistryConflict`, `MalformedDocument`."""
    document = await registry.read(HOSTS_DOCUMENT)
    hosts = [] if document is None else parse_document(_NamesForm, document.data, FORMAT).hosts
    if host not in hosts:
        text = json.dumps({"format": FORMAT, "hosts": [*hosts, host][-HOSTS_MAX:]}, ensure_ascii=False).encode()
        await registry.replace(HOSTS_DOCUMENT, text, None if document is None else document.version)


async def read_all_positions(registry: Registry) -> dict[int, ShardPosition]:
    """Return the position of the latest epoch of each shard. Raises `MalformedDocument`."""
    document = await registry.read(HOSTS_DOCUMENT)
    hosts = [] if document is None else parse_document(_NamesForm, document.data, FORMAT).hosts
    return newest([each for host in hosts for each in (await read_positions(registry, host))[0]])


def _name(host: str) -> str:
    return f"{FOLDER}/{name_part(host)}"
