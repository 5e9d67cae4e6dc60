"""The SQL of a promoter that is the same for MariaDB and MySQL, and the interface of what differs.

Always true: every statement has a name and a stated purpose, and is bytes; each group of
statements may be repeated. A reply of a form that this module does not know is a
`ServerUnfit`. Knows nothing of connections, of the entry, or of the rules of a promotion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foqs.store.mysql.gtids import ServerUnfit
from foqs.store.mysql.mysql_values import bytes_literal
from shardmgr.primary import ReplicationPosition

ACK_TIMEOUT_MS: Final = 10**18
"""How long a commit waits for its ack: for ever. There is no fallback to a commit that no acker has."""
READ_ONLY_WAIT_S: Final = 5
"""How long a server waits for the commits in progress before it is read-only."""
HEARTBEAT_S: Final = 1
CONNECT_RETRY_S: Final = 1


@dataclass(slots=True, frozen=True)
class ReplicationTls:
    """TLS between two servers of a database.

    Attributes:
        ca_file: the CA of the source's certificate, a path at the server that receives; empty: the certificate is not checked.
        checks_name: the certificate must have the name of the source. MariaDB checks it whenever it checks the certificate.
    """

    ca_file: str = ""
    checks_name: bool = False


@dataclass(slots=True, frozen=True)
class ReplicationLogin:
    """Where a server receives from, and as which user.

    Attributes:
        user, password: the replication account of the server that receives; each server has its own.
        tls: None: as the server has it by itself.
    """

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    tls: ReplicationTls | None = None


@dataclass(slots=True, frozen=True)
class Reception:
    """What a replica says of its reception.

    Attributes:
        source: `host:port` from which it receives; empty: it is no replica.
        is_running: it receives, or tries to connect.
        received: what it has received since it was started; None: it does not know.
        complaint: see `complaint_of`.
        heard: see `ServerReport`; without the heartbeats that are in `read_counters`.
    """

    source: str = ""
    is_running: bool = False
    received: ReplicationPosition | None = None
    complaint: str = ""
    heard: str = ""


ACCOUNT_LOCKED_CODES: Final = frozenset({3118, 4151})
"""The codes with which a locked account is refused, of MySQL and of MariaDB. Both refuse a wrong password first."""

IDENTITY: Final = b"SELECT VERSION(), @@GLOBAL.server_id"
"""Reads which kind of server this is, and its number. `server_uid` is not unique for servers of one machine."""


READ_GRANTS: Final = b"SHOW GRANTS"
"""Reads the rights of this connection's account and of its role."""


LIMIT_TABLE_WAIT: Final = b"SET SESSION lock_wait_timeout = 1"
"""Lets a statement end with an error if somebody holds one of its tables for a second."""

RESET_TABLE_WAIT: Final = b"SET SESSION lock_wait_timeout = DEFAULT"
"""Takes that back."""


def write_nothing(database: str) -> bytes:
    """Write to a table that never exists: a server that is read-only for this account refuses it before it looks for the table."""
    return b"DELETE FROM %s.foqs_no_such_table WHERE 1 = 0" % _name(database)


def read_term(database: str) -> bytes:
    """Read the term in the server's own tables. There is no such table before the first term was written."""
    return b"SELECT term FROM %s.foqs_term WHERE one = 1" % _name(database)


def last_flushes(database: str, shards: Iterable[int]) -> bytes:
    """Read the last flush of each of these shards at this server: its shard, epoch and number, and when it was written by the
    database's clock. All of them must have tables here."""
    return b" UNION ALL ".join(
        b"SELECT %d, epoch, flush, CAST(clock_ms AS SIGNED) - offset_ms FROM %s.foqs_%d_owner WHERE one = 1"
        % (shard, _name(database), shard)
        for shard in shards
    )


def owner_positions(shards: Iterable[int]) -> bytes:
    """Read the number, the epoch and the last flush of each of these shards at this server, in the schema of the connection."""
    return b" UNION ALL ".join(
        b"SELECT %d, epoch, flush FROM foqs_%d_owner WHERE one = 1" % (shard, shard) for shard in shards
    )


