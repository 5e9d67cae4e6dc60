"""Doctor's checks of an outbox: its tables, its relay, its rows, and the key window of its namespace.

Always true: nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from foqs.cli.host_session import HostSession
from foqs.runtime.durations import format_duration
from foqs.telemetry.findings import Finding
from foqs_client import FoqsError
from foqs_client.inbox.inbox_rows import oldest_age_ms
from foqs_client.inbox.pruning import KEEP_S
from foqs_client.outbox import relay_sql
from foqs_client.outbox.outbox_connection import OutboxConnection, TablesUnavailable
from foqs_client.outbox.outbox_figures import OutboxFigures, read_figures
from foqs_client.outbox.outbox_sql import Dialect
from foqs_client.outbox.relay_owner import watch_owner
from foqs_client.outbox.user_databases import user_database
from foqs_contract.plurals import counted

_SUBJECT: Final = "Outbox"
_LAG_MS_MAX: Final = 60_000
_KEY_WINDOW_MS_MIN: Final = 3_600_000
_INBOX_MS_MAX: Final = 2 * KEEP_S * 1_000
"""Pruned rows are at most half as old; those of dead items can be older."""


async def check_outbox(url: str, prefix: str, session: HostSession | None) -> list[Finding]:
    """Check the outbox of a database. `session`: of the hosts of its relay; None: they are not asked."""
    try:
        database = user_database(url)
    except FoqsError as error:
        return [Finding(_SUBJECT, "bad", error.message, "correct --outbox")]
    tables = OutboxConnection(database.connect, database.dialect, prefix)
    findings = await asyncio.to_thread(_check_tables, tables, database.name)
    return findings if session is None else [*findings, *await _check_key_window(session)]


def _check_tables(tables: OutboxConnection, name: str) -> list[Finding]:
    with closing(tables):
        try:
            for statement in relay_sql.CHECK_COLUMNS:
                tables.query(statement)
            inbox_ms = oldest_age_ms(tables, tables.prefix) or 0
            figures, owner = read_figures(tables), watch_owner(tables)
            found = [*_check_server(tables)]
        except (TablesUnavailable, FoqsError) as error:
            remedy = "start the database, or create the tables with your migration or foqs relay tables --create"
            return [Finding(_SUBJECT, "bad", f"the tables in {name} cannot be read: {error}", remedy)]
    return [_relay_finding(owner.is_working, figures), *_row_findings(figures), *_inbox_findings(inbox_ms), *found]


def _relay_finding(is_working: bool, figures: OutboxFigures) -> Finding:
    if is_working:
        return Finding(_SUBJECT, "ok", f"a relay works; {counted(figures.rows, 'row')} in the outbox")
    return Finding(
        _SUBJECT,
        "bad",
        f"no relay works; {counted(figures.rows, 'row')} in the outbox",
        "start foqs relay, or look at its log",
    )


def _row_findings(figures: OutboxFigures) -> Iterator[Finding]:
    if figures.oldest_ms > _LAG_MS_MAX:
        found = f"row {figures.oldest_id} waits for {format_duration(figures.oldest_ms)}"
        yield Finding(_SUBJECT, "warning", found, "docs/runbook.md, FoqsOutboxLags")
    if figures.parked:
        rows = "rows are" if figures.parked > 1 else "row is"
        yield Finding(_SUBJECT, "warning", f"{figures.parked} {rows} parked", "foqs relay status, then resend or drop")


def _inbox_findings(oldest_ms: int) -> Iterator[Finding]:
    if oldest_ms > _INBOX_MS_MAX:
        found = f"the oldest row of the inbox is of {format_duration(oldest_ms)} ago"
        yield Finding(_SUBJECT, "warning", found, "run foqs relay with --inbox, or see docs/inbox.md, Prune")


def _check_server(tables: OutboxConnection) -> Iterator[Finding]:
    """Check what a server says of itself: whether it may be written, and the step of its ids."""
    if tables.dialect is Dialect.SQLITE:
        return
    # A number, a boolean, or text as OFF, by server and version.
    if any(
        str(value).upper() not in ("0", "OFF", "FALSE")
        for [value] in tables.query(relay_sql.IS_READ_ONLY[tables.dialect])
    ):
        yield Finding(_SUBJECT, "bad", "this server is read-only: it is a replica", "give the URL of the primary")
    if tables.dialect in relay_sql.ID_STEP:
        [(step,)] = tables.query(relay_sql.ID_STEP[tables.dialect])
        if int(step) > 1:
            yield Finding(
                _SUBJECT,
                "warning",
                f"ids have a step of {step}",
                "rows of one group keep their order only if their transactions are short (docs/design/outbox.md)",
            )


async def _check_key_window(session: HostSession) -> list[Finding]:
    """Warn of a window within which a relay that died is often not replaced."""
    try:
        async with session.open_client(session.address, session.namespace, session.timeout_ms) as client:
            window_ms = (await client.get_namespace()).key_window_ms
    except FoqsError as error:
        return [
            Finding(_SUBJECT, "warning", f"the namespace cannot be read: {error}", "start a host, or correct --address")
        ]
    if window_ms is None or window_ms >= _KEY_WINDOW_MS_MIN:
        return []
    found = f"keys of namespace {session.namespace} are remembered for {format_duration(window_ms)} only"
    remedy = f"rows in doubt are parked after it: foqs namespace update {session.namespace} --key-window 24h"
    return [Finding(_SUBJECT, "warning", found, remedy)]
