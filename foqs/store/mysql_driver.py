"""The MySQL driver, behind the few things the store needs of it: connect, run, end.

Always true: `run` sends one or more statements at once and returns when
every result was read; anything that leaves a result unread (a timeout, a
cancel, a broken socket) ends the link for good. The driver connects, encrypts
and logs in; its own way of reading results costs a dozen calls and two awaits
for every row, so `mysql_wire` reads them. Knows nothing of queues, SQL or what
an error code means for a transaction.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl as tls
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import aiomysql
from pymysql.constants import CLIENT
from pymysql.err import MySQLError

from foqs.store.mysql_wire import Bound, Preparation, Replies, Result, ServerError, Statement, packets, prepare, query

__all__ = ["Link", "LinkLost", "MysqlSettings", "Result", "ServerError", "Statement", "Then"]

_CLIENT_CODES: Final = range(2000, 3000)
_GOODBYE_CODES: Final = frozenset({1040, 1053, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 3169, 4031})
"""Server errors after which the server closes the connection, or was told to."""
UNPREPARED: Final = frozenset({1243, 1461, 1615})
"""Server errors of what is prepared: not known, no room for it, not as its table is any more."""
_GOODBYE: Final = b"\x01\0\0\0\x01"
"""The packet that ends a session: COM_QUIT."""


@dataclass(slots=True, frozen=True)
class MysqlSettings:
    """Where a shard's database is and how patient to be with it.

    `unix_socket`, when set, is used instead of host and port.
    `statement_timeout_s` bounds one round trip, the lock wait within it included, and a COMMIT that follows it.
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


Then: TypeAlias = Callable[[list[Result]], bytes | None]
"""What follows statements, in text, when all their results are read; None: nothing does."""


class LinkLost(Exception):
    """The connection is gone; what was sent last may or may not take effect."""


class Link(asyncio.Protocol):
    """One connection. Made by `connect`, which lets the driver shake hands; what follows is read here."""

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._connection = connection
        # Kept apart: the driver forgets its transport when it closes, before buffers are flushed.
        self._transport: asyncio.Transport = connection._writer.transport
        self.timeout_s = timeout_s
        """How long a round trip may take."""
        self.prepares = True
        """The server has not yet refused what was prepared, or to be: until then statements may be bound."""
        self._loop = asyncio.get_running_loop()
        self._reader: Replies | Preparation = Replies()
        """Of what is asked for now."""
        self._prepared: dict[bytes, int] = {}
        """The server's numbers of statements, by their text."""
        self._waiter: asyncio.Future[Any] | None = None
        self._then: Then | None = None
        """What follows what is asked for now; None once it was asked."""
        self._ended: str | None = None
        """Why nothing can be asked any more."""
        self._transport.set_protocol(self)

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

    async def run(self, *statements: Statement, then: Then | None = None) -> list[Result]:
        """Sends the statements at once and reads every result. What is bound is prepared before, once.

        Args:
            then: asked what follows, which is sent in the same turn of the loop in which the last result came; its
                results follow theirs. What it raises is raised here, and nothing follows. `timeout_s` is for both.

        At an error, which is the first there is, earlier statements have run. Of
        those after it the ones in text up to the next that is bound have not, and
        the others may have.

        Raises:
            ServerError, LinkLost: as their docstrings say.
        """
        for statement in statements:
            if type(statement) is Bound and statement.sql not in self._prepared:
                self._prepared[statement.sql] = await self._prepare(statement)
        asked = packets(statements, self._prepared)
        replies = Replies(len(asked))
        self._then = then
        try:
            return await self._ask(asked, replies)  # type: ignore[no-any-return]
        except ServerError as error:
            if self._reader is replies:
                self._refused(error, statements[replies.count])
            raise
        finally:
            self._then = None

    async def _prepare(self, statement: Bound) -> int:
        try:
            return await self._ask([prepare(statement.sql)], Preparation())  # type: ignore[no-any-return]
        except ServerError as error:
            self._refused(error, statement)
            raise

    def _refused(self, error: ServerError, statement: Statement) -> None:
        error.statement = statement
        if error.code in UNPREPARED:
            self.prepares = False

    async def _ask(self, asked: list[bytes], reader: Replies | Preparation) -> Any:
        """Sends packets in one write; what the reader makes of the answers."""
        assert self._waiter is None, "one question at a time"
        if self._ended is not None:
            raise LinkLost(self._ended)
        self._reader = reader
        self._waiter = waiter = self._loop.create_future()
        self._transport.write(b"".join(asked))
        timer = self._loop.call_later(self.timeout_s, self._end, f"no answer within {self.timeout_s} s")
        try:
            return await waiter
        except BaseException as error:
            # What the server refused, and what `then` raised, is told when every result was read.
            told = waiter.done() and not waiter.cancelled() and waiter.exception() is error
            if not told or isinstance(error, LinkLost):
                self.abort()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def abort(self) -> None:
        """Cuts the connection now; unsent bytes are thrown away."""
        self._end("the connection was cut")
        self._connection.close()

    async def close(self) -> None:
        """Says goodbye and cuts the connection; waits for no answer. Never raises but for a cancel."""
        self._ended = self._ended or "the connection was closed"
        try:
            if not self._transport.is_closing():
                self._transport.write(_GOODBYE)
                await asyncio.sleep(0)  # some loops send at the end of a turn
        finally:
            self.abort()

    # ---------------------------------------------------- called by the transport

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._end("the server closed the connection")  # it says why, unasked, and goes
            return
        reader = self._reader
        try:
            found = reader.feed(data)
        except ServerError as error:
            if error.code in _GOODBYE_CODES:
                self._end(str(error))
            else:
                waiter.set_exception(error)
        except Exception as error:
            self._end(f"an answer that cannot be read: {type(error).__name__}: {error}")
        else:
            if found is not None:
                self._found(found, waiter)
            elif reader.error is not None and reader.error.code in _GOODBYE_CODES:
                self._end(str(reader.error))

    def _found(self, found: Any, waiter: asyncio.Future[Any]) -> None:
        """All that was asked for is there."""
        then, self._then = self._then, None
        try:
            following = None if then is None else then(found)
        except Exception as error:
            if not waiter.done():
                waiter.set_exception(error)
            return
        if waiter.done():
            return  # `then` has ended the link, or whoever asked
        if following is None:
            waiter.set_result(found)
        else:
            self._reader = Replies(1, found)
            self._transport.write(query([following]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection broke: {exc}" if exc else "the server closed the connection")

    def _end(self, why: str) -> None:
        """Nothing that comes later is an answer to anything."""
        self._ended = self._ended or why
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(LinkLost(why))
        self._transport.abort()


def _told(error: Exception, timed_out: str) -> ServerError | LinkLost:
    if isinstance(error, TimeoutError):
        return LinkLost(timed_out)
    if isinstance(error, MySQLError) and error.args and isinstance(error.args[0], int):
        code, text = error.args[0], str(error.args[-1])
        if code and code not in _CLIENT_CODES and code not in _GOODBYE_CODES:
            return ServerError(code, text)
        return LinkLost(f"{text}{_reason(error.__cause__)} (error {code})")
    # Whatever else comes out of a driver whose socket broke under it.
    return LinkLost(f"{type(error).__name__}: {error}")


def _reason(cause: BaseException | None) -> str:
    """Why a server was not reached, which the driver leaves out."""
    if not isinstance(cause, OSError):
        return ""
    if isinstance(cause, socket.gaierror) or cause.errno is None:
        return f": {cause.strerror or cause}"
    return f": {os.strerror(cause.errno)}"
