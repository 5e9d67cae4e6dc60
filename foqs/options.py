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
HOST_NAME: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9_.:\]-]{0,126}", re.ASCII)
_ADDRESS: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/@\[\]]+):([0-9]{1,5})", re.ASCII)


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
    drain_timeout_ms: int = option(
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
    def _name_is_a_name(cls, name: str) -> str:
        if name and not HOST_NAME.fullmatch(name):
            raise Invalid("a host's name is letters, digits, -, _, . and :", "choose another, of 1 to 127 characters")
        return name

    @field_validator("advertise")
    @classmethod
    def _advertise_is_an_address(cls, text: str) -> str:
        if text and not is_address(text):
            raise Invalid(f"{text!r} is not HOST:PORT", "write host1.example:7411")
        return text


class WireOptions(Options):
    """What a connection may cost; each limit is checked before memory is spent."""

    frame_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A longer frame closes its connection. Holds a full call of items of the default size.",
        64 * 1024,
        256 * MIB,
    )
    string_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A text or payload in a frame that claims more is refused unread; above any payload that a namespace allows.",
        64 * 1024,
        256 * MIB,
    )
    container_items_max: int = option(
        10_000, "items", "A list in a frame that claims more is refused unread; above any batch.", 100, 1_000_000
    )
    connections_max: int = option(
        1_000,
        "connections",
        "Calls on further connections are answered OVERLOADED, and those are closed; each costs a file and a few buffers.",
        1,
        100_000,
    )
    connections_refused_max: int = option(
        50,
        "connections",
        "Connections beyond connections_max that are answered at a time, for a second at most; others are closed at once.",
        0,
        10_000,
    )
    handshakes_max: int = option(
        100,
        "connections",
        "TLS handshakes under way; further connections are closed at once. Each holds a few hundred KiB at most.",
        1,
        10_000,
    )
    handshake_timeout_ms: int = option(
        5_000, MS, "A TLS handshake that is not done by then is given up, and so is an orderly end of TLS.", 100, 60_000
    )
    calls_in_flight_max: int = option(
        10_000, "calls", "Over all connections; further calls are answered OVERLOADED.", 1, 1_000_000
    )
    calls_in_flight_per_connection_max: int = option(
        1_000,
        "calls",
        "Further calls of one connection are answered OVERLOADED, so one client cannot take all.",
        1,
        100_000,
    )
    in_flight_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "Frames begun or not answered yet, over all connections; beyond it calls are answered OVERLOADED.",
        MIB,
        64 * 1024 * MIB,
    )
    silence_timeout_ms: int = option(
        60_000,
        MS,
        "A connection that owes a first frame, the rest of one, or the reading of its replies, and does nothing for "
        "this long is closed.",
        100,
        HOUR_MS,
    )
    idle_timeout_ms: int = option(
        HOUR_MS,
        MS,
        "A connection without calls that sends nothing for this long is closed, without a complaint.",
        1_000,
        DAY_MS,
    )
    write_buffer_bytes_max: int = option(
        32 * MIB,
        "bytes",
        "Replies that a peer has not read: from a quarter of it on the connection is not read, beyond it it is closed.",
        64 * 1024,
        1024 * MIB,
    )
    reply_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "A longer reply is not sent; its call is answered LIMIT_EXCEEDED.",
        64 * 1024,
        1024 * MIB,
    )
    reply_grace_ms: int = option(
        1_000,
        MS,
        "A call that has not ended this long after its deadline is ended by force, as a last resort.",
        10,
        60_000,
    )
    retry_after_ms: int = option(100, MS, "When a client that was answered OVERLOADED should try again.", 1, 60_000)


