"""A consumer with an inbox in a process of its own. It kills or stops itself at a step, or works until the topic is empty.

python -m tests.support.inbox_process ADDRESS URL [STEP SIGNAL]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from foqs_client import Delivery, SyncClient
from foqs_client.inbox import once

TOPIC = "work"
STEPS = ("dequeued", "inserted", "committed", "acked")
"""Each step of a handler: before its transaction, in it, after the commit, after the ack."""


def handle(client: SyncClient, engine: sa.Engine, delivery: Delivery, at_step: Callable[[str], None]) -> None:
    """Do the work of an item once, and ack it. If the database fails, the item comes again."""
    at_step("dequeued")
    try:
        with engine.begin() as connection:
            if once(connection, delivery):
                connection.execute(sa.text("INSERT INTO effect VALUES (:work)"), {"work": delivery.payload.decode()})
            at_step("inserted")
    except DBAPIError:
        client.nack([delivery])
        return
    at_step("committed")
    client.ack([delivery])
    at_step("acked")


def main(address: str, url: str, step: str = "", signal_name: str = "SIGKILL") -> None:
    left = [step]

    def at_step(name: str) -> None:
        if left == [name]:
            left.clear()
            os.kill(os.getpid(), signal.Signals[signal_name])

    engine = sa.create_engine(url, poolclass=NullPool)
    with SyncClient(address, timeout_ms=60_000) as client:
        while client.topics().topics:
            for delivery in client.dequeue({TOPIC: 1}, wait_ms=200):
                handle(client, engine, delivery, at_step)


if __name__ == "__main__":
    main(*sys.argv[1:])
