"""What the owners of shards have published of their positions, for the report of an accepted loss and the check of a proof.

Always true: an owner inserts nothing before its first publication of an epoch is written, and no more than the last one that
was written allows. A host keeps what it has published of shards that it no longer owns; the document of a host that is gone
stays while it has the latest publication of a shard. Knows neither SQL nor items.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from shardmgr.documents import DATABASE_BYTES_MAX
from shardmgr.model import TERM_MAX, MalformedDocument
from shardmgr.primary_document import name_part
from shardmgr.registry.port import Registry, RegistryConflict
from shardmgr.strict_json import Form, parse_document, printable

FORMAT: Final = 1
FOLDER: Final = "positions"
SHARDS_MAX: Final = 2_500
"""The shards of one host's document, at most about 350 bytes each."""
_DAMAGED: Final = "..damaged"
"""Follows the name of a host in the name of such a copy. No `name_part` ends so."""
_CONCURRENT_READS_MAX: Final = 64
_NUMBER_MAX: Final = (1 << 63) - 1
_Count = Annotated[int, Field(ge=0, le=_NUMBER_MAX)]


@dataclass(slots=True, frozen=True)
class ShardPosition:
    """What an owner has published of one shard in its epoch.

    Attributes:
        database: that of the shard then. A shard that is removed may be added in another one, which has nothing of it.
        term: of the primary at which it owns the shard.
        points: (flush, items inserted in this epoch up to it), ascending. The last one is the last flush that was known.
        most: this epoch inserts no more items before another publication is written.
    """

    shard: int
    database: str
    epoch: int
    term: int
    points: Sequence[tuple[int, int]]
    most: int

    @property
    def last(self) -> tuple[int, int]:
        """The epoch, and the last flush that was known to be committed."""
        return self.epoch, self.points[-1][0]


@dataclass(slots=True, frozen=True)
class LostRange:
    """What is lost of a shard.

    Attributes:
        flushes_min: at least this many flushes.
        items_min, items_max: this many items that were inserted, whether or not they were delivered and acked since; without a
            maximum if an earlier owner's are lost, too.
    """

    flushes_min: int
    items_min: int
    items_max: int | None


