"""Doctor's checks of a catalog in a file: it is readable, well-formed and replaceable.

Always true: nothing is written. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from foqs.catalog.document import Document
from foqs.catalog.file_catalog import FileCatalog
from foqs.catalog.port import CatalogFailed
from foqs.cli.doctor.sqlite_checks import nearest_folder
from foqs.options.config import Config
from foqs.telemetry.findings import Finding
from foqs_contract.key_slots import KEY_SLOT_COUNT
from foqs_contract.plurals import counted

_SUBJECT: Final = "Catalog"


async def check_catalog(config: Config) -> list[Finding]:
    """Check the file of namespaces, grants, pauses and key slots; no findings if there is no file."""
    path = config.catalog_file
    if path is None:
        return []
    try:
        document = await FileCatalog(path, config.catalog.bytes_max).load()
    except CatalogFailed as error:
        detail, _, remedy = str(error).partition("; ")
        return [Finding(_SUBJECT, "bad", detail, remedy)]
    locked = _unwritable_path(path)
    if locked is not None:
        remedy = (
            f"let the user of the host write it, or set another file in catalog.file: chown {os.geteuid()} {locked}"
        )
        return [Finding(_SUBJECT, "bad", f"{path} cannot be replaced: this user may not write {locked}", remedy)]
    return [_describe_document(path, document)]


def _unwritable_path(path: Path) -> Path | None:
    """Return the folder or lock file that prevents a replacement; None if there is none."""
    folder = nearest_folder(path.absolute().parent)
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return folder
    lock = path.with_name(f"{path.name}.lock")
    return lock if lock.exists() and not os.access(lock, os.W_OK, effective_ids=True) else None


def _describe_document(path: Path, document: Document) -> Finding:
    if not document.version:
        return Finding(_SUBJECT, "ok", f"{path} does not exist yet; the first start creates it")
    detail = f"{path} has version {document.version}, with {counted(len(document.namespaces), 'namespace')}"
    for tier, held in document.slots.items():
        missing = KEY_SLOT_COUNT - sum(map(len, held.values()))
        if 0 < missing < KEY_SLOT_COUNT:
            remedy = "serve the shard that holds them, or import an export that has it (docs/runbook.md, Key slots)"
            slots = counted(missing, "key slot")
            return Finding(_SUBJECT, "warning", f"{detail}; {slots} of tier {tier!r} without a shard", remedy)
    return Finding(_SUBJECT, "ok", detail)
