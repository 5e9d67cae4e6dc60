"""What holds for the items of an atomic call, whatever the shard: their count and bytes, and that keys fit together.

Always true: items that passed are all keyed, with distinct keys, or none is; so a repeat can name the id of each. An
error names the item by its place in the call. Pure; knows nothing of shards and flushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs.core.items.item import KeyedItem, NewItem
from foqs_contract.errors import FoqsError, InvalidArgument, LimitExceeded

KEY_FIELD: Final = "idempotency_key"


def check_atomic_items(items: Sequence[NewItem], items_max: int, bytes_max: int) -> None:
    """Check the items of an atomic call, which are valid one by one.

    Raises:
        LimitExceeded: there are too many items, or bytes.
        InvalidArgument: some items have keys and others have none, or a key occurs twice.
    """
    if len(items) > items_max:
        raise LimitExceeded(
            f"this has {len(items)} items; an atomic call may have at most {items_max}; send fewer, or not atomically",
            field="items",
        )
    size = sum([len(item.payload) + len(item.metadata) for item in items])
    if size > bytes_max:
        raise LimitExceeded(
            f"the payloads and metadata have {size} bytes; an atomic call may have at most {bytes_max}; send fewer items, "
            "or not atomically",
            field="items",
        )
    _check_keys([item.idempotency_key if isinstance(item, KeyedItem) else None for item in items])


def _check_keys(keys: Sequence[bytes | None]) -> None:
    if None in keys:
        place = keys.index(None)
        if keys.count(None) < len(keys):
            raise error_of_item(
                place,
                InvalidArgument(
                    "this is missing, and other items of the atomic call have one, so a repeat could not name all ids; give "
                    "each item a key, or none",
                    field=KEY_FIELD,
                ),
            )
        return
    first: dict[bytes | None, int] = {}
    for place, key in enumerate(keys):
        if key in first:
            raise error_of_item(
                place,
                InvalidArgument(
                    f"items[{first[key]}] has the same key; give each item of an atomic call its own", field=KEY_FIELD
                ),
            )
        first[key] = place


def error_of_item(place: int, error: FoqsError) -> FoqsError:
    """Return the error with the place of its item in the call before its field."""
    error.field = f"items[{place}].{error.field}" if error.field else f"items[{place}]"
    return error
