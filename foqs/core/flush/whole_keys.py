"""What the idempotency keys of an atomic call say together: all of them are new, it is a repeat, or it is a conflict.

Always true: a repeat names the first item of each key; nothing is inserted beside a key that is remembered. An
honest repeat finds all its keys or none, because one flush wrote them with one end. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from foqs.core.items.atomic_items import KEY_FIELD, error_of_item
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs_contract.errors import FoqsError, KeyConflict


def repeat_of_all(records: Sequence[IdempotencyKey | None], digests: Sequence[bytes]) -> list[int] | FoqsError | None:
    """Return the numbers of the first items, if all keys are remembered for these items; None if no key is remembered.

    Else a KEY_CONFLICT, which names an item by its place in the call.

    Args:
        records: for each key its record, if it is in use.
    """
    known = [record for record in records if record is not None]
    if not known:
        return None
    for place, (record, digest) in enumerate(zip(records, digests, strict=True)):
        if record is not None and record.digest != digest:
            return _conflict(place, "this key was used for a different item; give each item its own key")
    if len(known) < len(records):
        place = next(place for place, record in enumerate(records) if record is not None)
        return _conflict(
            place,
            f"this key was used before, and {len(records) - len(known)} of the {len(records)} keys of the call were not; "
            "repeat an atomic call with the same items, or give each item a new key",
        )
    return [record.item_id for record in known]


def _conflict(place: int, message: str) -> FoqsError:
    return error_of_item(place, KeyConflict(message, field=KEY_FIELD))
