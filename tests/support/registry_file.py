"""The documents of a registry in one JSON file.

Always true: a document that was saved survives a crash. One process at a time
may write the file. Knows nothing of sessions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shardmgr.durable_file import NotSynced, replace_file
from shardmgr.registry.port import RegistryFailed, RegistryOutcomeUnknown, VersionedDocument


class RegistryFile:
    """`{"documents": {name: {"version": 3, "data": text}}}`; bytes that are not UTF-8 are lone surrogates in the text."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, VersionedDocument]:
        """All documents by name; none when there is no file. Raises `RegistryFailed`."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RegistryFailed(f"cannot read {self._path}: {error.strerror}") from error
        try:
            return {
                str(name): VersionedDocument(kept["data"].encode("utf-8", "surrogateescape"), int(kept["version"]))
                for name, kept in json.loads(content)["documents"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise RegistryFailed(
                f"{self._path} is not a file of the coordinator; move it away and a new one is created"
            ) from None

    def save(self, documents: Mapping[str, VersionedDocument]) -> None:
        """Keeps them durably.

        Raises:
            RegistryFailed: the file is what it was.
            RegistryOutcomeUnknown: it is written, and may be the old one again after a crash.
        """
        kept = {
            name: {"version": entry.version, "data": entry.data.decode("utf-8", "surrogateescape")}
            for name, entry in sorted(documents.items())
        }
        try:
            replace_file(self._path, json.dumps({"documents": kept}) + "\n")
        except NotSynced as error:
            raise RegistryOutcomeUnknown(f"cannot sync the folder of {self._path}: {error.strerror}") from error
        except OSError as error:
            raise RegistryFailed(f"cannot write {self._path}: {error.strerror}") from error
