"""The settings that a namespace may have of its own, and their ranges.

Always true: these are the options of `[namespace]`, so a namespace can override
each default of the host. Knows nothing of documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs.options.options import NAMESPACE_ORDERED_PAIRS, NamespaceOptions
from foqs_contract.errors import InvalidArgument


class NamespaceSettings(NamespaceOptions):
    """The settings that apply to a namespace: its own, the host's defaults for the others, and its incarnation."""

    incarnation: bytes = b""
    """The incarnation as a prefix of digests; see `idempotency_keys.incarnation_prefix`."""
    incarnation_number: int = 0
    """The incarnation as callers know it; see `Document.incarnation_number`."""

    @property
    def is_limited(self) -> bool:
        """Whether an enqueue may be refused because of what the namespace has enqueued before."""
        return bool(self.enqueues_per_minute or self.backlog_items_max or self.backlog_bytes_max or self.topics_max)


def _range(constraints: list[Any]) -> tuple[int, int]:
    low = next(mark.ge for mark in constraints if hasattr(mark, "ge"))
    high = next(mark.le for mark in constraints if hasattr(mark, "le"))
    return low, high


SETTING_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    name: _range(field.metadata) for name, field in NamespaceOptions.model_fields.items()
}
"""The minimum and maximum of each setting, by name."""


def check_consistent(settings: Mapping[str, int]) -> None:
    """Check that the settings of a namespace, defaults included, do not contradict one another.

    Raises:
        InvalidArgument: names the two settings.
    """
    for low, high in NAMESPACE_ORDERED_PAIRS:
        if settings[low] > settings[high]:
            raise InvalidArgument(
                f"{settings[low]} is more than {high}, which is {settings[high]}; lower it or raise {high}",
                field=f"settings.{low}",
            )
