"""Merges a page of the tables with what the memory of a journal knows better.

A page has the entries of the tables after a place, in order. Of those that the memory knows, the page's
count as nothing; the memory's are added up to the end of the page. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_E = TypeVar("_E")


def merge_page(
    page: Sequence[_E],
    is_full: bool,
    is_known: Callable[[_E], bool],
    added: Iterable[_E],
    place: Callable[[_E], object],
) -> list[_E]:
    """Return the entries of a page and of the memory up to the end of the page, in order.

    Args:
        is_full: the tables may have more entries after the page.
        is_known: whether the memory knows better than an entry of the page.
        added: entries of the memory after the beginning of the page.
        place: returns the place of an entry in the order.
    """
    kept = [entry for entry in page if not is_known(entry)]
    if is_full:
        end = place(page[-1])
        added = [entry for entry in added if place(entry) <= end]  # type: ignore[operator]
    return sorted([*kept, *added], key=place)  # type: ignore[arg-type]
