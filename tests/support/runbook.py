"""The commands of the runbook and of other pages, for tests that run them.

Always true: each command is word for word in its page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

RUNBOOK: Final = Path(__file__).parents[2] / "docs" / "runbook.md"
REGIONS: Final = RUNBOOK.with_name("regions.md")


def section(title: str, page: Path = RUNBOOK) -> str:
    """The text under a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", page.read_text(), re.MULTILINE)
    assert found, f"{page.name} has no section {title!r}"
    rest = page.read_text()[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def blocks(title: str, language: str) -> list[str]:
    """The code blocks of a section in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
