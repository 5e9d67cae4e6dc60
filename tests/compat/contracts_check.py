"""The tool that compares contracts, and changed contracts for it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


contract_tool: Final[Any] = _load("contract")
CONTRACT: Final = (ROOT / "thrift" / "foqs.thrift").read_text()


def contract(old: str, new: str) -> Any:
    """Return the contract with one change: the first `old` is replaced by `new`."""
    assert old in CONTRACT, old
    return contract_tool.parse_contract(CONTRACT.replace(old, new, 1))