class CallOptions(Options):
    """What one call may ask for."""

    items_per_call_max: int = option(
        1_000,
        "items",
        "Items of an enqueue or dequeue, leases of an ack; past some hundreds a batch gains nothing.",
        1,
        100_000,
    )
    topics_per_call_max: int = option(100, "topics", "Topics that one dequeue may name.", 1, 10_000)
    timeout_ms_default: int = option(10_000, MS, "The deadline of a call that names none.", 1, HOUR_MS)
    timeout_ms_max: int = option(120_000, MS, "A longer deadline is cut to this.", 1, HOUR_MS)
    wait_ms_max: int = option(
        60_000,
        MS,
        "A dequeue that wants to wait longer for work is cut to this; it also stays below its deadline.",
        0,
        HOUR_MS,
    )
    handout_wait_ms_max: int = option(
        1_000,
        MS,
        "A dequeue that has some items committed waits this long at most for those of slower shards, then answers without them.",
        1,
        60_000,
    )
    handout_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "What one dequeue may carry, reckoned by the largest payload its namespace allows; it returns fewer items rather "
        "than more bytes.",
        MIB,
        48 * MIB,
    )

    better_items_max: int = option(
        10_000,
        "items",
        "Explaining why an item is not delivered counts the items before it so far; those beyond what is held in memory "
        "are read for it.",
        0,
        1_000_000,
    )

    recall_items_max: int = option(
        1_000,
        "items",
        "Items with keys that come while their namespace is at a limit are looked up, in case they only repeat earlier ones: so "
        "many of a namespace at once. Further ones are refused unseen; below items_per_call_max so are larger calls.",
        0,
        100_000,
    )

    @model_validator(mode="after")
    def _pairs_agree(self) -> Self:
        not_above(self, "timeout_ms_default", "timeout_ms_max")
        not_above(self, "wait_ms_max", "timeout_ms_max")
        return self


class StoreOptions(Options):
    """The database that holds the shards."""

    url: str = option(
        "sqlite:./foqs-data",
        "URL",
        "sqlite:FOLDER (relative to the working directory), mysql://user@host:port/database (for the server of this machine also "
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
        30_000, MS, "A statement without a result by then means a lost connection; above any lock wait.", 1_000, 600_000
    )

    @field_validator("url")
    @classmethod
    def _url_is_known(cls, url: str) -> str:
        parse_store_url(url)
        return url

    @property
    def parsed(self) -> StoreUrl:
        return parse_store_url(self.url)


