"""The MySQL driver, behind the few things the store needs of it: connect, run, end.

Always true: `run` sends one packet of one or more statements and returns when
every result was read; anything that leaves a result unread (a timeout, a
cancel, a broken socket) ends the link for good. Knows nothing of queues, SQL or
what an error code means for a transaction. Another driver replaces this module
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl as tls
from dataclasses import dataclass, field
from typing import Any, Final

import aiomysql
from pymysql.constants import CLIENT
from pymysql.err import MySQLError

_CLIENT_CODES: Final = range(2000, 3000)
_GOODBYE_CODES: Final = frozenset({1040, 1053, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 3169, 4031})
"""Server errors after which the server closes the connection, or was told to."""
_CLOSE_TIMEOUT_S: Final = 1.0


@dataclass(slots=True, frozen=True)
class MysqlSettings:
    """Where a shard's database is and how patient to be with it.

    `unix_socket`, when set, is used instead of host and port.
    `statement_timeout_s` bounds one round trip, the lock wait within it included.
    `lock_wait_timeout_s` is a whole number of seconds, as the server counts them.
    `unsafe_durability` accepts server settings that can lose acknowledged writes.
    """

    database: str
    host: str = "127.0.0.1"
    port: int = 3306
    unix_socket: str | None = None
    user: str = "foqs"
    password: str = field(default="", repr=False)
    ssl: tls.SSLContext | None = None
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 30.0
    lock_wait_timeout_s: int = 5
    unsafe_durability: bool = False

    @property
    def where(self) -> str:
        """The database's name for messages; holds no secret."""
        return f"{self.database} at {self.unix_socket or f'{self.host}:{self.port}'}"


@dataclass(slots=True, frozen=True)
class Result:
    """What one statement gave: the rows it read, or how many rows its condition matched."""

    rows: tuple[tuple[Any, ...], ...]
    matched: int


class ServerError(Exception):
    """The server answered with an error; the link is still in step."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (error {code})")
        self.code = code


class LinkLost(Exception):
    """The connection is gone; what was sent last may or may not take effect."""


class Link:
    """One connection. Made by `connect`."""

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._connection = connection
        # Kept apart: the driver forgets its transport when it closes, before buffers are flushed.
        self._transport: asyncio.Transport = connection._writer.transport
        self._timeout_s = timeout_s

    @classmethod
    async def connect(cls, settings: MysqlSettings) -> Link:
        """A new connection.

        Raises:
            ServerError: refused by the server (a wrong password, no such database).
            LinkLost: not reached within `connect_timeout_s`.
        """
        connection = aiomysql.Connection(
            host=settings.host,
            port=settings.port,
            unix_socket=settings.unix_socket,
            user=settings.user,
            password=settings.password,
            db=settings.database,
            charset="utf8mb4",
            ssl=settings.ssl,
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,  # an UPDATE reports the rows it matched, changed or not
            program_name="foqs",
        )
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await connection.ping(reconnect=True)
        except BaseException as error:
            connection.close()
            if isinstance(error, Exception):
                raise _told(error, f"no answer within {settings.connect_timeout_s} s") from error
            raise
        return cls(connection, settings.statement_timeout_s)

    async def run(self, *statements: str) -> list[Result]:
        """Sends the statements as one packet and reads every result.

        The server stops at the first error; earlier statements have run.

        Raises:
            ServerError, LinkLost: as their docstrings say.
        """
        connection = self._connection
        results: list[Result] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.query(";".join(statements))
                while True:
                    # The cursor's public way costs a second round trip for every statement with a note.
                    result = connection._result
                    results.append(Result(result.rows or (), result.affected_rows))
                    if not result.has_next:
                        return results
                    await connection.next_result()
        except BaseException as error:
            told = _told(error, f"no answer within {self._timeout_s} s") if isinstance(error, Exception) else None
            if not isinstance(told, ServerError):
                self.abort()
            if told is None:
                raise
            raise told from error

    def abort(self) -> None:
        """Cuts the connection now; unsent bytes are thrown away."""
        self._transport.abort()
        self._connection.close()

    async def close(self) -> None:
        """Says goodbye, briefly. Never raises but for a cancel."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.ensure_closed()
        self.abort()


def _told(error: Exception, timed_out: str) -> ServerError | LinkLost:
    if isinstance(error, TimeoutError):
        return LinkLost(timed_out)
    if isinstance(error, MySQLError) and error.args and isinstance(error.args[0], int):
        code, text = error.args[0], str(error.args[-1])
        if code and code not in _CLIENT_CODES and code not in _GOODBYE_CODES:
            return ServerError(code, text)
        return LinkLost(f"{text} (error {code})")
    # Whatever else comes out of a driver whose socket broke under it.
    return LinkLost(f"{type(error).__name__}: {error}")
