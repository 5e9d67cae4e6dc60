"""Writes what repeats the columns of a row, from their list in foqs.store.row_columns.

Holds a function for each generated block. A block stands in its file between two comments,
`columns: begin NAME` and `columns: end`. It is code that runs for every item, straight as if
written by hand, or a table of a document. Always true: only the text between the comments is
replaced, and the same list gives the same bytes.

    python tools/columns.py            writes
    python tools/columns.py --check    exits 1 when a block is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "client"))

from foqs.store import row_columns  # noqa: E402 - the project need not be installed
from foqs.store.row_columns import (  # noqa: E402
    FIRST_LEASE_COLUMNS,
    LEASE_COLUMNS,
    MUTABLE_COLUMNS,
    ROW_COLUMNS,
    RowColumn,
    WrittenBy,
)

_BLOCK: Final = re.compile(
    r"^(?P<head> *(?:#|<!--) columns: begin (?P<name>[\w ]+?)(?: -->)?\n)(?P<body>.*?)(?P<tail> *(?:#|<!--) columns: end)",
    re.DOTALL | re.MULTILINE,
)
_ENUMS: Final = {"DeliveryPolicy": "POLICIES", "State": "STATES"}
"""The types of numbers with names, and the tables from number to value."""
_AFTER_FUNCTION: Final = "\n\n"
"""As the formatter has it."""
_NAMED_BYTES: Final = ("payload", "metadata")
"""The bytes that every item has: `encode_rows` caches their lengths."""


class Failed(Exception):
    """One sentence that says what is wrong and what to do."""


def _listed(head: str, values: Iterable[str], tail: str) -> str:
    """Return a call with each argument on a line of its own."""
    indent = head[: len(head) - len(head.lstrip())]
    return head + "\n" + "".join(f"{indent}    {value},\n" for value in values) + f"{indent}{tail}\n"


def _mutable() -> list[RowColumn]:
    return [column for column in ROW_COLUMNS if column.name in MUTABLE_COLUMNS]


# ----------------------------------------------------------------- the core


def row_class() -> str:
    """Return the fields of `Row`, its constructor, its copy and its lease."""
    parts = []
    for column in ROW_COLUMNS:
        parts.append(f"    {column.name}: {column.type}\n")
        if column.meaning:
            parts.append(f'    """{column.meaning[0].upper()}{column.meaning[1:]}."""\n')
    parameters = [_parameter(column.name, column.type, column.default) for column in ROW_COLUMNS]
    parts += [
        "\n    # Written out, because mypyc compiles this constructor and not that of a dataclass.\n",
        _constructor(parameters),
        *[f"        self.{column.name} = {column.name}\n" for column in ROW_COLUMNS],
        "\n    def copy(self) -> Row:\n",
        '        """Return a row of the same values. Not `replace`, which is slow."""\n',
        _listed("        return Row(", [f"self.{column.name}" for column in ROW_COLUMNS], ")"),
        "\n    def with_lease(self, due_ms: int, token: int, now_ms: int) -> Row:\n",
        '        """Return this row with a new lease, given at `now_ms`. Not a changed copy: this runs for every delivery."""\n',
        _listed("        return Row(", [column.when_leased or f"self.{column.name}" for column in ROW_COLUMNS], ")"),
        "\n",
    ]
    return "".join(parts)


def row_of_new_item() -> str:
    """Return the statement that returns the row of a new item. It is in two functions: a call would take longer."""
    values = [column.when_new or column.name for column in ROW_COLUMNS]
    # An argument that is left out takes less time than one with the default.
    while ROW_COLUMNS[len(values) - 1].default == values[-1]:
        values.pop()
    return _listed("    return Row(", values, ")")


_KEY: Final = ("idempotency_key: bytes", "digest: bytes")
_KEY_END: Final = ("key_until_ms: int | None = None",)
_HISTORY: Final = ("state: State", "attempt: int", "ttl_remaining_ms: int | None")


def _given() -> list[tuple[str, str, str]]:
    """Return name, type and default of the values of a new item: those that its row takes, and when it is delivered."""
    found = []
    for column in ROW_COLUMNS:
        if column.when_new == f"item.{column.name}":
            # A new item always has its payload.
            kind = column.type.removesuffix(" | None") if column.name == "payload" else column.type
            found.append((column.name, kind, column.default))
        elif column.name == "deliver_after_ms":
            found += [("delay_ms", "int | None", ""), (column.name, "int | None", "")]
    return found


def _parameter(name: str, kind: str, default: str) -> str:
    return f"{name}: {kind}{f' = {default}' if default else ''}"


def _constructor(parameters: Iterable[str]) -> str:
    return _listed("    def __init__(", ["self", *parameters], ") -> None:")


def new_item_class() -> str:
    """Return the fields of `NewItem`, and its constructor."""
    given = _given()
    return (
        "".join(f"    {name}: {kind}\n" for name, kind, _ in given)
        + "\n"
        + _constructor(_parameter(*each) for each in given)
        + "".join(f"        self.{name} = {name}\n" for name, _, _ in given)
        + "\n"
    )


def keyed_item_class() -> str:
    """Return the constructor of `KeyedItem`."""
    required = [_parameter(*each) for each in _given() if not each[2]]
    optional = [_parameter(*each) for each in _given() if each[2]]
    return (
        _constructor([*required, *_KEY, *optional, *_KEY_END])
        + _listed("        NewItem.__init__(", ["self", *[name for name, _, _ in _given()]], ")")
        + _assignments([*_KEY, *_KEY_END])
        + "\n"
    )


def item_with_history_class() -> str:
    """Return the constructor of `ItemWithHistory`."""
    given = [each for each in _given() if each[0] != "delay_ms"]
    required = [_parameter(*each) for each in given if not each[2]]
    optional = [_parameter(*each) for each in given if each[2]]
    names = [("None" if name == "delay_ms" else name, default) for name, _, default in _given()]
    values = [name for name, default in names if not default], [name for name, default in names if default]
    keys = [each.split(":")[0] for each in _KEY]
    return (
        _constructor([*required, *_KEY, *_HISTORY, *optional])
        + _listed("        KeyedItem.__init__(", ["self", *values[0], *keys, *values[1]], ")")
        + _assignments(_HISTORY)
        + "\n"
    )


def _assignments(parameters: Iterable[str]) -> str:
    names = [each.split(":")[0] for each in parameters]
    return "".join(f"        self.{name} = {name}\n" for name in names)


# ---------------------------------------------------------------- all stores


def _stored(column: RowColumn) -> str:
    return f"int(row.{column.name})" if column.type in _ENUMS else f"row.{column.name}"


def _read(column: RowColumn) -> str:
    return f"{_ENUMS[column.type]}[{column.name}]" if column.type in _ENUMS else column.name


def row_tuples() -> str:
    """Return the conversions between rows and tuples."""
    names = [column.name for column in ROW_COLUMNS]
    return (
        "def row_of(values: Sequence[Any]) -> Row:\n"
        '    """Make a row from a tuple in the order of `COLUMNS`, whose names are text already."""\n'
        "    # Converted first, because a compiled `Row` checks the types of its fields. Named, because that is fastest.\n"
        + _listed("    (", names, ") = values")
        + _listed("    return Row(", map(_read, ROW_COLUMNS), ")")
        + "\n\ndef all_values(row: Row) -> tuple[int | str | bytes | None, ...]:\n"
        + '    """Return a row as a tuple in the order of `COLUMNS`."""\n'
        + _listed("    return (", map(_stored, ROW_COLUMNS), ")")
        + "\n\ndef mutable_values(row: Row) -> tuple[int | str | bytes | None, ...]:\n"
        + '    """Return a row\'s mutable columns in the order of `MUTABLE_COLUMNS`."""\n'
        + _listed("    return (", map(_stored, _mutable()), ")")
        + _AFTER_FUNCTION
    )


