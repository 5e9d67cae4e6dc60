"""Values sent to a real server: any bytes arrive, and a value that its column cannot hold is refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foqs.store.mysql import mysql_session_sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.mysql.mysql_values import escape, name_literal
from foqs.store.port import WriteRefused
from tests.contract.conftest import Bench, mysql_bench
from tests.support.aio import run
from tests.support.example_counts import examples
from tests.support.stores import contents, make_row, opened

pytestmark = pytest.mark.mysql


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


def test_row_that_the_columns_cannot_hold_is_refused_and_the_store_stays_usable(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for bad in (
            make_row(2, priority=1 << 31),
            make_row(2, priority=1 << 63),
            make_row(2, topic="x" * 256),
            make_row(2, metadata=b"x" * 20_000),
            make_row(2, payload=b"x" * (16 << 20)),
            make_row(2, topic="\ud800"),
        ):
            with pytest.raises(WriteRefused) as refused:
                await owned.write(inserts=[make_row(1), bad])
            assert (refused.value.is_retryable, refused.value.is_bad_value) == (False, True)
        assert await contents(owned) == {}
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


_BYTES = st.lists(
    st.one_of(
        st.binary(max_size=6),
        # Quotes, escapes, and the halves of longer characters in front of them.
        st.sampled_from(
            [b"'", b"\\", b"''", b'"', b"\0", b";", b"-- ", b"\xe2'", b"\xbf'", b"\x81\\", b"\xf0\x9f\x98\\", b"%b"]
        ),
    ),
    max_size=30,
).map(b"".join)


_NAMES = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.sampled_from(["'", "\\", "\\'", '"'])),
    max_size=20,
).map("".join)


@given(data=_BYTES, name=_NAMES)
@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_literals_reach_the_server_byte_for_byte(place: MysqlSettings, data: bytes, name: str) -> None:
    async def story() -> None:
        link = await MysqlLink.connect(place)
        try:
            *_, found = await link.run(
                *mysql_session_sql.session_settings(1),
                b"SELECT %b, '%b', 7" % (name_literal(name).encode(), escape(data)),
            )
            assert found.rows == [(name.encode(), data, 7)]
        finally:
            await link.close()

    run(story())


def test_every_pair_of_a_byte_and_a_special_byte_reaches_the_server(place: MysqlSettings) -> None:
    data = b"".join(bytes([one, other]) for one in range(256) for other in b"\0'\\\"\x80\xff")

    async def story() -> None:
        owned = await opened(MysqlStore(place, 3))
        await owned.write(inserts=[make_row(1, payload=data, metadata=data)])
        assert await contents(owned) == {1: make_row(1, payload=data, metadata=data)}
        await owned.write(updates=[make_row(1, payload=data, metadata=data[::-1])])
        assert await contents(owned) == {1: make_row(1, payload=data, metadata=data[::-1])}
        await owned.store.close()

    run(story())