def write_term(database: str, term: int, server: str) -> tuple[bytes, ...]:
    """Commit a term, unless a later one is there. With semi-sync this returns when an acker has it and all before it."""
    table = b"%s.foqs_term" % _name(database)
    return (
        b"CREATE TABLE IF NOT EXISTS " + table + b" (one TINYINT NOT NULL PRIMARY KEY, term BIGINT UNSIGNED NOT NULL, "
        b"server VARCHAR(127) CHARACTER SET utf8mb4 NOT NULL) ENGINE = InnoDB",
        # Columns are assigned from left to right: the server is compared before the term changes.
        b"INSERT INTO " + table + b" VALUES (1, %d, %s) ON DUPLICATE KEY UPDATE "
        b"server = IF(term < VALUES(term), VALUES(server), server), term = GREATEST(term, VALUES(term))"
        % (term, _literal(server)),
    )


HEARTBEATS: Final = "SLAVE_RECEIVED_HEARTBEATS"
"""The counter of heartbeats from the source, of MariaDB. MySQL has it in `ReplicationSql.read_reception`."""
UPTIMES: Final = ("UPTIME", "UPTIME_SINCE_FLUSH_STATUS")


class ReplicationSql(ABC):
    """The statements and replies of one kind of server."""

    source_word: bytes
    """The word for a primary in names of settings."""
    replica_word: bytes
    """The word for a replica in names of settings and in statements."""
    schema: bytes
    """Where the tables of settings and of counters are."""
    read_reception: bytes
    """Reads from where the server receives, whether it does, and what it has received."""
    read_applied: bytes
    """Reads which transactions are in the server's log."""
    read_only_setting: bytes
    """The setting that refuses the commits of everybody who may be refused."""
    allow_own_writes: tuple[bytes, ...]
    """Lets the promoter commit while hosts cannot."""
    forbid_own_writes: tuple[bytes, ...]
    """Takes that back."""
    bound_stops: tuple[bytes, ...]
    """Lets a stop of the replication end with an error after some seconds, so that the connection is not lost by it."""
    start_counters: Sequence[str]
    """The names of the counters of starts of the reception."""
    promoter_rights: Sequence[str]
    """Rights for the whole server without which an account cannot steer the replication."""
    kill_right: str
    """The one of them that ends connections of other accounts."""
    log_status: Sequence[str]
    """The names of what `kept_log` looks at."""

    # -------------------------------------------------------------------- reads

    @property
    def read_variables(self) -> bytes:
        """Read the settings by name. A setting of a plugin that is not loaded is missing."""
        sources = (self._source(each) for each in ("ENABLED", "WAIT_POINT", "TIMEOUT", self._wait_without))
        names = ("READ_ONLY", *sources, self._acknowledges)
        return b"SELECT VARIABLE_NAME, VARIABLE_VALUE FROM %s.global_variables WHERE UPPER(VARIABLE_NAME) IN (%s)" % (
            self.schema,
            _literals(names),
        )

    @property
    def read_start_times(self) -> bytes:
        """Read the uptimes of the server, and since its counters were flushed, each with the time of this statement."""
        return (
            b"SELECT VARIABLE_NAME, VARIABLE_VALUE, UNIX_TIMESTAMP() FROM %s.global_status WHERE UPPER(VARIABLE_NAME) IN (%s)"
            % (self.schema, _literals(UPTIMES))
        )

    @property
    def read_counters(self) -> bytes:
        """Read the counters by name."""
        of_source = (self._source(each) for each in ("STATUS", "CLIENTS", "NO_TX", "YES_TX", "WAIT_SESSIONS"))
        names = [*self.start_counters, *self.log_status, *of_source, HEARTBEATS]
        return b"SHOW GLOBAL STATUS WHERE UPPER(Variable_name) IN (%s)" % _literals(names)

    @abstractmethod
    def reception(self, rows: Sequence[Sequence[Any]]) -> Reception:
        """Decode a reply to `read_reception`."""

    @abstractmethod
    def applied(self, rows: Sequence[Sequence[Any]]) -> ReplicationPosition:
        """Decode a reply to `read_applied`."""

    @abstractmethod
    def is_read_only(self, variables: Mapping[str, str]) -> bool:
        """Return whether hosts cannot commit, by the settings."""

    @abstractmethod
    def passes_read_only(self, grants: Sequence[Sequence[Any]]) -> bool:
        """Return whether an account may commit at a server that `make_read_only` has closed, by a reply to `READ_GRANTS`."""

    @abstractmethod
    def kept_log(self, counters: Mapping[str, str]) -> bool:
        """Return whether the server's last start cut nothing off its log."""

    def waits_for_acks(self, variables: Mapping[str, str], counters: Mapping[str, str]) -> bool:
        """Return whether each commit waits for an ack without a limit, by settings and counters."""
        return (
            is_on(variables, self._source("ENABLED"))
            and is_on(counters, self._source("STATUS"))
            and is_on(variables, self._source(self._wait_without))
            and variables.get(self._source("WAIT_POINT")) == "AFTER_SYNC"
            and int(variables.get(self._source("TIMEOUT"), 0)) >= ACK_TIMEOUT_MS
        )

    def acknowledgers(self, counters: Mapping[str, str]) -> int:
        """Return how many replicas that acknowledge are connected, by the counters."""
        return int(counters.get(self._source("CLIENTS"), 0))

    def unacknowledged(self, counters: Mapping[str, str]) -> int:
        """Return how many commits waited for no ack while they should, since the server was started, by the counters."""
        return int(counters.get(self._source("NO_TX"), 0))

    def acknowledged(self, counters: Mapping[str, str]) -> int:
        """Return how many commits returned with their ack since the server was started, by the counters."""
        return int(counters.get(self._source("YES_TX"), 0))

    def waiting_commits(self, counters: Mapping[str, str]) -> int:
        """Return how many commits wait for an ack now, by the counters."""
        return int(counters.get(self._source("WAIT_SESSIONS"), 0))

    def acknowledges(self, variables: Mapping[str, str]) -> bool:
        """Return whether a reception that is started now acknowledges."""
        return is_on(variables, self._acknowledges)

    # ----------------------------------------------------------------- commands

    @property
    def revoke(self) -> tuple[bytes, ...]:
        """Switch acknowledgements off, then stop the reception. The switch counts if somebody starts it again."""
        return self._acknowledge(enabled=False), b"STOP %s IO_THREAD" % self._replica

    @property
    def make_read_only(self) -> tuple[bytes, ...]:
        """Refuse commits, after those in progress. Error 1205 after `READ_ONLY_WAIT_S`, and then nothing has changed."""
        return (
            b"SET SESSION lock_wait_timeout = %d" % READ_ONLY_WAIT_S,
            b"SET GLOBAL %s = 1" % self.read_only_setting,
        )

    def follow(self, source: ReplicationLogin) -> tuple[bytes, ...]:
        """Receive from a source, acknowledge, and wait for no ack. What was received and not applied is thrown away."""
        return (
            *self.bound_stops,
            b"STOP %s" % self._replica,
            *self.forbid_own_writes,
            self._acknowledge(enabled=True),
            self._switch_acks_awaited(enabled=False),
            self.change_source(source),
            b"START %s" % self._replica,
        )

    @abstractmethod
    def change_source(self, source: ReplicationLogin) -> bytes:
        """Receive from a source, when it is started."""

    def _tls_options(self, tls: ReplicationTls | None, *, checks: bool) -> bytes:
        """Return the options of `change_source` for TLS. `checks`: compare the certificate with its CA, or with its name too."""
        word = self.source_word.upper()
        if tls is None:
            return b""
        return b", %s_SSL = 1, %s_SSL_CA = %s, %s_SSL_VERIFY_SERVER_CERT = %d" % (
            word,
            word,
            _literal(tls.ca_file),
            word,
            checks,
        )

    def become_primary(self, *, waits_for_acks: bool) -> tuple[bytes, ...]:
        """End the replication from another server for good."""
        return (
            *self.bound_stops,
            b"STOP %s" % self._replica,
            b"RESET %s ALL" % self._replica,
            self._acknowledge(enabled=False),
            *self._await_acks(enabled=waits_for_acks),
        )

    def open(self, *, waits_for_acks: bool) -> tuple[bytes, ...]:
        """Accept commits of hosts. Whether they wait for acks is set before the first."""
        return (
            *self._await_acks(enabled=waits_for_acks),
            *self.allow_own_writes,
            b"SET GLOBAL read_only = 0",
        )

    # ------------------------------------------------------------------ helpers

    @property
    def _replica(self) -> bytes:
        return self.replica_word.upper()

    @property
    def _acknowledges(self) -> str:
        return f"RPL_SEMI_SYNC_{self._replica.decode()}_ENABLED"

    @property
    def _wait_without(self) -> str:
        return f"WAIT_NO_{self._replica.decode()}"

    def _source(self, name: str) -> str:
        """Return the name of a setting or counter of semi-sync at a primary."""
        return f"RPL_SEMI_SYNC_{self.source_word.decode().upper()}_{name}"

    def _acknowledge(self, *, enabled: bool) -> bytes:
        return b"SET GLOBAL rpl_semi_sync_%s_enabled = %d" % (self.replica_word, enabled)

    def _switch_acks_awaited(self, *, enabled: bool) -> bytes:
        return b"SET GLOBAL rpl_semi_sync_%s_enabled = %d" % (self.source_word, enabled)

    def _await_acks(self, *, enabled: bool) -> tuple[bytes, ...]:
        """Set how long a commit waits for an ack, then whether it does."""
        prefix = b"GLOBAL rpl_semi_sync_%s_" % self.source_word
        return (
            b"SET %swait_point = AFTER_SYNC, %stimeout = %d, %swait_no_%s = 1"
            % (prefix, prefix, ACK_TIMEOUT_MS, prefix, self.replica_word),
            self._switch_acks_awaited(enabled=enabled),
        )


