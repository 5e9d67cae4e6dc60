"""A program that commits orders with the items that follow from them, until it is killed: the user of `perf.outbox_kills`.

Always true: the table of orders says what was committed, because each transaction writes its order; transactions of one row
group do not overlap; several are open at a time, and commit in reverse. The ways to enqueue are those of `WAYS`.

python -m perf.lib.outbox_user WAY DATABASE_URL ADDRESS FIRST END
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from random import Random
from typing import Any, Final

import psycopg

from foqs_client import FoqsError, Item, SyncClient
from foqs_client.outbox import enqueue

TOPIC: Final = "work"
GROUPS: Final = 99
OPEN: Final = 3
"""Transactions that are open at a time."""
ITEMS: Final = 2
"""Of each transaction."""
_ROLLED_BACK: Final = 0.1
_AGAIN_S: Final = 0.1


def group_of(number: int) -> str:
    """Return the row group of a transaction."""
    return str(number % GROUPS)


def payloads_of(number: int) -> list[bytes]:
    """Return the payloads of a transaction's items."""
    return [f"{group_of(number)}/{number}/{place}".encode() for place in range(ITEMS)]


class _Way:
    """How a program enqueues the items of a transaction."""

    def __init__(self, address: str) -> None:
        self.address = address

    def write(self, connection: Any, number: int) -> None:
        """Write into the open transaction what the items need."""

    def after_commit(self, number: int) -> None:
        """Do what follows the commit."""


class _Foqs(_Way):
    def write(self, connection: Any, number: int) -> None:
        items = [Item(TOPIC, payload) for payload in payloads_of(number)]
        enqueue(connection, items, row_groups=[group_of(number)] * len(items))


class _Txoutbox(_Way):
    def write(self, connection: Any, number: int) -> None:
        for payload in payloads_of(number):
            connection.execute(
                "INSERT INTO outbox (topic, key, payload) VALUES (%s, %s, %s)", (TOPIC, group_of(number), payload)
            )


class _OnCommit(_Way):
    """What a hook after the commit does: one call, which the client repeats within its time."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._client = SyncClient(address)

    def after_commit(self, number: int) -> None:
        with suppress(FoqsError):
            self._client.enqueue([Item(TOPIC, payload) for payload in payloads_of(number)])


WAYS: Final[Mapping[str, Callable[[str], _Way]]] = {
    "foqs": _Foqs, "txoutbox": _Txoutbox, "txoutbox-keys": _Txoutbox, "on-commit": _OnCommit,
}  # fmt: skip


def main(way_name: str, url: str, address: str, first: str, end: str) -> None:
    way = WAYS[way_name](address)
    connections: list[Any] = []
    for start in range(int(first), int(end), OPEN):
        part = range(start, min(start + OPEN, int(end)))
        try:
            connections = connections or [psycopg.connect(url, connect_timeout=5) for _ in range(OPEN)]
            _commit(way, connections, part)
        except psycopg.Error:  # the orders say what was committed
            for each in connections:
                with suppress(psycopg.Error), closing(each):
                    pass
            connections = []
            time.sleep(_AGAIN_S)
        print(part[-1], flush=True)


def _commit(way: _Way, connections: Sequence[Any], part: range) -> None:
    for connection, number in zip(connections, part, strict=False):
        way.write(connection, number)
        connection.execute("INSERT INTO orders VALUES (%s)", (number,))
    for connection, number in reversed(list(zip(connections, part, strict=False))):
        if Random(number).random() < _ROLLED_BACK:
            connection.rollback()
        else:
            connection.commit()
            way.after_commit(number)


if __name__ == "__main__":
    main(*sys.argv[1:])
