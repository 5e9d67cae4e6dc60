"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.mysql9 import not_run

# A busy machine generates slowly; that says nothing of the product.
settings.register_profile("foqs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("foqs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much was not tested on MySQL 9, where it is missing."""
    told = not_run(terminalreporter.getreports("skipped"))
    if told is not None:
        terminalreporter.write_line(told, yellow=True)
