"""The audit of committed writes finds each kind of write by a former owner."""

from __future__ import annotations

from typing import Any, cast

import pytest

from foqs.dev.mariadb_server import MariaDb
from tests.support.audit import Audit, Audited

Line = tuple[int, str, int, int, int, int, int]


class Log:
    """A server that holds these lines."""

    def __init__(self, *lines: Line) -> None:
        self._lines = lines

    def query(self, text: str, *values: object) -> list[Any]:
        return list(self._lines)


TAKEOVER: Line = (1, "fence", 2, 0, 71, 1, 9)
FLUSH: Line = (2, "fence", 2, 1, 71, 2, 0)
WRITE: Line = (3, "item", 2, 1, 71, 2, 1)
RECONNECTED: Line = (4, "fence", 2, 1, 72, 2, 1)


def audited(*lines: Line) -> Audited:
    return Audit({0: (cast(MariaDb, Log(*lines)), "d")}).check()


def test_takeovers_flushes_and_writes_are_counted() -> None:
    assert audited(TAKEOVER, FLUSH, WRITE, RECONNECTED) == Audited(epochs=1, flushes=1, writes=1)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        pytest.param([TAKEOVER, FLUSH, (4, "fence", 1, 10, 70, 2, 1)], "goes back", id="the old epoch's flush"),
        pytest.param([TAKEOVER, FLUSH, (4, "fence", 2, 0, 71, 2, 1)], "goes back", id="a flush number again"),
        pytest.param([TAKEOVER, (4, "fence", 1, 10, 70, 1, 9)], "does not follow", id="two flushes after one"),
        pytest.param([TAKEOVER, FLUSH, (3, "item", 2, 1, 70, 2, 1)], "without its fence", id="over another connection"),
        pytest.param([TAKEOVER, (3, "item", 2, 0, 71, 2, 0)], "without its fence", id="before any flush"),
    ],
)
def test_a_write_of_a_former_owner_is_found(lines: list[Line], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        audited(*lines)
