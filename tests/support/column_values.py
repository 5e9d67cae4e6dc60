"""Values of the columns of a row, for property tests: any that its table can hold.

Always true: a column is a time, a number, a name or bytes by its type in the list of the columns, so a new one needs
no line here. Knows nothing of what a value means.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from foqs.core.items.item import GROUP_BYTES_MAX, DeliveryPolicy, State
from foqs.store.row_columns import ROW_COLUMNS, RowColumn

_KINDS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "DeliveryPolicy": st.sampled_from(DeliveryPolicy),
    "State": st.sampled_from(State),
    "str": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60),
    "bytes": st.one_of(st.binary(max_size=300), st.sampled_from([250, 251]).map(bytes)),
}
_SHORT: Final = {f"VARBINARY({GROUP_BYTES_MAX}) NULL": st.binary(max_size=GROUP_BYTES_MAX)}
"""The values of columns that hold less, by their type in MySQL."""


def column_values(**own: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Return a strategy for each column of `make_row`, and these instead of its own."""
    names = [column for column in ROW_COLUMNS if column.name not in ("id", "payload_bytes")]
    return {column.name: _values(column) for column in names} | own


def _values(column: RowColumn) -> st.SearchStrategy[Any]:
    if column.mysql in _SHORT:
        return st.none() | _SHORT[column.mysql]
    kind = column.type.removesuffix(" | None")
    least = 1 if column.mysql_none == 0 else 0
    values = (
        _KINDS[kind] if kind in _KINDS else st.integers(least, (1 << 50) if "BIGINT" in column.mysql else (1 << 31) - 1)
    )
    return st.none() | values if kind != column.type and column.name != "payload" else values
