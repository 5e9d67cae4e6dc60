"""The output of the command line: data on standard output, messages on standard error.

Always true: `-o json` and `-o jsonl` hold every field of every row and nothing
else; a table shows ids and values in full; no item can move the reader's
cursor, and no message can either. Knows nothing of commands.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import click

from foqs.runtime.durations import format_duration
from foqs_contract.plurals import counted
from foqs_contract.printable_text import printable

log = logging.getLogger(__name__)

Format: TypeAlias = Literal["table", "json", "jsonl", "line"]
"""The values of `-o`, and "line": all rows as a JSON array in one line."""
Row: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, Callable[[Row], str]]

output_option: Final = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="A table for people, or JSON for programs: one document, or one line per row.",
)
_UNLIMITED_WIDTH: Final = 100_000
_UNUSUAL: Final = re.compile(r"[^\n\x20-\x7e]")
_TEXT_SHOWN_MAX: Final = 60
_GAP: Final = 2
"""Spaces between columns."""


class StreamFailed(click.ClickException):
    """A standard stream that the command needs is closed, or fails. It ends the command with exit code 1."""


def check_output() -> None:
    """Raise `StreamFailed` if standard output is closed."""
    if sys.stdout is None:
        raise StreamFailed("standard output is closed, so nothing can be shown; redirect it, as in: > /dev/null")


def write_data(text: str = "", *, nl: bool = True) -> None:
    """Write data to standard output. Raises `StreamFailed`, or OSError, with which the program ends."""
    check_output()
    click.echo(text, nl=nl)


def show_banner(lines: Sequence[str]) -> None:
    """Write the lines that a started host shows. If they cannot be written, log a warning: the host serves all the same."""
    try:
        write_data("\n".join(map(printable, lines)))
    except (StreamFailed, OSError) as error:
        log.warning("the addresses of this host were not shown: %s", error)


def confirm(question: str) -> None:
    """Ask the user on standard error, and end the command unless the answer is yes.

    Raises StreamFailed if standard input is closed, or ends before an answer.
    """
    if sys.stdin is None:
        raise StreamFailed("standard input is closed, so nobody can be asked; to do it without a question, add --yes")
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as aborted:
        if not isinstance(aborted.__context__, EOFError):
            raise
        click.echo(err=True)
        raise StreamFailed(
            "standard input ended without an answer, so nothing was done; to do it without a question, add --yes"
        ) from None


def bytes_fields(name: str, data: bytes | None) -> dict[str, Any]:
    """Return `name` as text if the bytes are UTF-8, else None, and the bytes as `name`_base64."""
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}


def short_text(row: Row, name: str) -> str:
    """Return the beginning of a row's bytes field as text, for a table."""
    text = row.get(name)
    if text is None:
        encoded = row.get(f"{name}_base64")
        text = "" if encoded is None else f"base64:{encoded}"
    shown = printable(str(text))
    return shown if len(shown) <= _TEXT_SHOWN_MAX else shown[: _TEXT_SHOWN_MAX - 1] + "…"


def show_rows(rows: Sequence[Row], columns: Sequence[Column], form: Format) -> None:
    """Write rows as a table, as one JSON array, or as a JSON object per line."""
    if form in ("json", "line"):
        write_data(json.dumps(list(rows), indent=2 if form == "json" else None))
    elif form == "jsonl":
        for row in rows:
            write_data(json.dumps(row))
    elif rows:
        _table(rows, columns)


def show_fields(row: Row, form: Format) -> None:
    """Write one row; as a table it has a line per field."""
    if form == "table":
        shown = [{"field": name, "value": _field(name, value)} for name, value in row.items()]
        _table(shown, [("FIELD", lambda part: part["field"]), ("VALUE", lambda part: part["value"])])
    else:
        show_rows([row], [], form)


def _field(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "_ms" in name:
        return f"{value}  ({format_duration(value)})"
    return str(value)


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    check_output()
    cells = [[printable(read(row)) for _, read in columns] for row in rows]
    plain = None if sys.stdout.isatty() else io.StringIO()
    console = Console() if plain is None else Console(file=plain, width=_UNLIMITED_WIDTH)
    widths = _widths([[title for title, _ in columns], *cells], console.width)
    console.width = max(console.width, sum(widths) + _GAP * len(widths))  # rich adds a gap after the last column too
    table = Table(box=None, pad_edge=False, header_style="bold")
    for (title, _), width in zip(columns, widths, strict=True):
        table.add_column(title, overflow="fold", width=width)
    for line in cells:
        table.add_row(*map(Text, line))
    console.print(table)
    if plain is not None:
        write_data("\n".join(line.rstrip() for line in plain.getvalue().splitlines()))


def _widths(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the width of each column: together `room`, or more if a word would break, since ids are copied.

    The widest columns shrink first.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    words = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in zip(*lines, strict=True)]
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - room):
        widest = max(range(len(widths)), key=lambda n: (widths[n] > words[n], widths[n]))
        if widths[widest] == words[widest]:
            break
        widths[widest] -= 1
    return widths


def print_message(text: str) -> None:
    """Write a sentence for a person to standard error. It may name topics and errors of others: it stays one line."""
    click.echo(printable(text), err=True)


def outage_notes(unavailable_shards: int, effect: str) -> list[str]:
    """Return the sentence about shards that are unavailable; none without such shards."""
    if not unavailable_shards:
        return []
    shards = counted(unavailable_shards, "shard is", "shards are")
    return [f"{shards} unavailable: {effect} (foqs shard list says why)."]


def pattern_notes(topics: Iterable[str]) -> list[str]:
    """Return the sentence about topics whose names have a `*`, as the patterns of a worker; none without such a name."""
    if not any("*" in topic for topic in topics):
        return []
    return [
        "Here * is no pattern but part of the name; foqs topic list --prefix finds topics by the beginning of a name."
    ]


def show_document(text: str) -> None:
    """Write a JSON document that a host has sent. Control characters in its texts become escapes of JSON."""
    write_data(
        _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text), nl=False
    )


def program_name() -> str:
    """Return the shell command of this program: foqs if it is found, else its path."""
    return "foqs" if shutil.which("foqs") else shlex.quote(sys.argv[0])
