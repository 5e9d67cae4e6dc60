"""The entry of a database's primary as JSON, in a document of the registry for each database.

Always true: an entry is replaced only by a writer that has read its present version, so
two entries that look alike and were written at different times are not confused; no
entry is written that cannot be read;
parsing a rendered entry returns an equal one; fields of a newer version are kept.
Knows nothing of the rules of a promotion.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from shardmgr.documents import DATABASE_BYTES_MAX
from shardmgr.model import TERM_MAX, MalformedDocument
from shardmgr.primary import DatabaseServer, LossPolicy, Primaries, Primary, PrimaryState, ReplicationPosition
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed
from shardmgr.strict_json import DistinctNames, Form, Name, build_with_unknown, parse_document, printable

FORMAT: Final = 1
FOLDER: Final = "primaries"
"""The documents are `primaries/DATABASE`, see `name_part`. A document for each: promotions of many databases do not disturb each other."""
SERVER_ID_MAX: Final = (1 << 32) - 1
NUMBER_MAX: Final = (1 << 64) - 1
"""The highest number of a transaction."""
_NOT_IN_NAMES: Final = re.compile(rb"[^A-Za-z0-9_-]")
_PART_CHARS_MAX: Final = 150
ATTEMPTS_MAX: Final = 10
"""The maximum number of attempts for one change while others change the entry too."""
_CONCURRENT_READS_MAX: Final = 64
"""The entries that are read at once: a registry's connection holds some hundred requests, and others need it too."""


@dataclass(slots=True, frozen=True)
class StoredPrimary:
    """An entry as it was read, and the version of its document."""

    entry: Primary
    version: int


# Each function with a registry also raises RegistryFailed (nothing was changed), RegistryOutcomeUnknown (it may have been
# changed) and MalformedDocument (the stored entry is malformed and stays as it is).


async def read_primary(registry: Registry, database: str) -> StoredPrimary | None:
    """Return the entry of a database; None if it has none: then its one server is that of the hosts' configuration."""
    found = await read_last_primary(registry, database)
    return None if found is None or found.entry.state is PrimaryState.RELEASED else found


async def read_last_primary(registry: Registry, database: str) -> StoredPrimary | None:
    """Return the entry of a database, or the one that was its last; None if it never had one."""
    document = await registry.read(_name(database))
    return None if document is None else StoredPrimary(_parse_named(database, document.data), document.version)


async def read_primaries(registry: Registry, databases: Iterable[str]) -> Primaries:
    """Return the entries of those of these databases that have one. Raises RegistryFailed, but no MalformedDocument.

    They are read side by side: one after the other hundreds of databases would delay each plan by a second.
    """
    entries: dict[str, Primary] = {}
    malformed: dict[str, str] = {}
    names = sorted(set(databases))
    for start in range(0, len(names), _CONCURRENT_READS_MAX):
        part = names[start : start + _CONCURRENT_READS_MAX]
        for name, found in zip(
            part, await asyncio.gather(*(_read_or_problem(registry, each) for each in part)), strict=True
        ):
            if isinstance(found, MalformedDocument):
                malformed[name] = str(found)
            elif found is not None:
                entries[name] = found.entry
    return Primaries(entries, malformed)


async def _read_or_problem(registry: Registry, database: str) -> StoredPrimary | MalformedDocument | None:
    try:
        return await read_primary(registry, database)
    except MalformedDocument as error:
        return error


async def replace_primary(registry: Registry, database: str, entry: Primary, version: int | None) -> int:
    """Replace the named version of an entry, None if there must be none. Return its new version.

    Raises:
        RegistryConflict: it has another version; nothing was written.
        MalformedDocument: nobody could read the entry; nothing was written.
    """
    text = render_primary(entry)
    _parse_named(database, text)
    return await registry.replace(_name(database), text, version)


async def change_primary(registry: Registry, database: str, change: Callable[[Primary], Primary]) -> Primary:
    """Replace an entry with the result of `change`, which is called again if another change came first. Return it.

    An entry that `change` returns unchanged is not written. Raises what `change` raises, and RegistryFailed also if
    there is no entry, or if others change it again and again.
    """
    for _ in range(ATTEMPTS_MAX):
        found = await read_primary(registry, database)
        if found is None:
            raise RegistryFailed(
                f"the database {database!r} has no entry in {FOLDER!r}: it has one server, and nothing can take its place"
            )
        after = change(found.entry)
        if after == found.entry:
            return after
        try:
            await replace_primary(registry, database, after, found.version)
        except RegistryConflict:
            continue
        return after
    raise RegistryFailed(
        f"others changed the entry of {database!r} {ATTEMPTS_MAX} times in a row; nothing was changed, try again"
    )


