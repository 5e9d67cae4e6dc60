"""The committed writes of the databases of a cluster, recorded by triggers.

Always true: a line exists if and only if its write was committed, as both are in
one transaction. Each line of an owner row holds the values before. Knows the names
of the schema, the fence, and no host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from foqs.dev.mariadb_server import MariaDb

_WRITES: Final = ("INSERT", "UPDATE", "DELETE")
_FENCE, _ITEM = "fence", "item"


@dataclass(slots=True, frozen=True)
class Audited:
    """The counts of all shards: changes of epoch, fenced flushes, writes of items."""

    epochs: int
    flushes: int
    writes: int


class Audit:
    """The logs of all shards.

    Args:
        places: by shard, the server and the database of its tables.
    """

    def __init__(self, places: Mapping[int, tuple[MariaDb, str]]) -> None:
        self._places = places

    def install(self) -> None:
        """Makes tables and triggers; the shards' tables must be there."""
        for shard, (server, database) in self._places.items():
            audit, owner = f"{database}.audit_{shard}", f"{database}.foqs_{shard}_owner"
            server.query(
                f"CREATE TABLE {audit} (seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, what VARCHAR(8) NOT NULL, "
                "epoch BIGINT NOT NULL, flush BIGINT NOT NULL, connection BIGINT NOT NULL, "
                "old_epoch BIGINT NOT NULL, old_flush BIGINT NOT NULL) ENGINE = InnoDB"
            )
            head = f"INSERT INTO {audit} (what, epoch, flush, connection, old_epoch, old_flush)"
            server.query(
                f"CREATE TRIGGER {database}.audit_{shard}_owner AFTER UPDATE ON {owner} FOR EACH ROW {head} "
                f"VALUES ('{_FENCE}', NEW.epoch, NEW.flush, CONNECTION_ID(), OLD.epoch, OLD.flush)"
            )
            for write in _WRITES:
                server.query(
                    f"CREATE TRIGGER {database}.audit_{shard}_{write} AFTER {write} ON {database}.foqs_{shard}_item "
                    f"FOR EACH ROW {head} SELECT '{_ITEM}', epoch, flush, CONNECTION_ID(), epoch, flush FROM {owner}"
                )

    def remove(self) -> None:
        """Removes tables and triggers: nothing is recorded until `install`."""
        for shard, (server, database) in self._places.items():
            for event in ("owner", *_WRITES):
                server.query(f"DROP TRIGGER {database}.audit_{shard}_{event}")
            server.query(f"DROP TABLE {database}.audit_{shard}")

    def clear(self) -> None:
        """Forget all earlier records."""
        for shard, (server, database) in self._places.items():
            server.query(f"DELETE FROM {database}.audit_{shard}")

    def check(self) -> Audited:
        """Nothing of an old epoch was committed.

        - Each committed change of an owner row begins where the one before it ended,
          and (epoch, flush) never goes back.
        - Each write of an item belongs to a flush whose fence matched, over the same connection.

        Raises:
            AssertionError: with the shard and the lines.
        """
        epochs = flushes = written = 0
        for shard, (server, database) in self._places.items():
            lines = server.query(
                f"SELECT seq, what, epoch, flush, connection, old_epoch, old_flush FROM {database}.audit_{shard} ORDER BY seq"
            )
            owners = [line for line in lines if line[1] == _FENCE]
            for before, after in pairwise(owners):
                assert before[2:4] == after[5:7], f"shard {shard}: {after} does not follow {before}"
            for line in owners:
                assert line[2:4] >= line[5:7], f"shard {shard}: {line} goes back"
            fenced = {line[2:5] for line in owners if line[3] == line[6] + 1 and line[2] == line[5]}
            writes = [line for line in lines if line[1] == _ITEM]
            for line in writes:
                assert line[2:5] in fenced, f"shard {shard}: {line} is a write without its fence"
            epochs += sum(line[2] > line[5] for line in owners)
            flushes += len(fenced)
            written += len(writes)
        return Audited(epochs, flushes, written)
