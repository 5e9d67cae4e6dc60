"""The places of bars, lines and shards in the console's drawings."""

from __future__ import annotations

from foqs.console.chart_geometry import (
    LINE_HEIGHT,
    LINE_WIDTH,
    NAME_CHARS_MAX,
    SHARDS_PER_LINE,
    TABLE_ROWS_MAX,
    Chart,
    Charts,
    line,
    ownership_picture,
    shares,
)
from foqs.console.history import Point

CHART = Chart("Backlog", (("ready", "ready"), ("dead", "dead")), "items")


def points(count: int) -> list[Point]:
    return [Point(10.0 * at, at, 0, 0, 2 * at, 0.0, 0.0, 0.0) for at in range(count)]


def test_the_longest_bar_is_that_of_the_highest_count_and_none_vanishes() -> None:
    assert shares([50, 100, 0, 1_000_000]) == [1.0, 1.0, 0.0, 100.0]
    assert shares([]) == []
    assert shares([0, 0]) == [0.0, 0.0]


def test_a_line_goes_from_the_left_to_the_right_and_its_top_is_the_highest_value() -> None:
    assert line([0.0, 5.0, 10.0], [0.0, 5.0, 10.0], 10.0) == f"0.0,{LINE_HEIGHT}.0 300.0,60.0 {LINE_WIDTH}.0,0.0"
    assert line([], [], 0.0) == ""
    assert line([3.0], [0.0], 0.0) == f"0.0,{LINE_HEIGHT}.0"


def test_a_chart_says_in_words_and_rows_what_it_draws() -> None:
    charts = Charts([CHART], points(100))
    assert charts.summary(CHART) == "Backlog, items: ready now 99, at most 99; dead now 198, at most 198"
    assert len(charts.lines(CHART)) == 2
    rows = charts.table()
    assert len(rows) <= TABLE_ROWS_MAX
    assert rows[0].ready == 99
    assert CHART.places == [1, 4]
    assert charts.rows[1] == [10.0, 1, 0, 0, 2, 0.0, 0.0, 0.0]


def test_a_chart_without_points_is_empty() -> None:
    charts = Charts([CHART], [])
    assert charts.summary(CHART) == "Backlog: nothing is known yet"
    assert list(charts.table()) == []
    assert charts.lines(CHART) == ["", ""]


def test_each_shard_is_drawn_once_at_its_owner() -> None:
    shards: dict[int, tuple[str | None, str | None]] = {
        0: ("a", "owned"),
        1: ("b", "recovering"),
        2: (None, "free"),
        3: ("gone", "lost"),
        4: ("a", "draining"),
    }
    picture = ownership_picture([("a", ""), ("b", "drained")], shards)
    assert [(row.name, row.note, [(cell.shard, cell.kind) for cell in row.cells]) for row in picture.rows] == [
        ("a", "", [(0, "owned"), (4, "moving")]),
        ("b", "drained", [(1, "moving")]),
        ("", "", [(2, "unserved"), (3, "unserved")]),
    ]
    assert picture.height == picture.rows[-1].y + picture.rows[-1].height


def test_many_shards_take_lines_inside_their_host_and_do_not_overlap() -> None:
    shards: dict[int, tuple[str | None, str | None]] = dict.fromkeys(range(100), ("a", "owned"))
    picture = ownership_picture([("a" * 300, ""), ("a", "")], shards)
    own = picture.rows[1]
    assert len({(cell.x, cell.y) for cell in own.cells}) == 100
    assert len({cell.y for cell in own.cells}) == -(-100 // SHARDS_PER_LINE)
    assert all(own.y < cell.y < own.y + own.height and cell.x + 36 < picture.width for cell in own.cells)
    assert len(picture.rows[0].name) == NAME_CHARS_MAX


def test_a_cluster_without_hosts_is_drawn() -> None:
    assert ownership_picture([], {}).rows == []
