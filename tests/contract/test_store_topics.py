"""The topics table in every store. Run on all three stores."""

from __future__ import annotations

import pytest

from foqs.store.port import FencedOut, StoreLost, WriteRefused
from tests.contract.conftest import Bench
from tests.support.stores import OTHER, TOPIC, contents, make_row, opened

NAMES = [
    ("n", "a"),
    ("n", "A"),
    ("n", "a "),
    ("N", "a"),
    ("n", "'\\"),
    ("n", "\0"),
    ("ä", "😀"),
    ("x" * 255, "y" * 255),
]


def test_topics_are_added_and_removed_by_their_exact_names(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(topics_added=NAMES)
        assert sorted(await owned.store.topics()) == sorted(NAMES)
        await owned.write(topics_removed=[("n", "a"), ("n", "missing"), ("ä", "😀")], topics_added=[("n", "A")])
        left = [name for name in NAMES if name not in {("n", "a"), ("ä", "😀")}]
        assert sorted(await owned.store.topics()) == sorted(left)
        await owned.write(topics_added=[("n", "a"), ("n", "A"), ("n", "b")], topics_removed=[("n", "A"), ("n", "b")])
        assert sorted(await owned.store.topics()) == sorted([*left, ("n", "a"), ("n", "b")])

    bench.run(story())


def test_many_topics_in_one_flush(bench: Bench) -> None:
    names = [("n", f"{number}") for number in range(1_000)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(topics_added=names)
        assert sorted(await owned.store.topics()) == sorted(names)
        await owned.write(topics_removed=names[1:])
        assert await owned.store.topics() == names[:1]

    bench.run(story())


def test_topics_are_written_with_the_rest_of_their_flush_or_not_at_all(bench: Bench) -> None:
    breaking = False

    def fault(point: str) -> None:
        if breaking and point == "written":
            raise StoreLost("broken")

    async def story() -> None:
        nonlocal breaking
        owned = await opened(bench.store(faults=fault))
        await owned.write(inserts=[make_row(1)], topics_added=[TOPIC])
        with pytest.raises(WriteRefused):
            await owned.write(inserts=[make_row(1)], topics_added=[("n", "new")], topics_removed=[TOPIC])
        assert await owned.store.topics() == [TOPIC]
        breaking = True
        with pytest.raises(StoreLost):
            await owned.write(topics_added=[("n", "new")], topics_removed=[TOPIC])
        breaking = False
        await owned.store.read_owner()
        assert await owned.store.topics() == [TOPIC]
        assert set(await contents(owned)) == {1}
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        with pytest.raises(FencedOut):
            await owned.write(topics_added=[("n", "new")], topics_removed=[TOPIC])
        assert await new.store.topics() == [TOPIC]

    bench.run(story())
