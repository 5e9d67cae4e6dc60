"""What holds for all tests."""

from __future__ import annotations

import signal

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


def pytest_configure(config: pytest.Config) -> None:
    """Has tests and what they start get default signals, where `&` or nohup had them ignored.

    A handler, unlike SIG_IGN, is not inherited by a program that is started.
    """
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # this process starts the workers, which inherit what is ignored, and runs no test
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _go_on)


def _go_on(*_: object) -> None:
    """The end of the terminal ends no test under nohup."""
