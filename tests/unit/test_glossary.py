"""The glossary is short, and names what exists. Names in the code follow its rules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
GLOSSARY: Final = _REPOSITORY / "docs/glossary.md"
_TERMS_MAX: Final = 70
_NAMES_OF_DJANGO: Final = {"Command", "Meta", "Migration"}
"""Django finds these classes by their names."""


def glossary_rows() -> list[tuple[str, str]]:
    """Return (term, column `in code`) of each row."""
    text = GLOSSARY.read_text(encoding="utf-8")
    rows = [re.split(r" ?\| ?", line)[1:4] for line in text.splitlines() if line.startswith("| ")]
    return [(term, names) for term, _, names in rows if term != "term"]


def source_files() -> list[Path]:
    return [path for root in ("foqs", "shardmgr", "client") for path in sorted((_REPOSITORY / root).rglob("*.py"))]


def test_glossary_has_few_terms_and_each_once() -> None:
    terms = [term for term, _ in glossary_rows()]
    assert 50 < len(terms) <= _TERMS_MAX
    assert len(set(terms)) == len(terms)


def test_names_of_the_glossary_are_in_the_code() -> None:
    words = {word for path in source_files() for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    for term, names in glossary_rows():
        for name in re.findall(r"`([^`/]+)`", names):
            assert set(name.split(".")) <= words, f"{term}: {name}"


@cache
def definitions() -> list[tuple[ast.stmt, str]]:
    """Return the classes and functions with their places, but those in `idl`: the contract names them."""
    return [
        (node, f"{path.relative_to(_REPOSITORY)}:{node.lineno}")
        for path in source_files()
        if "idl" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_no_two_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for node, place in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    several = {name: found for name, found in places.items() if len(found) > 1 and name not in _NAMES_OF_DJANGO}
    assert not several, f"rename all but one, or delete what is there twice: {several}"


def test_no_function_has_a_name_that_the_glossary_forbids() -> None:
    rule = re.search(r"No method is named just (.*)", GLOSSARY.read_text(encoding="utf-8"))
    assert rule is not None
    forbidden = set(re.findall(r"`(\w+)`", rule[1]))
    found = [
        f"{place}: {node.name}"
        for node, place in definitions()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in forbidden
    ]
    assert not found, f"add the object to the name: {found}"
