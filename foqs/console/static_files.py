"""The files that the console serves as they are: its own, and those of others in `vendor`.

Always true: the files are read once, and served from a table by name, so no path leaves
their folders. An address with the version of a file never changes its contents.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from dataclasses import dataclass
from typing import Final

FOLDERS: Final = ("static", "vendor")
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_VERSION_CHARS: Final = 12


@dataclass(slots=True, frozen=True)
class StaticFile:
    """A file of the console, with its media type.

    Attributes:
        version: a digest of the contents, so that other contents have another address.
    """

    body: bytes
    content_type: str
    version: str


class StaticFiles:
    """The static files of the console, by name."""

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] = {}
        for folder in FOLDERS:
            for file in (importlib.resources.files("foqs.console") / folder).iterdir():
                content_type = _TYPES.get(f".{file.name.rpartition('.')[2]}")
                if content_type is not None:
                    body = file.read_bytes()
                    version = hashlib.sha256(body).hexdigest()[:_VERSION_CHARS]
                    self._files[file.name] = StaticFile(body, content_type, version)

    def get(self, name: str) -> StaticFile | None:
        """Return a file; None if there is none of this name."""
        return self._files.get(name)

    def version(self, name: str) -> str:
        """Return the version of a file. A browser may keep what it gets at an address with it."""
        return self._files[name].version