# --------------------------------------------------------------------- MySQL


def _none_name(column: RowColumn) -> str:
    """Return the name of the number that stands for None."""
    return next(
        name for name, value in vars(row_columns).items() if value == column.mysql_none and name.endswith("_MS")
    )


def _decoded(column: RowColumn) -> str:
    if column.type == "str":
        return f"_decode_name({column.name})"
    if column.mysql_none is None:
        return _read(column)
    if column.mysql_none == 0:
        return f"{column.name} or None"
    return f"None if {column.name} == {_none_name(column)} else {column.name}"


def mysql_decoding() -> str:
    """Return the function that decodes rows of MySQL."""
    row = _listed("        Row(", map(_decoded, ROW_COLUMNS), ")")
    names = _listed("        for (", [column.name for column in ROW_COLUMNS], ") in result.rows")
    return (
        "def decode_rows(results: Iterable[Result]) -> list[Row]:\n"
        '    """Decode the rows of any number of statements."""\n'
        "    # As `row_of`, in one step, because most rows of a long backlog are read once.\n"
        f"    return [\n{row}        for result in results\n{names}    ]\n{_AFTER_FUNCTION}"
    )


def _number(column: RowColumn, row: str = "row") -> str:
    """Return the number that MySQL gets."""
    value = f"{row}.{column.name}"
    return value if column.mysql_none is None else f"{_none_name(column)} if {value} is None else {value}"


