"""Doctor's checks of a MySQL or MariaDB server: durability, tables, rights, limits and clock.

Always true: nothing is changed; a server that cannot be reached is one finding
that says why. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import Final

from foqs.cli.doctor.finding import StoreLocation, durability_finding, rolling_schema_finding
from foqs.options.options import is_loopback
from foqs.store.mysql import mysql_session_sql as session_sql
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import NO_TLS_CODE, MysqlLink, MysqlLinkLost, MysqlSettings, ServerError, WrongServer
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs.store.mysql.mysql_schema import (
    READ_ONLY_CODES,
    clock_ms,
    connections_max,
    is_read_only,
    missing_rights,
    prepared_statements_max,
    unsafe_settings,
)
from foqs.store.mysql.schema_upgrade import RUN_RIGHTS, can_create_tables, read_states
from foqs.telemetry.findings import Finding
from foqs_contract.plurals import counted

CLOCK_SKEW_MS_WARNING: Final = 1_000
CLOCK_SKEW_MS_MAX: Final = 60_000

CONNECTIONS_KEPT: Final = 3
"""Connections that the owner of a shard keeps: one each for writes, for reads, and for looks at leases."""
CONNECTIONS_MAX: Final = 7
"""The most connections of the owner of a shard: those, and at times one each for a walk, a sweep, the count, and lists of items."""


async def check_mysql(settings: MysqlSettings, location: StoreLocation) -> list[Finding]:
    """Check a server and the tables of its shards."""
    findings: list[Finding] = []
    try:
        link = await MysqlLink.connect(settings)
        try:
            await link.run(*session_sql.session_settings(settings.lock_wait_timeout_s, read_only=True))
            async for finding in _check_server(link, settings, location):
                findings.append(finding)
        finally:
            await link.close()
    except WrongServer as error:
        detail, _, remedy = str(error).partition("; ")
        remedy = remedy or "see foqs region list"
        findings.append(Finding("Store", "bad", f"{settings.location} cannot be used: {detail}", remedy))
    except (ServerError, MysqlLinkLost) as error:
        detail = f"{settings.location} cannot be used: {error}"
        findings.append(Finding("Store", "bad", detail, _remedy_for(error, settings, location.key)))
    return findings


async def _check_server(link: MysqlLink, settings: MysqlSettings, place: StoreLocation) -> AsyncIterator[Finding]:
    (found,) = await link.run(session_sql.SERVER_SETTINGS)
    if is_read_only(found):
        detail = f"{settings.location} cannot be used: its server runs with --read-only"
        yield Finding("Store", "bad", detail, _READ_ONLY_REMEDY.format(key=place.key))
        return
    weak = unsafe_settings(found, settings)
    if weak is not None:
        remedy = "set these variables in the server's configuration file"
        yield Finding("Store", "warning" if place.accepts_unsafe_durability else "bad", weak, remedy)
    else:
        detail = f"{settings.location} answers; every commit is on disk before it is acknowledged"
        yield durability_finding(detail, place.accepts_unsafe_durability)
    if settings.tls is None and settings.unix_socket is None and not is_loopback(settings.host):
        detail = f"statements and payloads cross the network to {settings.host} readably"
        remedy = (
            f"set {place.key}.tls to verify_identity and {place.key}.tls_ca_file, unless nobody else can read there"
        )
        yield Finding("Encryption", "warning", detail, remedy)
    may_create = await can_create_tables(link)
    yield rolling_schema_finding(await read_states(link), MIGRATIONS, place, may_create)
    missing = [right for shard in place.shards for right in await missing_rights(link, shard)]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        remedy = f"GRANT {RUN_RIGHTS} ON `{settings.database}`.* TO '{settings.user}'@..."
        yield Finding("Grants", "bad", f"{missing[0]}{more}", remedy)
    else:
        yield Finding("Grants", "ok", f"{settings.user} has the rights of a host")
    yield await _check_connections(link, len(place.shards))
    yield await _check_prepared_statements(link, len(place.shards))
    yield await _check_clock(link)


async def _check_connections(link: MysqlLink, shards: int) -> Finding:
    """Check whether the owners of these shards can open all their connections, whichever hosts they are."""
    limit, variable = await connections_max(link)
    kept, most = shards * CONNECTIONS_KEPT, shards * CONNECTIONS_MAX
    needed = (
        f"{CONNECTIONS_KEPT} to {CONNECTIONS_MAX} for each of {counted(shards, 'shard')}, together {kept:,} to {most:,}"
    )
    if limit > most:
        return Finding("Connections", "ok", f"the server accepts {limit:,} connections; hosts open {needed}")
    return Finding(
        "Connections",
        "warning" if limit > kept else "bad",
        f"{variable} is {limit:,}, but hosts open {needed}: a shard that cannot connect is not served",
        f"set it above {most:,} plus the connections of others (SET GLOBAL, and the server's configuration file)",
    )


async def _check_prepared_statements(link: MysqlLink, shards: int) -> Finding:
    """Check whether the writers of these shards can prepare all their statements."""
    limit = await prepared_statements_max(link)
    needed = shards * (sql.PREPARED_STATEMENTS_IN_BULK if link.can_bulk else sql.PREPARED_STATEMENTS_MAX)
    if limit >= needed:
        return Finding(
            "Prepared", "ok", f"the server keeps {limit:,} prepared statements; these shards need {needed:,}"
        )
    return Finding(
        "Prepared",
        "warning",
        f"max_prepared_stmt_count is {limit:,}, but the writers of these shards prepare up to {needed:,} statements: "
        "the others are sent as text, which costs the server more",
        f"set it to {needed:,} plus the statements of others (SET GLOBAL, and the server's configuration file)",
    )


async def _check_clock(link: MysqlLink) -> Finding:
    """Check the difference of the two clocks, within the error of a round trip."""
    before = time.time_ns()
    server_ms = await clock_ms(link)
    ours_ms = (before + time.time_ns()) // 2_000_000
    skew_ms = server_ms - ours_ms
    if abs(skew_ms) < CLOCK_SKEW_MS_WARNING:
        return Finding("Clock", "ok", "the database's clock and this machine's agree")
    how = "ahead of" if skew_ms > 0 else "behind"
    return Finding(
        "Clock",
        "bad" if abs(skew_ms) >= CLOCK_SKEW_MS_MAX else "warning",
        f"the database's clock is {abs(skew_ms) / 1_000:.1f} s {how} this machine's",
        "set both clocks with chrony or ntpd: delays and leases follow the database's clock",
    )


_READ_ONLY_REMEDY: Final = "name the primary in {key}.url: this is a replica, or writes are switched off"
_REMEDY_BY_CODE: Final = {
    1040: f"raise the server's max_connections: for each shard hosts keep {CONNECTIONS_KEPT} connections, and open up to "
    f"{CONNECTIONS_MAX} at times",
    1044: "GRANT {rights} ON `{database}`.* TO '{user}'@...",
    1045: "correct the user in {key}.url or the password in {key}.password_file, or create that user for this machine; "
    "if it or the server demands TLS (REQUIRE SSL, require_secure_transport), set {key}.tls to verify_identity; for "
    "REQUIRE X509 also {key}.tls_cert_file and {key}.tls_key_file",
    1049: "create it (CREATE DATABASE `{database}`), or correct the database in {key}.url",
    1130: "create the user for this machine's address: CREATE USER '{user}'@...",
    1698: "correct the user in {key}.url or the password in {key}.password_file, or create that user for this machine",
    2026: "give the server a certificate and its key (ssl_cert, ssl_key), or set {key}.tls to disabled if nobody can read "
    "the network",
    NO_TLS_CODE: "set {key}.tls to verify_identity, and {key}.tls_ca_file: the server accepts no connection without TLS",
    **dict.fromkeys(READ_ONLY_CODES, _READ_ONLY_REMEDY),
}


def _remedy_for(error: ServerError | MysqlLinkLost, settings: MysqlSettings, key: str) -> str:
    """Return what to do about a server that cannot be used."""
    if isinstance(error, ServerError):
        text = _REMEDY_BY_CODE.get(error.code, "look at the server's log")
        return text.format(rights=RUN_RIGHTS, database=settings.database, user=settings.user, key=key)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        if cause.args and cause.args[0] in _REMEDY_BY_CODE:
            return _REMEDY_BY_CODE[cause.args[0]].format(
                user=settings.user, database=settings.database, rights=RUN_RIGHTS, key=key
            )
        cause = cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"name the CA that signed it in {key}.tls_ca_file, and in {key}.url the host name that the certificate contains"
    if isinstance(cause, ssl.SSLError):
        return f"let the server offer TLS 1.2 or later; if it asks for a certificate, set {key}.tls_cert_file"
    if isinstance(cause, socket.gaierror):
        return f"correct the host in {key}.url: no address is known for that name"
    if isinstance(cause, TimeoutError):
        return "check that the network lets this machine reach it, and that the server is not overloaded"
    if isinstance(cause, OSError) and cause.errno in (errno.ECONNREFUSED, errno.ENOENT):
        return f"start the server, or correct host, port or socket in {key}.url: nothing listens there"
    return "check that a MySQL server listens there, and that this machine reaches it"
