"""A relay's reads, rounds and fence over real tables: whatever dies between two steps, each committed row is sent once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from foqs_client import Item
from foqs_client.errors import InvalidArgument, NotFound
from foqs_client.outbox import enqueue, relay_sql
from foqs_client.outbox.outbox_connection import OutboxConnection, TablesUnavailable
from foqs_client.outbox.outbox_figures import read_figures
from foqs_client.outbox.outbox_sql import Dialect
from foqs_client.outbox.parked_rows import drop, list_parked, resend
from foqs_client.outbox.postgres_wakeups import listen_for_wakeups
from foqs_client.outbox.relay_memory import RelayMemory, Round, SendCall
from foqs_client.outbox.relay_state import RelayState, Stamp
from foqs_client.outbox.relay_tables import PAGE_ROWS, LostOwnership, RelayTables
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.outbox.row_outcome import Reply
from foqs_contract.key_slots import key_slot_of
from tests.support.outbox_databases import DATABASES, MakePlace, Place
from tests.support.poll import until

FIRST, SECOND = "1" * 32, "2" * 32
KEYS_UNTIL_MS: Final = 1_000


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, make_place: MakePlace) -> Place:
    return make_place(request.param).prepare()


def relay(place: Place, nonce: str = FIRST) -> RelayTables:
    return RelayTables(OutboxConnection(lambda: place.connect(True), place.dialect), nonce)


def owning(place: Place, nonce: str = FIRST) -> RelayTables:
    tables = relay(place, nonce)
    assert tables.take_over(tables.read_owner())
    return tables


def add(
    place: Place, items: Sequence[Item], row_groups: Sequence[str | None] | None = None, *, ends: bool = True
) -> None:
    """Write items in a transaction of a user, which commits if it `ends`, and rolls back otherwise."""
    with closing(place.connect(False)) as connection:
        enqueue(connection, items, row_groups=row_groups)
        connection.commit() if ends else connection.rollback()


def test_one_of_two_relays_takes_over_and_the_other_ones_rounds_change_nothing(place: Place) -> None:
    add(place, [Item("t")])
    old, new, late = relay(place, FIRST), relay(place, SECOND), relay(place, "3" * 32)
    owner = old.read_owner()
    assert (owner.epoch, owner.round, owner.state) == (0, 0, RelayState())
    assert old.take_over(owner)
    old.commit_round(Round(state=RelayState(7)))
    owner = new.read_owner()

    assert new.take_over(owner)
    assert not late.take_over(owner)
    with pytest.raises(LostOwnership):
        old.commit_round(Round(deleted=[1]))
    assert len(new.read_above(0)) == 1
    assert new.read_owner().state == RelayState(7)
    for each in (old, new, late):
        each.close()


def test_a_relay_that_has_written_a_round_is_not_succeeded_with_an_older_state(place: Place) -> None:
    with closing(owning(place)) as living, closing(relay(place, SECOND)) as other:
        seen = other.read_owner()
        living.commit_round(Round(state=RelayState(stamps=(Stamp(9, (1,)),))))

        assert not other.take_over(seen)
        living.commit_round(Round(state=RelayState(7)))
        owner = other.read_owner()
        assert other.take_over(owner)
        assert owner.state == RelayState(7)


def test_a_relay_that_leaves_writes_no_round_more_and_its_state_stays(place: Place) -> None:
    with closing(owning(place)) as leaving, closing(relay(place, SECOND)) as other:
        leaving.commit_round(Round(state=RelayState(7)))
        leaving.leave()

        owner = other.read_owner()
        assert (owner.nonce, owner.state) == ("", RelayState(7))
        with pytest.raises(LostOwnership):
            leaving.commit_round(Round())
        assert other.take_over(owner)
        leaving.leave()
        assert other.read_owner().nonce == SECOND


def test_a_relay_that_may_not_create_the_owner_row_says_so(make_place: MakePlace) -> None:
    place = make_place("sqlite").prepare()
    place.query("CREATE TRIGGER t BEFORE INSERT ON foqs_relay BEGIN SELECT RAISE(ABORT, 'INSERT command denied'); END")
    with closing(relay(place)) as tables, pytest.raises(TablesUnavailable, match="INSERT command denied"):
        tables.read_owner()


def test_a_relay_whose_owner_row_was_deleted_owns_nothing(place: Place) -> None:
    breaks: list[str] = []
    tables = RelayTables(
        OutboxConnection(lambda: _BreakingConnection(place.connect(True), breaks), place.dialect), FIRST
    )
    with closing(tables):
        assert tables.take_over(tables.read_owner())
        breaks.append("before")
        with pytest.raises(TablesUnavailable):
            tables.commit_round(Round())
        with closing(place.connect(True)) as connection:
            connection.cursor().execute("DELETE FROM foqs_relay")
        with pytest.raises(LostOwnership):
            tables.commit_round(Round())


def test_a_relay_that_stops_in_a_round_keeps_no_other_one_out(place: Place) -> None:
    if place.dialect is Dialect.SQLITE:
        pytest.skip("a process of this machine holds the lock")
    owning(place).close()
    stopped = OutboxConnection(lambda: place.connect(True), place.dialect, idle_s=1)

    def is_in_its_round() -> bool:
        try:
            stopped.execute(relay_sql.BEGIN[place.dialect])
            return stopped.execute(relay_sql.FENCE, (1, b"", 1, FIRST, 0)) == 1
        except TablesUnavailable:  # the test itself said nothing for a second
            return False

    until(is_in_its_round, "the relay is in its round")
    with closing(relay(place, SECOND)) as other:  # its update waits until the server ends the first session
        assert other.take_over(other.read_owner())
        assert other.read_owner().round == 0
    with pytest.raises(TablesUnavailable):
        stopped.execute("COMMIT")


def test_pages_ranges_and_stamps_find_committed_rows_by_id(place: Place) -> None:
    add(place, [Item("t")] * (PAGE_ROWS + 1))
    with closing(owning(place)) as tables:
        page = tables.read_above(0)
        ids = [row.id for row in page]
        assert len(ids) == PAGE_ROWS
        assert ids == sorted(ids)
        assert [row.id for row in tables.read_above(ids[-1])] == [ids[-1] + 1]
        assert tables.read_above(0, to=ids[0]) == page[:1]

        assert tables.read_ranges([]) == ([], True)
        assert tables.read_ranges([(ids[1], ids[1]), (ids[3], ids[4])]) == ([page[1], page[3], page[4]], True)
        many = [(id, id) for id in [*ids, ids[-1] + 1]]
        assert tables.read_ranges(many) == (page, False)
        stamps = (Stamp(9, (ids[0], ids[-1], 10**9)),)
        assert sorted(row.id for row in tables.read_stamped(RelayState(stamps=stamps))) == [ids[0], ids[-1]]


def test_a_page_ends_by_the_length_of_its_payloads(place: Place) -> None:
    with closing(place.connect(False)) as connection:
        enqueue(connection, [Item("t", b"x" * (2 << 20))] * 4, payload_bytes_max=2 << 20)
        connection.commit()
    with closing(owning(place)) as tables:
        first, second = tables.read_above(0)
        third, fourth = tables.read_above(second.id)
        ids = [first.id, second.id, third.id, fourth.id]
        assert first.places == 256
        assert tables.read_above(fourth.id) == []
        assert tables.read_ranges([(first.id, fourth.id)]) == ([first, second], False)

        tables.commit_round(Round(parked=[first, second, third, fourth]))
        place_verdict(place)
        assert [each.row.id for each in tables.read_parked()] == ids
        assert [each.verdict for each in tables.read_parked()] == ["resend", "resend", None, None]
        assert [each.verdict for each in tables.read_parked({ids[0], ids[2]})] == [None, "resend", None, "resend"]
        assert {each.verdict for each in tables.read_parked(wants_items=False)} == {None}
        stamped = tables.read_stamped(RelayState(stamps=(Stamp(9, (ids[3],)),)))
        assert [(row.id, isinstance(row.item, Item)) for row in stamped] == [(ids[3], True)]


def test_an_item_follows_from_its_row_alone(place: Place) -> None:
    items = [Item("t", b"\0\xff", metadata=b"m", delay_ms=5_000, trace_context=b"\x80"), Item("t", idempotency_key="k")]
    add(place, [*items, Item("t"), Item("t")], [None, None, "a", "a"])
    with closing(owning(place)) as tables:
        found = [row.item for row in tables.read_above(0)]
        assert found == [row.item for row in tables.read_above(0)]
    delayed, keyed, *grouped = [item for item in found if isinstance(item, Item)]

    assert (delayed.payload, delayed.metadata, delayed.trace_context) == (b"\0\xff", b"m", b"\x80")
    assert (delayed.delay_ms, delayed.deliver_after_ms) == (5_000, None)
    assert keyed.idempotency_key == "k"
    keys = [(item.idempotency_key or "").encode() for item in grouped]
    assert len(set(keys)) == 2
    assert len(set(map(key_slot_of, keys))) == 1


def test_a_round_deletes_parks_and_keeps_its_state_as_one(place: Place) -> None:
    add(place, [Item("t", b"payload")] * 3)
    with closing(owning(place)) as tables:
        first, second, third = tables.read_above(0)
        parked = OutboxRow(second.id, item=second.item, may_be_queued=True)
        tables.commit_round(Round(deleted=[first.id], parked=[parked], state=RelayState(third.id)), {second.id: "bad"})

        assert tables.read_above(0) == [third]
        [row] = tables.read_parked()
        assert (row.row.id, row.row.item, row.row.may_be_queued, row.verdict) == (second.id, None, True, None)
        assert place.query("SELECT reason FROM foqs_parked") == [("bad",)]
        place_verdict(place)
        [row] = tables.read_parked()
        assert (row.row.item, row.row.may_be_queued, row.verdict) == (second.item, True, "resend")

        tables.commit_round(Round(parked=[parked]), {second.id: "again"})
        assert tables.read_parked()[0].verdict is None
        tables.commit_round(Round(deleted=[second.id]))
        assert tables.read_parked() == []
        assert tables.read_owner().round == 3


def place_verdict(place: Place) -> None:
    with closing(place.connect(True)) as connection:
        connection.cursor().execute("UPDATE foqs_parked SET verdict = 'resend'")


class _BreakingCursor:
    """A cursor of a connection that breaks at a COMMIT, before or after it is carried out."""

    def __init__(self, cursor: Any, breaks: list[str]) -> None:
        self._cursor = cursor
        self._breaks = breaks

    def execute(self, statement: str, values: Any) -> None:
        if statement == "COMMIT" and self._breaks:
            when = self._breaks.pop()
            if when == "after":
                self._cursor.execute(statement, values)
            raise ConnectionResetError(when)
        self._cursor.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class _BreakingConnection:
    def __init__(self, connection: Any, breaks: list[str]) -> None:
        self._connection = connection
        self._breaks = breaks

    def cursor(self) -> _BreakingCursor:
        return _BreakingCursor(self._connection.cursor(), self._breaks)

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_round_whose_commit_is_not_answered_is_written_once(place: Place, when: str) -> None:
    add(place, [Item("t")] * 2)
    breaks: list[str] = []
    tables = RelayTables(
        OutboxConnection(lambda: _BreakingConnection(place.connect(True), breaks), place.dialect), FIRST
    )
    with closing(tables):
        assert tables.take_over(tables.read_owner())
        first, second = tables.read_above(0)
        round = Round(deleted=[first.id], state=RelayState(second.id))
        breaks.append(when)
        with pytest.raises(TablesUnavailable):
            tables.commit_round(round)
        tables.commit_round(round)

        assert tables.read_owner().round == 1
        assert tables.read_above(0) == [second]
        tables.commit_round(Round(deleted=[second.id]))
        assert tables.read_above(0) == []


class KeyQueue:
    """A queue that remembers all keys."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self._keys: set[str | None] = set()

    def enqueue(self, call: SendCall) -> dict[int, Reply]:
        for row in call.rows:
            assert isinstance(row.item, Item)
            if row.item.idempotency_key not in self._keys:
                self._keys.add(row.item.idempotency_key)
                self.payloads.append(row.item.payload)
        return dict.fromkeys([row.id for row in call.rows], Reply.WRITTEN)


