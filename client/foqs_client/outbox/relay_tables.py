"""The tables of an outbox, as the relay that owns it reads and writes them. Calls block.

Holds `RelayTables`. Always true: reads and rounds use one connection; a round is written whole, and only while the owner row
has this relay's epoch and nonce and the number before it; a COMMIT whose outcome is unknown is
asked for under a lock, on a new connection. Knows nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs_client.outbox import relay_sql
from foqs_client.outbox.gaps import IdRange
from foqs_client.outbox.outbox_connection import OutboxConnection, TablesUnavailable
from foqs_client.outbox.relay_memory import ParkedRow, Round
from foqs_client.outbox.relay_state import RelayState, decode_state
from foqs_client.outbox.relayed_items import outbox_row
from foqs_client.outbox.row_groups import OutboxRow, places_of_bytes

PAGE_ROWS: Final = 500
_RANGES_PER_READ: Final = 200
"""SQLite allows expressions that are 1,000 deep."""
_ID_MAX: Final = (1 << 63) - 1
_REASON_CHARACTERS_MAX: Final = 255
_BEHIND: Final = "an earlier row of its row group was parked, and it is not known whether this one is in the queue"
_NO_REASON: Final[Mapping[int, str]] = {}


class LostOwnership(Exception):
    """Another relay has taken the outbox over, or the database has lost commits. This relay writes nothing more."""


@dataclass(slots=True, frozen=True)
class OutboxOwner:
    """The owner row. Without a nonce no relay owns the outbox."""

    epoch: int
    nonce: str
    round: int
    state: RelayState


class RelayTables:
    """The tables of one outbox.

    Args:
        connection: of this relay alone.
        nonce: 32 hexadecimal digits, random for each relay.
    """

    def __init__(self, connection: OutboxConnection, nonce: str) -> None:
        self.connection = connection
        self._dialect = connection.dialect
        self._nonce = nonce
        self._epoch = 0
        self._round = 0
        self._is_in_doubt = False
        """Whether the next round may have been committed already."""

    # ------------------------------------------------------------------ ownership

    def read_owner(self) -> OutboxOwner:
        """Return the owner row. It is created with the first call. Raises TablesUnavailable."""
        found = self.connection.query(relay_sql.READ_OWNER) or self._create_owner()
        epoch, nonce, number, state = found[0]
        try:
            return OutboxOwner(epoch, nonce.strip(), number, decode_state(bytes(state)))
        except (TypeError, ValueError) as error:
            raise TablesUnavailable(
                f"the column state of the owner row holds no state of a relay ({error}); restore it from a backup of the "
                "same moment. An empty one makes the relay read all rows again: those that were sent and not answered are "
                "sent with a new end of their keys, and may become second items"
            ) from None

    def _create_owner(self) -> list[tuple[Any, ...]]:
        try:
            self.connection.execute(relay_sql.FIRST_OWNER, (b"",))
        except TablesUnavailable:
            if found := self.connection.query(relay_sql.READ_OWNER):
                return found  # another relay has created it
            raise
        return self.connection.query(relay_sql.READ_OWNER)

    def take_over(self, owner: OutboxOwner) -> bool:
        """Become the owner after this one, whose state is that of its last round. Return False if it has written another one,
        or another relay was first.
        """
        count = self.connection.execute(relay_sql.TAKE_OVER, (self._nonce, owner.epoch, owner.round))
        self._epoch, self._round = owner.epoch + 1, 0
        return count == 1

    def leave(self) -> None:
        """Let another relay take over at once. The fence of this one matches no row any more. Raises TablesUnavailable."""
        self.connection.execute(relay_sql.LEAVE, (self._epoch, self._nonce, self._round))

    def read_stamped(self, state: RelayState) -> list[OutboxRow]:
        """Return the rows of the stamps that are there, in the outbox or among the parked rows."""
        ids = [id for stamp in state.stamps for id in stamp.ids]
        rows: list[OutboxRow] = []
        for start in range(0, len(ids), PAGE_ROWS):
            part = ids[start : start + PAGE_ROWS]
            rows += self._read_ids(part)
            rows += [each.row for each in self._read_parked_ids(part)]
        return rows

    # ---------------------------------------------------------------------- reads

    def read_above(self, id: int, to: int = _ID_MAX) -> list[OutboxRow]:
        """Return the first committed rows above an id, by id, at most `PAGE_ROWS`, and fewer if they are long. None: there is none."""
        while sizes := self.connection.query(relay_sql.READ_SIZES_ABOVE, (id, to, PAGE_ROWS)):
            last = _page_of(sizes)[-1]
            if rows := self.connection.query(relay_sql.READ_ABOVE, (id, last, PAGE_ROWS)):
                return list(map(outbox_row, rows))
            id = last  # somebody has deleted them meanwhile
        return []

    def read_ranges(self, ranges: Sequence[IdRange]) -> tuple[list[OutboxRow], bool]:
        """Return the first rows in these rising ranges, by id, and whether they are all."""
        sizes: list[tuple[Any, ...]] = []
        for start in range(0, len(ranges), _RANGES_PER_READ):
            part = ranges[start : start + _RANGES_PER_READ]
            where = " OR ".join(["id BETWEEN ? AND ?"] * len(part))
            values = [*(bound for each in part for bound in each), PAGE_ROWS + 1 - len(sizes)]
            sizes += self.connection.query(relay_sql.READ_SIZES_IN, values, ranges=where)
            if len(sizes) > PAGE_ROWS:
                break
        ids = _page_of(sizes)
        return self._read_ids(ids), len(ids) == len(sizes)

    def read_parked(self, known: Container[int] = (), *, wants_items: bool = True) -> list[ParkedRow]:
        """Return the parked rows, by id. The first ones with a verdict have their items; the others are as if they had none.

        Args:
            known: ids of rows whose items are not read.
            wants_items: False: no item is read.
        """
        sizes = self.connection.query(relay_sql.READ_SIZES_RESENT) if wants_items else []
        resent = {
            each.row.id: each for each in self._read_parked_ids(_page_of([row for row in sizes if row[0] not in known]))
        }
        return [
            resent.get(id) or ParkedRow(OutboxRow(id, row_group, may_be_queued=bool(may_be_queued)))
            for id, row_group, may_be_queued in self.connection.query(relay_sql.READ_PARKED)
        ]

    def _read_ids(self, ids: Sequence[int]) -> list[OutboxRow]:
        """Return the rows of these ids that are there, by id."""
        found = self.connection.query(relay_sql.READ_IDS, ids, marks=_marks(ids)) if ids else []
        return sorted(map(outbox_row, found), key=lambda row: row.id)

    def _read_parked_ids(self, ids: Sequence[int]) -> list[ParkedRow]:
        found = self.connection.query(relay_sql.READ_PARKED_IDS, ids, marks=_marks(ids)) if ids else []
        return [
            ParkedRow(outbox_row(values, may_be_queued=bool(may_be_queued)), verdict)
            for *values, may_be_queued, verdict in found
        ]

    # --------------------------------------------------------------------- rounds

    def commit_round(self, round: Round, reasons: Mapping[int, str] = _NO_REASON) -> None:
        """Write a round in one transaction.

        Args:
            reasons: of the rows that it parks, by id.

        Raises:
            LostOwnership: nothing of it may be sent.
            TablesUnavailable: the outcome is unknown: repeat this round before anything else.
        """
        number = self._round + 1
        try:
            if not (self._is_in_doubt and self._is_committed(number)):
                self._is_in_doubt = True
                self.connection.execute(relay_sql.BEGIN[self._dialect])
                self._write_round(number, round, reasons)
                self.connection.execute("COMMIT")
        except BaseException:
            self.close()
            raise
        self._is_in_doubt = False
        self._round = number

    def _write_round(self, number: int, round: Round, reasons: Mapping[int, str]) -> None:
        values = (number, round.state.encode(), self._epoch, self._nonce, number - 1)
        if self.connection.execute(relay_sql.FENCE, values) != 1:
            raise LostOwnership("another relay has taken this outbox over, or its database has lost commits")
        for row in round.parked:
            reason = (reasons.get(row.id, _BEHIND)[:_REASON_CHARACTERS_MAX], int(row.may_be_queued), row.id)
            if not self.connection.execute(relay_sql.PARK, reason):
                self.connection.execute(relay_sql.PARK_AGAIN, reason)
        leaving = [*round.deleted, *(row.id for row in round.parked)]
        for start in range(0, len(leaving), PAGE_ROWS):
            part = leaving[start : start + PAGE_ROWS]
            self.connection.execute(relay_sql.DELETE_ROWS, part, marks=_marks(part))
        for start in range(0, len(round.deleted), PAGE_ROWS):
            part = round.deleted[start : start + PAGE_ROWS]
            self.connection.execute(relay_sql.DELETE_PARKED, part, marks=_marks(part))

    def _is_committed(self, number: int) -> bool:
        """Return whether this round is in the owner row. Its transaction has ended when the lock is had."""
        self.connection.execute(relay_sql.BEGIN[self._dialect])
        found = self.connection.query(relay_sql.READ_OWNER + relay_sql.LOCK[self._dialect])
        self.connection.execute("COMMIT")
        if not found:
            raise LostOwnership("the owner row was deleted")
        epoch, nonce, written, _ = found[0]
        if (epoch, nonce.strip()) != (self._epoch, self._nonce) or written not in (number - 1, number):
            raise LostOwnership("the owner row is not the one that this relay wrote")
        return bool(written == number)

    # ----------------------------------------------------------------- connection

    def close(self) -> None:
        """Close the connection, which ends its transaction. The next call opens another one."""
        self.connection.close()


def _page_of(sizes: Iterable[tuple[Any, ...]]) -> list[int]:
    """Return the ids of the first rows that fit into a page, of ids and lengths of payloads."""
    ids: list[int] = []
    places = PAGE_ROWS
    for id, payload_bytes in sizes:
        if places <= 0:
            break
        places -= places_of_bytes(int(payload_bytes))
        ids.append(id)
    return ids


def _marks(ids: Sequence[int]) -> str:
    return ", ".join(["?"] * len(ids))
