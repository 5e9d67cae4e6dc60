"""A connection to MySQL with the few operations that the store needs: connect, run, close.

Always true: `run` sends one or more statements at once and returns when every
result was read. If a result stays unread (a timeout, a cancel, a broken socket),
the link ends for good. aiomysql connects, encrypts and logs in; its own reading
costs a dozen calls and two awaits a row, so `mysql_protocol` reads the results.
Knows nothing of queues, SQL or the meaning of error codes for a transaction.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from pymysql.constants import CLIENT
from pymysql.err import MySQLError

from foqs.store.mysql.mysql_handshake import MysqlConnection
from foqs.store.mysql.mysql_protocol import (
    BoundStatement,
    PrepareReplyReader,
    ReplyReader,
    Result,
    ServerError,
    Statement,
    prepare_packet,
    query_packet,
    request_packets,
)

__all__ = [
    "ConnectionCheck",
    "MysqlLink",
    "MysqlLinkLost",
    "MysqlSettings",
    "OnResults",
    "Result",
    "ServerError",
    "Statement",
    "WrongServer",
]

_CLIENT_ERROR_CODES: Final = range(2000, 3000)
_CLOSING_CODES: Final = frozenset({1040, 1053, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 3169, 4031})
"""Server errors with which the server closes the connection, or a statement or connection was killed."""
PREPARE_REFUSED_CODES: Final = frozenset({1243, 1461, 1615})
"""Server errors of prepared statements: unknown, no room for it, its table has changed."""
NO_TLS_CODE: Final = 3159
"""The server's error for a connection without TLS, which it does not accept."""
TLS_REMEDY: Final = "set tls in [store] or [databases.NAME], and for REQUIRE X509 tls_cert_file and tls_key_file"
_QUIT_PACKET: Final = b"\x01\0\0\0\x01"
"""The packet that ends a session: COM_QUIT."""


class ConnectionCheck(Protocol):
    """Checks that a new connection leads to the right server."""

    async def check(self, link: MysqlLink, database: str) -> None:
        """Raise WrongServer if it does not. Also raises ServerError, MysqlLinkLost."""
        ...


@dataclass(slots=True, frozen=True)
class MysqlSettings:
    """The address, login and timeouts of a shard's database.

    `unix_socket`, when set, is used instead of host and port.
    `tls`, when set, is used for every connection. A server that offers no TLS is refused.
    `statement_timeout_s` bounds one round trip, with its lock waits and the COMMIT that follows it.
    `lock_wait_timeout_s` is a whole number of seconds, as the server requires.
    `unsafe_durability` accepts server settings that can lose acknowledged writes.
    `expected`, when set, checks each connection before its first use.
    """

    database: str
    host: str = "127.0.0.1"
    port: int = 3306
    unix_socket: str | None = None
    user: str = "foqs"
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 30.0
    lock_wait_timeout_s: int = 5
    unsafe_durability: bool = False
    expected: ConnectionCheck | None = None

    @property
    def location(self) -> str:
        """The database's name and address for messages, without secrets."""
        return f"{self.database} at {self.unix_socket or f'{self.host}:{self.port}'}"


OnResults: TypeAlias = Callable[[list[Result]], bytes | None]
"""Maps the results of statements to a statement that follows them, as text, or None."""


class MysqlLinkLost(Exception):
    """The connection is gone. The last statements may or may not take effect."""


class WrongServer(MysqlLinkLost):
    """The connection was ended at once, because it leads to another server than it must: the text says to which."""