def steps(tables: RelayTables, queue: KeyQueue) -> Iterator[str]:
    """Relay until nothing is left, and name each step after it is done. Its caller may stop anywhere."""
    owner = tables.read_owner()
    yield "read the owner"
    assert tables.take_over(owner)
    yield "took over"
    memory = RelayMemory(owner.state, tables.read_stamped(owner.state), tables.read_parked(), 0.0)
    memory.begin_sweep()
    while True:
        page = tables.read_above(memory.read_to)
        memory.add_page(page, 0.0)
        if memory.swept_to is not None:
            memory.add_swept(tables.read_above(memory.swept_to, memory.read_to))
        found, is_complete = tables.read_ranges(memory.gap_ranges)
        memory.add_gap_rows(found, 0.0, is_complete=is_complete)
        yield "read"
        round = memory.plan_round(KEYS_UNTIL_MS)
        tables.commit_round(round)
        yield "committed a round"
        memory.on_round_committed()
        calls = [*memory.doubtful_calls(), *round.calls]
        for call in calls:
            replies = queue.enqueue(call)
            yield "sent"
            memory.on_replies(replies)
        if round.is_empty and not calls and memory.swept_to is None and not memory.wants_sweep:
            return
        if memory.wants_sweep:
            memory.begin_sweep()


