"""Doctor's checks of a host: one function for each, which returns findings.

Always true: a check changes nothing that lasts, and every finding that is not ok
says what to do. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import shutil
import sqlite3
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Final

from foqs.cli.doctor.finding import StoreLocation
from foqs.cli.doctor.mysql_checks import check_mysql
from foqs.cli.doctor.sqlite_checks import check_files, check_sqlite, nearest_folder
from foqs.cli.host_session import OpenClient
from foqs.cli.listen_addresses import local_address, port_problem
from foqs.options.config import Config
from foqs.store.factories import mysql_settings
from foqs.telemetry.findings import Finding
from foqs_contract.plurals import counted

PYTHON_MIN: Final = (3, 11)
SQLITE_MIN: Final = (3, 35, 0)
DISK_BYTES_MIN: Final = 100 << 20
DISK_BYTES_WARNING: Final = 1 << 30
CALL_TIMEOUT_MS: Final = 2_000
LIBRARIES: Final = (
    "thrift",
    "aiomysql",
    "PyMySQL",
    "cryptography",
    "uvloop",
    "aiohttp",
    "kazoo",
    "pydantic",
    "prometheus-client",
    "click",
    "rich",
)


def check_python() -> Iterator[Finding]:
    """Check the interpreter and its SQLite."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        yield Finding("Python", "bad", version, "install Python 3.11 or later")
    else:
        yield Finding("Python", "ok", version)
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        wanted = ".".join(map(str, SQLITE_MIN))
        yield Finding("SQLite", "bad", sqlite3.sqlite_version, f"use a Python built with SQLite {wanted} or later")
    else:
        yield Finding("SQLite", "ok", sqlite3.sqlite_version)


def check_libraries() -> Iterator[Finding]:
    """Check the libraries of a host."""
    remedy = "install it with: pip install 'foqs[server]'"
    found: list[str] = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("Libraries", "bad", f"{name} is missing", remedy)
    yield Finding("Libraries", "ok", ", ".join(found))


def check_data_folder(config: Config) -> Iterator[Finding]:
    """Check the data folder and the free space of its disk."""
    path = config.data_dir
    existing = nearest_folder(path.absolute())
    new = "" if existing == path.absolute() else " (it does not exist yet and can be created)"
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        remedy = f"give this user the right to write in {existing}, or set another folder"
        yield Finding("Data folder", "bad", f"{path} cannot be written: {error.strerror}", remedy)
        return
    yield Finding("Data folder", "ok", f"{path} is writable{new}")
    free = shutil.disk_usage(existing).free
    detail = f"{free / (1 << 30):.1f} GiB free for {path}"
    if free < DISK_BYTES_MIN:
        yield Finding("Disk", "bad", detail, "free some space: enqueues fail when the disk is full")
    elif free < DISK_BYTES_WARNING:
        yield Finding("Disk", "warning", detail, "free some space before the disk is full")
    else:
        yield Finding("Disk", "ok", detail)


async def check_store(config: Config) -> list[Finding]:
    """Check the store: it is reachable and durable, and its tables are known and accessible."""
    kind = config.store.parsed_url.kind
    if kind == "memory":
        remedy = "name a folder or a database in store.url"
        return [Finding("Store", "warning", "memory only: items are lost when the host stops", remedy)]
    place = StoreLocation("store", range(config.store.shards), config.store.unsafe_durability)
    if kind == "mysql":
        found = await check_mysql(mysql_settings(config), place)
    else:
        found = await check_sqlite(config.data_dir, place)
    return [*found, check_files(config)]


async def check_rpc_port(config: Config, connect: OpenClient) -> Finding:
    """Check the port for calls: free, served by FOQS, or in use by something else."""
    from foqs_client import DeadlineExceeded, FoqsError, UnknownOutcome, Unreachable

    host, port = config.server.host, config.server.port
    problem = port_problem(host, port, "port")
    if problem is None:
        return Finding("Calls", "ok", f"{host}:{port} is free: no host is running there")
    if config.server.tls_cert_file:
        return await _speaks_tls(host, port, problem)
    try:
        async with asyncio.timeout(2 * CALL_TIMEOUT_MS / 1_000):
            async with connect(f"foqs://{local_address(host)}:{port}", "default", CALL_TIMEOUT_MS) as client:
                routing = await client.routing()
    except (FoqsError, OSError, ValueError) as error:
        if isinstance(error, FoqsError) and not isinstance(error, DeadlineExceeded | UnknownOutcome | Unreachable):
            return Finding("Calls", "ok", f"{host}:{port} is served by FOQS, which answers {error.code}")
        return Finding("Calls", "bad", f"{host}:{port} is not served by FOQS ({error})", problem)
    return Finding("Calls", "ok", f"{host}:{port} is served by FOQS, {counted(len(routing.shards), 'shard')}")


async def _speaks_tls(host: str, port: int, problem: str) -> Finding:
    """Check that the server speaks TLS. Does not verify the certificate: the clients do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(2 * CALL_TIMEOUT_MS / 1_000):
            _, writer = await asyncio.open_connection(local_address(host).strip("[]"), port, ssl=context)
    except (OSError, TimeoutError) as error:
        return Finding("Calls", "bad", f"{host}:{port} does not speak TLS ({error or 'no answer'})", problem)
    writer.close()
    return Finding("Calls", "ok", f"{host}:{port} speaks TLS")


async def check_http_port(config: Config) -> Finding:
    """Check the port of the HTTP server: free, served by a host that is ready or not, or in use by something else."""
    host, port = config.server.http_host, config.server.http_port
    problem = port_problem(host, port, "http_port")
    if problem is None:
        return Finding("HTTP", "ok", f"{host}:{port} is free: no host is running there")
    try:
        answer = await asyncio.to_thread(_readiness, f"http://{local_address(host)}:{port}/readyz")
    except HTTPException:
        return Finding("HTTP", "bad", f"{host}:{port} is not served by FOQS (it does not speak HTTP)", problem)
    except (OSError, ValueError) as error:
        return Finding("HTTP", "bad", f"{host}:{port} is not served by FOQS ({error})", problem)
    if answer:
        reasons = "; ".join(f"{part}: {reason}" for part, reason in sorted(answer.items()))
        return Finding("HTTP", "bad", f"a host answers and is not ready: {reasons}", "see the host's log")
    return Finding("HTTP", "ok", f"{host}:{port} is served by FOQS, ready")


def _readiness(url: str) -> dict[str, str]:
    try:
        with urllib.request.urlopen(url, timeout=CALL_TIMEOUT_MS / 1_000) as reply:  # noqa: S310 - our own http URL
            body = reply.read(1 << 16)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(1 << 16)
    answer = json.loads(body)
    reasons = answer.get("reasons") if isinstance(answer, dict) else None
    if isinstance(reasons, dict):
        return {str(part): str(reason) for part, reason in reasons.items()}
    raise ValueError("its reply is not that of FOQS")
