"""The entry of a host's versions: of its program, its tables, its documents and its contract.

An entry of its own beside the member's entry: a host of an older version refuses a
member's entry with a field that it does not know, and takes that host for gone. Always
true: an entry with fields of a later version is read, without these fields. A member
without an entry is older than this module. Each number of a release is that of the
release before, or the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from shardmgr.cluster_reader import ClusterReading
from shardmgr.model import MalformedDocument
from shardmgr.registry.port import Registry
from shardmgr.strict_json import Form, Name, parse_document

VERSIONS: Final = "versions"
"""The folder of the entries; each has the name of its member's entry."""
FORMAT: Final = 1

_Number = Annotated[int, Field(ge=0)]


@dataclass(slots=True, frozen=True)
class HostVersions:
    """The versions of one run of a host.

    Attributes:
        program: the version of the program, for people.
        schema: the newest version of the tables that it uses. It uses the one before, too.
        documents: the newest format of a document in the registry that it reads. It reads the older ones, too.
        wire: the contract version, of the calls of clients and of other hosts.
    """

    program: str
    schema: int
    documents: int
    wire: int


WITHOUT_ENTRY: Final = HostVersions("0.1.0", schema=7, documents=1, wire=1)
"""The versions of a member without an entry."""


class _VersionsForm(Form):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    program: Name
    schema_: _Number = Field(alias="schema")
    documents: _Number
    wire: _Number


def render_versions(versions: HostVersions) -> bytes:
    """Return the JSON text of an entry; `parse_versions` reads it."""
    return json.dumps({"format": FORMAT} | asdict(versions), separators=(",", ":")).encode()


def parse_versions(text: bytes) -> HostVersions:
    """Parse an entry. Raises MalformedDocument."""
    form = parse_document(_VersionsForm, text, FORMAT)
    return HostVersions(form.program, form.schema_, form.documents, form.wire)


async def read_versions(registry: Registry) -> dict[str, HostVersions]:
    """Return the versions by nonce. A malformed entry counts as missing. Raises RegistryFailed."""
    found = {}
    for nonce, data in (await registry.members(VERSIONS)).items():
        try:
            found[nonce] = parse_versions(data)
        except MalformedDocument:
            continue
    return found


def older_hosts(reading: ClusterReading, versions: Mapping[str, HostVersions], schema: int) -> list[str]:
    """Return the names of the members that do not use tables of this version, and of entries that cannot be read.

    Args:
        reading: the cluster as it was read before `versions`, because a host announces its versions first.
    """
    found = [
        member.name
        for member in reading.members
        if member.nonce not in versions or versions[member.nonce].schema < schema
    ]
    return sorted(found) + sorted(reading.malformed)


def hosts_without_format(reading: ClusterReading, versions: Mapping[str, HostVersions], documents: int) -> list[str]:
    """Return the names of the members that do not read documents of this format, and of entries that cannot be read.

    Args:
        reading: the cluster as it was read before `versions`, because a host announces its versions first.
    """
    found = [
        member.name for member in reading.members if versions.get(member.nonce, WITHOUT_ENTRY).documents < documents
    ]
    return sorted(found) + sorted(reading.malformed)


def distant_hosts(
    reading: ClusterReading, versions: Mapping[str, HostVersions], own: HostVersions
) -> list[HostVersions]:
    """Return the versions of the members that are more than one release away from `own`, as far as numbers show it.

    Args:
        reading: the cluster as it was read before `versions`, because a host announces its versions first.
    """
    found = {versions.get(member.nonce, WITHOUT_ENTRY) for member in reading.members}
    return sorted((each for each in found if _is_distant(each, own)), key=lambda each: each.program)


def _is_distant(one: HostVersions, other: HostVersions) -> bool:
    numbers = ((each.schema, each.documents, each.wire) for each in (one, other))
    return any(abs(a - b) > 1 for a, b in zip(*numbers, strict=True))
