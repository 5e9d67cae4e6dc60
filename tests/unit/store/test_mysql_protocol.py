"""MySQL's replies: read completely in pieces of any size, and refused when they do not match the request."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import Writes
from foqs.store.mysql import mysql_sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings
from foqs.store.mysql.mysql_protocol import (
    BoundStatement,
    MysqlProtocolError,
    PrepareReplyReader,
    ReplyReader,
    Result,
    ServerError,
    prepare_packet,
    query_packet,
    request_packets,
)
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import StoreLost
from tests.support.aio import run
from tests.support.stores import make_row

_LONG, _BLOB, _TEXT = 3, 252, 253
_BINARY, _UTF8 = 63, 45
_MORE = 8


def _length(size: int) -> bytes:
    for prefix, limit, width in ((b"", 251, 1), (b"\xfc", 1 << 16, 2), (b"\xfd", 1 << 24, 3)):
        if size < limit:
            return prefix + size.to_bytes(width, "little")
    return b"\xfe" + size.to_bytes(8, "little")


def _string(value: bytes | None) -> bytes:
    return b"\xfb" if value is None else _length(len(value)) + value


def _column(kind: int, charset: int) -> bytes:
    names = b"".join(map(_string, (b"def", b"base", b"table", b"table", b"name", b"name")))
    return names + b"\x0c" + charset.to_bytes(2, "little") + bytes(4) + bytes([kind]) + bytes(5)


def _end(more: bool) -> bytes:
    return b"\xfe\0\0" + bytes([_MORE * more]) + b"\0"


def _ok(matched: int, more: bool) -> list[bytes]:
    return [b"\0" + _length(matched) + _length(0) + bytes([_MORE * more, 0]) + bytes(2)]


def _table(columns: list[tuple[int, int]], rows: list[tuple[bytes | None, ...]], more: bool) -> list[bytes]:
    column_packets = [_column(kind, charset) for kind, charset in columns]
    row_packets = [b"".join(map(_string, row)) for row in rows]
    return [_length(len(columns)), *column_packets, _end(False), *row_packets, _end(more)]


def _stream(packets: list[bytes]) -> bytes:
    """Return packets as they are sent, numbered from 1."""
    return b"".join(
        len(packet).to_bytes(3, "little") + bytes([number & 0xFF]) + packet for number, packet in enumerate(packets, 1)
    )


_COLUMNS = [(_LONG, _BINARY), (_BLOB, _BINARY), (_TEXT, _UTF8)]
_ROWS = st.lists(st.tuples(st.none() | st.integers(), st.none() | st.binary(), st.none() | st.text()), max_size=300)


def _sent(row: tuple[int | None, bytes | None, str | None]) -> tuple[bytes | None, ...]:
    number, data, text = row
    return (None if number is None else b"%d" % number, data, None if text is None else text.encode())


def _feed(stream: bytes, splits: list[int], reader: ReplyReader | PrepareReplyReader | None = None) -> Any:
    """Feed the stream in pieces; only the last one may complete it."""
    replies = reader or ReplyReader()
    edges = sorted({min(split, len(stream)) for split in splits} | {0, len(stream)})
    found = None
    for start, stop in itertools.pairwise(edges):
        assert found is None
        found = replies.feed(stream[start:stop])
    return found


@given(_ROWS, st.integers(0, 1 << 40), st.lists(st.integers(0, 4_000), max_size=30))
def test_replies_are_read_in_pieces_of_any_size(rows: list[Any], matched: int, splits: list[int]) -> None:
    packets = [*_ok(0, True), *_table(_COLUMNS, list(map(_sent, rows)), True), *_ok(matched, False)]
    assert _feed(_stream(packets), splits) == [Result([], 0), Result(rows, len(rows)), Result([], matched)]


@pytest.mark.parametrize("size", [0, 250, 251, 252, 253, 254, 255, 65_535, 65_536, (1 << 24) - 20])
def test_values_of_every_length_are_read(size: int) -> None:
    data = b"\xfe" * size
    stream = _stream(_table([(_BLOB, _BINARY), (_LONG, _BINARY)], [(data, b"-7")], False))
    assert _feed(stream, [len(stream) // 2]) == [Result([(data, -7)], 1)]


@pytest.mark.parametrize("marked", [True, False])
def test_an_error_ends_the_replies_with_its_code_and_text(marked: bool) -> None:
    error = b"\xff" + (1062).to_bytes(2, "little") + b"#23000" * marked + b"Duplicate entry"
    for before in ([], _ok(0, True), _table([(_LONG, _BINARY)], [(b"1",)], True)[:-1]):
        with pytest.raises(ServerError, match=r"^Duplicate entry \(error 1062\)$") as raised:
            _feed(_stream([*before, error]), [])
        assert raised.value.code == 1062


@pytest.mark.parametrize(
    "stream",
    [
        _stream([b"", b""])[4:],
        _stream(_ok(1, False))[:3] + b"\0" + _stream(_ok(1, False))[4:],
        _stream([*_ok(1, False), *_ok(2, False)]),
        _stream([b"\xfb/etc/passwd"]),
        _stream([b""]),
        _stream([_end(False)]),
    ],
    ids=["a skipped number", "the number of a greeting", "one reply too many", "a file request", "empty", "end"],
)
def test_bytes_that_are_no_reply_to_the_request_are_refused(stream: bytes) -> None:
    with pytest.raises(MysqlProtocolError):
        _feed(stream, [])


@given(_ROWS, st.integers(0, 1 << 40), st.lists(st.integers(0, 4_000), max_size=30))
def test_packet_numbers_start_again_with_each_reply(rows: list[Any], matched: int, splits: list[int]) -> None:
    stream = _stream(_ok(matched, False)) + _stream([*_ok(0, True), *_table(_COLUMNS, list(map(_sent, rows)), False)])
    found = [Result([], matched), Result([], 0), Result(rows, len(rows))]
    assert _feed(stream, splits, ReplyReader(2)) == found
    assert _feed(stream + _stream(_ok(1, False)), splits, ReplyReader(3)) == [*found, Result([], 1)]


_REFUSED = [b"\xff" + (1062).to_bytes(2, "little") + b"refused"]
_LATER = [b"\xff" + (1213).to_bytes(2, "little") + b"later"]


@pytest.mark.parametrize(
    ("stream", "count"),
    [
        (_stream(_REFUSED) + _stream(_ok(1, False)), 0),
        (_stream(_ok(1, False)) + _stream(_REFUSED), 1),
        (_stream([*_ok(1, True), *_ok(1, True), *_REFUSED]) + _stream(_ok(1, False)), 2),
        (_stream(_REFUSED) + _stream(_LATER), 0),
        (_stream([*_table([(_LONG, _BINARY)], [(b"1",)], False)[:-1], *_REFUSED]) + _stream(_ok(1, False)), 0),
        (_stream([*_table([(_LONG, _BINARY)] * 2, [], False)[:2], *_REFUSED]) + _stream(_ok(1, False)), 0),
    ],
)
def test_the_first_error_of_several_packets_is_raised_after_the_last_reply(stream: bytes, count: int) -> None:
    for splits in ([], list(range(len(stream)))):
        replies = ReplyReader(2)
        with pytest.raises(ServerError, match="refused"):
            _feed(stream, splits, replies)
        assert replies.answered_count == count


@pytest.mark.parametrize(("parameters", "columns"), [(0, 0), (1, 0), (0, 2), (300, 0), (3, 2)])
def test_the_id_of_a_prepared_statement_is_read_in_pieces_of_any_size(parameters: int, columns: int) -> None:
    prepared = (
        b"\0" + (7).to_bytes(4, "little") + columns.to_bytes(2, "little") + parameters.to_bytes(2, "little") + bytes(3)
    )
    packets = [prepared]
    for count in (parameters, columns):
        packets += [_column(_LONG, _BINARY)] * count + [_end(False)] * bool(count)
    stream = _stream(packets)
    for splits in ([], list(range(len(stream)))):
        assert _feed(stream, splits, PrepareReplyReader()) == 7
    with pytest.raises(MysqlProtocolError):
        PrepareReplyReader().feed(stream + b"x")


def test_a_refused_prepare_is_an_error_and_other_bytes_are_refused() -> None:
    for splits in ([], list(range(20))):
        with pytest.raises(ServerError, match="refused"):
            _feed(_stream(_REFUSED), splits, PrepareReplyReader())
    with pytest.raises(MysqlProtocolError):
        PrepareReplyReader().feed(_stream(_ok(1, False)))
    with pytest.raises(MysqlProtocolError):
        PrepareReplyReader().feed(_stream([b"\x01"]))


def test_text_statements_share_a_packet_and_a_bound_statement_has_its_own() -> None:
    one, two = BoundStatement(b"ONE ?", b"1"), BoundStatement(b"TWO ?", b"22")
    numbers = {one.sql: 3, two.sql: 258}
    first, second = (
        b"\x0b\0\0\0\x17\x03\0\0\0\0\1\0\0\x001",
        b"\x0c\0\0\0\x17\x02\1\0\0\0\1\0\0\x0022",
    )
    assert request_packets((one, b"a", b"b", two, one, b"c"), numbers) == [
        first,
        query_packet((b"a", b"b")),
        second,
        first,
        query_packet((b"c",)),
    ]
    assert [len(packet) - 4 for packet in request_packets((one, two), numbers)] == [len(one), len(two)]


def test_a_query_that_does_not_fit_one_packet_is_refused() -> None:
    assert query_packet((b"BEGIN", b"COMMIT")) == b"\x0d\0\0\0\x03BEGIN;COMMIT"
    assert len(query_packet((b"x" * 0xFFFFFD,))) == 4 + 0xFFFFFE
    with pytest.raises(ValueError, match="do not fit one packet"):
        query_packet((b"x" * 0xFFFFFE,))


# ---------------------------------------------------------------- the link


class _Transport(asyncio.Transport):
    """The server's side of a link, controlled by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.aborted = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, MysqlLink)

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class _Connected:
    """A stand-in for the driver's connection."""

    can_bulk = False

    def __init__(self) -> None:
        self._writer = self
        self.transport = _Transport()

    def close(self) -> None:
        self.transport.aborted = True


