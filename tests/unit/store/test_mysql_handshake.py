"""Bulk execution is asked for exactly where it is offered, and the rest of the handshake stays as it was."""

from __future__ import annotations

import struct

import aiomysql.connection
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.store.mysql.mysql_handshake import asking_for_bulk, offers_bulk

_IS_MYSQL = 1
_BULK = 1 << 2


def _greeting(capabilities: int, extended: int, version: bytes = b"5.5.5-10.11.6-MariaDB") -> bytes:
    lower, upper = capabilities & 0xFFFF, capabilities >> 16
    head = b"\x0a" + version + b"\0" + struct.pack("<I8sxHBHHB", 7, b"saltsalt", lower, 45, 2, upper, 21)
    return head + bytes(6) + extended.to_bytes(4, "little") + b"twelve bytes\0" + b"mysql_native_password\0"


@pytest.mark.parametrize(
    ("capabilities", "extended", "offered"),
    [
        (0x81FFF7FE, 0x1D, True),
        (0x81FFF7FE, _BULK, True),
        (0x81FFF7FE, 0x1D & ~_BULK, False),
        (0x81FFF7FE, 0, False),
        (0xDFFFFFFF, 0, False),
        # MySQL may fill its filler one day.
        (0xDFFFFFFF, 0xFFFFFFFF, False),
    ],
)
def test_bulk_execution_is_offered_by_a_bit_of_a_server_that_is_not_mysql(
    capabilities: int, extended: int, offered: bool
) -> None:
    assert offers_bulk(_greeting(capabilities, extended)) is offered


@given(st.integers(0, 100))
def test_a_greeting_that_is_cut_off_offers_nothing(length: int) -> None:
    greeting = _greeting(0x81FFF7FE, 0x1D)
    filler_end = greeting.index(b"twelve bytes")
    assert offers_bulk(greeting[:length]) is (length >= filler_end)


@pytest.mark.parametrize("rest", [b"", b"foqs\0" + bytes(40), b"foqs\0\x14" + bytes(range(20)) + b"database\0"])
def test_the_reply_asks_for_bulk_execution_and_says_the_rest_as_before(rest: bytes) -> None:
    capabilities = 0x3BFA0F
    reply = struct.pack("<IIB23s", capabilities, 1 << 24, 45, b"") + rest
    assert asking_for_bulk(reply) == struct.pack("<IIB19sI", capabilities & ~_IS_MYSQL, 1 << 24, 45, b"", _BULK) + rest


@pytest.mark.parametrize(
    "packet", [b"", b"a password\0", bytes(20), bytes(range(1, 33)), b"\x03SET NAMES utf8mb4 COLLATE utf8mb4_bin"]
)
def test_other_packets_of_the_handshake_stay_as_they_are(packet: bytes) -> None:
    assert asking_for_bulk(packet) == packet


def test_aiomysql_still_imports_what_pymysql_1_3_removes() -> None:
    """When this fails, the bound of PyMySQL in pyproject.toml can go; see docs/decisions/0003-own-mysql-protocol.md."""
    assert hasattr(aiomysql.connection, "escape_bytes_prefixed")
