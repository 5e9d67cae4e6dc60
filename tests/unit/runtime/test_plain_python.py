"""The choice between compiled modules and plain Python."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HOT = "foqs.core.items.item"
PROGRAM = f"import {HOT} as hot; print(hot.__file__)"


@pytest.mark.parametrize("value", ["1", "yes"])
def test_foqs_pure_imports_the_source(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_PURE", value)

    assert _imported_file().suffix == ".py"


@pytest.mark.parametrize("value", ["", "0"])
def test_without_foqs_pure_a_compiled_module_comes_before_its_source(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOQS_PURE", value)
    found = _imported_file()

    compiled = list(found.parent.glob("item.*.so"))

    assert found == (compiled[0] if compiled else found.with_name("item.py"))


def _imported_file() -> Path:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_every_class_to_compile_that_has_a_length_also_has_a_truth_value() -> None:
    """mypyc takes the truth of an object from `__bool__` alone: without it, an empty one would be true."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules = tomllib.load(file)["tool"]["foqs"]["compiled"]
    for module in modules:
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            methods = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}

            assert "__len__" not in methods or "__bool__" in methods, f"{module}.{kind.name}"
