"""Which part of what there is calls ask for: pages of lists, and shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

from foqs.core.items import validation

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 1_000

_T = TypeVar("_T")


def parse_page(page: Any, limit_min: int = 1) -> tuple[int, str | None]:
    """(limit, cursor) of a page that may be missing; of `limit_min` rows."""
    if page is None:
        return PAGE_LIMIT_DEFAULT, None
    limit = PAGE_LIMIT_DEFAULT
    if page.limit is not None:
        limit = validation.check_number(page.limit, limit_min, PAGE_LIMIT_MAX, "page.limit")
    if page.cursor is None:
        return limit, None
    return limit, validation.decode_text(page.cursor, validation.CURSOR_BYTES_MAX, "page.cursor")


def requested_shards(request: Any) -> Collection[int] | None:
    """The shards that another host asks about; None: nobody but the caller asks, or about all that are here."""
    shards: Collection[int] | None = request.shards
    return shards if request.forwarded else None


def page_by_name(rows: Sequence[_T], name: Callable[[_T], str], page: Any) -> tuple[Sequence[_T], str | None]:
    """A page of rows in the order of their names, and the cursor of the next: the last row's name."""
    limit, cursor = parse_page(page)
    rest = rows if cursor is None else [row for row in rows if name(row) > cursor]
    return rest[:limit], name(rest[limit - 1]) if len(rest) > limit else None
