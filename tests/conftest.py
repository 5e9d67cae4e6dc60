"""Settings for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support import memory_folders
from tests.support.mysql9 import not_run

# A busy machine generates slowly; that says nothing of the product.
settings.register_profile("foqs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# --hypothesis-profile few: for another interpreter and the compiled modules, which do not depend on rare examples as the rules do.
# tests/support/example_counts.py uses it for histories too.
settings.register_profile("few", settings.get_profile("foqs"), max_examples=25)
settings.load_profile("foqs")

SLOW_PACKAGES: Final = ("spark", "integration", "simulation", "sqs", "behaviour", "contract")
"""Packages of tests with the slowest tests first. The others are quick."""


@pytest.fixture(scope="session", autouse=True)
def servers_in_memory(pytestconfig: pytest.Config) -> Iterator[None]:
    """Servers without a folder of their own have their data in memory, but in `make test-long`, whose tables are large."""
    with pytest.MonkeyPatch.context() as patch:
        if pytestconfig.getoption("markexpr") != "long":
            for module in ("server_process", "local_cluster"):
                patch.setattr(f"foqs.dev.{module}.temporary_folder", memory_folders.temporary_folder)
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the slow tests first, so that parallel workers end together: a quick test is the last one."""

    def rank(item: pytest.Item) -> int:
        package = item.path.relative_to(config.rootpath / "tests").parts[0]
        return SLOW_PACKAGES.index(package) if package in SLOW_PACKAGES else len(SLOW_PACKAGES)

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Leave out the tests themselves, half a million objects, when garbage is collected.

    Each full collection would hold a test's event loop for half a second of CPU, which
    is several seconds on a busy machine.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture
def leaves_tests_out_again() -> Iterator[None]:
    """After a test in which a host stops, which makes the collector look at all objects again."""
    yield
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests did not run because MySQL 9 is missing."""
    line = not_run(terminalreporter.getreports("skipped"))
    if line is not None:
        terminalreporter.write_line(line, yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    """Give tests and their children default signal handlers if `&` or nohup had signals ignored.

    A handler, unlike SIG_IGN, is not inherited by a program that is started.
    """
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # this process starts the workers, which inherit ignored signals, and runs no test
    gc.disable()  # until the tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _go_on)


def _go_on(*_: object) -> None:
    """Ignore the end of the terminal under nohup."""