class ShardOptions(Options):
    """What one shard gathers, keeps in memory, and how often it looks."""

    flush_items_max: int = option(
        2_000,
        "items",
        "Operations of one transaction. Larger ones gain little and make everybody wait longer.",
        1,
        100_000,
    )
    flush_items_min: int = option(
        10, "items", "A transaction may have so many operations, however long it takes.", 1, 100_000
    )
    flush_ms_target: int = option(
        25,
        MS,
        "When a transaction takes longer, the next ones carry less: whoever comes meanwhile waits for all of it.",
        1,
        60_000,
    )
    flush_shared_ms_target: int = option(
        2,
        MS,
        "The same while a namespace waits with few operations beside others with many, so that a flood holds it up less.",
        1,
        60_000,
    )
    flush_express_items: int = option(
        32,
        "items",
        "Where a namespace waits with few operations beside others with many, every other transaction carries no more.",
        2,
        100_000,
    )
    flush_bytes_max: int = option(
        4 * MIB, "bytes", "Payload and metadata of one transaction; below the database's packet limit.", MIB, 64 * MIB
    )
    queue_items_max: int = option(
        40_000,
        "items",
        "Operations that wait for a flush; a namespace gets its share by weight, half of it when it is alone. Further ones are "
        "answered OVERLOADED.",
        2,
        10_000_000,
    )
    queue_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "Payload and metadata that wait for a flush; further ones are answered OVERLOADED.",
        MIB,
        4096 * MIB,
    )
    ready_window_items_max: int = option(
        10_000, "items", "Ready keys of one topic held in memory; the rest stays in the table.", 10, 10_000_000
    )
    ready_keys_max: int = option(
        250_000,
        "items",
        "Ready keys of one shard held in memory, over all topics.",
        10,
        100_000_000,
    )
    timer_page_items: int = option(
        500, "items", "Due rows read at once, so that a burst of timers cannot stall the writer.", 1, 10_000
    )
    purge_page_items: int = option(
        500, "items", "Rows of a purged topic that are deleted at once, beside everything else.", 1, 10_000
    )
    purge_topics_max: int = option(
        10_000,
        "topics",
        "Purged topics of a shard whose rows have still to go; more are refused for a while.",
        1,
        1_000_000,
    )
    purge_topics_per_namespace_max: int = option(
        1_000,
        "topics",
        "The same of one namespace, so that there is room for the others'.",
        1,
        1_000_000,
    )
    timer_tick_ms_min: int = option(
        20, MS, "Timers are not looked at more often than this: their resolution.", 1, 10_000
    )
    sweep_interval_ms: int = option(
        5 * 60_000,
        MS,
        "How often due rows of all times are scanned, so that a missed timer is late and not lost.",
        1_000,
        DAY_MS,
    )
    clock_sample_ms: int = option(
        10_000,
        MS,
        "How often the shard's time is compared with the database's clock: machines drift by less than a millisecond "
        "meanwhile.",
        10,
        HOUR_MS,
    )
    clock_slew_permille: int = option(
        50,
        "thousandths",
        "How much faster or slower the shard's time runs until it agrees with the database's clock. So much shorter a "
        "lease may be: 1.5 seconds of 30; and an hour's difference is gone in 20.",
        1,
        500,
    )
    clock_skew_ms_max: int = option(
        100,
        MS,
        "How far the clocks of two database servers are apart at most; time servers keep them within a few milliseconds. A "
        "takeover may be from another server, so leases and delays end so much later with it.",
        0,
        HOUR_MS,
    )
    topic_linger_ms: int = option(
        60_000, MS, "How long a topic without items is remembered by its shard's table.", 0, DAY_MS
    )
    retry_ms_min: int = option(50, MS, "The first wait before a database that failed is tried again.", 1, 60_000)
    retry_ms_max: int = option(5_000, MS, "The longest wait before a database that failed is tried again.", 1, 600_000)
    breaker_window_ms: int = option(
        10_000,
        MS,
        "The breaker judges the database by the transactions of so long; it refuses new items while the database is not "
        "well, and acks, nacks and deliveries go on.",
        100,
        HOUR_MS,
    )
    breaker_latency_ms_max: int = option(
        500,
        MS,
        "The breaker opens when transactions take longer than this on average; one that waits counts with its time so far. "
        "Far above flush_ms_target: a database that is busy is well.",
        1,
        HOUR_MS,
    )
    breaker_error_percent: int = option(
        50,
        "percent",
        "The breaker opens when so many of the transactions fail: lost connections, deadlocks, a full disk. Refused items, "
        "taken keys and other owners are no failures.",
        1,
        100,
    )
    breaker_flushes_min: int = option(
        5,
        "transactions",
        "Fewer of them open nothing; but one that waits for as long as so many at breaker_latency_ms_max does, so a database "
        "that does not answer opens the breaker after the product of both.",
        1,
        10_000,
    )
    breaker_reset_ms: int = option(
        2_000,
        MS,
        "After this time an open breaker lets one transaction with new items through, and closes when that succeeds in time.",
        1,
        HOUR_MS,
    )

    @model_validator(mode="after")
    def _pairs_agree(self) -> Self:
        not_above(self, "flush_items_min", "flush_items_max")
        not_above(self, "flush_shared_ms_target", "flush_ms_target")
        not_above(self, "purge_topics_per_namespace_max", "purge_topics_max")
        not_above(self, "flush_items_max", "queue_items_max")
        not_above(self, "flush_bytes_max", "queue_bytes_max")
        not_above(self, "ready_window_items_max", "ready_keys_max")
        not_above(self, "retry_ms_min", "retry_ms_max")
        return self