def test_each_committed_row_is_sent_once_wherever_its_relays_die(place: Place) -> None:
    queue, killed_after, expected = KeyQueue(), set(), []
    for count in range(24):
        payloads = [b"%d.%d" % (count, place) for place in range(2)]
        add(place, [Item("t", payload) for payload in payloads], ["a", None])
        add(place, [Item("t", b"rolled back")], ends=False)
        expected += payloads
        with closing(relay(place, f"{count:032x}")) as tables:
            for step, name in enumerate(steps(tables, queue)):
                if step == count % 8:
                    killed_after.add(name)
                    break
    with closing(relay(place, SECOND)) as tables:
        for _ in steps(tables, queue):
            pass
        assert tables.read_above(0) == []
        assert tables.read_owner().state.stamps == ()

    assert sorted(queue.payloads) == sorted(expected)
    grouped = [payload for payload in queue.payloads if payload.endswith(b".0")]
    assert grouped == sorted(grouped, key=lambda payload: int(payload[:-2]))
    assert killed_after == {"read the owner", "took over", "read", "committed a round", "sent"}


def test_others_see_what_the_outbox_holds_and_decide_about_parked_rows(place: Place) -> None:
    add(place, [Item("t", b"1"), Item("t", b"2"), Item("t", b"3")], [None, "g", None])
    with closing(owning(place)) as tables:
        seen = tables.connection
        first, second, third = tables.read_above(0)
        tables.commit_round(Round(parked=[second, replace(third, may_be_queued=True)]), {second.id: "bad"})
        figures = read_figures(seen)
        assert (figures.rows, figures.oldest_id, figures.parked, figures.resent) == (1, first.id, 2, 0)
        assert read_figures(seen, first.id).rows == 0
        [shown, doubtful] = list_parked(seen, 10)
        assert (shown.id, shown.topic, shown.row_group, shown.payload, shown.reason) == (
            second.id,
            "t",
            "g",
            b"2",
            "bad",
        )
        assert (shown.may_be_queued, shown.is_resent, doubtful.may_be_queued) == (False, False, True)

        resend(seen, second.id)
        assert (read_figures(seen).parked, read_figures(seen).resent) == (1, 1)
        for id, decide in ((second.id, resend), (second.id, drop), (third.id, resend)):
            with pytest.raises(InvalidArgument):
                decide(seen, id)
        with pytest.raises(NotFound):
            drop(seen, first.id)
        resend(seen, third.id, may_double=True)
        for statement in relay_sql.CHECK_COLUMNS:
            seen.query(statement)


