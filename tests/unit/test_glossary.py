"""The glossary is short, and names what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
_TERMS_MAX: Final = 70


def glossary_rows() -> list[tuple[str, str]]:
    """Return (term, column `in code`) of each row."""
    text = (_REPOSITORY / "docs/glossary.md").read_text(encoding="utf-8")
    rows = [re.split(r" ?\| ?", line)[1:4] for line in text.splitlines() if line.startswith("| ")]
    return [(term, names) for term, _, names in rows if term != "term"]


def test_glossary_has_few_terms_and_each_once() -> None:
    terms = [term for term, _ in glossary_rows()]
    assert 50 < len(terms) <= _TERMS_MAX
    assert len(set(terms)) == len(terms)


def test_names_of_the_glossary_are_in_the_code() -> None:
    paths = [path for root in ("foqs", "shardmgr", "client") for path in (_REPOSITORY / root).rglob("*.py")]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    for term, names in glossary_rows():
        for name in re.findall(r"`([^`/]+)`", names):
            assert set(name.split(".")) <= words, f"{term}: {name}"