def _link() -> tuple[MysqlLink, _Transport]:
    connected = _Connected()
    return MysqlLink(connected, 30.0), connected.transport


def test_a_link_sends_one_packet_and_returns_its_results() -> None:
    async def story() -> None:
        link, transport = _link()
        for matched in (3, 4):
            call = asyncio.ensure_future(link.run(b"SELECT 1", b"SELECT 2"))
            await asyncio.sleep(0)
            assert transport.sent.pop() == query_packet((b"SELECT 1", b"SELECT 2"))
            assert transport.sent == []
            link.data_received(_stream([*_ok(1, True), *_ok(matched, False)]))
            assert await call == [Result([], 1), Result([], matched)]
        assert not transport.aborted

    run(story())


def test_a_following_statement_is_sent_in_the_turn_of_the_last_result() -> None:
    async def story() -> None:
        link, transport = _link()
        seen: list[list[Result]] = []
        for following in (b"COMMIT", None):

            def on_results(results: list[Result], following: bytes | None = following) -> bytes | None:
                seen.append(list(results))
                return following

            call = asyncio.ensure_future(link.run(b"a", b"b", on_results=on_results))
            await asyncio.sleep(0)
            assert transport.sent.pop() == query_packet((b"a", b"b"))
            link.data_received(_stream(_ok(1, True)))
            assert transport.sent == []
            link.data_received(_stream([*_ok(1, True), *_ok(2, False)])[len(_stream(_ok(1, True))) :])
            assert transport.sent == ([] if following is None else [query_packet((b"COMMIT",))])
            expected = [Result([], 1), Result([], 2)]
            if following is not None:
                transport.sent.clear()
                link.data_received(_stream(_ok(0, False)))
                expected.append(Result([], 0))
            assert await call == expected
        assert seen == [[Result([], 1), Result([], 2)]] * 2

    run(story())


