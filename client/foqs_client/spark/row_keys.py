"""Idempotency keys that a repeated task makes again: the same for the same row, whatever the order of the rows.

Holds `RowKeys`. Always true: a key depends on the run, the partition, the row's
content, and how many equal rows of the partition came before it, and on nothing
else; since equal rows make equal items, it does not matter which of them is the
first. Keys of one partition lie in `lanes` neighbouring slots, by the row's
hash, so that a call whose items are of one lane meets one shard. Pure.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final

from foqs_client.routing_table import KEY_SLOT_COUNT
from foqs_client.spark.item_columns import SinkError

DIGEST_BYTES: Final = 15
"""Of a row, the run and the partition: so many that no two keys of a namespace meet by chance, and whole in base64."""


class RowKeys:
    """The keys of one partition's rows.

    Args:
        run: names the write; the same for every attempt at it.
        key_slot_count: how many slots the keys are spread over, 1 to 256.
        rows_max: more rows are refused, as each is remembered.
    """

    def __init__(self, run: str, partition: int, key_slot_count: int, rows_max: int) -> None:
        whole = blake2b(f"{run}\0{partition}".encode(), digest_size=32).digest()
        self._base_hash = blake2b(key=whole, digest_size=DIGEST_BYTES)
        first = int.from_bytes(whole[:2], "big")
        self._key_slot_prefixes = [f"~{(first + lane) % KEY_SLOT_COUNT:03x}" for lane in range(key_slot_count)]
        self._rows_max = rows_max
        self._seen_digests: set[bytes] = set()
        self._repeat_counts: dict[bytes, int] = {}

    def key(
        self,
        namespace: str,
        topic: str,
        payload: bytes,
        priority: int,
        metadata: bytes,
        deliver_after_ms: int | None,
        ttl_ms: int | None,
        lease_ms: int | None,
    ) -> str:
        """The key of the next row. Raises SinkError."""
        hashed = self._base_hash.copy()
        # Lengths come first, so that no two rows read the same.
        head = (
            f"{len(namespace)},{len(topic)},{len(payload)},{priority},{deliver_after_ms},{ttl_ms},{lease_ms},"
            f"{namespace}{topic}"
        )
        hashed.update(head.encode())
        hashed.update(payload)
        hashed.update(metadata)
        digest = hashed.digest()
        key = self._key_slot_prefixes[digest[0] % len(self._key_slot_prefixes)] + urlsafe_b64encode(digest).decode()
        if digest in self._seen_digests:
            nth = self._repeat_counts[digest] = self._repeat_counts.get(digest, 0) + 1
            return f"{key}.{nth}"
        if len(self._seen_digests) >= self._rows_max:
            raise SinkError(
                f"it has more than {self._rows_max} different rows, which are remembered to make keys; "
                "repartition the frame into more, give it a column idempotency_key, or raise the option "
                "partition_rows_max (about 100 bytes of a task's memory for each row)"
            )
        self._seen_digests.add(digest)
        return key
