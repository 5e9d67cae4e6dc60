"""Planted bugs of namespaces that are deleted and created again; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs.catalog import changes, namespaces
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def incarnations_ignored() -> None:
    """The keys of a deleted namespace are valid in the next incarnation."""
    plant(namespaces, "incarnation_prefix", lambda incarnation: b"")


def incarnations_repeated() -> None:
    """A namespace that is created again has the same incarnation as before."""

    def create(document: Any, name: str, tier: Any, settings: Any, *, incarnation: int = 0) -> Any:
        return original(document, name, tier, settings, incarnation=7)

    original = plant(changes, "create", create)


BUGS: Final[Mapping[str, Bug]] = {
    "incarnations-ignored": Bug(incarnations_ignored, (3,), seed_count=32, first_seed=23),
    "incarnations-repeated": Bug(incarnations_repeated, (3,), seed_count=32, first_seed=7),
}
