"""What doctor looks at: a function for each thing, each giving findings.

Always true: looking changes nothing that lasts, and every finding that is not
well says what to do. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import shutil
import sqlite3
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from foqs.cli.hosts import port_problem, reachable
from foqs.cli.session import Connect
from foqs.config import Config
from foqs.store.mysql_driver import Link, LinkLost, MysqlSettings, ServerError
from foqs.store.mysql_schema import check_durability
from foqs.store.port import StoreError, StoreUnusable
from foqs.store.sqlite import SqliteStore

PYTHON_MIN: Final = (3, 11)
SQLITE_MIN: Final = (3, 35, 0)
DISK_BYTES_MIN: Final = 100 << 20
DISK_BYTES_LOW: Final = 1 << 30
ASK_TIMEOUT_MS: Final = 2_000
LIBRARIES: Final = (
    "thrift",
    "aiomysql",
    "PyMySQL",
    "uvloop",
    "aiohttp",
    "pydantic",
    "prometheus-client",
    "click",
    "rich",
)


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "warning", "bad"]
    detail: str
    remedy: str = ""


def python() -> Iterator[Finding]:
    """The interpreter and the SQLite it brings."""
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


def libraries() -> Iterator[Finding]:
    """The libraries a host needs."""
    remedy = "install it with: pip install 'foqs[server]'"
    found: list[str] = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("Libraries", "bad", f"{name} is missing", remedy)
    yield Finding("Libraries", "ok", ", ".join(found))


def folder(config: Config) -> Iterator[Finding]:
    """The data folder and the room on its disk."""
    path = config.data_dir
    existing = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    new = "" if existing == path.absolute() else " (it does not exist yet and can be made)"
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        remedy = f"give this user the right to write there, or name another folder (in {existing})"
        yield Finding("Data folder", "bad", f"{path} cannot be written: {error.strerror}", remedy)
        return
    yield Finding("Data folder", "ok", f"{path} is writable{new}")
    free = shutil.disk_usage(existing).free
    detail = f"{free / (1 << 30):.1f} GiB free for {path}"
    if free < DISK_BYTES_MIN:
        yield Finding("Disk", "bad", detail, "free some space: enqueues fail when it is full")
    elif free < DISK_BYTES_LOW:
        yield Finding("Disk", "warning", detail, "free some space before it runs out")
    else:
        yield Finding("Disk", "ok", detail)


async def store(config: Config) -> Finding:
    """Whether the store can be reached and keeps what it acknowledges."""
    url = config.store.parsed
    if url.kind == "memory":
        remedy = "name a folder or a database in store.url"
        return Finding("Store", "warning", "memory only: items are gone when the host stops", remedy)
    if url.kind == "sqlite":
        return await _sqlite(config)
    return await _mysql(config)


async def _sqlite(config: Config) -> Finding:
    """Opens a store in a folder of its own beside the real ones, with their settings."""
    path = config.data_dir.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as probe:
            opened = SqliteStore(Path(probe) / "probe.sqlite", 0)
            try:
                await opened.open()
            finally:
                await opened.close()
    except (StoreError, OSError) as error:
        return Finding(
            "Store", "bad", f"SQLite cannot keep items in {path}: {error}", "name another folder in store.url"
        )
    return _durable(config, f"SQLite in {path}; every commit is on disk before it is acknowledged")


async def _mysql(config: Config) -> Finding:
    """Connects and reads the server's durability settings."""
    url = config.store.parsed
    settings = MysqlSettings(
        database=url.database,
        host=url.host,
        port=url.port,
        unix_socket=url.socket,
        user=url.user,
        password=config.password() or "",
        connect_timeout_s=config.store.connect_timeout_ms / 1_000,
        statement_timeout_s=config.store.statement_timeout_ms / 1_000,
    )
    try:
        link = await Link.connect(settings)
        try:
            await check_durability(link, settings)
        finally:
            await link.close()
    except StoreUnusable as error:
        state: Literal["warning", "bad"] = "warning" if config.store.unsafe_durability else "bad"
        return Finding("Store", state, str(error), "set what it names, in the server's configuration file")
    except (ServerError, LinkLost) as error:
        remedy = "see that the server runs, and that store.url and store.password_file are right"
        return Finding("Store", "bad", f"{settings.where} cannot be used: {error}", remedy)
    return _durable(config, f"{settings.where} answers; every commit is on disk before it is acknowledged")


def _durable(config: Config, detail: str) -> Finding:
    if config.store.unsafe_durability:
        return Finding(
            "Store", "warning", detail, "store.unsafe_durability is set: weaker settings would be accepted too"
        )
    return Finding("Store", "ok", detail)


async def calls(config: Config, connect: Connect) -> Finding:
    """The port for calls: free, served by FOQS, or taken by something else."""
    from foqs_client import FoqsError

    host, port = config.server.host, config.server.port
    problem = port_problem(host, port, "port")
    if problem is None:
        return Finding("Calls", "ok", f"{host}:{port} is free: no host is running there")
    try:
        async with asyncio.timeout(2 * ASK_TIMEOUT_MS / 1_000):
            async with connect(f"foqs://{reachable(host)}:{port}", "default", ASK_TIMEOUT_MS) as client:
                routing = await client.routing()
    except (FoqsError, OSError, ValueError) as error:
        return Finding("Calls", "bad", f"{host}:{port} is not served by FOQS ({error})", problem)
    return Finding("Calls", "ok", f"{host}:{port} is served by FOQS, {len(routing.shards)} shards")


async def http(config: Config) -> Finding:
    """The HTTP port: free, served by a host that is ready or not, or taken by something else."""
    host, port = config.server.host, config.server.http_port
    problem = port_problem(host, port, "http_port")
    if problem is None:
        return Finding("HTTP", "ok", f"{host}:{port} is free: no host is running there")
    try:
        answer = await asyncio.to_thread(_ready, f"http://{reachable(host)}:{port}/readyz")
    except (OSError, ValueError) as error:
        return Finding("HTTP", "bad", f"{host}:{port} is not served by FOQS ({error})", problem)
    if answer:
        reasons = "; ".join(f"{part}: {reason}" for part, reason in sorted(answer.items()))
        return Finding("HTTP", "bad", f"a host answers and is not ready: {reasons}", "see the host's log")
    return Finding("HTTP", "ok", f"{host}:{port} is served by FOQS, ready")


def _ready(url: str) -> dict[str, str]:
    try:
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_MS / 1_000) as reply:  # noqa: S310 - our own http URL
            body = reply.read(1 << 16)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(1 << 16)
    answer = json.loads(body)
    reasons = answer.get("reasons") if isinstance(answer, dict) else None
    if isinstance(reasons, dict):
        return {str(part): str(reason) for part, reason in reasons.items()}
    raise ValueError("it answers something else")
