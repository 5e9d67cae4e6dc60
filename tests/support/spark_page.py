"""The page docs/spark.md, for the tests that run its programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
CLUSTER: Final = "On a cluster"
CONNECT: Final = "From Spark Connect"


def section(title: str) -> str:
    """Return the text of a section."""
    _, found, rest = PAGE.partition(f"\n## {title}\n")
    assert found, f"docs/spark.md has no section {title}"
    return rest.partition("\n## ")[0]


def program(title: str) -> str:
    """Return the only program of a section."""
    [found] = re.findall(r"^```python\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)
    return str(found)
