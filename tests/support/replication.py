"""Two MariaDB servers, a primary and an asynchronous replica that can be promoted.

Always true: a connection to `port` reaches the current primary, and is refused while
that is dead; the replica may lack what the primary has committed. Knows nothing of queues.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import pymysql.cursors

from tests.support.dropping_proxy import DroppingProxy
from tests.support.mariadb import MariaDb
from tests.support.poll import until

_OPTIONS: Final = ("--log-bin=bin", "--sync-binlog=1", "--binlog-format=ROW", "--log-slave-updates")


class Replication:
    """Both servers, and the address in front of them; a context manager that starts and removes all of it."""

    def __init__(self) -> None:
        self.primary = MariaDb(*_OPTIONS, "--server-id=1")
        self.replica = MariaDb(*_OPTIONS, "--server-id=2", "--read-only=1")
        self._proxy: DroppingProxy
        self._stack = ExitStack()

    @property
    def port(self) -> int:
        """The port under which the database is known."""
        return self._proxy.port

    def until_copied(self) -> None:
        """Return when the replica has all that the primary has committed so far."""
        [(position,)] = self.primary.query("SELECT @@GLOBAL.gtid_binlog_pos")
        [(reached,)] = self.replica.query("SELECT MASTER_GTID_WAIT(%s, 60)", position)
        assert reached == 0, self._state()

    def stop_applying(self) -> None:
        """Let the replica receive but not apply commits. What it has not applied is lost if it is promoted."""
        self.replica.query("STOP SLAVE SQL_THREAD")

    def promote(self) -> None:
        """Make the replica the primary: it drops changes that it has not applied, and accepts writes at `port`."""
        self.replica.query("STOP SLAVE")
        self.replica.query("RESET SLAVE ALL")
        self.replica.query("SET GLOBAL read_only = 0")
        self._proxy.point_to(self.replica.port)

    def _state(self) -> str:
        connection = pymysql.connect(
            user="root", cursorclass=pymysql.cursors.DictCursor, **self.replica.connect_arguments
        )
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            return str(cursor.fetchall())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in (self.primary, self.replica):
                stack.callback(server.remove)
                server.start()
            self.replica.query(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', "
                "MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
                self.primary.port,
            )
            self.replica.query("START SLAVE")
            until(lambda: "'Slave_SQL_Running': 'Yes'" in self._state(), "the replica copies")
            self._proxy = stack.enter_context(DroppingProxy(self.primary.port))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
