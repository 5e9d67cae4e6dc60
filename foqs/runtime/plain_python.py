"""Chooses between the compiled modules of this package and their plain Python.

`make compile` puts extension modules beside the hot modules, and Python imports an
extension module before a source of the same name. With FOQS_PURE=1 in the
environment, every module of this package comes from its source.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Final

_PACKAGE: Final = f"{__name__.partition('.')[0]}."


class _SourceFinder(MetaPathFinder):
    """Finds the sources of this package's modules, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PACKAGE):
            return None
        for folder in path or ():
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def ignore_compiled() -> None:
    """Import the modules of this package from their sources from here on."""
    sys.meta_path.insert(0, _SourceFinder())


def is_compiled() -> bool:
    """Return whether the hot modules come compiled; `foqs.core.items.item` stands for all of them."""
    spec = find_spec("foqs.core.items.item")
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
