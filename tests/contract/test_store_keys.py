"""Idempotency keys and key slots in every store. Run on all three stores."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from foqs.core.flush.fence import CommitOutcome, commit_outcome
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName, completed_item_key, completion_key, move_key
from foqs.core.items.item import TIME_MS_MAX, Row
from foqs.store.port import FAULT_POINTS, FencedOut, IdempotencyKeyExists, StoreLost, WriteRefused
from foqs_contract.key_slots import KEY_SLOT_COUNT, group_prefix, restore_key
from tests.contract.conftest import Bench
from tests.support.stores import OTHER, contents, keys_of, make_row, opened, reading

INT63_MAX = (1 << 63) - 1
DIGEST = bytes(range(16))


def key_row(key: bytes = b"k", number: int = 1, **changes: object) -> IdempotencyKey:
    return IdempotencyKey("n", key, number, DIGEST, 1_000)._replace(**changes)  # type: ignore[arg-type]


def named(*rows: IdempotencyKey) -> dict[KeyName, IdempotencyKey]:
    return {(row.namespace, row.key): row for row in rows}


EXACT = [
    key_row(b"k"),
    key_row(b"K", 2),
    key_row(b"k ", 3),
    key_row(b"k", 4, namespace="N"),
    key_row(b"'\\", 5, digest=b"'\\" * 8),
    key_row("ä😀".encode(), 6, namespace="ä"),
    key_row(b"x" * 255, INT63_MAX, namespace="y" * 255, digest=bytes(16), until_ms=TIME_MS_MAX),
    key_row(b"~3ff", 8, digest=b"\xff" * 16, until_ms=0),
]


def test_key_rows_are_read_exactly_by_their_exact_names(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(idempotency_keys_added=EXACT)
        others = [("n", b"missing"), ("M", b"k"), ("n", b"k\xc3\xa9")]
        assert await keys_of(owned, *named(*EXACT), *others) == named(*EXACT)
        assert await keys_of(owned, ("n", b"k")) == named(EXACT[0])
        assert await keys_of(owned) == {}

    bench.run(story())


def test_many_keys_of_several_namespaces_are_written_and_read_in_one_flush(bench: Bench) -> None:
    rows = [key_row(b"%d" % number, number, namespace=f"n{number % 3}") for number in range(1, 1_801)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(idempotency_keys_added=rows)
        assert await keys_of(owned, *named(*rows)) == named(*rows)

    bench.run(story())


def test_an_existing_key_refuses_its_whole_flush_and_the_next_flush_may_use_its_number(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first = key_row(b"k", 1)
        await owned.write(inserts=[make_row(1)], idempotency_keys_added=[first])
        with pytest.raises(IdempotencyKeyExists) as refused:
            await owned.write(
                inserts=[make_row(2)], deletes=[1], idempotency_keys_added=[key_row(b"a", 3), key_row(b"k", 2)]
            )
        assert not refused.value.is_retryable
        with pytest.raises(IdempotencyKeyExists):
            await owned.write(idempotency_keys_added=[key_row(b"b"), key_row(b"b", 2)])
        assert await keys_of(owned, ("n", b"k"), ("n", b"a"), ("n", b"b")) == named(first)
        assert set(await contents(owned)) == {1}
        await owned.write(inserts=[make_row(2)], idempotency_keys_added=[key_row(b"a", 2)])
        assert set(await contents(owned)) == {1, 2}

    bench.run(story())


def test_an_inserted_id_that_exists_is_not_reported_as_an_existing_key(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        with pytest.raises(WriteRefused) as refused:
            await owned.write(inserts=[make_row(1)], idempotency_keys_added=[key_row(b"a")])
        assert not isinstance(refused.value, IdempotencyKeyExists)

    bench.run(story())


def test_a_flush_reads_its_keys_and_items_and_replaces_expired_keys(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        old, kept = key_row(b"old", 1), key_row(b"kept", 2)
        await owned.write(inserts=[make_row(1), make_row(2)], idempotency_keys_added=[old, kept])
        new = key_row(b"old", 3, until_ms=5_000, digest=bytes(16))
        seen: list[tuple[set[int], Mapping[KeyName, IdempotencyKey]]] = []

        def decide(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            seen.append((set(rows), dict(keys)))
            return Writes(
                inserts=[make_row(3)], idempotency_keys_added=[key_row(b"new", 4)], idempotency_keys_replaced=[new]
            )

        names = [("n", b"old"), ("n", b"new"), ("n", b"old"), ("n", b"kept")]
        await owned.store.flush(owned.fence, [1], {2: 10_000}, names, decide)
        owned.number += 1
        assert seen == [({1, 2}, named(old, kept))]
        assert await keys_of(owned, *names) == named(new, kept, key_row(b"new", 4))
        assert await owned.store.next_key_expiry_ms() == 1_000

    bench.run(story())


def test_expired_key_rows_are_deleted_page_by_page_the_oldest_first(bench: Bench) -> None:
    rows = [key_row(b"%d" % n, n, until_ms=10 + n) for n in range(1, 9)]

    async def story() -> None:
        owned = await opened(bench.store())
        assert await owned.store.next_key_expiry_ms() is None
        await owned.write(idempotency_keys_added=list(reversed(rows)))
        await owned.write(idempotency_keys_expired_by_ms=10, idempotency_keys_expired_max=5)
        assert len(await keys_of(owned, *named(*rows))) == len(rows)
        await owned.write(idempotency_keys_expired_by_ms=10_000, idempotency_keys_expired_max=5)
        assert await keys_of(owned, *named(*rows)) == named(*rows[-3:])
        assert await owned.store.next_key_expiry_ms() == rows[-3].until_ms
        assert await owned.store.next_key_expiry_ms(rows[-3].until_ms) == rows[-3].until_ms
        assert await owned.store.next_key_expiry_ms(rows[-3].until_ms + 1) == rows[-2].until_ms
        assert await owned.store.next_key_expiry_ms(rows[-1].until_ms + 1) is None
        await owned.write(
            idempotency_keys_expired_from_ms=rows[-1].until_ms + 1,
            idempotency_keys_expired_by_ms=10_000,
            idempotency_keys_expired_max=5,
        )
        assert await keys_of(owned, *named(*rows)) == named(*rows[-3:])
        await owned.write(
            idempotency_keys_expired_by_ms=rows[-2].until_ms,
            idempotency_keys_expired_max=5,
            idempotency_keys_added=[key_row(b"new", until_ms=rows[-2].until_ms + 1)],
        )
        assert await keys_of(owned, *named(*rows), ("n", b"new")) == named(
            rows[-1], key_row(b"new", until_ms=rows[-2].until_ms + 1)
        )

    bench.run(story())


def test_key_slots_are_added_once_and_stay(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        assert await owned.store.key_slots() == []
        await owned.write(key_slots_added=range(0, KEY_SLOT_COUNT, 2))
        await owned.write(key_slots_added=[7, 4])
        assert await owned.store.key_slots() == sorted([*range(0, KEY_SLOT_COUNT, 2), 7])
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        with pytest.raises(FencedOut):
            await owned.write(key_slots_added=[9])
        assert 9 not in await new.store.key_slots()

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_keys_and_slots_are_written_with_the_rest_of_their_flush_or_not_at_all(bench: Bench, point: str) -> None:
    breaking = False

    def fault(at: str) -> None:
        if breaking and at == point:
            raise StoreLost("broken")

    async def story() -> None:
        nonlocal breaking
        owned = await opened(bench.store(faults=fault))
        await owned.write(idempotency_keys_added=[key_row(b"old")])
        fence, breaking = owned.fence, True
        with pytest.raises(StoreLost):
            await owned.write(
                inserts=[make_row(1)],
                idempotency_keys_added=[key_row(b"k")],
                idempotency_keys_replaced=[key_row(b"old", 9)],
                key_slots_added=[3],
            )
        with pytest.raises(StoreLost):
            await owned.store.key_slots()
        with pytest.raises(StoreLost):
            await owned.store.next_key_expiry_ms()
        breaking = False
        committed = commit_outcome(fence, await owned.store.read_owner()) is CommitOutcome.COMMITTED
        assert committed == (point == "committed")
        owned.number += committed
        found = await keys_of(owned, ("n", b"k"), ("n", b"old"))
        assert found == (named(key_row(b"k"), key_row(b"old", 9)) if committed else named(key_row(b"old")))
        assert await owned.store.key_slots() == ([3] if committed else [])
        if committed:
            with pytest.raises(IdempotencyKeyExists):
                await owned.write(idempotency_keys_added=[key_row(b"k", 2)])

    bench.run(story())


def test_the_key_of_an_item_is_found_by_its_end(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(idempotency_keys_added=EXACT)
        await owned.write(idempotency_keys_replaced=[key_row(b"k", 11)])
        async with reading(owned.store) as reads:
            untils = {row.item_id: row.until_ms for row in EXACT[1:]}
            expected = {row.item_id: row.key for row in EXACT[1:]}
            assert await reads.idempotency_keys_of(owned.past, untils) == expected
            later = {item_id: until_ms + 1 for item_id, until_ms in untils.items()}
            assert await reads.idempotency_keys_of(owned.past, later) == {}
            assert await reads.idempotency_keys_of(owned.past, {11: 1_000, 1: 1_000}) == {11: b"k"}
            assert await reads.idempotency_keys_of(owned.past, {}) == {}

    bench.run(story())


def test_the_key_of_an_item_is_found_beside_the_records_that_foqs_itself_wrote_in_the_same_flush(bench: Bench) -> None:
    prefix = group_prefix(b"n", b"group")
    own = [key_row(b"\x01k"), key_row(b"~3ff", 2), key_row(prefix + b"k", 3), key_row(prefix + b"zz", 4)]
    records = [
        key_row(key, number)
        for number in range(1, 8)
        for key in (completed_item_key(100 + number, 0), move_key(100 + number), completion_key(100 + number))
    ]
    restored = [key_row(restore_key(b"r"), 5), key_row(prefix + restore_key(b"r"), 6)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(idempotency_keys_added=own[:2])
        await owned.write(idempotency_keys_added=[*records, *restored, *own[2:]])
        async with reading(owned.store) as reads:
            found = await reads.idempotency_keys_of(owned.past, dict.fromkeys(range(1, 9), 1_000))
        assert found == {row.item_id: row.key for row in own}

    bench.run(story())
