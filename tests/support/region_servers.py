"""Real servers of one database in several regions, as a promoter uses them.

Always true: each is configured as docs/design/regions.md says, so it starts read-only and
receives nothing; the promoter and each server have accounts of their own. Knows nothing
of queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

import pymysql

from foqs.dev import region_database
from foqs.dev.region_database import LOG_OPTIONS, REPLICATION_OPTIONS
from foqs.store.mysql.expected_server import ExpectedServer
from foqs.store.mysql.mysql_driver import MysqlLink
from foqs.store.mysql.mysql_server import MysqlServers, ServerAccess
from shardmgr.primary import DatabaseServer, LossPolicy, Primary
from shardmgr.primary_changes import first_entry
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import KINDS

SCHEMA: Final = "foqs"
_SERVER_IDS: Final = {"a": 11, "b": 12, "c": 13}
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "mariadb": REPLICATION_OPTIONS,
    "mysql9": (
        "--super-read-only=1",
        "--skip-replica-start",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--relay-log-recovery=OFF",
        "--plugin-load-add=semisync_source.so",
        "--plugin-load-add=semisync_replica.so",
        "--plugin-load-add=mysql_clone.so",
    ),
}
PROMOTER_RIGHTS: Final = {
    "mariadb": region_database.PROMOTER_RIGHTS,
    "mysql9": "RELOAD, REPLICATION CLIENT, REPLICATION_SLAVE_ADMIN, SYSTEM_VARIABLES_ADMIN, PROCESS, CONNECTION_ADMIN",
}


def follow_statements(kind: str, name: str, port: int, host: str = "127.0.0.1") -> tuple[str, ...]:
    """Return the statements with which a server receives from another one."""
    word, rest, start = {
        "mariadb": ("MASTER", "MASTER_USE_GTID = slave_pos", "START SLAVE"),
        "mysql9": ("SOURCE", "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1", "START REPLICA"),
    }[kind]
    change = "CHANGE MASTER TO" if kind == "mariadb" else "CHANGE REPLICATION SOURCE TO"
    login = f"{word}_HOST = '{host}', {word}_PORT = {port}, {word}_USER = 'replica_{name}', {word}_PASSWORD = 'secret'"
    return f"{change} {login}, {rest}", start


class RegionServers:
    """The servers `a`, `b` and so on, at most three; a context manager that starts and removes them."""

    def __init__(self, kind: str, count: int) -> None:
        self.servers: dict[str, MariaDb] = {}
        self._server_ids = dict(list(_SERVER_IDS.items())[:count])
        self.kind = kind
        self._stack = ExitStack()

    def write(self, name: str, text: str) -> None:
        """Commit a row as a host does, and return when the commit has returned."""
        self._as_host(name, f"INSERT INTO {SCHEMA}.item VALUES ('{text}')")

    def rows(self, name: str) -> set[str]:
        return {text for (text,) in self.servers[name].query(f"SELECT text FROM {SCHEMA}.item")}

    def make_table(self, name: str) -> None:
        self._as_host(name, f"CREATE TABLE {SCHEMA}.item (text VARCHAR(50) PRIMARY KEY) ENGINE = InnoDB")

    def open(self, name: str) -> None:
        """Let a server accept commits by hand."""
        for setting in ("super_read_only", "read_only") if self.kind == "mysql9" else ("read_only",):
            self.servers[name].query(f"SET GLOBAL {setting} = 0")

    def follow(self, source: str) -> None:
        """Let all other servers receive from a server by hand, as docs/regions.md says."""
        for name, server in self.servers.items():
            if name != source:
                for statement in follow_statements(self.kind, name, self.servers[source].port):
                    server.query(statement)

    def stop_replication(self, name: str, thread: str) -> None:
        """Stop the `IO_THREAD` or the `SQL_THREAD` of a replica by hand, and return when it has ended."""
        self.servers[name].query(f"STOP {'SLAVE' if self.kind == 'mariadb' else 'REPLICA'} {thread}")

    def start_replication(self, name: str, thread: str) -> None:
        """Start such a thread again."""
        self.servers[name].query(f"START {'SLAVE' if self.kind == 'mariadb' else 'REPLICA'} {thread}")

    def forbid_replication(self, source: str) -> None:
        """Let nobody receive from a server any more, as if the network were cut there, until `allow_replication`."""
        self.lock_accounts(source, self._server_ids)
        connections = "SELECT id FROM information_schema.processlist WHERE user IN ({})"
        users = ", ".join(f"'replica_{name}'" for name in self._server_ids)
        for (number,) in self.servers[source].query(connections.format(users)):
            with suppress(pymysql.OperationalError):  # it has ended
                self.servers[source].query(f"KILL {number}")

    def allow_replication(self, source: str) -> None:
        self.lock_accounts(source, self._server_ids, word="UNLOCK")

    def lock_accounts(self, source: str, replicas: Iterable[str], word: str = "LOCK") -> None:
        """Let replicas not log in any more at a server, or again with the word UNLOCK."""
        names = ", ".join(f"replica_{name}@'127.0.0.1'" for name in replicas)
        statements = ["SET SESSION sql_log_bin = 0", f"ALTER USER {names} ACCOUNT {word}"]
        if self.kind == "mysql9":
            [(is_closed,)] = self.servers[source].query("SELECT @@GLOBAL.super_read_only")
            if is_closed:
                statements = ["SET GLOBAL super_read_only = 0", *statements, "SET GLOBAL super_read_only = 1"]
        connection = pymysql.connect(user="root", autocommit=True, **self.servers[source].connect_arguments)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def lock_account_everywhere(self, primary: str, replica: str) -> None:
        """Lock the account of a replica at the primary, which replicates this."""
        self.servers[primary].query(f"ALTER USER replica_{replica}@'127.0.0.1' ACCOUNT LOCK")

    def unlock_account_everywhere(self, primary: str, replica: str) -> None:
        """Unlock the account of a replica at the primary, which replicates this."""
        self.servers[primary].query(f"ALTER USER replica_{replica}@'127.0.0.1' ACCOUNT UNLOCK")

    def is_locked(self, source: str, replica: str) -> bool:
        [(text,)] = self.servers[source].query(f"SHOW CREATE USER replica_{replica}@'127.0.0.1'")
        return "ACCOUNT LOCK" in text

    def stop_waiting_for_acks(self, name: str) -> None:
        """Weaken a primary by hand: its commits wait for no acker."""
        self.weaken(name, "enabled = 0")

    def weaken(self, name: str, setting: str) -> None:
        """Change a setting of semi-sync at a primary by hand, such as `timeout = 1000`."""
        word = "master" if self.kind == "mariadb" else "source"
        self.servers[name].query(f"SET GLOBAL rpl_semi_sync_{word}_{setting}")

    def end_connections(self, name: str, user: str) -> None:
        """End all connections of an account at a server."""
        for (number,) in self.servers[name].query(
            "SELECT id FROM information_schema.processlist WHERE user = %s", user
        ):
            with suppress(pymysql.OperationalError):  # it has ended
                self.servers[name].query(f"KILL {number}")

    def acknowledging(self, name: str) -> int:
        """Return how many servers acknowledge for a primary."""
        word = "master" if self.kind == "mariadb" else "source"
        [(_, count)] = self.servers[name].query(f"SHOW STATUS LIKE 'Rpl_semi_sync_{word}_clients'")
        return int(count)

    def waits_for_ack(self, name: str) -> bool:
        """Return whether a commit waits for an acker."""
        states = [str(column) for row in self.servers[name].query("SHOW PROCESSLIST") for column in row]
        return any(state.startswith("Waiting for semi-sync ACK") for state in states)

    def _as_host(self, name: str, statement: str) -> None:
        server = self.servers[name]
        connection = pymysql.connect(user="hosts", host="127.0.0.1", port=server.port, autocommit=True, read_timeout=30)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def hold(self, name: str, text: str) -> pymysql.Connection[Any]:
        """Return the connection of a host that has locked a row, and does nothing more."""
        port = self.servers[name].port
        connection = pymysql.connect(user="hosts", host="127.0.0.1", port=port, database=SCHEMA, read_timeout=30)
        connection.cursor().execute(f"SELECT text FROM item WHERE text = '{text}' FOR UPDATE")
        return connection

    async def connect_as_host(self, name: str, entry: Primary) -> None:
        """Connect to a server as a host that has read this entry does. Raises WrongServer."""
        number = entry.servers[entry.server].server_id
        expected = ExpectedServer(entry.server, number, entry.term, needs_acks=True)
        server = self.servers[name]
        settings = server.settings(SCHEMA, user="hosts", unix_socket=None, port=server.port, expected=expected)
        (await MysqlLink.connect(settings)).abort()

    @property
    def addresses(self) -> str:
        """The servers as the configuration of a host names them."""
        return ",".join(f"{name}=127.0.0.1:{server.port}" for name, server in self.servers.items())

    @property
    def first_entry(self) -> Primary:
        """The first entry of the database: `a` becomes its primary."""
        servers = {name: DatabaseServer(f"r-{name}", number) for name, number in self._server_ids.items()}
        return first_entry("a", LossPolicy.SEMI_SYNC, servers)

    def for_promoter(self) -> MysqlServers:
        """Return how a promoter reaches the servers."""
        accesses = {
            name: ServerAccess(
                server.settings("", user="promoter", unix_socket=None, port=server.port, statement_timeout_s=20.0),
                ("127.0.0.1", server.port),
                f"replica_{name}",
                "secret",
                "hosts",
            )
            for name, server in self.servers.items()
        }
        return MysqlServers(SCHEMA, accesses)

    def _make_accounts(self, server: MariaDb) -> None:
        """Make accounts and the schema without a trace in the log: each server gets them so."""
        lock = "SET GLOBAL super_read_only = %d" if self.kind == "mysql9" else "DO %d"
        privileges = [f"GRANT {PROMOTER_RIGHTS[self.kind]} ON *.* TO promoter@'127.0.0.1'"]
        if self.kind == "mysql9":
            privileges.append("GRANT SELECT ON performance_schema.* TO promoter@'127.0.0.1'")
        statements = (
            lock % 0,
            "SET SESSION sql_log_bin = 0",
            f"CREATE DATABASE {SCHEMA}",
            "CREATE USER promoter@'127.0.0.1'",
            *privileges,
            f"GRANT SELECT, INSERT, UPDATE, CREATE ON {SCHEMA}.* TO promoter@'127.0.0.1'",
            "CREATE USER hosts@'127.0.0.1'",
            f"GRANT ALL ON {SCHEMA}.* TO hosts@'127.0.0.1'",
            *(
                statement
                for name in self._server_ids
                for statement in (
                    f"CREATE USER replica_{name}@'127.0.0.1' IDENTIFIED BY 'secret'",
                    f"GRANT REPLICATION SLAVE ON *.* TO replica_{name}@'127.0.0.1'",
                )
            ),
            lock % 1,
        )
        connection = pymysql.connect(user="root", autocommit=True, **server.connect_arguments)
        with connection, connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name, number in self._server_ids.items():
                server = KINDS[self.kind](*LOG_OPTIONS, *OPTIONS[self.kind], f"--server-id={number}")
                stack.callback(server.remove)
                # Else both would have the uuid of the data that they were copied from.
                (server.folder / "data/auto.cnf").unlink(missing_ok=True)
                server.start()
                self._make_accounts(server)
                self.servers[name] = server
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
