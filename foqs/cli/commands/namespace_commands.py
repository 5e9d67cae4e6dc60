"""The commands for namespaces.

Always true: each setting of the client's `Namespace` has an option; times are
durations. Knows nothing of what the settings do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Column, Row, confirm, print_message, show_fields, show_rows
from foqs.cli.values import DURATION
from foqs.cli.watch import run_watchable, watch_option
from foqs.runtime.durations import format_duration

if TYPE_CHECKING:
    from foqs_client import Client, Namespace

PAGE_NAMESPACES: Final = 500
_INT64_MAX: Final = 2**63 - 1

SETTINGS: Final[Mapping[str, str]] = {
    "enqueues_per_minute": "Items that may be enqueued per minute; 0: no limit.",
    "backlog_items_max": "Items that it may hold; 0: no limit.",
    "backlog_bytes_max": "Bytes of payload that it may hold; 0: no limit.",
    "topics_max": "Topics that it may have; 0: no limit.",
    "payload_bytes_max": "The largest payload, in bytes.",
    "metadata_bytes_max": "The largest metadata, in bytes.",
    "lease_ms_default": "The lease of an item that names none.",
    "lease_ms_max": "The longest lease.",
    "attempts_max_default": "Deliveries until an item is dead; 0: no limit.",
    "backoff_ms_min": "The backoff after the first nack that names no delay.",
    "backoff_ms_max": "The longest backoff.",
    "dead_retention_ms": "How long dead items are kept.",
    "key_window_ms": "How long an idempotency key is remembered.",
    "weight": "Its part of short resources, relative to other namespaces.",
}
_NO_LIMIT: Final = "no limit"
_UNLIMITED_AT_ZERO: Final = [name for name, text in SETTINGS.items() if text.endswith(f"; 0: {_NO_LIMIT}.")]

_COLUMNS: Final[list[Column]] = [
    ("NAMESPACE", lambda row: row["name"]),
    ("TIER", lambda row: row["tier"] or "-"),
    ("WEIGHT", lambda row: str(row["weight"])),
    ("PER MINUTE", lambda row: _format_limit(row["enqueues_per_minute"])),
    ("ITEMS", lambda row: _format_limit(row["backlog_items_max"])),
    ("PAYLOAD", lambda row: str(row["payload_bytes_max"])),
    ("LEASE", lambda row: format_duration(row["lease_ms_default"])),
    ("ATTEMPTS", lambda row: _format_limit(row["attempts_max_default"])),
]

_USAGE_COLUMNS: Final[list[Column]] = [
    ("NAMESPACE", lambda row: row["name"]),
    ("ITEMS", lambda row: _format_count(row["items"])),
    ("BYTES", lambda row: _format_count(row["bytes"])),
    ("TOPICS", lambda row: _format_count(row["topics"])),
    ("LAST MINUTE", lambda row: _format_count(row["enqueues_last_minute"])),
]


def _flag_name(name: str) -> str:
    """Return the flag of a setting: `lease_ms_default` is --lease-default, as the value has a unit."""
    return "--" + name.replace("_ms", "").replace("_", "-")


def _settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting."""
    for name, text in reversed(list(SETTINGS.items())):
        kind = DURATION if "_ms" in name else click.IntRange(0, _INT64_MAX)
        command = click.option(_flag_name(name), name, type=kind, default=None, help=text)(command)
    return command


@click.group()
def namespace() -> None:
    """Namespaces: the tenants, their limits and policies."""


@namespace.command(
    "create",
    epilog="\b\nExamples:\n  foqs namespace create orders\n"
    "  foqs namespace create orders --attempts-max-default 5 --lease-default 1m --weight 3",
)
@click.argument("name")
@_settings_options
@host_call_options
def create(session: HostSession, name: str, **settings: int | None) -> None:
    """Create a namespace. Other settings have the defaults of the host."""
    _show_settings(session, session.run(lambda client: client.create_namespace(_namespace_settings(name, settings))))