def test_nothing_follows_a_refused_statement_and_the_link_stays_usable() -> None:
    async def story() -> None:
        link, transport = _link()
        call = asyncio.ensure_future(link.run(b"a", on_results=lambda _: b"COMMIT"))
        await asyncio.sleep(0)
        link.data_received(_stream(_REFUSED))
        with pytest.raises(ServerError) as raised:
            await call
        assert raised.value.statement == b"a"
        call = asyncio.ensure_future(link.run(b"b"))
        await asyncio.sleep(0)
        link.data_received(_stream(_ok(1, False)))
        assert await call == [Result([], 1)]
        assert transport.sent == [query_packet((b"a",)), query_packet((b"b",))]
        assert not transport.aborted

    run(story())


def test_an_error_of_on_results_leaves_the_link_usable() -> None:
    def on_results(_: list[Result]) -> bytes:
        raise LookupError("fenced")

    async def story() -> None:
        link, transport = _link()
        call = asyncio.ensure_future(link.run(b"a", on_results=on_results))
        await asyncio.sleep(0)
        link.data_received(_stream(_ok(0, False)))
        with pytest.raises(LookupError, match="fenced"):
            await call
        call = asyncio.ensure_future(link.run(b"b"))
        await asyncio.sleep(0)
        link.data_received(_stream(_ok(1, False)))
        assert await call == [Result([], 1)]
        assert not transport.aborted

    run(story())


