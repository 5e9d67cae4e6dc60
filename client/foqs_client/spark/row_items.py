"""Rows to items.

Holds `Maker`: the columns of some rows become items, each with its namespace and
its key. Always true: a row makes the same item whenever it is read; what the
client could not send is refused here, and what a host does not take is left to
the host. Pure; a column is a list with a value, or None, for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

from foqs_client.routing_table import key_slot_of
from foqs_client.spark.item_columns import COLUMNS, Column, SinkError
from foqs_client.spark.options import OptionValue
from foqs_client.spark.row_keys import RowKeys
from foqs_client.types import Item

VALUE_BYTES_MAX: Final = 1 << 20
"""No namespace allows a larger payload, and a frame of several might be too long for a host."""
NAMESPACE_DEFAULT: Final = "default"

CallGroup: TypeAlias = tuple[str, int]
"""Items that may share a call: of one namespace, and of slots that tend to be of one shard."""

_FALLBACK_VALUES: Final[Mapping[str, OptionValue]] = {
    "payload": b"",
    "priority": 0,
    "metadata": b"",
    "namespace": NAMESPACE_DEFAULT,
}
"""What holds where neither column nor option says."""


class RowConverter:
    """Of one partition.

    Args:
        defaults: by column, the value of rows that have none.
        keys: for rows without one.
        key_slot_count: see `RowKeys`.
    """

    def __init__(self, defaults: Mapping[str, OptionValue], keys: RowKeys, key_slot_count: int) -> None:
        self._defaults = {**_FALLBACK_VALUES, **defaults}
        self._keys = keys
        self._key_slot_count = key_slot_count

    def items(self, columns: Mapping[str, Sequence[Any]], count: int) -> dict[CallGroup, list[Item]]:
        """The items of `count` rows, by lane. Raises SinkError."""
        values = [self._filled(name, columns.get(name), count) for name in COLUMNS]
        lanes, key_of = self._key_slot_count, self._keys.key
        made: dict[CallGroup, list[Item]] = {}
        for topic, payload, priority, metadata, deliver_after_ms, ttl_ms, lease_ms, given, namespace in zip(
            *values, strict=True
        ):
            key = (
                key_of(namespace, topic, payload, priority, metadata, deliver_after_ms, ttl_ms, lease_ms)
                if given is None
                else given
            )
            item = Item(
                topic, payload, priority, metadata, None, deliver_after_ms, lease_ms, ttl_ms, idempotency_key=key
            )
            lane = namespace, key_slot_of(key) % lanes
            if lane in made:
                made[lane].append(item)
            else:
                made[lane] = [item]
        return made

    def _filled(self, name: str, column: Sequence[Any] | None, count: int) -> Iterable[Any]:
        """A value for each row. Raises SinkError."""
        default = self._defaults.get(name)
        if column is None:
            return repeat(default, count)
        given = [value for value in column if value is not None]
        _check_values(name, COLUMNS[name], given)
        if len(given) == count:
            return given
        if name == "topic" and default is None:
            raise _bad_value_error(name, "null", 'give it one, or give all such rows one by .option("topic", "...")')
        return [default if value is None else value for value in column]


def _check_values(name: str, column: Column, given: Sequence[Any]) -> None:
    """Raises SinkError where a value could not be sent."""
    if column.is_number:
        for value in (min(given, default=column.value_min), max(given, default=column.value_min)):
            if not column.value_min <= value <= column.value_max:
                raise _bad_value_error(name, str(value), f"it must be from {column.value_min} to {column.value_max}")
        return
    longest = max(map(len, given), default=0)
    if longest > VALUE_BYTES_MAX:
        remedy = (
            f"no host takes more than {VALUE_BYTES_MAX} bytes: put the bulk elsewhere and its address into the item"
        )
        raise _bad_value_error(name, f"{longest} long", remedy)


def _bad_value_error(name: str, value: str, remedy: str) -> SinkError:
    return SinkError(f"the column {name} of a row is {value}; {remedy}")


def batches(items: Sequence[Item], items_max: int, bytes_max: int) -> list[Sequence[Item]]:
    """Items of one lane as calls, of about the same length; a larger item goes alone.

    Args:
        items_max, bytes_max: of a call; bytes of payload and metadata.
    """
    if not items:
        return []
    sizes = [len(item.payload) + len(item.metadata) for item in items]
    calls = max(-(-len(items) // items_max), -(-sum(sizes) // bytes_max))
    length = -(-len(items) // calls)
    found: list[Sequence[Item]] = []
    begin = held = 0
    for place, size in enumerate(sizes):
        if place > begin and (place - begin == length or held + size > bytes_max):
            found.append(items[begin:place])
            begin, held = place, 0
        held += size
    found.append(items[begin:])
    return found
