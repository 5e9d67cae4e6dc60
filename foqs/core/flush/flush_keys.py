"""The idempotency keys of one flush: which are in use, the records that it adds, and what repeats and conflicts get.

Always true: a key has one record in a flush; a record that the flush added counts as in use for all later entries of the
flush; a key is new if its record is missing, or ended before the flush was first tried. Pure; knows nothing of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from foqs.core.flush.batch import Part
from foqs.core.flush.operation import Inserts
from foqs.core.flush.whole_keys import repeat_of_all
from foqs.core.items.atomic_items import KEY_FIELD, error_of_item
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName, is_of_incarnation
from foqs.core.items.item import KeyedItem, NewItem
from foqs.core.items.life import FlushContext
from foqs_contract.errors import FoqsError, InvalidArgument, KeyConflict, KeyEnded

NO_KEYS: Final[Mapping[KeyName, IdempotencyKey]] = {}
"""No keys are in use: all keys count as new."""

_KEY_USED: Final = "this key was used for a different item; give each item its own key"


class FlushKeys:
    """The keys of one flush.

    Args:
        read: the records that were read. A key without one counts as new.

    Attributes:
        added: new records, by namespace and key.
        replaced: records in place of ones whose key window has ended.
        repeat_count: the number of repeats: entries that were not carried out, because their key names the same one.
        conflict_count: the number of entries that were not carried out, because their key names a different one.
    """

    __slots__ = ("_context", "_read", "added", "conflict_count", "repeat_count", "replaced")

    def __init__(self, context: FlushContext, read: Mapping[KeyName, IdempotencyKey]) -> None:
        self._context = context
        self._read = read
        self.added: dict[str, dict[bytes, IdempotencyKey]] = {}
        self.replaced: dict[str, dict[bytes, IdempotencyKey]] = {}
        self.repeat_count = 0
        self.conflict_count = 0

    # ------------------------------------------------------------ of one entry

    def record_in_use(self, namespace: str, key: bytes) -> IdempotencyKey | None:
        """Return the record of a key that this flush has added, or that was read and is in use; None if the key is free."""
        for added in (self.added, self.replaced):
            record = added.get(namespace, {}).get(key)
            if record is not None:
                return record
        old = self._read.get((namespace, key))
        return old if old is not None and _is_in_use(old, self._context) else None

    def add(
        self,
        namespace: str,
        key: bytes,
        number: int,
        digest: bytes,
        topic: str | None = None,
        end_ms: int | None = None,
    ) -> None:
        """Add the record of a key that is free.

        Args:
            topic: of the new item; None if the record is of something else.
            end_ms: the end that the item names for its key.
        """
        records = self.replaced if (namespace, key) in self._read else self.added
        until_ms = self._until_ms(namespace, topic, end_ms)
        records.setdefault(namespace, {})[key] = IdempotencyKey(namespace, key, number, digest, until_ms)

    def repeat_result(
        self,
        record: IdempotencyKey,
        digest: bytes,
        conflict: str = _KEY_USED,
    ) -> Any:
        """Return the result of an entry whose key is in use: the number of the key's first item, or a conflict."""
        if record.digest == digest:
            self.repeat_count += 1
            return record.item_id
        self.conflict_count += 1
        return KeyConflict(conflict)

    # ---------------------------------------------------------- of many entries

    def add_if_all_new(self, part: Part[Inserts]) -> bool:
        """Add all keys of a part at once if each is new and occurs in the flush once; else do nothing and return False."""
        operation = part.operation
        namespace = operation.namespace
        new = self.added.setdefault(namespace, {})
        names = operation.idempotency_keys(part.start, part.stop)
        distinct = set(names)
        if self._read or operation.has_key_ends or len(distinct) < len(names) or not distinct.isdisjoint(new):
            return False
        digests = operation.digests(part.start, part.stop)
        topics = self._topics(part)
        untils = repeat(self._until_ms(namespace)) if topics is None else [self._until_ms(namespace, t) for t in topics]
        records = map(IdempotencyKey, repeat(namespace), names, part.numbers, digests, untils)
        new.update(zip(names, records, strict=True))
        return True

    def add_free(self, part: Part[Inserts]) -> list[Any]:
        """Add the keys that are free. Return None for each of them; else the number of the key's first item, or an error."""
        operation = part.operation
        namespace = operation.namespace
        names, digests = operation.idempotency_keys(part.start, part.stop), operation.digests(part.start, part.stop)
        ends = operation.key_ends(part.start, part.stop)
        topics = self._topics(part) or [None] * part.count
        results: list[Any] = []
        for key, number, digest, end_ms, topic in zip(names, part.numbers, digests, ends, topics, strict=True):
            record = self.record_in_use(namespace, key)
            error = None if record is not None else self._end_error(namespace, end_ms)
            if record is not None:
                results.append(self.repeat_result(record, digest))
            elif error is not None:
                results.append(error)
            else:
                self.add(namespace, key, number, digest, topic, end_ms)
                results.append(None)
        return results

    def add_all_or_none(self, part: Part[Inserts]) -> list[Any]:
        """Add the keys of a whole operation, or none of them. Returns what `add_free` does, or one error for all entries."""
        operation = part.operation
        namespace = operation.namespace
        names, digests = operation.idempotency_keys(part.start, part.stop), operation.digests(part.start, part.stop)
        repeated = self.repeat_of_whole(namespace, names, digests)
        if repeated is not None:
            return repeated
        for place, end_ms in enumerate(operation.key_ends(part.start, part.stop)):
            error = self._end_error(namespace, end_ms)
            if error is not None:
                return [error_of_item(place, error)] * part.count
        return self.add_free(part)

    def repeat_of_whole(self, namespace: str, names: Sequence[bytes], digests: Sequence[bytes]) -> list[Any] | None:
        """Return the results of a whole operation whose keys are not all free: the numbers of the first items, or one conflict."""
        repeated = repeat_of_all([self.record_in_use(namespace, name) for name in names], digests)
        if isinstance(repeated, FoqsError):
            self.conflict_count += len(names)
            return [repeated] * len(names)
        if repeated is not None:
            self.repeat_count += len(names)
        return repeated

    def add_of_completion(
        self, namespace: str, items: Sequence[NewItem], first_number: int, first_place: int
    ) -> list[int] | FoqsError:
        """Add the free keys of a completion's items, or none of them.

        Returns the number of each item: its own, from `first_number` on, or that of the first item of its key. Or the error
        of the first item whose key is used for a different item, or has ended; places count from `first_place` on.
        """
        numbers = list(range(first_number, first_number + len(items)))
        free: list[tuple[KeyedItem, int]] = []
        for place, item in enumerate(items):
            if not isinstance(item, KeyedItem):
                continue
            record = self.record_in_use(namespace, item.idempotency_key)
            if record is None:
                error = self._end_error(namespace, item.key_until_ms)
                if error is not None:
                    return error_of_item(first_place + place, error)
                free.append((item, numbers[place]))
            elif record.digest == item.digest:
                numbers[place] = record.item_id
            else:
                self.conflict_count += 1
                return error_of_item(first_place + place, KeyConflict(_KEY_USED, field=KEY_FIELD))
        for item, number in free:
            self.add(namespace, item.idempotency_key, number, item.digest, item.topic, item.key_until_ms)
        return numbers

    # -------------------------------------------------------------- its records

    def records_added(self) -> list[IdempotencyKey]:
        """Return the new records."""
        return [record for records in self.added.values() for record in records.values()]

    def records_replaced(self) -> list[IdempotencyKey]:
        """Return the records in place of ones that have ended."""
        return [record for records in self.replaced.values() for record in records.values()]

    def _topics(self, part: Part[Inserts]) -> Sequence[str | None] | None:
        """Return the topics of new items whose key windows may differ; None if all have that of the namespace.

        A restore may be repeated for the window of the namespace, whatever the topics.
        """
        operation = part.operation
        if operation.is_restore or not self._context.retry_policies[operation.namespace].topic_key_windows_ms:
            return None
        return [item.topic for item in operation.items[part.start : part.stop]]

    def _until_ms(self, namespace: str, topic: str | None = None, end_ms: int | None = None) -> int:
        """Return until when a record that this flush adds is remembered: for its key window, and until the end of the key."""
        policy = self._context.retry_policies[namespace]
        window_ms = policy.key_window_ms if topic is None else policy.key_window_ms_of(topic)
        return max(self._context.now_ms + window_ms, end_ms or 0)

    def _end_error(self, namespace: str, end_ms: int | None) -> FoqsError | None:
        """Return the error of a free key with this end; None if it may be added.

        It is further ahead than the window of the namespace; or it is over, and an item may have been written.
        """
        now_ms, latest_ms = self._context.now_ms, self._until_ms(namespace)
        if end_ms is None or now_ms < end_ms <= latest_ms:
            return None
        if end_ms > latest_ms:
            return InvalidArgument(
                f"this is {end_ms - now_ms} ms ahead; the namespace's key window is {latest_ms - now_ms} ms; give an earlier end",
                field="key_until_ms",
            )
        return KeyEnded(
            f"the end of this key passed {now_ms - end_ms} ms ago, and the key is not remembered; "
            "an earlier enqueue may have made an item, this one did not"
        )


def _is_in_use(record: IdempotencyKey, context: FlushContext) -> bool:
    """Return whether a key is in use: its window has not ended, and its namespace was not deleted since."""
    incarnation = context.retry_policies[record.namespace].incarnation
    return record.until_ms > context.first_attempt_ms and is_of_incarnation(record, incarnation)
