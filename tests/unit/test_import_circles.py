"""No file imports itself through others, also not for type checks only.

import-linter holds the walls between packages; it allows files of one package to
import each other. These tests do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import Final

import pytest

_REPOSITORY: Final = Path(__file__).parents[2]
_SOURCE_ROOTS: Final = (_REPOSITORY, _REPOSITORY / "client")
_PACKAGES: Final = ("foqs", "shardmgr", "foqs_client", "foqs_contract", "pyspark_foqs", "tests", "perf", "tools")


def source_files() -> dict[str, Path]:
    """Return the files of the product, its tests and its tools by module name."""
    files = {}
    for root in _SOURCE_ROOTS:
        for package in _PACKAGES:
            for path in (root / package).rglob("*.py"):
                module = ".".join(path.relative_to(root).with_suffix("").parts)
                files[module.removesuffix(".__init__")] = path
    return files


def imported_names(module: str, path: Path, text: str) -> Iterable[str]:
    """Return the dotted names that a file imports, anywhere in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def imported_modules(module: str, path: Path, text: str, modules: Set[str]) -> set[str]:
    """Return the modules of the repository that a file imports; a name of a module counts as the module."""
    found = set()
    for name in imported_names(module, path, text):
        source = name if name in modules else name.rpartition(".")[0]
        if source in modules and source != module:
            found.add(source)
    return found


def circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """Return a circle of imports: each module imports the next one, and the last one is the first; [] if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_file_imports_itself_through_others() -> None:
    files = source_files()
    imports = {
        module: imported_modules(module, path, path.read_text(encoding="utf-8"), files.keys())
        for module, path in files.items()
    }
    found = " -> ".join(str(files[module].relative_to(_REPOSITORY)) for module in circle(imports))
    assert not found, f"these files import each other; move the common part, or use a protocol: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "import p.two",
        "import p.two as other",
        "from p.two import name",
        "from p import two",
        "from .two import name",
        "from . import two",
        "def f():\n    from p.two import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.two import name",
    ],
)
def test_each_form_of_import_is_found(text: str) -> None:
    assert imported_modules("p.one", Path("p/one.py"), text, {"p.one", "p.two"}) == {"p.two"}


def test_a_package_resolves_relative_imports_in_itself() -> None:
    assert imported_modules("p", Path("p/__init__.py"), "from .two import name", {"p", "p.two"}) == {"p.two"}


def test_a_circle_is_found_whatever_its_length() -> None:
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert sorted(circle({"a": {"b"}, "b": {"a"}})[1:]) == ["a", "b"]
    found = circle({"a": {"b", "x"}, "b": {"c"}, "c": {"a"}, "x": set()})
    assert found[0] == found[-1] and sorted(found[1:]) == ["a", "b", "c"]
    assert "".join(found) in {"abca", "bcab", "cabc"}
