"""The expressions of the dashboards and alerts, for tests.

Always true: a selector is a metric's name with its matchers, and each selector of an
expression is found. Knows nothing of Prometheus' functions.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

CONFIGS: Final = Path(__file__).parents[2] / "configs"
DASHBOARD_FOLDER: Final = CONFIGS / "grafana"
_SELECTOR: Final = re.compile(r"\b(foqs_\w+|process_\w+|up)\b(\{[^}]*\})?")
_EXPRESSION: Final = re.compile(r"^ +expr: (?:>-\n)?(.*?)\n {8}\w+:", re.MULTILINE | re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(namespace|topic|instance)\b")


def selectors_of(expression: str) -> list[tuple[str, str]]:
    """Return (metric, matchers in braces or nothing) of each selector of an expression."""
    return [(name, matchers) for name, matchers in _SELECTOR.findall(expression)]


def dashboard_expressions(rate_interval: str) -> dict[str, str]:
    """Return the expression of each target by "dashboard: panel: refId". Variables match everything."""
    found: dict[str, str] = {}
    for path in sorted(DASHBOARD_FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text = _VARIABLE.sub(".+", target["expr"]).replace("$__rate_interval", rate_interval)
                found[f"{path.stem}: {panel['title']}: {target['refId']}"] = text
    return found


def alert_expressions() -> list[str]:
    """Return the expression of each alert."""
    return [" ".join(text.split()) for text in _EXPRESSION.findall((CONFIGS / "alerts.yml").read_text())]
