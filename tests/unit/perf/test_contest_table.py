"""The tables of the race, made from lines."""

from __future__ import annotations

from typing import Any

from perf.lib.contest_table import label, shortened, tables


def line(row: str, system: str, **figures: Any) -> dict[str, Any]:
    return {"parameters": {"row": row, "system": system}, "figures": figures}


def rate(row: str, system: str, items_per_s: float) -> dict[str, Any]:
    return line(row, system, items_per_s=items_per_s, versions={"redis": "7.0.15"} if system == "redis" else {})


def test_rates_share_one_table_with_a_column_for_each_row() -> None:
    (table,) = tables([rate("ahead", "redis", 1234.5), rate("calls-100", "redis", 5678.0)])

    assert table.columns == ["system", "calls-100", "ahead"]
    assert table.cells == [["Redis 7.0.15", "5,678", "1,234"]]


def test_a_dash_has_a_letter_and_equal_reasons_share_it() -> None:
    (table,) = tables(
        [
            rate("calls-100", "redis", 1.0),
            line("coalesced", "redis", dash="joins nothing"),
            line("calls-100", "nats", dash="the server is missing"),
            line("coalesced", "nats", dash="joins nothing"),
        ]
    )

    assert [cells[1:] for cells in table.cells] == [["1", "-a"], ["-b", "-a"]]
    assert table.reasons == {"a": "joins nothing", "b": "the server is missing"}
    assert "-a: joins nothing" in table.text()
    assert "-b: the server is missing" in table.markdown()


def test_a_version_is_shown_although_another_row_has_a_dash() -> None:
    (table,) = tables([line("coalesced", "redis", dash="no"), rate("calls-100", "redis", 2.0)])

    assert table.cells[0][0] == "Redis 7.0.15"


def test_a_cell_that_was_not_asked_for_is_empty() -> None:
    (table,) = tables([rate("calls-100", "redis", 1.0), rate("ahead", "postgres", 2.0)])

    assert table.cells == [["Postgres by hand", "", "2"], ["Redis 7.0.15", "1", ""]]


def test_killed_consumers_have_a_table_of_their_own() -> None:
    found = line(
        "killed", "redis", items_per_s=9.0, kills=3, lost=0, doubled=7, in_hand=100, again_p50_s=5.0, again_max_s=None
    )

    (table,) = tables([found, line("killed", "nats", dash="failed")])

    assert table.cells == [
        ["Redis", "9", "3", "0", "7", "100", "5", "-"],
        ["NATS JetStream", "-a", "", "", "", "", "", ""],
    ]


def test_a_row_without_a_figure_is_a_table_of_dashes() -> None:
    (table,) = tables([line("snapshot", "redis", dash="no SQL database")])

    assert table.cells[0][:2] == ["Redis", "-a"]


def test_a_reason_is_the_first_line_of_an_error() -> None:
    assert shortened("the server ended with 1:\nits log\nof many lines") == "the server ended with 1:"
    assert len(shortened("x" * 1_000)) == 200
    assert shortened("") == "unknown"


def test_letters_go_on_after_z() -> None:
    found = [line("calls-100", "redis", dash="0"), line("calls-100", "nats", dash="1")]
    many = [line(row, "redis", dash=f"{row}") for row in ("one-item", "coalesced")]

    (table,) = tables([*found, *many])

    assert list(table.reasons) == ["a", "b", "c", "d"]
    assert label(found[0]) == "Redis"
