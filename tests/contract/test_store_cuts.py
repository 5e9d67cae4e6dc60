"""What every store does with its table of cuts. Run on all three."""

from __future__ import annotations

import pytest

from foqs.core.cuts import Cut
from foqs.core.fence import Standing, standing
from foqs.core.item import State
from foqs.store.port import POINTS, FencedOut, StoreLost, WriteRefused
from tests.contract.conftest import Bench
from tests.support.stores import OTHER, TOPIC, make_row, opened, reading

CUTS = [
    Cut("n", "a", 1),
    Cut("n", "A", 2),
    Cut("n", "a ", 3),
    Cut("N", "a", 4),
    Cut("n", "'\\", 5),
    Cut("ä", "😀", 6),
    Cut("x" * 255, "y" * 255, (1 << 63) - 1),
]


def test_cuts_enter_rise_and_leave_by_their_exact_names_and_numbers(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        assert await owned.store.cuts() == []
        await owned.write(cuts=CUTS)
        assert sorted(await owned.store.cuts()) == sorted(CUTS)
        risen = CUTS[0]._replace(last=9)
        await owned.write(cuts=[risen], cuts_over=CUTS[1:2])
        left = sorted([risen, *CUTS[2:]])
        assert sorted(await owned.store.cuts()) == left
        await owned.write(cuts_over=[CUTS[0], Cut("n", "missing", 1)])  # it has risen
        assert sorted(await owned.store.cuts()) == left
        await owned.write(cuts=[risen], cuts_over=[risen])
        assert sorted(await owned.store.cuts()) == left
        await owned.write(cuts_over=[risen])
        assert sorted(await owned.store.cuts()) == sorted(CUTS[2:])

    bench.run(story())


def test_reads_pass_over_what_a_cut_covers_and_fill_their_page_with_the_others(bench: Bench) -> None:
    rows = [make_row(number, priority=-number if number % 2 else number) for number in range(1, 21)]
    rows += [make_row(number, state=State.DEAD) for number in range(21, 41)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=rows, topics_added=[TOPIC])
        ready = sorted(row.key for row in rows[:20] if row.id > 12)
        async with reading(owned.store) as reads:
            assert await reads.ready(owned.past, TOPIC, None, 5, 12) == ready[:5]
            assert await reads.ready(owned.past, TOPIC, ready[4], 5, 12) == ready[5:]
            assert (
                await reads.ready(owned.past, TOPIC, ready[4], 5)
                == [row.key for row in sorted(rows[:20], key=lambda row: row.key) if row.key > ready[4]][:5]
            )
            for payload in (True, False):
                seen = await reads.listed(owned.past, TOPIC, State.DEAD, None, 4, 35, payload=payload)
                assert [row.id for row in seen] == [36, 37, 38, 39]
                more = await reads.listed(owned.past, TOPIC, State.DEAD, seen[-1].key, 4, 35, payload=payload)
                assert [row.id for row in more] == [40]

    bench.run(story())


def test_counts_tell_how_many_rows_a_cut_covers(bench: Bench) -> None:
    rows = [make_row(number) for number in range(1, 8)] + [
        make_row(number, state=State.DEAD) for number in range(8, 11)
    ]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[*rows, make_row(20, topic="other")], topics_added=[TOPIC], cuts=[Cut(*TOPIC, 9)])
        await owned.write(cuts=[Cut(TOPIC[0], "nothing of it", 99)])
        async with reading(owned.store) as reads:
            await reads.snapshot(owned.past)
            await owned.write(cuts_over=[Cut(*TOPIC, 9)])
            found = {(count.topic, count.state): (count.rows, count.purged_rows) for count in await reads.counts()}
        assert found == {
            (TOPIC[1], State.READY): (7, 7),
            (TOPIC[1], State.DEAD): (3, 2),
            ("other", State.READY): (1, 0),
        }

    bench.run(story())


@pytest.mark.parametrize("point", POINTS)
def test_cuts_are_written_with_the_rest_of_their_flush_or_not_at_all(bench: Bench, point: str) -> None:
    breaking = False

    def fault(at: str) -> None:
        if breaking and at == point:
            raise StoreLost("broken")

    async def story() -> None:
        nonlocal breaking
        owned = await opened(bench.store(faults=fault))
        old, new = CUTS[:2]
        await owned.write(inserts=[make_row(1)], cuts=[old])
        with pytest.raises(WriteRefused):
            await owned.write(inserts=[make_row(1)], cuts=[new], cuts_over=[old])
        fence, breaking = owned.fence, True
        with pytest.raises(StoreLost):
            await owned.write(cuts=[new], cuts_over=[old])
        with pytest.raises(StoreLost):
            await owned.store.cuts()
        breaking = False
        committed = standing(fence, await owned.store.owner()) is Standing.COMMITTED
        owned.number += committed
        assert await owned.store.cuts() == ([new] if committed else [old])
        successor = await opened(bench.store(), epoch=2, nonce=OTHER)
        with pytest.raises(FencedOut):
            await owned.write(cuts=[CUTS[2]])
        assert await successor.store.cuts() == ([new] if committed else [old])

    bench.run(story())