def lost_range(
    published: ShardPosition | None, epoch: int, flush: int, *, is_complete: bool = True
) -> LostRange | None:
    """Return what a shard has lost whose owner row at the next primary has this epoch and flush; None: it is not known.

    Items that were inserted and whose callers have no answer yet count as well.

    Args:
        published: None: nothing was published.
        is_complete: all that was published could be read; otherwise a later epoch may have been published.
    """
    if published is None:
        return None
    last_flush, inserted = published.points[-1]
    if epoch > published.epoch:
        # The later owner inserts nothing before it publishes, and its takeover is behind all of the earlier epoch.
        return LostRange(0, 0, 0) if is_complete else None
    if epoch < published.epoch:
        return LostRange(last_flush, inserted, None)
    left_min = max((count for at, count in published.points if at <= flush), default=0)
    left_max = min((count for at, count in published.points if at >= flush), default=None)
    items_min = 0 if left_max is None else inserted - left_max
    return LostRange(max(0, last_flush - flush), items_min, published.most - left_min if is_complete else None)


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
    term: Annotated[int, Field(ge=1, le=TERM_MAX)]
    points: Annotated[list[Annotated[list[_Count], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    most: _Count


class _HostForm(Form):
    databases: dict[Annotated[str, printable(DATABASE_BYTES_MAX)], list[_PositionForm]]


def render_positions(positions: Iterable[ShardPosition]) -> bytes:
    """Return the JSON text of one host's positions, at most `SHARDS_MAX`; `parse_positions` reads it."""
    databases: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(positions, key=lambda each: (each.database, each.shard)):
        fields = {
            "shard": each.shard,
            "epoch": each.epoch,
            "term": each.term,
            "points": [list(point) for point in each.points],
            "most": each.most,
        }
        databases.setdefault(each.database, []).append(fields)
    return json.dumps({"format": FORMAT, "databases": databases}, separators=(",", ":")).encode()


def parse_positions(text: bytes) -> list[ShardPosition]:
    """Parse the positions of one host. Raises `MalformedDocument`."""
    form = parse_document(_HostForm, text, FORMAT)
    return [
        ShardPosition(each.shard, name, each.epoch, each.term, [(at, count) for at, count in each.points], each.most)
        for name, shards in form.databases.items()
        for each in shards
    ]


# Each function below also raises `RegistryError`.


async def write_positions(registry: Registry, host: str, text: bytes, version: int | None) -> int:
    """Replace a host's document by a text of `render_positions`, and return its new version. Raises `RegistryConflict`."""
    return await registry.replace(_name(host), text, version)


async def read_positions(registry: Registry, host: str) -> tuple[Sequence[ShardPosition], int | None]:
    """Return what a host has published, and the version of its document; None: it has none. Raises `MalformedDocument`."""
    document = await registry.read(_name(host))
    return ((), None) if document is None else (parse_positions(document.data), document.version)


async def set_aside(registry: Registry, host: str) -> tuple[str, int | None]:
    """Copy a host's document, which cannot be read, so that the host can write it again. Safe to repeat.

    Return the name of the copy, and the version of the document; None: it is gone. The copy tells readers that something is
    missing. Nobody removes it but an administrator.
    """
    name = _name(host) + _DAMAGED
    document = await registry.read(_name(host))
    if document is None:
        return name, None
    copy = await registry.read(name)
    if copy is None or copy.data != document.data:
        await registry.replace(name, document.data, None if copy is None else copy.version)
    return name, document.version


async def read_all_positions(registry: Registry) -> tuple[dict[int, ShardPosition], Sequence[str]]:
    """Return the position of the latest epoch of each shard, and why documents were not read, a sentence for each."""
    documents, problems = await _read_all(registry)
    return newest(each for document in documents.values() for each in document.positions), problems


async def remove_superfluous(registry: Registry, hosts: Collection[str], shards: Collection[int]) -> Sequence[str]:
    """Remove the documents of hosts that are gone and whose shards all have a later publication; return their names.

    A host that comes back meanwhile writes its document again. A document that cannot be read stays.

    Args:
        hosts: the hosts that are members.
        shards: the shards of the layout.
    """
    present = {name_part(host) for host in hosts}
    if present.issuperset(await registry.names(FOLDER)):
        return ()
    documents, _ = await _read_all(registry)
    latest = newest(each for document in documents.values() for each in document.positions)
    removed: list[str] = []
    for name, document in documents.items():
        if name in present or any(latest[each.shard] is each and each.shard in shards for each in document.positions):
            continue
        with suppress(RegistryConflict):
            await registry.remove(f"{FOLDER}/{name}", document.version)
            removed.append(name)
    return removed


@dataclass(slots=True, frozen=True)
class _HostDocument:
    positions: Sequence[ShardPosition]
    version: int


async def _read_all(registry: Registry) -> tuple[dict[str, _HostDocument], Sequence[str]]:
    """Return the documents by name, and why others were not read."""
    names = sorted(await registry.names(FOLDER))
    found: dict[str, _HostDocument] = {}
    problems: list[str] = []
    for start in range(0, len(names), _CONCURRENT_READS_MAX):
        part = names[start : start + _CONCURRENT_READS_MAX]
        documents = await asyncio.gather(*(registry.read(f"{FOLDER}/{name}") for name in part))
        for name, document in zip(part, documents, strict=True):
            if document is None:
                continue  # it was removed meanwhile
            try:
                found[name] = _HostDocument(parse_positions(document.data), document.version)
            except MalformedDocument as error:
                problems.append(f"{FOLDER}/{name}: {error}; so the maximum of what was lost is not known")
            await asyncio.sleep(0)  # a host serves shards meanwhile
    return found, problems


def _name(host: str) -> str:
    return f"{FOLDER}/{name_part(host)}"
