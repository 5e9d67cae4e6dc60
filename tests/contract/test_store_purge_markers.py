"""Purge markers in every store. Run on all three stores."""

from __future__ import annotations

import pytest

from foqs.core.flush.fence import CommitOutcome, commit_outcome
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.item import State
from foqs.store.port import FAULT_POINTS, FencedOut, StoreLost, WriteRefused
from tests.contract.conftest import Bench
from tests.support.stores import OTHER, TOPIC, make_row, opened, reading

MARKERS = [
    PurgeMarker("n", "a", 1),
    PurgeMarker("n", "A", 2),
    PurgeMarker("n", "a ", 3),
    PurgeMarker("N", "a", 4),
    PurgeMarker("n", "'\\", 5),
    PurgeMarker("ä", "😀", 6),
    PurgeMarker("x" * 255, "y" * 255, (1 << 63) - 1),
]


def test_purge_markers_are_added_raised_and_removed_by_their_exact_names_and_numbers(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        assert await owned.store.purge_markers() == []
        await owned.write(purge_markers_added=MARKERS)
        assert sorted(await owned.store.purge_markers()) == sorted(MARKERS)
        raised = MARKERS[0]._replace(last_number=9)
        await owned.write(purge_markers_added=[raised], purge_markers_removed=MARKERS[1:2])
        remaining = sorted([raised, *MARKERS[2:]])
        assert sorted(await owned.store.purge_markers()) == remaining
        await owned.write(purge_markers_removed=[MARKERS[0], PurgeMarker("n", "missing", 1)])  # it was raised
        assert sorted(await owned.store.purge_markers()) == remaining
        await owned.write(purge_markers_added=[raised], purge_markers_removed=[raised])
        assert sorted(await owned.store.purge_markers()) == remaining
        await owned.write(purge_markers_removed=[raised])
        assert sorted(await owned.store.purge_markers()) == sorted(MARKERS[2:])

    bench.run(story())


def test_reads_skip_purged_rows_and_fill_their_page_with_others(bench: Bench) -> None:
    rows = [make_row(number, priority=-number if number % 2 else number) for number in range(1, 21)]
    rows += [make_row(number, state=State.DEAD) for number in range(21, 41)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=rows, topics_added=[TOPIC])
        ready = sorted(row.order_key for row in rows[:20] if row.id > 12)
        async with reading(owned.store) as reads:
            assert await reads.ready_order_keys(owned.past, TOPIC, None, 5, 12) == ready[:5]
            assert await reads.ready_order_keys(owned.past, TOPIC, ready[4], 5, 12) == ready[5:]
            assert (
                await reads.ready_order_keys(owned.past, TOPIC, ready[4], 5)
                == [
                    row.order_key
                    for row in sorted(rows[:20], key=lambda row: row.order_key)
                    if row.order_key > ready[4]
                ][:5]
            )
            for payload in (True, False):
                seen = await reads.list_rows(owned.past, TOPIC, State.DEAD, None, 4, 35, with_payload=payload)
                assert [row.id for row in seen] == [36, 37, 38, 39]
                more = await reads.list_rows(
                    owned.past, TOPIC, State.DEAD, seen[-1].order_key, 4, 35, with_payload=payload
                )
                assert [row.id for row in more] == [40]

    bench.run(story())


def test_counts_show_how_many_rows_a_purge_marker_covers(bench: Bench) -> None:
    rows = [make_row(number) for number in range(1, 8)] + [
        make_row(number, state=State.DEAD) for number in range(8, 11)
    ]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(
            inserts=[*rows, make_row(20, topic="other")],
            topics_added=[TOPIC],
            purge_markers_added=[PurgeMarker(*TOPIC, 9)],
        )
        await owned.write(purge_markers_added=[PurgeMarker(TOPIC[0], "nothing of it", 99)])
        async with reading(owned.store) as reads:
            await reads.begin_snapshot(owned.past)
            await owned.write(purge_markers_removed=[PurgeMarker(*TOPIC, 9)])
            found = {(count.topic, count.state): (count.rows, count.purged_rows) for count in await reads.counts()}
        assert found == {
            (TOPIC[1], State.READY): (7, 7),
            (TOPIC[1], State.DEAD): (3, 2),
            ("other", State.READY): (1, 0),
        }

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_purge_markers_are_written_with_the_rest_of_their_flush_or_not_at_all(bench: Bench, point: str) -> None:
    breaking = False

    def fault(at: str) -> None:
        if breaking and at == point:
            raise StoreLost("broken")

    async def story() -> None:
        nonlocal breaking
        owned = await opened(bench.store(faults=fault))
        old, new = MARKERS[:2]
        await owned.write(inserts=[make_row(1)], purge_markers_added=[old])
        with pytest.raises(WriteRefused):
            await owned.write(inserts=[make_row(1)], purge_markers_added=[new], purge_markers_removed=[old])
        fence, breaking = owned.fence, True
        with pytest.raises(StoreLost):
            await owned.write(purge_markers_added=[new], purge_markers_removed=[old])
        with pytest.raises(StoreLost):
            await owned.store.purge_markers()
        breaking = False
        committed = commit_outcome(fence, await owned.store.read_owner()) is CommitOutcome.COMMITTED
        owned.number += committed
        assert await owned.store.purge_markers() == ([new] if committed else [old])
        successor = await opened(bench.store(), epoch=2, nonce=OTHER)
        with pytest.raises(FencedOut):
            await owned.write(purge_markers_added=[MARKERS[2]])
        assert await successor.store.purge_markers() == ([new] if committed else [old])

    bench.run(story())
