"""Pages of lists, as calls ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from foqs.core import validate

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 1_000

_T = TypeVar("_T")


def page_of(page: Any) -> tuple[int, str | None]:
    """(limit, cursor) of a page that may be missing."""
    if page is None:
        return PAGE_LIMIT_DEFAULT, None
    limit = PAGE_LIMIT_DEFAULT
    if page.limit is not None:
        limit = validate.number(page.limit, 1, PAGE_LIMIT_MAX, "page.limit")
    if page.cursor is None:
        return limit, None
    return limit, validate.text(page.cursor, validate.CURSOR_BYTES_MAX, "page.cursor")


def page_by_name(rows: Sequence[_T], name: Callable[[_T], str], page: Any) -> tuple[Sequence[_T], str | None]:
    """A page of rows in the order of their names, and the cursor of the next: the last row's name."""
    limit, cursor = page_of(page)
    rest = rows if cursor is None else [row for row in rows if name(row) > cursor]
    return rest[:limit], name(rest[limit - 1]) if len(rest) > limit else None
