"""The geometry of the console's drawings: bars, lines, and the picture of which host owns which shard.

Pure functions: numbers in, places out. The templates draw them as SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.console.history import COLUMNS, SLOT_S, SLOTS_MAX, Point

LINE_WIDTH: Final = 600
LINE_HEIGHT: Final = 120
TABLE_ROWS_MAX: Final = 12
"""The maximum number of rows of the table behind a chart."""

SHARDS_PER_LINE: Final = 16
_CELL: Final = 40
_NAME_HEIGHT: Final = 26
_GAP: Final = 14
NAME_CHARS_MAX: Final = 60


@dataclass(slots=True, frozen=True)
class Chart:
    """A chart of some figures over time.

    Attributes:
        columns: the figures: fields of `Point`, each with its name for people. At most three.
        unit: the unit of all values.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    unit: str

    @property
    def places(self) -> list[int]:
        """The index of each figure in a `Point`."""
        return [COLUMNS[name] for name, _ in self.columns]


@dataclass(slots=True, frozen=True)
class Charts:
    """The charts of a page over the same points.

    Attributes:
        rows: the points as the script needs them.
    """

    charts: Sequence[Chart]
    points: Sequence[Point]
    slot_s: int = SLOT_S
    slots_max: int = SLOTS_MAX

    @property
    def rows(self) -> list[list[float]]:
        return [point.rounded() for point in self.points]

    def table(self) -> Sequence[Point]:
        """Return a few points of equal distance, the newest among them, newest first."""
        newest_first = self.points[::-1]
        return newest_first[:: max(1, -(-len(newest_first) // TABLE_ROWS_MAX))]

    def lines(self, chart: Chart) -> list[str]:
        """Return the `points` of a polyline for each figure of a chart."""
        top = max((point[place] for point in self.points for place in chart.places), default=0.0)
        times = [point.at_s for point in self.points]
        return [line(times, [point[place] for point in self.points], top) for place in chart.places]

    def summary(self, chart: Chart) -> str:
        """Return what the chart shows, in words."""
        if not self.points:
            return f"{chart.title}: nothing is known yet"
        parts = []
        for (_, name), place in zip(chart.columns, chart.places, strict=True):
            values = [point[place] for point in self.points]
            parts.append(f"{name} now {short(values[-1])}, at most {short(max(values))}")
        return f"{chart.title}, {chart.unit}: {'; '.join(parts)}"


def short(value: float) -> str:
    """Return a number with at most one decimal."""
    return f"{value:,.1f}".removesuffix(".0")


def line(times: Sequence[float], values: Sequence[float], top: float) -> str:
    """Return the points of a line through values over times, the highest possible value being `top`."""
    if not times:
        return ""
    first, width = times[0], max(times[-1] - times[0], 1.0)
    return " ".join(
        f"{(at - first) / width * LINE_WIDTH:.1f},{LINE_HEIGHT - value / (top or 1.0) * LINE_HEIGHT:.1f}"
        for at, value in zip(times, values, strict=True)
    )


def shares(counts: Sequence[int]) -> list[float]:
    """Return for each count the length of its bar: of 100 for the highest; a bar that is not empty is visible."""
    top = max(counts, default=0)
    return [max(1.0, round(100 * count / top, 1)) if count else 0.0 for count in counts]


@dataclass(slots=True, frozen=True)
class Cell:
    """A shard in the picture: its place, and how it is shown."""

    x: int
    y: int
    shard: int
    kind: str


@dataclass(slots=True, frozen=True)
class OwnerRow:
    """A host in the picture, or the shards without an owner (an empty name)."""

    name: str
    note: str
    y: int
    height: int
    cells: Sequence[Cell]


@dataclass(slots=True, frozen=True)
class OwnershipPicture:
    """The picture of which host owns which shard."""

    width: int
    height: int
    rows: Sequence[OwnerRow]


def ownership_picture(
    owners: Sequence[tuple[str, str]], shards: Mapping[int, tuple[str | None, str | None]]
) -> OwnershipPicture:
    """Return the picture of a cluster.

    Args:
        owners: the name of each host, and what is to be said of it.
        shards: by number, the name of the shard's owner and its state.
    """
    by_owner: dict[str, list[int]] = {name: [] for name, _ in owners}
    homeless: list[int] = []
    for shard, (owner, _) in sorted(shards.items()):
        by_owner.get(owner or "", homeless).append(shard)
    groups = [(name, note, by_owner[name]) for name, note in owners]
    if homeless:
        groups.append(("", "", homeless))
    rows: list[OwnerRow] = []
    y = 0
    for name, note, own in groups:
        lines = max(1, -(-len(own) // SHARDS_PER_LINE))
        height = _NAME_HEIGHT + lines * _CELL
        cells = [
            Cell(
                8 + at % SHARDS_PER_LINE * _CELL,
                y + _NAME_HEIGHT + at // SHARDS_PER_LINE * _CELL,
                shard,
                _kind(shards[shard][1]),
            )
            for at, shard in enumerate(own)
        ]
        rows.append(OwnerRow(name[:NAME_CHARS_MAX], note, y, height, cells))
        y += height + _GAP
    return OwnershipPicture(SHARDS_PER_LINE * _CELL + 16, max(1, y - _GAP), rows)


def _kind(state: str | None) -> str:
    """Return how a shard of a state is shown: owned, moving or unserved."""
    if state == "owned":
        return "owned"
    return "moving" if state in ("acquiring", "recovering", "draining") else "unserved"