class MysqlLink(asyncio.Protocol):
    """One connection, made by `connect`. aiomysql does the handshake; this class does the rest."""

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._connection = connection
        # The driver drops its transport when it closes, before buffers are flushed.
        self._transport: asyncio.Transport = connection._writer.transport
        self.timeout_s = timeout_s
        """The longest time of a round trip."""
        self.can_prepare = True
        """Whether statements may be bound: the server has not refused a prepared statement."""
        self.can_bulk: bool = connection.can_bulk
        """Whether a bound statement may be executed in bulk."""
        self._loop = asyncio.get_running_loop()
        self._reply_reader: ReplyReader | PrepareReplyReader = ReplyReader()
        """Reads the replies to the current request."""
        self.statement_ids: dict[bytes, int] = {}
        """The ids of the statements that the server has prepared, by their text."""
        self._waiter: asyncio.Future[Any] | None = None
        self._on_results: OnResults | None = None
        """The callback of the current request; None once it was called."""
        self._ended_reason: str | None = None
        """Why the link has ended; None while it works."""
        self._is_aborted = False
        """The transport is closed, or is being closed. One with TLS cannot be aborted again, once it is closed."""
        self._transport.set_protocol(self)

    @classmethod
    async def connect(cls, settings: MysqlSettings) -> MysqlLink:
        """Open a new connection, and return it.

        Raises:
            ServerError: the server refused it (a wrong password, no such database).
            MysqlLinkLost: the server was not reached within `connect_timeout_s`.
            WrongServer: it was reached, and is not the one that `settings.expected` demands.
        """
        connection = MysqlConnection(
            host=settings.host,
            port=settings.port,
            unix_socket=settings.unix_socket,
            user=settings.user,
            password=settings.password,
            db=settings.database,
            charset="utf8mb4",
            ssl=settings.tls,
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
                raise _driver_error(error, f"no answer within {settings.connect_timeout_s} s") from error
            raise
        link = cls(connection, settings.statement_timeout_s)
        if settings.expected is not None:
            try:
                await settings.expected.check(link, settings.database)
            except BaseException:
                link.abort()
                raise
        return link

    async def run(self, *statements: Statement, on_results: OnResults | None = None) -> list[Result]:
        """Send the statements at once and read every result. A bound statement is prepared first, once.

        Args:
            on_results: returns a statement that follows, which is sent in the turn of the
                loop in which the last result arrived. Its result is added to the others. If the
                callback raises, nothing follows and the error is raised here. `timeout_s` is for
                both.

        The first error is raised. The statements before it have run. The text statements
        after it, up to the next bound one, have not run; the others may have.

        Raises:
            ServerError, MysqlLinkLost: as their docstrings say.
        """
        for statement in statements:
            if type(statement) is BoundStatement and statement.sql not in self.statement_ids:
                self.statement_ids[statement.sql] = await self._prepare(statement)
        packets = request_packets(statements, self.statement_ids)
        reply_reader = ReplyReader(len(packets))
        self._on_results = on_results
        try:
            return await self._exchange(packets, reply_reader)  # type: ignore[no-any-return]
        except ServerError as error:
            if self._reply_reader is reply_reader:
                self._note_refusal(error, statements[reply_reader.answered_count])
            raise
        finally:
            self._on_results = None

    async def _prepare(self, statement: BoundStatement) -> int:
        try:
            return await self._exchange([prepare_packet(statement.sql)], PrepareReplyReader())  # type: ignore[no-any-return]
        except ServerError as error:
            self._note_refusal(error, statement)
            raise

    def _note_refusal(self, error: ServerError, statement: Statement) -> None:
        error.statement = statement
        if error.code in PREPARE_REFUSED_CODES:
            self.can_prepare = False

    async def _exchange(self, packets: list[bytes], reply_reader: ReplyReader | PrepareReplyReader) -> Any:
        """Send packets in one write, and return the result of the reader."""
        assert self._waiter is None, "one request at a time"
        if self._ended_reason is not None:
            raise MysqlLinkLost(self._ended_reason)
        self._reply_reader = reply_reader
        self._waiter = waiter = self._loop.create_future()
        self._transport.write(b"".join(packets))
        timer = self._loop.call_later(self.timeout_s, self._mark_ended, f"no answer within {self.timeout_s} s")
        try:
            return await waiter
        except BaseException as error:
            # A server error, or one of `on_results`, is set when every result was read: the link stays usable.
            all_read = waiter.done() and not waiter.cancelled() and waiter.exception() is error
            if not all_read or isinstance(error, MysqlLinkLost):
                self.abort()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def abort(self) -> None:
        """Close the connection at once; unsent bytes are lost."""
        self._mark_ended("the connection was aborted")
        self._connection.close()

    async def close(self) -> None:
        """Send COM_QUIT and close the connection without waiting. Raises nothing but CancelledError."""
        self._ended_reason = self._ended_reason or "the connection was closed"
        try:
            if not self._transport.is_closing():
                self._transport.write(_QUIT_PACKET)
                await asyncio.sleep(0)  # some loops send at the end of a turn
        finally:
            self.abort()

    # ---------------------------------------------------- called by the transport

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._mark_ended("the server closed the connection")  # it sends its reason, then closes
            return
        reader = self._reply_reader
        try:
            found = reader.feed(data)
        except ServerError as error:
            if error.code in _CLOSING_CODES:
                self._mark_ended(str(error))
            else:
                waiter.set_exception(error)
        except Exception as error:
            self._mark_ended(f"the server sent an invalid reply: {type(error).__name__}: {error}")
        else:
            if found is not None:
                self._on_replies(found, waiter)
            elif reader.error is not None and reader.error.code in _CLOSING_CODES:
                self._mark_ended(str(reader.error))

    def _on_replies(self, replies: Any, waiter: asyncio.Future[Any]) -> None:
        """Give the caller the replies, which are complete, or send the statement that follows them."""
        on_results, self._on_results = self._on_results, None
        try:
            following = None if on_results is None else on_results(replies)
        except Exception as error:
            if not waiter.done():
                waiter.set_exception(error)
            return
        if waiter.done():
            return  # `on_results` has ended the link, or cancelled the caller
        if following is None:
            waiter.set_result(replies)
        else:
            self._reply_reader = ReplyReader(1, replies)
            self._transport.write(query_packet([following]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_aborted = True
        self._mark_ended(f"the connection broke: {exc}" if exc else "the server closed the connection")

    def _mark_ended(self, reason: str) -> None:
        """End the link: later bytes are no reply to anything."""
        self._ended_reason = self._ended_reason or reason
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(MysqlLinkLost(reason))
        if not self._is_aborted:
            self._is_aborted = True
            self._transport.abort()


def _driver_error(error: Exception, timeout_text: str) -> ServerError | MysqlLinkLost:
    if isinstance(error, TimeoutError):
        return MysqlLinkLost(timeout_text)
    if isinstance(error, MySQLError) and error.args and isinstance(error.args[0], int):
        code, text = error.args[0], str(error.args[-1])
        if code and code not in _CLIENT_ERROR_CODES and code not in _CLOSING_CODES:
            return ServerError(code, text)
        return MysqlLinkLost(f"{text}{_unreached_reason(error.__cause__)} (error {code})")
    # Any other error of a driver whose socket broke.
    return MysqlLinkLost(f"{type(error).__name__}: {error}")


def _unreached_reason(cause: BaseException | None) -> str:
    """Return `: ` and why the server was not reached, which the driver's text leaves out; empty if it is unknown."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f": its certificate is not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f": the TLS handshake failed: {cause.reason or cause}"
    if not isinstance(cause, OSError):
        return ""
    if isinstance(cause, socket.gaierror) or cause.errno is None:
        return f": {cause.strerror or cause}"
    return f": {os.strerror(cause.errno)}"
