"""Hatch's build hook: with FOQS_COMPILE=1 a wheel holds the hot modules compiled; otherwise it is plain Python.

A plain wheel needs no compiler. A compiled one also holds the sources, and FOQS_PURE=1
chooses them when foqs is imported.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModulesHook(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["mypy[mypyc]>=2.4,<3", "setuptools>=66"] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _is_wanted() or version == "editable":
            return
        built = self._compiler()["build"]()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in built:
            name = str(path.relative_to(self.root))
            build_data["force_include"][name] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the extension modules from the tree, where they would hide its sources."""
        if _is_wanted() and version != "editable":
            self._compiler()["clean"]()

    def _compiler(self) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root) / "tools" / "compile.py"))


def _is_wanted() -> bool:
    return os.environ.get("FOQS_COMPILE", "0") not in ("", "0")
