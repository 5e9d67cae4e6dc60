"""Converts rows to items.

Holds `RowConverter`: it makes items of columns, each with its namespace and its key.
Always true: a row makes the same item whenever it is read. Values that the client
cannot send are refused here; hosts check the rest. Pure; a column is a list with a
value, or None, for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Final, TypeAlias

from foqs_client.spark.item_columns import COLUMNS, VALUE_BYTES_MAX, Column, UncheckedText
from foqs_client.spark.options import OnError, OptionValue
from foqs_client.spark.row_errors import MalformedRow, RowErrors, row_content
from foqs_client.spark.row_keys import RowKeys
from foqs_client.types import Item
from foqs_contract.key_slots import group_slot_of, key_slot_of

NAMESPACE_DEFAULT: Final = "default"

CallGroup: TypeAlias = tuple[str, int]
"""(namespace, group of key slots): the items of a call are of one group, because its slots tend to belong to one shard."""

_FALLBACK_VALUES: Final[Mapping[str, OptionValue]] = {
    "payload": b"",
    "priority": 0,
    "metadata": b"",
    "namespace": NAMESPACE_DEFAULT,
}
"""The values if neither a column nor an option gives one."""


class RowConverter:
    """Converts the rows of one partition.

    Args:
        defaults: by column, the value of rows that have none.
        keys: makes the keys of rows without one.
        group_count: the number of groups of key slots, at best the number of shards.
        errors: decides on the treatment of malformed rows.
    """

    def __init__(self, defaults: Mapping[str, OptionValue], keys: RowKeys, group_count: int, errors: RowErrors) -> None:
        self._defaults = {**_FALLBACK_VALUES, **defaults}
        self._keys = keys
        self._group_count = group_count
        self._errors = errors

    def items(self, columns: Mapping[str, Sequence[Any]], count: int) -> dict[CallGroup, list[Item]]:
        """Return the items of `count` rows, by group. Raises SinkError."""
        by_group: dict[CallGroup, list[Item]] = {}
        try:
            values = [self._filled(name, columns.get(name), count) for name in COLUMNS]
        except MalformedRow:
            if self._errors.on_error is OnError.FAIL:
                raise
            columns, count = self._sound_rows(columns, count, by_group)
            values = [self._filled(name, columns.get(name), count) for name in COLUMNS]
        group_count, key_of = self._group_count, self._keys.key
        for (
            topic,
            payload,
            priority,
            metadata,
            deliver_after_ms,
            ttl_ms,
            lease_ms,
            own_key,
            namespace,
            trace,
            item_group,
        ) in zip(*values, strict=True):
            # The key does not depend on the trace: another attempt of the task may have another one.
            key = (
                key_of(namespace, topic, payload, priority, metadata, deliver_after_ms, ttl_ms, lease_ms, item_group)
                if own_key is None
                else own_key
            )
            item = Item(
                topic,
                payload,
                priority,
                metadata,
                None,
                deliver_after_ms,
                lease_ms,
                ttl_ms,
                idempotency_key=key,
                trace_context=trace,
                group=item_group,
            )
            slot = (
                key_slot_of(key.encode())
                if item_group is None
                else group_slot_of(namespace.encode(), item_group.encode())
            )
            group = namespace, slot % group_count
            if group in by_group:
                by_group[group].append(item)
            else:
                by_group[group] = [item]
        return by_group

    def _sound_rows(
        self, columns: Mapping[str, Sequence[Any]], count: int, by_group: dict[CallGroup, list[Item]]
    ) -> tuple[Mapping[str, Sequence[Any]], int]:
        """Return the rows that can be items. Add the dead letters of the others to `by_group`."""
        sound: list[int] = []
        for place in range(count):
            row = {name: column[place] for name, column in columns.items()}
            try:
                for name, value in row.items():
                    self._filled(name, UncheckedText([value]), 1)
            except MalformedRow as error:
                namespace = self._namespace_of(row)
                filled = {**self._defaults, **_without_nulls(row)}
                dead_letter = self._errors.malformed(filled, error)
                if dead_letter is not None:
                    key = dead_letter.idempotency_key or self._keys.dead_letter_key(namespace, row_content(filled))
                    group = namespace, key_slot_of(key.encode()) % self._group_count
                    by_group.setdefault(group, []).append(replace(dead_letter, idempotency_key=key))
            else:
                sound.append(place)
        return {name: [column[place] for place in sound] for name, column in columns.items()}, len(sound)

    def _namespace_of(self, row: Mapping[str, Any]) -> str:
        """Return the namespace of the dead letter of a row."""
        found = row.get("namespace")
        return found if isinstance(found, str) and len(found) <= VALUE_BYTES_MAX else str(self._defaults["namespace"])

    def _filled(self, name: str, column: Sequence[Any] | None, count: int) -> Iterable[Any]:
        """Return a value for each row. Raises SinkError."""
        default = self._defaults.get(name)
        if column is None:
            return repeat(default, count)
        values = [value for value in column if value is not None]
        if isinstance(column, UncheckedText) and not COLUMNS[name].is_bytes and bytes in set(map(type, values)):
            raise _bad_value_error(name, "not UTF-8", "decode or repair it first")
        _check_values(name, COLUMNS[name], values)
        if len(values) == count:
            return values
        if name == "topic" and default is None:
            raise _bad_value_error(name, "null", 'set it, or give all such rows a topic by .option("topic", "...")')
        return [default if value is None else value for value in column]


def _check_values(name: str, column: Column, values: Sequence[Any]) -> None:
    """Raise SinkError if a value cannot be sent."""
    if not values:
        return
    if column.is_number:
        for value in (min(values), max(values)):
            if not column.value_min <= value <= column.value_max:
                raise _bad_value_error(name, str(value), f"it must be from {column.value_min} to {column.value_max}")
        return
    longest = max(map(len, values))
    if longest > VALUE_BYTES_MAX:
        remedy = (
            f"no host accepts more than {VALUE_BYTES_MAX} bytes: store the data elsewhere and its address in the item"
        )
        raise _bad_value_error(name, f"{longest} long", remedy)


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _bad_value_error(name: str, value: str, remedy: str) -> MalformedRow:
    return MalformedRow(f"the column {name} of a row is {value}; {remedy}", name)


def batches(items: Sequence[Item], items_max: int, bytes_max: int) -> list[Sequence[Item]]:
    """Split the items of a group into calls of about the same length. A larger item is sent alone.

    Args:
        items: the items.
        items_max: the maximum number of items of a call.
        bytes_max: the maximum number of bytes of payload, metadata and trace context of a call.
    """
    if not items:
        return []
    sizes = [len(item.payload) + len(item.metadata) + len(item.trace_context or b"") for item in items]
    calls = max(-(-len(items) // items_max), -(-sum(sizes) // bytes_max))
    length = -(-len(items) // calls)
    found: list[Sequence[Item]] = []
    begin = total_bytes = 0
    for place, size in enumerate(sizes):
        if place > begin and (place - begin == length or total_bytes + size > bytes_max):
            found.append(items[begin:place])
            begin, total_bytes = place, 0
        total_bytes += size
    found.append(items[begin:])
    return found
