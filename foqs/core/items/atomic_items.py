"""What holds for items that are written together, of an atomic call or of a completion: count and bytes, and that keys fit.

Always true: the keys of items that passed are distinct. The items of an atomic call are all keyed, or none is, so a
repeat can name the id of each. An error names the item by its place. Pure; knows nothing of shards and flushes.
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
    _check_size(items, items_max, bytes_max, "an atomic call", "send fewer items, or not atomically")
    keys = _keys_of(items)
    _check_all_or_none(keys)
    _check_distinct(keys)


def check_completion_items(
    items: Sequence[NewItem], items_max: int, bytes_max: int, first_place: int = 0, field: str = "items"
) -> None:
    """Check the items of a completion, which are valid one by one.

    Args:
        first_place: the place of the first item in the call.
        field: what names their count.

    Raises:
        LimitExceeded: there are too many items, or bytes.
        InvalidArgument: a key occurs twice.
    """
    _check_size(items, items_max, bytes_max, "a completion", "enqueue one item that enqueues the others", field)
    _check_distinct(_keys_of(items), first_place)


def _check_size(
    items: Sequence[NewItem], items_max: int, bytes_max: int, what: str, remedy: str, field: str = "items"
) -> None:
    if len(items) > items_max:
        raise LimitExceeded(
            f"this has {len(items)} items; {what} may have at most {items_max}; {remedy}",
            field=field,
        )
    size = sum([len(item.payload) + len(item.metadata) for item in items])
    if size > bytes_max:
        raise LimitExceeded(
            f"the payloads and metadata have {size} bytes; {what} may have at most {bytes_max}; {remedy}",
            field=field,
        )


def _keys_of(items: Sequence[NewItem]) -> list[bytes | None]:
    return [item.idempotency_key if isinstance(item, KeyedItem) else None for item in items]


def _check_all_or_none(keys: Sequence[bytes | None]) -> None:
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


def _check_distinct(keys: Sequence[bytes | None], first_place: int = 0) -> None:
    first: dict[bytes | None, int] = {}
    for place, key in enumerate(keys, first_place):
        if key is None:
            continue
        if key in first:
            raise error_of_item(
                place,
                InvalidArgument(f"items[{first[key]}] has the same key; give each item its own", field=KEY_FIELD),
            )
        first[key] = place


def error_of_item(place: int, error: FoqsError) -> FoqsError:
    """Return the error with the place of its item in the call before its field."""
    error.field = f"items[{place}].{error.field}" if error.field else f"items[{place}]"
    return error
