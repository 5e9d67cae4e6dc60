"""Tests that an error about a field says what to do, not only what is wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import foqs

ROOT = Path(foqs.__file__).parent


def texts_about_fields(package: str) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each `InvalidArgument` whose text begins with "this is"."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "InvalidArgument":
                text = "".join(map(_written, ast.walk(node.args[0]))) if node.args else ""
                if text.startswith("this is"):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def _written(node: ast.AST) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def test_each_error_about_a_field_has_a_remedy() -> None:
    found = [each for package in ("rpc", "queue", "core") for each in texts_about_fields(package)]
    assert len(found) > 10
    assert [each for each in found if "; " not in each[1]] == []
