"""The identity of a cluster: a random name, in a document of the registry.

Each ownership of a shard carries it in the shard's own tables. So a host of another
cluster, whose registry has another identity, does not take the shard over. Always true: an
identity is drawn once, by compare-and-set, and only an administrator replaces it. Knows
nothing of tables.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import Annotated, Final

from pydantic import Field

from shardmgr.model import MalformedDocument
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed
from shardmgr.strict_json import Form, parse_document

DOCUMENT: Final = "identity"
FORMAT: Final = 1
IDENTITY_PATTERN: Final = r"^[0-9a-f]{16}$"
_ATTEMPTS_MAX: Final = 10


class _IdentityForm(Form):
    identity: Annotated[str, Field(pattern=IDENTITY_PATTERN)]


# Each function here also raises `RegistryError`, with the place if the document is damaged.


async def read_identity(registry: Registry) -> str | None:
    """Return the identity of the cluster; None if it has none yet."""
    document = await registry.read(DOCUMENT)
    return None if document is None else _parse(document.data).identity


async def draw_identity(registry: Registry) -> str:
    """Return the identity of the cluster, and draw one if it has none. Raises RegistryFailed."""
    for _ in range(_ATTEMPTS_MAX):
        found = await read_identity(registry)
        if found is not None:
            return found
        fresh = secrets.token_hex(8)
        with suppress(RegistryConflict):
            await registry.replace(DOCUMENT, _render({"identity": fresh}), None)
            return fresh
    raise RegistryFailed(
        f"the document {DOCUMENT!r} is created and deleted again and again; stop the program that deletes it, then try again"
    )


async def set_identity(registry: Registry, identity: str) -> None:
    """Make this the identity of the cluster. Raises RegistryFailed."""
    for _ in range(_ATTEMPTS_MAX):
        document = await registry.read(DOCUMENT)
        unknown = {} if document is None else _parse(document.data).unknown
        with suppress(RegistryConflict):
            text = _render({"identity": identity, **unknown})
            await registry.replace(DOCUMENT, text, None if document is None else document.version)
            return
    raise RegistryFailed(f"the document {DOCUMENT!r} keeps changing; try again")


def _render(fields: dict[str, object]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}).encode()


def _parse(data: bytes) -> _IdentityForm:
    try:
        return parse_document(_IdentityForm, data, FORMAT)
    except MalformedDocument as error:
        raise RegistryFailed(
            f"the document {DOCUMENT!r} is damaged: {error}; delete it, and run foqs cluster init with --adopt-cluster"
        ) from None
