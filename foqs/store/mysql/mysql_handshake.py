"""aiomysql's connection, with a handshake that insists on TLS and also asks MariaDB for bulk execution.

Bulk execution sends one row's statement with the values of many rows. MariaDB offers it in
the extended capabilities, the last 4 bytes of a filler that MySQL leaves empty:

    greeting: version | text, 0 | thread, 4 bytes | salt, 9 | capabilities, 2 | charset, 1 | status, 2
        | capabilities' upper half, 2 | salt's length, 1 | filler, 6 | extended capabilities, 4 | ...
    reply: capabilities, 4 | packet limit, 4 | charset, 1 | filler, 19 | extended capabilities, 4 | ...

Both sides read them only if the lowest bit of the capabilities is clear: a client or server
that sets it is MySQL's. Always true: the reply has a bit only if the greeting had it; with
TLS, neither the user nor the password is sent before the handshake of TLS. Knows nothing of
statements.
"""

from __future__ import annotations

from typing import Any, Final

import aiomysql
from aiomysql.connection import MysqlPacket
from pymysql.constants import CLIENT, CR
from pymysql.err import OperationalError

_IS_MYSQL: Final = 1
"""The lowest bit of the capabilities."""
_BULK_EXECUTION: Final = 1 << 2
"""A bit of the extended capabilities."""
_REPLY_HEAD_BYTES: Final = 32
_REPLY_FILLER: Final = slice(9, 32)


class MysqlConnection(aiomysql.Connection):  # type: ignore[misc]
    """A connection that has announced bulk execution if the server offers it."""

    can_bulk = False
    """Whether the server executes a statement in bulk, and knows that this client asks for it."""
    _is_greeted = False

    async def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        packet = await super()._read_packet(packet_type)
        if not self._is_greeted:
            self._is_greeted = True
            self.can_bulk = offers_bulk(packet.get_all_data())
        return packet

    async def _request_authentication(self) -> None:
        # aiomysql would go on without TLS, so an attacker between them could hide the offer and read the login.
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            raise OperationalError(
                CR.CR_SSL_CONNECTION_ERROR,
                "the server offers no TLS, and the option tls demands it: turn it on at the server",
            )
        await super()._request_authentication()

    def write_packet(self, payload: bytes) -> None:
        super().write_packet(asking_for_bulk(payload) if self.can_bulk else payload)


def offers_bulk(greeting: bytes) -> bool:
    """Return whether the server offers bulk execution."""
    at = greeting.find(b"\0", 1) + 1 + 4 + 9
    capabilities, extended = greeting[at : at + 2], greeting[at + 14 : at + 18]
    return (
        len(extended) == 4
        and not capabilities[0] & _IS_MYSQL
        and bool(int.from_bytes(extended, "little") & _BULK_EXECUTION)
    )


def asking_for_bulk(payload: bytes) -> bytes:
    """Return the client's reply to a greeting, or its request for TLS, with bulk execution. Other packets stay as they are."""
    if len(payload) < _REPLY_HEAD_BYTES or any(payload[_REPLY_FILLER]):
        return payload
    capabilities = (payload[0] & ~_IS_MYSQL).to_bytes(1, "little") + payload[1:4]
    extended = _BULK_EXECUTION.to_bytes(4, "little")
    return capabilities + payload[4:28] + extended + payload[_REPLY_HEAD_BYTES:]
