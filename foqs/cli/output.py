"""How the command line shows what it found: data on standard output, prose on standard error.

Always true: a program that reads `-o json` or `-o jsonl` finds every field of
every row and nothing else; a table never cuts a value short, and nothing in an
item can move the reader's cursor. Knows nothing of commands.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import click

from foqs.cli.values import show_duration

Format: TypeAlias = Literal["table", "json", "jsonl", "line"]
"""What `-o` names, and "line": all rows as one JSON array in one line."""
Row: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, Callable[[Row], str]]

_UNLIMITED_WIDTH: Final = 100_000
_TEXT_SHOWN_MAX: Final = 60


def bytes_fields(name: str, data: bytes | None) -> dict[str, Any]:
    """`name` as text where the bytes are UTF-8, else None beside `name`_base64."""
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}


def printable(text: str) -> str:
    """The text with control characters as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def short(row: Row, name: str) -> str:
    """A bytes field of a row for a table: its beginning, as text."""
    text = row.get(name)
    if text is None:
        encoded = row.get(f"{name}_base64")
        text = "" if encoded is None else f"base64:{encoded}"
    shown = printable(str(text))
    return shown if len(shown) <= _TEXT_SHOWN_MAX else shown[: _TEXT_SHOWN_MAX - 1] + "…"


def show(rows: Sequence[Row], columns: Sequence[Column], form: Format) -> None:
    """Writes rows as a table, as one JSON array, or as a JSON object a line."""
    if form in ("json", "line"):
        click.echo(json.dumps(list(rows), indent=2 if form == "json" else None))
    elif form == "jsonl":
        for row in rows:
            click.echo(json.dumps(row))
    elif rows:
        _table(rows, columns)


def show_fields(row: Row, form: Format) -> None:
    """Writes one row: for people a field a line."""
    if form == "table":
        shown = [{"field": name, "value": _field(name, value)} for name, value in row.items()]
        _table(shown, [("FIELD", lambda part: part["field"]), ("VALUE", lambda part: part["value"])])
    else:
        show([row], [], form)


def _field(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "_ms" in name:
        return f"{value}  ({show_duration(value)})"
    return str(value)


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, _ in columns:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(read(row))) for _, read in columns))
    if sys.stdout.isatty():
        Console().print(table)
    else:
        plain = io.StringIO()
        Console(file=plain, width=_UNLIMITED_WIDTH).print(table)
        click.echo("\n".join(line.rstrip() for line in plain.getvalue().splitlines()))


def say(text: str) -> None:
    """A sentence for a person."""
    click.echo(text, err=True)