def _literal(column: RowColumn) -> tuple[str, str]:
    """Return the form of a literal, and the value that it takes."""
    if column.is_number:
        return ("%b", f"_integer_literal(row.{column.name})") if column.can_be_null else ("%d", _number(column))
    if column.type == "bytes" and not column.can_be_null:
        return "'%b'", f"escape(row.{column.name})"
    raise Failed(f"{column.name}: an update of MySQL has no literal for {column.type}; add one to tools/columns.py")


def mysql_updates() -> str:
    """Return the functions that encode an update and a lease of MySQL."""
    forms = [_literal(column) for column in (ROW_COLUMNS[0], *_mutable())]
    form = ",".join(form for form, _ in forms)
    leases = [column for column in ROW_COLUMNS if column.name in LEASE_COLUMNS]
    leased = ", ".join(f"{column.name} = %d" for column in leases)
    first = [name for name in FIRST_LEASE_COLUMNS if name not in LEASE_COLUMNS]
    return (
        "def update_select(row: Row) -> bytes:\n"
        '    """Return a row\'s id and mutable columns as one more SELECT of constants."""\n'
        + _listed(f'    return b" UNION ALL SELECT {form}" % (', [value for _, value in forms], ")")
        + "\n\ndef lease_assignments(lease: LeaseUpdate) -> bytes:\n"
        + '    """Return the assignments of a lease."""\n'
        + _listed(f'    values = b"{leased}" % (', [_number(column, "lease") for column in leases], ")")
        + "".join(
            f'    if lease.{name} is not None:\n        values += b", {name} = %d" % lease.{name}\n' for name in first
        )
        + "    return values\n"
        + _AFTER_FUNCTION
    )


def _bound_kinds() -> tuple[list[RowColumn], list[RowColumn], list[RowColumn]]:
    """Return the columns of numbers that are always there, of other numbers, and of bytes that may be NULL."""
    numbers = [column for column in ROW_COLUMNS if column.is_number]
    data = [column for column in ROW_COLUMNS if "bytes" in column.type]
    for column in data:
        if not column.can_be_null and column.name not in _NAMED_BYTES:
            raise Failed(f"{column.name}: a new row of MySQL has no form for it; add one to tools/columns.py")
    return (
        [column for column in numbers if not column.can_be_null],
        [column for column in numbers if column.can_be_null],
        [column for column in data if column.can_be_null],
    )


