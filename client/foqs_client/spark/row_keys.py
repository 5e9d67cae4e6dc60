"""Idempotency keys of rows. A repeated task makes the same keys, in any order of the rows.

Holds `RowKeys`. Always true: a key depends only on the run, the partition, the row's
content with its group, and the number of equal rows before it. Equal rows make equal
items, so their order does not matter. The keys of a partition are in `key_slot_count` neighbouring
slots, by the row's hash, so that the items of a call belong to one shard. Pure.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final

from foqs_client.spark.item_columns import SinkError
from foqs_contract.key_slots import KEY_SLOT_COUNT

DIGEST_BYTES: Final = 15
"""The hash of a row: long enough that no two keys of a namespace are equal by chance, and without base64 padding."""

KEY_SLOTS: Final = 16
"""The number of key slots of a task. A constant: a repeated task must make the same keys, even if shards were added."""


class RowKeys:
    """The keys of one partition's rows.

    Args:
        run: the name of the write; the same for all its attempts.
        partition: the number of the partition.
        key_slot_count: the number of slots of the keys, 1 to 256.
        rows_max: the maximum number of different rows. Each is remembered.
    """

    def __init__(self, run: str, partition: int, key_slot_count: int, rows_max: int) -> None:
        partition_digest = blake2b(f"{run}\0{partition}".encode(), digest_size=32).digest()
        self._base_hash = blake2b(key=partition_digest, digest_size=DIGEST_BYTES)
        first = int.from_bytes(partition_digest[:2], "big")
        self._key_slot_prefixes = [f"~{(first + offset) % KEY_SLOT_COUNT:03x}" for offset in range(key_slot_count)]
        self._rows_max = rows_max
        self._seen_digests: set[bytes] = set()
        self._repeat_counts: dict[bytes, int] = {}

    @property
    def are_used(self) -> bool:
        """Whether a key was made."""
        return bool(self._seen_digests)

    def dead_letter_key(self, namespace: str, content: bytes) -> str:
        """Return the key of the dead letter of the next row. No item of a row has it. Raises SinkError.

        Args:
            namespace: the namespace of the dead letter.
            content: the values of the row.
        """
        key = self.key(namespace, "", content, 0, b"", None, None, None, None)
        return f"{key[:4]}dead{key[4:]}"

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
        group: str | None,
    ) -> str:
        """Return the key of the next row. Raises SinkError."""
        row_hash = self._base_hash.copy()
        if group is not None:
            # The header begins with a digit. A row without a group has the key that an earlier version gives it.
            row_hash.update(f"g{len(group)},{group}".encode())
        # The lengths come first, so that different rows never hash the same bytes.
        header = (
            f"{len(namespace)},{len(topic)},{len(payload)},{priority},{deliver_after_ms},{ttl_ms},{lease_ms},"
            f"{namespace}{topic}"
        )
        row_hash.update(header.encode())
        row_hash.update(payload)
        row_hash.update(metadata)
        digest = row_hash.digest()
        key = self._key_slot_prefixes[digest[0] % len(self._key_slot_prefixes)] + urlsafe_b64encode(digest).decode()
        if digest in self._seen_digests:
            nth = self._repeat_counts[digest] = self._repeat_counts.get(digest, 0) + 1
            return f"{key}.{nth}"
        if len(self._seen_digests) >= self._rows_max:
            raise SinkError(
                f"it has more than {self._rows_max} different rows, which are remembered to make keys; "
                "repartition the frame into more partitions, add a column idempotency_key, or raise the option "
                "partition_rows_max (about 100 bytes of a task's memory for each row)"
            )
        self._seen_digests.add(digest)
        return key