def test_rows_beyond_those_that_are_counted_are_estimated_by_their_ids(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs_client.outbox.outbox_figures.ROWS_COUNTED_MAX", 3)
    add(place, [Item("t")] * 7)
    with closing(owning(place)) as tables:
        tables.commit_round(Round(deleted=[tables.read_above(0)[1].id]))
        assert read_figures(tables.connection).rows == 6


@pytest.mark.postgres
@pytest.mark.parametrize("connection", ["plain", "core"])
def test_a_commit_with_a_notify_wakes_the_relay(make_place: MakePlace, connection: str) -> None:
    place = make_place("postgres").prepare()

    def write(*, ends: bool) -> None:
        if connection == "plain":
            with closing(place.connect(False)) as opened:
                enqueue(opened, [Item("t")], notify=True)
                opened.commit() if ends else opened.rollback()
            return
        with sa.create_engine(place.url, poolclass=NullPool).connect() as opened:
            enqueue(opened, [Item("t")], notify=True)
            opened.commit() if ends else opened.rollback()

    async def main() -> None:
        wakes: asyncio.Queue[None] = asyncio.Queue()
        listening = asyncio.ensure_future(
            listen_for_wakeups(lambda: place.connect(True), "foqs_outbox", lambda: wakes.put_nowait(None))
        )
        await wakes.get()  # it listens now
        await asyncio.to_thread(write, ends=False)
        await asyncio.to_thread(write, ends=True)
        await asyncio.wait_for(wakes.get(), 30)
        assert wakes.empty()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(main())
