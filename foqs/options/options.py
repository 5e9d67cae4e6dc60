"""The options of a host: one frozen model a section, every option with its unit, default and reason.

Always true: a value that stands here is of its type and within its range, and
options that depend on each other agree. Knows nothing of files, environment or
command line; `config` reads those.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MS: Final = "milliseconds"
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1 << 20
HOST_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9_.:\]-]{0,126}", re.ASCII)
_ADDRESS_PATTERN: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/@\[\]]+):([0-9]{1,5})", re.ASCII)


def option(default: Any, unit: str, why: str, low: int | None = None, high: int | None = None) -> Any:
    """An option: its default, its unit, one or two sentences why, and the range it must lie in."""
    return Field(default, description=why, ge=low, le=high, json_schema_extra={"unit": unit})


class Options(BaseModel):
    """A section. Unknown keys are refused, and so is a number written as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ServerOptions(Options):
    """Where the host listens, and how it leaves."""

    host: str = option(
        "127.0.0.1",
        "address",
        "The address calls arrive at. Beyond loopback only with TLS and authentication (tls_cert_file, auth.enabled), or with "
        "insecure_listen.",
    )
    port: int = option(7411, "port", "Thrift calls arrive here; 0 takes any free port.", 0, 65_535)
    http_port: int = option(
        7412,
        "port",
        "/livez, /readyz and /metrics are served here, apart from the calls; 0 takes any free port.",
        0,
        65_535,
    )
    http_host: str = option(
        "127.0.0.1",
        "address",
        "The address of http_port. It speaks plain HTTP and asks nobody who he is, so beyond loopback only with insecure_listen.",
    )
    insecure_listen: bool = option(
        False,
        "true or false",
        "Listen beyond loopback although anybody who can connect can read and delete every item.",
    )
    tls_cert_file: str = option(
        "",
        "path",
        "The certificate of the port for calls and its chain, PEM; with it that port speaks TLS (1.2 or later) and nothing "
        "else. Empty: no TLS. SIGHUP has it and the next two read again.",
    )
    tls_key_file: str = option(
        "", "path", "The certificate's key, PEM, without a passphrase, in a file that only its owner may read."
    )
    tls_client_ca_file: str = option(
        "",
        "path",
        "The CA of clients' certificates, PEM. A client that shows one of them is the principal that its subject's common "
        "name says. Empty: certificates are not asked for.",
    )
    stop_timeout_ms: int = option(
        10_000,
        MS,
        "A stopping host finishes the calls it has begun within this time; what is left ends as an error. Longer than "
        "a slow flush, shorter than the patience of whatever stops the process.",
        0,
        10 * 60_000,
    )
    region: str = option("local", "name", "The region the host tells clients, so that they prefer a near one.")
    tier: str = option("default", "name", "The set of hosts and shards this host belongs to.")
    name: str = option(
        "",
        "name",
        "What the host is called in commands and in the plan of a cluster, over restarts; no two hosts have the same. Empty: its "
        "address.",
    )
    advertise: str = option(
        "",
        "address",
        "HOST:PORT where clients and other hosts reach this one, where that is not server.host and server.port.",
    )
    capacity: int = option(
        1, "shares", "How much of a cluster's work it gets, against other hosts' capacities.", 1, 1_000_000
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name and not HOST_NAME_PATTERN.fullmatch(name):
            raise InvalidOption(
                "a host's name is letters, digits, -, _, . and :", "choose another, of 1 to 127 characters"
            )
        return name

    @field_validator("advertise")
    @classmethod
    def _check_advertise(cls, text: str) -> str:
        if text and not is_address(text):
            raise InvalidOption(f"{text!r} is not HOST:PORT", "write host1.example:7411")
        return text


class StoreOptions(Options):
    """The database that holds the shards."""

    url: str = option(
        "sqlite:./foqs-data",
        "URL",
        "sqlite:ELECTION_FOLDER (relative to the working directory), mysql://user@host:port/database (for the server of this machine also "
        "mysql://user@localhost/database?socket=/path), or memory: "
        "(nothing outlives the process).",
    )
    shards: int = option(
        4, "shards", "Shards 0 to n-1 are this host's. More spread the writes over more transactions.", 1, 1_024
    )
    password_file: str = option(
        "", "path", "The database password, alone in a file that only its owner may read. Empty: no password."
    )
    unsafe_durability: bool = option(
        False,
        "true or false",
        "Accept database settings with which an acknowledged item can be lost in a power failure.",
    )
    connect_timeout_ms: int = option(5_000, MS, "A database that has not answered by then counts as away.", 100, 60_000)
    statement_timeout_ms: int = option(
        30_000,
        MS,
        "A statement without a result by then, or a flush's last ones with their COMMIT, means a lost connection; above any "
        "lock wait.",
        1_000,
        600_000,
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parse_store_url(url)
        return url

    @property
    def parsed_url(self) -> StoreUrl:
        return parse_store_url(self.url)


NAMESPACE_ORDERED_PAIRS: Final = (("lease_ms_default", "lease_ms_max"), ("backoff_ms_min", "backoff_ms_max"))
"""Options of a namespace of which the first must not be above the second."""


class NamespaceOptions(Options):
    """What holds for the items of a namespace, where the namespace does not set it itself (foqs namespace update)."""

    payload_bytes_max: int = option(
        10_240, "bytes", "A larger payload is refused: put the bulk elsewhere and its address into the item.", 0, MIB
    )
    metadata_bytes_max: int = option(
        1_024, "bytes", "Larger metadata is refused; it is rewritten with each nack.", 0, 1_024
    )
    lease_ms_default: int = option(
        30_000, MS, "The time to ack of items that name none; a consumer that dies delays its items by this.", 1, DAY_MS
    )
    lease_ms_max: int = option(
        12 * HOUR_MS, MS, "A longer lease is refused: extend it while the work goes on.", 1, 30 * DAY_MS
    )
    attempts_max_default: int = option(
        0, "attempts", "An item is dead after so many deliveries without an ack; 0: it is tried for ever.", 0, 1_000_000
    )
    backoff_ms_min: int = option(
        1_000, MS, "The wait after a first nack without a delay; it doubles with each attempt.", 1, DAY_MS
    )
    backoff_ms_max: int = option(10 * 60_000, MS, "The longest wait after a nack without a delay.", 1, 30 * DAY_MS)
    dead_retention_ms: int = option(
        14 * DAY_MS,
        MS,
        "Dead items are deleted after this time; until then they can be looked at and redriven.",
        1_000,
        3_650 * DAY_MS,
    )
    key_window_ms: int = option(
        10 * 60_000,
        MS,
        "For so long an idempotency key names its first item. Longer than any caller tries again, a crash and a restart "
        "between; and each key is a row of about 100 bytes until then.",
        2 * 60_000,
        30 * DAY_MS,
    )
    enqueues_per_minute: int = option(
        0, "items a minute", "Items that may be enqueued, over all hosts; 0: as many as come.", 0, 1_000_000_000
    )
    backlog_items_max: int = option(
        0,
        "items",
        "Further enqueues are refused while it holds so many, on all hosts; 0: without limit.",
        0,
        1_000_000_000_000,
    )
    backlog_bytes_max: int = option(
        0,
        "bytes",
        "Further enqueues are refused while its payloads take so much, on all hosts; 0: without limit.",
        0,
        1 << 60,
    )
    topics_max: int = option(
        0,
        "topics",
        "Items of further topics are refused while it has so many on a host; 0: without limit.",
        0,
        100_000_000,
    )
    weight: int = option(
        1,
        "shares",
        "Its part of writes, reads and memory when they are short, against other namespaces' weights.",
        1,
        1_000,
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for low, high in NAMESPACE_ORDERED_PAIRS:
            check_not_above(self, low, high)
        return self


class CoordinatorOptions(Options):
    """Who says which shards are this host's."""

    kind: Literal["local"] = option("local", "local", "local: this host owns every shard of its store.")
    file: str = option(
        "",
        "path",
        "Keeps the last epoch issued, so that none serves twice even on a restored database. Empty: coordinator.json "
        "in the SQLite folder, and in ./foqs-data with MySQL.",
    )


class CatalogOptions(Options):
    """Where namespaces, grants and pauses are kept, which are made by calls."""

    file: str = option("", "path", "Empty: catalog.json beside the coordinator's file.")
    bytes_max: int = option(
        1_000_000,
        "bytes",
        "The whole of it. It is read and written as one; holds some thousands of namespaces or pauses.",
        10_000,
        16 * MIB,
    )
    poll_interval_ms: int = option(
        500, MS, "How often the file is looked at for what others have changed in it.", 10, 60_000
    )


class LogOptions(Options):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = option(
        "info", "debug, info, warning or error", "Below this nothing is written."
    )
    format: Literal["auto", "text", "json"] = option(
        "auto", "auto, text or json", "auto: lines for people on a terminal, JSON otherwise."
    )


@dataclass(slots=True, frozen=True)
class StoreUrl:
    """A store URL, taken apart. `path` with sqlite; with mysql the others, where `socket` may stand for host and port."""

    kind: Literal["memory", "sqlite", "mysql"]
    path: str = ""
    host: str = ""
    port: int = 3306
    user: str = ""
    database: str = ""
    socket: str | None = None


class InvalidOption(ValueError):
    """A value of the right type that means nothing here. `key` is set where the model cannot know it."""

    def __init__(self, problem: str, remedy: str, key: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.key = key


def parse_store_url(url: str) -> StoreUrl:
    """Takes a store URL apart.

    Raises:
        Invalid: it is of no known kind, incomplete, or carries a password.
    """
    forms = "use sqlite:ELECTION_FOLDER, mysql://user@host:port/database, mysql://user@localhost/database?socket=/path or memory:"
    if url == "memory:":
        return StoreUrl("memory")
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:")
        if not path or path.startswith("//") or "\0" in path:
            raise InvalidOption("the sqlite URL names no folder", "write sqlite:./folder or sqlite:/absolute/folder")
        return StoreUrl("sqlite", path=path)
    if not url.startswith("mysql://"):
        raise InvalidOption("the URL is of no known kind", forms)
    try:
        parts = urlsplit(url)
        port = 3306 if parts.port is None else parts.port
    except ValueError:
        raise InvalidOption("the mysql URL has a host or port that cannot be read", forms) from None
    if parts.password is not None:
        raise InvalidOption(
            "a password in the URL would show in process lists and logs",
            "put it into a file and name it in store.password_file",
        )
    database = unquote(parts.path.removeprefix("/"))
    if not parts.username or not parts.hostname or not database or "/" in database or not port:
        raise InvalidOption("the mysql URL lacks a user, host or database", forms)
    socket = unquote(parts.query.removeprefix("socket=")) if parts.query.startswith("socket=") else None
    if parts.fragment or (parts.query and (not socket or not socket.startswith("/") or "&" in parts.query)):
        raise InvalidOption("the mysql URL has something after the database that is no ?socket=/path", forms)
    return StoreUrl("mysql", "", parts.hostname, port, unquote(parts.username), database, socket)


def is_address(text: str) -> bool:
    """Whether it is HOST:PORT; an IPv6 host stands in brackets."""
    match = _ADDRESS_PATTERN.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 65_536


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_not_above(options: Options, low: str, high: str) -> None:
    """Refuses a section whose option `low` is greater than its option `high`."""
    if getattr(options, low) > getattr(options, high):
        raise InvalidOption(
            f"{getattr(options, low)} is more than {high}, which is {getattr(options, high)}",
            f"lower it or raise {high}",
            low,
        )
