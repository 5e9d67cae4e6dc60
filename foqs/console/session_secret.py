"""The secret of the console's sessions, which all hosts of a cluster share.

Always true: the first host that finds no secret creates one by compare-and-set, so all
hosts get the same; a secret that was read stays in use while the document cannot be
read; a host never overwrites a document that is not readable. A deleted or replaced
document ends all sessions. Knows nothing of cookies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from foqs.queue.bulk_jobs.bulk_job_store import Documents
from shardmgr.model import MalformedDocument, Unknown
from shardmgr.registry.port import RegistryConflict, RegistryError, RegistryFailed
from shardmgr.strict_json import Form, parse_document

log = logging.getLogger(__name__)

DOCUMENT_NAME: Final = "console-secret"
"""The name of the document in the registry, and of a host's file without its ending."""
FORMAT: Final = 1
SECRET_BYTES: Final = 32
READ_INTERVAL_S_MIN: Final = 1.0
READ_INTERVAL_S_MAX: Final = 10.0
"""The longest time between two readings: a file may change without a notification."""
_ATTEMPTS_MAX: Final = 10


class _SecretForm(Form):
    secret: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$")]


class SessionSecret:
    """The secret as it was read last.

    Attributes:
        value: None until it was read once; no session is valid then.
    """

    def __init__(self, documents: Documents) -> None:
        self.value: bytes | None = None
        self._documents = documents
        self._problem: str | None = None
        self._changed = asyncio.Event()
        documents.subscribe(self._changed.set)

    async def refresh(self) -> None:
        """Read the secret, or create it. If that fails, the log says why, and the present one stays."""
        try:
            self.value, problem = await _read_or_create(self._documents), None
        except RegistryError as error:
            problem = str(error)
            if problem != self._problem:
                log.warning("the secret of the console's sessions cannot be read; trying again: %s", problem)
        self._problem = problem

    async def run(self) -> None:
        """Follow the document, until it is cancelled."""
        while True:
            await asyncio.sleep(READ_INTERVAL_S_MIN)  # documents of others change often
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_INTERVAL_S_MAX - READ_INTERVAL_S_MIN):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.refresh()
            except Exception:
                log.exception(
                    "the secret of the console's sessions could not be read, for an unexpected error; trying again"
                )


async def replace_secret(documents: Documents) -> None:
    """Replace the secret by a new one, which ends all sessions. Raises `RegistryError`."""
    document = await documents.read(DOCUMENT_NAME)
    if document is None:
        await documents.replace(DOCUMENT_NAME, _render(_draw()), None)
        return
    try:
        unknown = parse_document(_SecretForm, document.data, FORMAT).unknown
    except MalformedDocument:
        unknown = {}  # a person wants another secret, and the damaged one ends as well
    await documents.replace(DOCUMENT_NAME, _render(_draw(), unknown), document.version)


def secret_file(folder: Path) -> Path:
    """Return the file in which a host without a cluster keeps the secret."""
    return folder / f"{DOCUMENT_NAME}.json"


async def _read_or_create(documents: Documents) -> bytes:
    """Read the secret, or create it, and return it. Raises `RegistryError`."""
    for _ in range(_ATTEMPTS_MAX):
        document = await documents.read(DOCUMENT_NAME)
        if document is not None:
            return _parse(document.data)
        fresh = _draw()
        with contextlib.suppress(RegistryConflict):
            await documents.replace(DOCUMENT_NAME, _render(fresh), None)
            return fresh
    raise RegistryFailed(
        f"the document {DOCUMENT_NAME!r} is created and deleted again and again; stop the program that deletes it"
    )


def _draw() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def _render(secret: bytes, unknown: Unknown = MappingProxyType({})) -> bytes:
    return json.dumps({"format": FORMAT, "secret": secret.hex(), **unknown}).encode()


def _parse(data: bytes) -> bytes:
    try:
        return bytes.fromhex(parse_document(_SecretForm, data, FORMAT).secret)
    except MalformedDocument as error:
        # The error shows a part of the value, and this text is for the log.
        raise RegistryFailed(
            f"the document {DOCUMENT_NAME!r} is damaged at {error.path}; delete it: a host creates another"
        ) from None
