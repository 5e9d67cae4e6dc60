"""The glossary is short, and names what exists; a class has one name and a name one class."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
_TERMS_MAX: Final = 70


def glossary_rows() -> list[tuple[str, str]]:
    """Return (term, column `in code`) of each row."""
    text = (_REPOSITORY / "docs/glossary.md").read_text(encoding="utf-8")
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


def test_no_two_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in source_files():
        # The contract names the structs in `idl`; the classes beside them have their own names or are made from them.
        if "idl" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(_REPOSITORY)}:{node.lineno}")
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert not several, f"rename all but one, or delete what is there twice: {several}"