class BufferOptions(Options):
    """Rows that the host keeps in memory, so that delivering and acking them reads nothing."""

    written_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "Rows that were just written, of all shards. Beyond it they are read when wanted.",
        0,
        64 * 1024 * MIB,
    )
    written_items_max: int = option(200_000, "items", "Rows that were just written, of all shards.", 0, 100_000_000)
    loaded_bytes_max: int = option(
        32 * MIB, "bytes", "Rows loaded before they are asked for, of all shards.", 0, 64 * 1024 * MIB
    )
    loaded_items_max: int = option(
        20_000, "items", "Rows loaded before they are asked for, of all shards.", 0, 10_000_000
    )
    topic_items_max: int = option(4_000, "items", "Rows of one topic loaded before they are asked for.", 1, 1_000_000)
    horizon_ms: int = option(
        250, MS, "A topic has so much time's worth of its recent dequeues loaded ahead.", 1, 60_000
    )
    memory_ms: int = option(2_000, MS, "How quickly a topic's recent dequeues are forgotten.", 10, HOUR_MS)
    quiet_ms: int = option(10_000, MS, "Nothing is loaded for a topic that nobody asked for since.", 10, HOUR_MS)
    topics_max: int = option(10_000, "topics", "Topics whose dequeues are remembered.", 1, 10_000_000)


NAMESPACE_PAIRS: Final = (("lease_ms_default", "lease_ms_max"), ("backoff_ms_min", "backoff_ms_max"))
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
        0, "items", "Further enqueues are refused while it holds so many; 0: without limit.", 0, 1_000_000_000_000
    )
    backlog_bytes_max: int = option(
        0,
        "bytes",
        "Further enqueues are refused while its payloads take so much; 0: without limit.",
        0,
        1 << 60,
    )
    topics_max: int = option(
        0, "topics", "Items of further topics are refused while it has so many; 0: without limit.", 0, 100_000_000
    )
    weight: int = option(
        1,
        "shares",
        "Its part of writes, reads and memory when they are short, against other namespaces' weights.",
        1,
        1_000,
    )

    @model_validator(mode="after")
    def _pairs_agree(self) -> Self:
        for low, high in NAMESPACE_PAIRS:
            not_above(self, low, high)
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
    poll_ms: int = option(500, MS, "How often the file is looked at for what others have changed in it.", 10, 60_000)


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


class Invalid(ValueError):
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
    forms = (
        "use sqlite:FOLDER, mysql://user@host:port/database, mysql://user@localhost/database?socket=/path or memory:"
    )
    if url == "memory:":
        return StoreUrl("memory")
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:")
        if not path or path.startswith("//") or "\0" in path:
            raise Invalid("the sqlite URL names no folder", "write sqlite:./folder or sqlite:/absolute/folder")
        return StoreUrl("sqlite", path=path)
    if not url.startswith("mysql://"):
        raise Invalid("the URL is of no known kind", forms)
    try:
        parts = urlsplit(url)
        port = 3306 if parts.port is None else parts.port
    except ValueError:
        raise Invalid("the mysql URL has a host or port that cannot be read", forms) from None
    if parts.password is not None:
        raise Invalid(
            "a password in the URL would show in process lists and logs",
            "put it into a file and name it in store.password_file",
        )
    database = unquote(parts.path.removeprefix("/"))
    if not parts.username or not parts.hostname or not database or "/" in database or not port:
        raise Invalid("the mysql URL lacks a user, host or database", forms)
    socket = unquote(parts.query.removeprefix("socket=")) if parts.query.startswith("socket=") else None
    if parts.fragment or (parts.query and (not socket or not socket.startswith("/") or "&" in parts.query)):
        raise Invalid("the mysql URL has something after the database that is no ?socket=/path", forms)
    return StoreUrl("mysql", "", parts.hostname, port, unquote(parts.username), database, socket)


def is_address(text: str) -> bool:
    """Whether it is HOST:PORT; an IPv6 host stands in brackets."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 65_536


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def not_above(options: Options, low: str, high: str) -> None:
    """Refuses a section whose option `low` is greater than its option `high`."""
    if getattr(options, low) > getattr(options, high):
        raise Invalid(
            f"{getattr(options, low)} is more than {high}, which is {getattr(options, high)}",
            f"lower it or raise {high}",
            low,
        )
