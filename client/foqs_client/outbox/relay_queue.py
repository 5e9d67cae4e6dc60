"""The queue as a relay reaches it: through a client.

Holds `ClientQueue`. Always true: each row of a call gets an answer of its own; a row is refused only by an answer to
that row, or to a call that has no other; a part whose call fails says nothing of the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from foqs_client.client import Client
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.outbox.relay_memory import SendCall
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.types import Item

_CALL_BYTES_MAX: Final = 4 << 20
"""The payloads of one enqueue. A longer frame would close the connection."""

Answers = dict[int, FoqsError | None]


class ClientQueue:
    """The namespace of a client, as `SendQueue`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def keys_until_ms(self) -> int:
        """See `SendQueue`."""
        return await self._client.keys_until_ms()

    async def send(self, call: SendCall) -> Answers:
        """See `SendQueue`. Raises nothing."""
        answers: Answers = {}
        for rows in _parts(call.rows):
            answers |= await self._send(rows, call.keys_until_ms)
        return answers

    async def _send(self, rows: Sequence[OutboxRow], keys_until_ms: int) -> Answers:
        items = [replace(_item(row), key_until_ms=keys_until_ms) for row in rows]
        try:
            results = await self._client.enqueue(items)
        except FoqsError as error:
            is_refused = isinstance(error, InvalidArgument | LimitExceeded) and error.retry_after_ms is None
            if len(rows) == 1 or not is_refused:
                return dict.fromkeys([row.id for row in rows], error)
            middle = len(rows) // 2  # one of them is wrong, or they are too many
            return await self._send(rows[:middle], keys_until_ms) | await self._send(rows[middle:], keys_until_ms)
        return {row.id: result.error for row, result in zip(rows, results, strict=True)}


def _item(row: OutboxRow) -> Item:
    assert isinstance(row.item, Item)
    return row.item


def _parts(rows: Sequence[OutboxRow]) -> Iterator[list[OutboxRow]]:
    """Yield the rows of each enqueue."""
    part: list[OutboxRow] = []
    size = 0
    for row in rows:
        row_bytes = len(_item(row).payload)
        if part and size + row_bytes > _CALL_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(row)
        size += row_bytes
    if part:
        yield part