def mysql_row_values() -> str:
    """Return the part of `encode_rows` that is about each column by itself."""
    fixed, nullable, data = _bound_kinds()
    loose = [column.name for column in (*nullable, *data)]
    parts = ["        nulls = 0\n", f"        {' = '.join(loose)} = absent\n"]
    for column in (*nullable, *data):
        value = f"row.{column.name}"
        encoded = f"eight({value})" if column in nullable else f"_length_prefixed({value})"
        parts.append(
            f"        if {value} is None:\n"
            f"            nulls |= _NULL_{column.name.upper()}\n"
            f"        else:\n"
            f"            {column.name} = present + {encoded}\n"
        )
    parts.append(_listed("        fixed = numbers(", map(_number, fixed), ")"))
    named = ["name", "payload_length", "payload", "metadata_length", "metadata"]
    parts.append(
        _listed(
            "        encoded = (",
            ["fixed", *[column.name for column in nullable], *named, *[column.name for column in data]],
            ")",
        )
    )
    return "".join(parts)


def mysql_null_bits() -> str:
    """Return the bits of the values that may be NULL."""
    _, nullable, data = _bound_kinds()
    return "".join(
        f'_NULL_{column.name.upper()}: Final = 1 << BOUND_COLUMNS.index("{column.name}")\n'
        for column in (*nullable, *data)
    )


# ------------------------------------------------------------------ documents


def document_table() -> str:
    """Return the table of the columns for the design page."""
    rows = [
        f"| `{column.name}` | {_plain_type(column)} | {_changes(column)} | {column.meaning} |\n"
        for column in ROW_COLUMNS
    ]
    return f"\n| column | type | written again by | meaning |\n|---|---|---|---|\n{''.join(rows)}\n"


def _plain_type(column: RowColumn) -> str:
    return column.mysql.split(" NOT NULL")[0].split(" NULL")[0].lower()


def _changes(column: RowColumn) -> str:
    return "" if column.written_by is WrittenBy.INSERT else column.written_by.value


BLOCKS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "foqs/core/items/item.py": {"row": row_class, "new item": new_item_class, "keyed item": keyed_item_class},
    "foqs/core/items/item_with_history.py": {
        "item with history": item_with_history_class,
        "row of a new item": row_of_new_item,
    },
    "foqs/core/items/life.py": {"row of a new item": row_of_new_item},
    "foqs/store/sql_rows.py": {"tuples": row_tuples},
    "foqs/store/mysql/mysql_rows.py": {"decoding": mysql_decoding},
    "foqs/store/mysql/mysql_values.py": {
        "null bits": mysql_null_bits,
        "updates": mysql_updates,
        "new rows": mysql_row_values,
    },
    "docs/design/stores.md": {"table": document_table},
}
"""The generated blocks of each file."""


def with_blocks(text: str, blocks: Mapping[str, Callable[[], str]], file: str) -> str:
    """Return a file's text with its blocks renewed. Raises Failed if one is missing."""
    missing = blocks.keys() - {found["name"] for found in _BLOCK.finditer(text)}
    if missing:
        raise Failed(f"{file} has no comments 'columns: begin {min(missing)}' and 'columns: end' around its block")
    return _BLOCK.sub(lambda found: found["head"] + blocks[found["name"]]() + found["tail"], text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes what repeats the columns of a row.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a block is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree")
    options = parser.parse_args(arguments)
    old = []
    try:
        for name, blocks in BLOCKS.items():
            file: Path = options.root / name
            text = file.read_text()
            made = with_blocks(text, blocks, name)
            if made != text:
                old.append(name)
                if not options.check:
                    file.write_text(made)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    if options.check and old:
        print(
            f"{', '.join(old)}: not what foqs/store/row_columns.py gives; run python tools/columns.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
