"""The options of a host: one frozen model for each section, each option with its unit, default and reason.

Always true: a value has its type and is within its range, and options that
depend on each other agree. Knows nothing of files, environment or command line;
`config` reads those.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from foqs_contract.size_ceilings import METADATA_BYTES_CEILING, PAYLOAD_BYTES_CEILING

MS: Final = "milliseconds"
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1 << 20
HOST_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9_.:\]-]{0,126}", re.ASCII)
_ADDRESS_PATTERN: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/@\[\]]+):([0-9]{1,5})", re.ASCII)


def option(default: Any, unit: str, what: str, low: int | None = None, high: int | None = None, *, change: str) -> Any:
    """Return an option.

    Args:
        what: a sentence about what the option sets.
        low, high: the range of the value.
        change: when an operator changes it, and by which sign.
    """
    return Field(default, description=f"{what} {change}", ge=low, le=high, json_schema_extra={"unit": unit})


class Options(BaseModel):
    """A section. Unknown keys are refused, and so is a number written as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ServerOptions(Options):
    """The addresses on which the host listens, its place in a cluster, and how it stops."""

    host: str = option(
        "127.0.0.1",
        "address",
        "The address that the host listens on for calls. Beyond loopback it needs TLS and authentication "
        "(tls_cert_file, auth.enabled), or insecure_listen.",
        change="Set it to an address of the machine if clients run elsewhere.",
    )
    port: int = option(
        7411,
        "port",
        "The port for Thrift calls. 0 takes any free port.",
        0,
        65_535,
        change="Change it if the start fails because another process uses the port, or for a second host on the machine.",
    )
    sqs_port: int = option(
        -1,
        "port",
        "The port for programs written for Amazon SQS, on server.host; see [sqs]. It uses TLS if the port of calls "
        "does. 0 takes any free port. -1: no such port.",
        -1,
        65_535,
        change="Set it if programs written for SQS should use this host.",
    )
    http_port: int = option(
        7412,
        "port",
        "The port for /livez, /readyz, /metrics and /scale, apart from the calls. 0 takes any free port.",
        0,
        65_535,
        change="Change it if the start fails because another process uses the port.",
    )
    http_host: str = option(
        "127.0.0.1",
        "address",
        "The address of http_port. It speaks plain HTTP, and only /scale asks for a token, so beyond loopback it needs "
        "insecure_listen.",
        change="Set it to an address of the machine if Prometheus or an autoscaler runs elsewhere.",
    )
    console: bool = option(
        False,
        "true or false",
        "Serve the console, web pages for people. With auth.enabled they ask for a token.",
        change="Set it if people should see topics, items and hosts in a browser.",
    )
    console_port: int = option(
        7413,
        "port",
        "The port of the console, with TLS if the calls have it. 0 takes any free port.",
        0,
        65_535,
        change="Change it if the start fails because another process uses the port.",
    )
    console_host: str = option(
        "127.0.0.1",
        "address",
        "The address of console_port. Beyond loopback it needs auth.enabled, and TLS or insecure_listen.",
        change="Set it to an address of the machine if browsers run elsewhere and no proxy passes them on.",
    )
    console_url: str = option(
        "",
        "URL",
        "The URL at which browsers find the console behind a proxy that ends TLS or has other pages too, as "
        "https://tools.example/foqs/. The proxy passes paths on as they are. Empty: browsers use console_port.",
        change="Set it if there is such a proxy.",
    )
    insecure_listen: bool = option(
        False,
        "true or false",
        "Listen beyond loopback although anybody who can connect can read and delete every item.",
        change="Set it only if a network or a proxy in front keeps everybody else out.",
    )
    tls_cert_file: str = option(
        "",
        "path",
        "The certificate and its chain for the port of calls, PEM. With it the server accepts only TLS 1.2 or "
        "later. Empty: no TLS. SIGHUP reads this file, tls_key_file and tls_client_ca_file again.",
        change="Set it if clients run elsewhere.",
    )
    tls_key_file: str = option(
        "",
        "path",
        "The certificate's key, PEM, without a passphrase, in a file that only its owner may read.",
        change="Set it with tls_cert_file.",
    )
    tls_client_ca_file: str = option(
        "",
        "path",
        "The CA of client certificates, PEM. A client with such a certificate is the principal that its "
        "subject's common name says. Empty: the host does not ask for certificates.",
        change="Set it if clients or hosts show certificates in place of tokens.",
    )
    stop_timeout_ms: int = option(
        10_000,
        MS,
        "A stopping host finishes the calls in flight within this time; the rest end with an error. Set it "
        "longer than a slow flush takes, and shorter than the time that the service manager waits.",
        0,
        10 * 60_000,
        change="Raise it, and the time of the service manager, if calls end with an error whenever a host stops. Lower it if the service manager kills hosts that stop.",
    )
    region: str = option(
        "local",
        "name",
        "The region that the host reports to clients. Clients prefer a host in their own region.",
        change="Set it if hosts of a cluster run in several regions or zones, and traffic between these is slow or costs money.",
    )
    tier: str = option(
        "default",
        "name",
        "The tier that this host belongs to: a set of hosts and shards that serve the same namespaces.",
        change="Set it if some namespaces should have machines and databases of their own.",
    )
    name: str = option(
        "",
        "name",
        "The name of the host in commands and in the plan of a cluster. It stays the same over restarts, and "
        "no two hosts share it. Empty: the address of the host.",
        change="Set it if the address of a host may change.",
    )
    advertise: str = option(
        "",
        "address",
        "HOST:PORT where clients and other hosts reach this host. Empty: server.host and server.port.",
        change="Set it if others reach this host at another address than it listens on, as in a container.",
    )
    capacity: int = option(
        1,
        "weight",
        "The host's part of a cluster's work, relative to the capacity of other hosts.",
        1,
        1_000_000,
        change="Raise it on a host with more cores than the others.",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name and not HOST_NAME_PATTERN.fullmatch(name):
            raise InvalidOption(
                "the name of a host has only letters, digits, -, _, . and :", "choose another, of 1 to 127 characters"
            )
        return name

    @field_validator("advertise")
    @classmethod
    def _check_advertise(cls, text: str) -> str:
        if text and not is_address(text):
            raise InvalidOption(f"{text!r} is not HOST:PORT", "write host1.example:7411")
        return text


def check_ports_differ(server: ServerOptions) -> None:
    """Refuse one port for two purposes; 0 is any free port. Raises InvalidOption."""
    ports = {"port": server.port, "http_port": server.http_port, "sqs_port": server.sqs_port}
    if server.console:
        ports["console_port"] = server.console_port
    option_by_port: dict[int, str] = {}
    for name, port in ports.items():
        other = option_by_port.setdefault(port, name) if port > 0 else name
        if other != name:
            raise InvalidOption(f"{port} is server.{other} too", "choose another port", f"server.{name}")


DatabaseTls: TypeAlias = Literal["disabled", "required", "verify_ca", "verify_identity"]


class StoreOptions(Options):
    """The database that holds the shards."""

    url: str = option(
        "sqlite:./foqs-data",
        "URL",
        "sqlite:FOLDER (relative to the working directory), mysql://user@host:port/database (for a server on "
        "this machine also mysql://user@localhost/database?socket=/path), or memory: (nothing outlives the "
        "process).",
        change="Name a MySQL or MariaDB server if items should survive the loss of the machine, or a cluster should share them.",
    )
    shards: int = option(
        4,
        "shards",
        "The number of shards. The host owns all of them, numbered from 0. More shards spread the writes over more transactions.",
        1,
        1_024,
        change="Raise it if foqs_writer_queue_items stays high while neither the database nor a core is busy. It cannot be lowered: the items of the shards that are left out would not be served.",
    )
    password_file: str = option(
        "",
        "path",
        "A file with the database password in one line, which only its owner may read. Empty: no password.",
        change="Set it if the user of the url has a password.",
    )
    tls: DatabaseTls = option(
        "disabled",
        "disabled, required, verify_ca or verify_identity",
        "TLS to a MySQL or MariaDB server. disabled: statements and payloads cross the network readably, so only for a "
        "server on this machine or in a network that you trust. required: encrypted, but anybody may pretend to be the "
        "server. verify_ca: its certificate must be of the CA in tls_ca_file. verify_identity: it must also name the host of the url, "
        "as those of managed databases do. A server that offers no TLS is refused.",
        change="Set it if the server is on another machine.",
    )
    tls_ca_file: str = option(
        "",
        "path",
        "The CA of the server's certificate, PEM. Empty: the CAs of the system, with verify_identity only. Read at the start.",
        change="Set it if the certificate is of a CA that the system does not trust.",
    )
    tls_cert_file: str = option(
        "",
        "path",
        "The certificate that this host shows to the server, PEM, with its chain: for a user with REQUIRE X509. Read at "
        "the start.",
        change="Set it if the server requires one of this user.",
    )
    tls_key_file: str = option(
        "",
        "path",
        "The key of tls_cert_file, PEM without a passphrase, which only its owner may read.",
        change="Set it with tls_cert_file.",
    )
    journal: bool = option(
        False,
        "true or false",
        "Write the changes of items into a journal, one row for each flush, and an item's own row only if the item lives "
        "longer than five seconds. Less work for the database. Off: each flush writes the rows of its items, and a host "
        "that takes a shard over empties its journal first. In MySQL and MariaDB a shard journals after foqs schema "
        "apply --contract. Each shard then keeps 16 MiB of its database, 1 MiB in SQLite, for acks on a full disk. It "
        "applies to [databases] too.",
        change="It is new, and its long tests are not finished: leave it off where items matter, until a release turns it on. "
        "It may be switched at any restart.",
    )
    unsafe_durability: bool = option(
        False,
        "true or false",
        "Accept database settings with which a power failure can lose acknowledged items. It applies to "
        "[databases] too.",
        change="Set it only for items that may be lost.",
    )
    statement_timeout_ms: int = option(
        30_000,
        MS,
        "If a statement, or the last statements of a flush with their COMMIT, has no result within this time, "
        "the connection counts as lost. Set it longer than any lock wait. It applies to [databases] too.",
        1_000,
        600_000,
        change="Raise it if the log shows connections that are lost while the database only pauses, as at a failover of its own. Lower it if a database that hangs must be noticed sooner.",
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
"""Pairs of options of a namespace: the first must not be above the second."""


class NamespaceOptions(Options):
    """The defaults for namespaces. A namespace can set its own values (foqs namespace update)."""

    payload_bytes_max: int = option(
        10_240,
        "bytes",
        "A larger payload is refused. Store large data elsewhere and put its address into the item. For "
        "SQS messages of 1 MiB, which also have an envelope, set 1_114_112.",
        0,
        PAYLOAD_BYTES_CEILING,
        change="Raise it if producers get LIMIT_EXCEEDED for payloads that belong into the queue.",
    )
    metadata_bytes_max: int = option(
        1_024,
        "bytes",
        "Larger metadata is refused. A nack may rewrite it.",
        0,
        METADATA_BYTES_CEILING,
        change="Lower it if items that you peek at hold data in their metadata.",
    )
    lease_ms_default: int = option(
        30_000,
        MS,
        "The lease of an item that names none. The items of a consumer that dies are delayed by this time.",
        1,
        DAY_MS,
        change='Raise it if foqs_due_items_total with kind="lease" rises although no consumer died. Lower it if items of dead consumers come back too late.',
    )
    lease_ms_max: int = option(
        12 * HOUR_MS,
        MS,
        "A longer lease is refused. Extend the lease while the work goes on.",
        1,
        30 * DAY_MS,
        change="Lower it if consumers that died hold items for too long.",
    )
    attempts_max_default: int = option(
        0,
        "attempts",
        "An item is dead after this number of deliveries without an ack. 0: no limit.",
        0,
        1_000_000,
        change="Set it if items that always fail take the time of consumers: foqs_nacked_items_total rises and the backlog does not fall.",
    )
    backoff_ms_min: int = option(
        1_000,
        MS,
        "The backoff after the first nack that names no delay: by jitter, half of this to all of it. It doubles with "
        "each attempt.",
        1,
        DAY_MS,
        change="Raise it if consumers fail again at once because what they need is still down.",
    )
    backoff_ms_max: int = option(
        10 * 60_000,
        MS,
        "The longest backoff.",
        1,
        30 * DAY_MS,
        change="Lower it if items come back too late after a long outage of what consumers need.",
    )
    dead_retention_ms: int = option(
        14 * DAY_MS,
        MS,
        "Dead items are deleted after this time. Until then they can be inspected and redriven.",
        1_000,
        3_650 * DAY_MS,
        change="Raise it if dead items are gone before somebody has looked. Lower it if foqs_dead_items or the database grows too large.",
    )
    key_window_ms: int = option(
        10 * 60_000,
        MS,
        "The time for which an idempotency key is remembered. Set it longer than any caller retries, with a "
        "crash and a restart in between. Each key is a row of about 100 bytes.",
        2 * 60_000,
        30 * DAY_MS,
        change="Raise it if producers repeat calls for longer. Lower it if the tables of keys (foqs_N_key in MySQL) grow too large.",
    )
    enqueues_per_minute: int = option(
        0,
        "items a minute",
        "The items that may be enqueued, over all hosts. 0: no limit.",
        0,
        1_000_000_000,
        change="Set it if calls of other tenants are slow or OVERLOADED while foqs namespace usage reports many enqueues of this one.",
    )
    backlog_items_max: int = option(
        0,
        "items",
        "Enqueues are refused while the namespace holds this number of items, over all hosts. DEAD items count, and so "
        "do items of a purge until their rows are deleted. 0: no limit.",
        0,
        1_000_000_000_000,
        change="Set it if foqs_namespace_items grows while consumers stand still, and must not fill the database.",
    )
    backlog_bytes_max: int = option(
        0,
        "bytes",
        "Enqueues are refused while the payloads of the namespace take this many bytes, over all hosts. They count as "
        "for backlog_items_max. 0: no limit.",
        0,
        1 << 60,
        change="Set it if the disk of the database fills, or is paid for: foqs namespace usage reports the bytes of a namespace.",
    )
    topics_max: int = option(
        0,
        "topics",
        "Items of a new topic are refused while the namespace has this number of topics on a host. 0: no limit.",
        0,
        100_000_000,
        change="Set it if a tenant makes topics without end, as with an id in the name: foqs_ready_index_topics grows.",
    )
    weight: int = option(
        1,
        "weight",
        "The namespace's part of writes, reads and memory when they are short, relative to other namespaces.",
        1,
        1_000,
        change="Raise it for a tenant that pays for more, or has to be served first when the hosts are full.",
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for low, high in NAMESPACE_ORDERED_PAIRS:
            check_not_above(self, low, high)
        return self


class CoordinatorOptions(Options):
    """Assigns the shards to this host when it is not in a cluster."""

    file: str = option(
        "",
        "path",
        "The file with the last epoch of each shard, so that no epoch is used twice, even with a restored "
        "database. Empty: coordinator.json in the SQLite folder, or in ./foqs-data with MySQL.",
        change="Set it if the folder of the items is not writable or is restored from backups.",
    )


class CatalogOptions(Options):
    """The file of namespaces, grants and pauses, which calls create and change."""

    file: str = option(
        "",
        "path",
        "The file of the catalog. Empty: catalog.json beside the coordinator's file.",
        change="Set it together with coordinator.file.",
    )
    bytes_max: int = option(
        1_000_000,
        "bytes",
        "The size of the catalog. It is read and written as one document and holds some thousands of "
        "namespaces or pauses. A fifth is for administrators of the whole system. A namespace may take its weight times "
        "what is left; its own administrators get LIMIT_EXCEEDED beyond that.",
        10_000,
        16 * MIB,
        change="Raise it if administrators get LIMIT_EXCEEDED for namespaces or pauses that are needed. In a cluster, raise jute.maxbuffer of ZooKeeper too, whose default is 1 MiB.",
    )


class LogOptions(Options):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = option(
        "info",
        "debug, info, warning or error",
        "Lines below this level are not written.",
        change="Set debug to see HTTP requests that failed and dead letters that are not moved yet, warning if the log costs too much.",
    )
    format: Literal["auto", "text", "json"] = option(
        "auto",
        "auto, text or json",
        "auto: text on a terminal, JSON otherwise.",
        change="Set json if a program reads the log of a terminal, text if a person reads that of a service.",
    )


@dataclass(slots=True, frozen=True)
class StoreUrl:
    """The parts of a store URL: `path` with sqlite, the others with mysql. `socket` replaces host and port."""

    kind: Literal["memory", "sqlite", "mysql"]
    path: str = ""
    host: str = ""
    port: int = 3306
    user: str = ""
    database: str = ""
    socket: str | None = None


class InvalidOption(ValueError):
    """A value of the right type cannot be used. `key` names the option; None: the one whose value pydantic validates."""

    def __init__(self, problem: str, remedy: str, key: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.key = key


def parse_store_url(url: str) -> StoreUrl:
    """Parse a store URL.

    Raises:
        InvalidOption: it is of no known kind, is incomplete, or holds a password.
    """
    forms = (
        "use sqlite:FOLDER, mysql://user@host:port/database, mysql://user@localhost/database?socket=/path or memory:"
    )
    if url == "memory:":
        return StoreUrl("memory")
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:")
        if not path or path.startswith("//") or "\0" in path:
            raise InvalidOption("the sqlite URL names no folder", "write sqlite:./folder or sqlite:/absolute/folder")
        return StoreUrl("sqlite", path=path)
    if not url.startswith("mysql://"):
        raise InvalidOption("the URL begins with none of the known schemes", forms)
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
        raise InvalidOption("the mysql URL has something after the database that is not ?socket=/path", forms)
    return StoreUrl("mysql", "", parts.hostname, port, unquote(parts.username), database, socket)


def is_address(text: str) -> bool:
    """Return whether the text is HOST:PORT; an IPv6 host stands in brackets."""
    match = _ADDRESS_PATTERN.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 65_536


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_not_above(options: Options, low: str, high: str) -> None:
    """Refuse a section whose option `low` is greater than its option `high`. Raises InvalidOption."""
    if getattr(options, low) > getattr(options, high):
        raise InvalidOption(
            f"{getattr(options, low)} is more than {high}, which is {getattr(options, high)}",
            f"lower it or raise {high}",
            low,
        )