def standing(start_times: Iterable[Sequence[Any]], counters: Mapping[str, str], names: Sequence[str]) -> str:
    """Return a text that changes with each start of a server or its reception, and with nothing else but `FLUSH STATUS`.

    Args:
        start_times: a reply to `read_start_times`. Uptimes and its time are of one moment of the server's clock, so their
            difference is the moment of the start, whatever the clock is set to.
        counters: by name, a reply to `read_counters`.
        names: `ReplicationSql.start_counters`.
    """
    started = {text(name).upper(): str(int(now) - int(text(value))) for name, value, now in start_times}
    found = started | {name: counters[name] for name in names if name in counters}
    if missing := [name for name in (*UPTIMES, *names) if name not in found]:
        raise ServerUnfit(f"it has no status variable {missing[0]}; use MariaDB 10.11, MySQL 8.4 or a later one")
    return ".".join(found[name] for name in (*UPTIMES, *names))


def complaint_of(reception_error: str, apply_error: str, *, applies: bool) -> str:
    """Return why a replica does not receive or does not apply; empty: it names nothing.

    Args:
        reception_error, apply_error: the last error of each, until it is started again; empty: none.
        applies: its SQL thread runs.
    """
    received = f"its reception ended: {reception_error}" if reception_error else ""
    applied = "" if applies else ": ".join(filter(None, ("its SQL thread stands", apply_error)))
    return "; ".join(filter(None, (received, applied)))


def by_name(rows: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Return the values of a reply to `read_variables` or `read_counters`, by name in capitals."""
    return {text(name).upper(): text(value) for name, value, *_ in rows}


def text(value: object) -> str:
    """Return a value of a reply as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def is_on(variables: Mapping[str, str], name: str) -> bool:
    """Return whether a setting is on. A setting that is missing is off."""
    return variables.get(name, "OFF").upper() in ("ON", "1", "YES")


def login_literals(source: ReplicationLogin) -> tuple[bytes, int, bytes, bytes]:
    return _literal(source.host), source.port, _literal(source.user), _literal(source.password)


def _literal(value: str) -> bytes:
    return bytes_literal(value.encode())


def _literals(values: Iterable[str]) -> bytes:
    return b", ".join(map(_literal, values))


def _name(value: str) -> bytes:
    return b"`%s`" % value.replace("`", "``").encode()
