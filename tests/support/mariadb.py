"""A real MariaDB server for tests: started, killed, started again on the same data.

Always true: its durability settings are those of production; it runs in a
temporary folder as a user that is not root, on a port that stays its own over
restarts; it is ended by its process id. How a server is had is the business of
`foqs.dev`. Knows nothing of queues.
"""

from __future__ import annotations

import shutil
import signal
from typing import Any

from foqs.dev import mariadb_server
from foqs.store.mysql.mysql_driver import MysqlSettings
from tests.support.freezing import freeze, thaw
from tests.support.ports import free_port


class MariaDb(mariadb_server.MariaDb):
    """One server. `start` it before use and `remove` it at the end.

    Args:
        options: more options for the server, as on its command line.
    """

    def __init__(self, *options: str) -> None:
        super().__init__(port=free_port(), options=options)
        self._databases = 0
        self.create_data()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def kill9(self) -> None:
        """Ends the server as a crash would."""
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the server from answering until `thaw`. It still accepts connections."""
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    def remove(self) -> None:
        """Ends the server and deletes its folder."""
        self.kill9()
        shutil.rmtree(self.folder)

    def database(self) -> str:
        """Creates an empty database and returns its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.query(f"CREATE DATABASE {name}")
        return name

    def settings(self, database: str, **changes: Any) -> MysqlSettings:
        """How to reach a database as root."""
        given: dict[str, Any] = {**self.connect_arguments, "user": "root", "database": database}
        return MysqlSettings(**(given | changes))