def test_an_error_of_the_following_statement_names_no_statement_and_a_cancel_there_ends_the_link() -> None:
    async def story() -> None:
        link, transport = _link()
        for cancelled in (False, True):
            call = asyncio.ensure_future(link.run(b"a", on_results=lambda _: b"COMMIT"))
            await asyncio.sleep(0)
            link.data_received(_stream(_ok(1, False)))
            if cancelled:
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                link.data_received(_stream(_REFUSED))
                with pytest.raises(ServerError) as raised:
                    await call
                assert raised.value.statement == b""
            assert transport.aborted is cancelled

    run(story())


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("ends", ["committed", "commit refused", "refused", "fenced"])
def test_commit_follows_the_writes_and_its_failure_is_an_unknown_outcome(read: bool, ends: str) -> None:
    async def story() -> None:
        link, transport = _link()
        link.statement_ids = {
            bound.sql: 1 for bound in (statements.fence(fence), new) if isinstance(bound, BoundStatement)
        }
        store = MysqlStore(MysqlSettings("db"), 3)
        store._link, store._packet_bytes = link, 1 << 20
        flushing = asyncio.ensure_future(
            store.flush(fence, [1] if read else [], {}, [], lambda rows, keys: Writes(inserts=[make_row(2)]))
        )
        await asyncio.sleep(0)
        matched = _ok(0 if ends == "fenced" else 1, False)
        assert len(transport.sent) == 1
        if read:
            link.data_received(_stream(matched) + _stream(_table([(_LONG, _BINARY)], [], more=False)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            link.data_received(_stream(matched))
        if ends != "fenced":
            assert len(transport.sent) == 1 + read
            link.data_received(_stream(_REFUSED if ends == "refused" else _ok(1, False)))
        elif not read:
            link.data_received(_stream(_ok(1, False)))
        committed = query_packet((b"COMMIT",))
        if ends in ("committed", "commit refused"):
            assert transport.sent.pop() == committed
            link.data_received(_stream(_ok(0, False) if ends == "committed" else _REFUSED))
            if ends == "committed":
                await flushing
            else:
                with pytest.raises(StoreLost, match="refused"):
                    await flushing
            assert transport.aborted is (ends != "committed")
            assert query_packet((b"ROLLBACK",)) not in transport.sent
        else:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not transport.aborted
            assert len(transport.sent) == (
                3 if read and ends == "refused" else 2
            )  # a rollback was sent, or the owner row is read
            assert committed not in transport.sent
            flushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flushing

    statements = mysql_sql.Statements(3)
    fence = Fence(1, "nonce", 2, 3, 4)
    (new,) = statements.write(Writes(inserts=[make_row(2)]), 1 << 20)
    run(story())


def test_a_bound_statement_is_prepared_once_and_sent_with_the_others() -> None:
    async def story() -> None:
        link, transport = _link()
        bound = BoundStatement(b"ONE ?", b"1")
        prepared = b"\0" + (7).to_bytes(4, "little") + bytes(4) + bytes(3)
        for first in (True, False):
            call = asyncio.ensure_future(link.run(bound, b"a"))
            await asyncio.sleep(0)
            if first:
                assert transport.sent.pop() == prepare_packet(b"ONE ?")
                link.data_received(_stream([prepared]))
                await asyncio.sleep(0)
            assert transport.sent.pop() == b"".join(request_packets((bound, b"a"), {bound.sql: 7}))
            assert transport.sent == []
            link.data_received(_stream(_ok(1, False)) + _stream(_ok(2, False)))
            assert await call == [Result([], 1), Result([], 2)]

    run(story())


def test_a_statement_in_bulk_has_a_command_of_its_own_and_its_types_follow_the_flags() -> None:
    bound = BoundStatement(b"ONE ?", b"types", [b" and", b" values"])
    (packet,) = request_packets([bound], {bound.sql: 7})
    assert packet == b"\x17\0\0\0" + b"\xfa" + b"\x07\0\0\0" + b"\x80\0" + b"types and values"


def test_a_refused_prepare_is_raised_and_tried_again_by_the_next_call() -> None:
    async def story() -> None:
        link, transport = _link()
        bound = BoundStatement(b"ONE ?", b"1")
        for _ in range(2):
            call = asyncio.ensure_future(link.run(b"a", bound))
            await asyncio.sleep(0)
            assert transport.sent.pop() == prepare_packet(b"ONE ?")
            link.data_received(_stream(_REFUSED))
            with pytest.raises(ServerError) as raised:
                await call
            assert raised.value.statement is bound
            assert transport.sent == []

    run(story())


@pytest.mark.parametrize(("code", "prepares"), [(1243, False), (1461, False), (1615, False), (1213, True)])
def test_a_link_notes_that_its_server_refuses_prepared_statements(code: int, prepares: bool) -> None:
    async def story() -> None:
        refused = _stream([b"\xff" + code.to_bytes(2, "little") + b"a reason"])
        for known in ({}, {b"ONE ?": 7}):
            link, _ = _link()
            link.statement_ids = known
            call = asyncio.ensure_future(link.run(BoundStatement(b"ONE ?", b"1")))
            await asyncio.sleep(0)
            link.data_received(refused)
            with pytest.raises(ServerError, match="a reason"):
                await call
            assert link.can_prepare == prepares

    run(story())


def test_an_error_names_the_first_refused_statement() -> None:
    async def story() -> None:
        link, _ = _link()
        one, two = BoundStatement(b"ONE ?", b"1"), BoundStatement(b"TWO ?", b"2")
        link.statement_ids = {one.sql: 1, two.sql: 2}
        call = asyncio.ensure_future(link.run(one, b"a", b"b", two))
        await asyncio.sleep(0)
        link.data_received(_stream(_ok(1, False)) + _stream([*_ok(1, True), *_REFUSED]))
        await asyncio.sleep(0)
        assert not call.done()
        link.data_received(_stream(_LATER))
        with pytest.raises(ServerError, match="refused") as raised:
            await call
        assert raised.value.statement == b"b"

    run(story())


def test_a_link_does_not_wait_for_a_closing_server() -> None:
    async def story() -> None:
        link, transport = _link()
        link.statement_ids = {b"ONE ?": 1}
        call = asyncio.ensure_future(link.run(BoundStatement(b"ONE ?", b"1"), b"a"))
        await asyncio.sleep(0)
        link.data_received(_stream([b"\xff" + (1927).to_bytes(2, "little") + b"a reason"]))
        with pytest.raises(MysqlLinkLost, match="a reason"):
            await call
        assert transport.aborted

    run(story())


def test_an_error_leaves_the_link_usable_unless_the_server_closes_it() -> None:
    async def story() -> None:
        link, transport = _link()
        for code, kind in ((1062, ServerError), (1213, ServerError), (1927, MysqlLinkLost)):
            call = asyncio.ensure_future(link.run(b"x"))
            await asyncio.sleep(0)
            link.data_received(_stream([b"\xff" + code.to_bytes(2, "little") + b"a reason"]))
            with pytest.raises(kind, match="a reason"):
                await call
            assert transport.aborted == (kind is MysqlLinkLost)
        with pytest.raises(MysqlLinkLost, match="a reason"):
            await link.run(b"x")

    run(story())


def test_a_cancelled_call_ends_the_link_so_that_no_later_call_gets_its_reply() -> None:
    async def story() -> None:
        link, transport = _link()
        call = asyncio.ensure_future(link.run(b"x"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert transport.aborted
        link.data_received(_stream(_ok(1, False)))
        sent = len(transport.sent)
        with pytest.raises(MysqlLinkLost):
            await link.run(b"y")
        assert len(transport.sent) == sent

    run(story())


@pytest.mark.parametrize("end", ["unasked", "garbage", "gone", "broken"])
def test_unexpected_bytes_end_the_link(end: str) -> None:
    async def story() -> None:
        link, transport = _link()
        if end == "unasked":
            link.data_received(_stream(_ok(1, False)))
        else:
            call = asyncio.ensure_future(link.run(b"x"))
            await asyncio.sleep(0)
            if end == "garbage":
                link.data_received(_stream([b"\x01", _column(_LONG, _BINARY), _end(False), b"\xfc"]))
            else:
                link.connection_lost(None if end == "gone" else OSError("cable"))
            with pytest.raises(
                MysqlLinkLost, match={"garbage": "invalid reply", "gone": "closed", "broken": "cable"}[end]
            ):
                await call
        assert transport.aborted
        with pytest.raises(MysqlLinkLost):
            await link.run(b"x")

    run(story())