@namespace.command("update", epilog="\b\nExample:\n  foqs namespace update orders --enqueues-per-minute 6000")
@click.argument("name")
@_settings_options
@host_call_options
def update(session: HostSession, name: str, **settings: int | None) -> None:
    """Change settings of a namespace, without a restart. The others stay."""
    if all(value is None for value in settings.values()):
        raise click.UsageError("Name at least one setting to change.")
    _show_settings(session, session.run(lambda client: client.update_namespace(_namespace_settings(name, settings))))


@namespace.command("show", epilog="\b\nExample:\n  foqs namespace show orders -o json")
@click.argument("name")
@host_call_options
def show_one(session: HostSession, name: str) -> None:
    """Show all settings of a namespace."""
    _show_settings(session, session.run(lambda client: client.get_namespace(name)))


@namespace.command("list", epilog="\b\nExample:\n  foqs namespace list")
@host_call_options
def list_all(session: HostSession) -> None:
    """List the namespaces by name."""

    rows = [dataclasses.asdict(found) for found in session.run(_all_namespaces)]
    show_rows(rows, _COLUMNS, session.output_format)
    if not rows:
        print_message("There is no namespace; create one with: foqs namespace create NAME")


@namespace.command("delete", epilog="\b\nExample:\n  foqs namespace delete orders --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@host_call_options
def delete(session: HostSession, name: str, yes: bool) -> None:
    """Delete a namespace with its grants and pauses. Refused while it holds items."""
    if not yes:
        confirm(f"Delete the namespace {name}, with its grants and pauses?")
    session.run(lambda client: client.delete_namespace(name))
    print_message(f"Deleted {name}.")


@namespace.command(
    "usage",
    epilog="\b\nExamples:\n  foqs namespace usage\n  foqs namespace usage orders\n  foqs namespace usage orders --watch",
)
@click.argument("name", required=False)
@watch_option
@host_call_options
def usage(session: HostSession, name: str | None, watch_ms: int | None) -> None:
    """Show the usage of one namespace, or of all."""

    async def work(client: Client) -> list[Row]:
        names = [found.name for found in await _all_namespaces(client)] if name is None else [name]
        rows = [await _read_usage(client, each_name, may_be_deleted=name is None) for each_name in names]
        return [row for row in rows if row is not None]

    def draw(session: HostSession, rows: list[Row]) -> None:
        if name is None:
            show_rows(rows, _USAGE_COLUMNS, session.output_format)
        else:
            show_fields(rows[0], session.output_format)

    run_watchable(session, watch_ms, work, draw)


async def _all_namespaces(client: Client) -> list[Namespace]:
    """Return all namespaces by name."""
    namespaces: list[Namespace] = []
    cursor: str | None = None
    while True:
        page = await client.list_namespaces(PAGE_NAMESPACES, cursor)
        namespaces += page.namespaces
        cursor = page.next_cursor
        if cursor is None:
            return namespaces


async def _read_usage(client: Client, name: str, *, may_be_deleted: bool) -> Row | None:
    """Return the usage of a namespace; None if it was deleted meanwhile."""
    from foqs_client import NamespaceNotFound

    try:
        return {"name": name, **dataclasses.asdict(await client.usage(name))}
    except NamespaceNotFound:
        if may_be_deleted:
            return None
        raise


def _namespace_settings(name: str, settings: Mapping[str, int | None]) -> Namespace:
    from foqs_client import Namespace

    return Namespace(name, **{key: value for key, value in settings.items() if value is not None})  # type: ignore[arg-type]


def _show_settings(session: HostSession, found: Namespace) -> None:
    row = dataclasses.asdict(found)
    if session.output_format == "table":
        row |= {name: f"0  ({_NO_LIMIT})" for name in _UNLIMITED_AT_ZERO if row[name] == 0}
    show_fields(row, session.output_format)


def _format_limit(value: int | None) -> str:
    return "-" if value is None else str(value or _NO_LIMIT)


def _format_count(value: int | None) -> str:
    return "-" if value is None else str(value)