def name_part(database: str) -> str:
    """Return what stands for a database in the registry's names: no two databases have the same.

    A layout allows more characters than the registry. Others than letters, digits, - and _ are a . and two hexadecimal
    digits for each byte; a long name ends with .. and a digest.
    """
    part = _NOT_IN_NAMES.sub(lambda found: f".{found[0][0]:02x}".encode(), database.encode()).decode()
    if len(part) <= _PART_CHARS_MAX:
        return part
    digest = hashlib.sha256(database.encode()).hexdigest()
    return f"{part[: _PART_CHARS_MAX - len(digest) - 2]}..{digest}"


def _name(database: str) -> str:
    return f"{FOLDER}/{name_part(database)}"


def _parse_named(database: str, text: bytes) -> Primary:
    try:
        return parse_primary(text)
    except MalformedDocument as error:
        raise MalformedDocument(f"{_name(database)}: {error.path}".removesuffix(": "), error.problem) from None


# ----------------------------------------------------------------- rendering


def render_primary(entry: Primary) -> bytes:
    """Return the JSON text of an entry; `parse_primary` reads it."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "term": entry.term,
        "server": entry.server,
        "policy": entry.policy.value,
        "state": entry.state.value,
        "target": entry.target,
        "position": None if entry.position is None else dict(sorted(entry.position.last.items())),
        "loss_accepted": entry.loss_accepted,
        "has_served": entry.has_served,
        "ackers": dict(sorted(entry.ackers.items())),
        "servers": {
            name: {"region": server.region, "server_id": server.server_id} | dict(server.unknown)
            for name, server in sorted(entry.servers.items())
        },
    }
    if entry.shut_out:
        fields["shut_out"] = list(entry.shut_out)
    return json.dumps(fields | dict(entry.unknown), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


# ------------------------------------------------------------------- parsing

_ServerName = Annotated[str, printable(DATABASE_BYTES_MAX)]
_Standing = Annotated[str, printable(bytes_min=0)]


class _ServerForm(Form):
    region: Name
    server_id: Annotated[int, Field(ge=1, le=SERVER_ID_MAX)]


class _PrimaryForm(Form):
    term: Annotated[int, Field(ge=1, le=TERM_MAX)]
    server: _ServerName
    policy: Annotated[LossPolicy, Field(strict=False)]
    state: Annotated[PrimaryState, Field(strict=False)]
    target: Annotated[str, printable(DATABASE_BYTES_MAX, bytes_min=0)]
    position: dict[Name, Annotated[int, Field(ge=1, le=NUMBER_MAX)]] | None
    loss_accepted: bool
    has_served: bool
    ackers: dict[_ServerName, _Standing]
    servers: dict[_ServerName, Annotated[_ServerForm, build_with_unknown(DatabaseServer)]]
    shut_out: DistinctNames = Field(default_factory=list)


def parse_primary(text: bytes) -> Primary:
    """Parse an entry.

    Raises:
        MalformedDocument: the text is not an entry; the error names the place.
    """
    form = parse_document(_PrimaryForm, text, FORMAT)
    position = None if form.position is None else ReplicationPosition(form.position)
    # The version before keeps this field, does not know it, and may admit such a server: an acker is not shut out.
    shut_out = tuple(name for name in form.shut_out if name != form.server and name not in form.ackers)
    changed = {"position": position, "shut_out": shut_out}
    entry = Primary(**vars(form) | changed, unknown=form.unknown)
    _check_servers(entry)
    if entry.state in (PrimaryState.FENCED, PrimaryState.PROMOTING) and position is None:
        raise MalformedDocument("position", f"this must not be null while the state is {entry.state.value}")
    return entry


def _check_servers(entry: Primary) -> None:
    """Check that every name is that of a server, the primary is no acker, and no two servers have one number."""
    named = {"server": entry.server} | {f"ackers.{name}": name for name in entry.ackers}
    named |= {f"shut_out[{at}]": name for at, name in enumerate(entry.shut_out)}
    if entry.target:
        named["target"] = entry.target
    for place, name in named.items():
        if name not in entry.servers:
            raise MalformedDocument(place, "this must be the name of one of the servers")
    if entry.server in entry.ackers:
        raise MalformedDocument(f"ackers.{entry.server}", "this is the primary, which is no acker")
    numbers: dict[int, str] = {}
    for name, server in entry.servers.items():
        if (other := numbers.setdefault(server.server_id, name)) != name:
            raise MalformedDocument(
                f"servers.{name}.server_id", f"this is also the number of {other}; give each its own"
            )
