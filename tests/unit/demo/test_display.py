"""Tests of the demo's output and options."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from foqs.demo.__main__ import parse
from foqs.demo.display import Display, format_bytes, format_duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 ms"), (0.0123, "12.3 ms"), (1.239, "1.24 s"), (75, "75.00 s")]
)
def test_durations_have_a_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2_345_600_000, "2,345.6 MB")]
)
def test_volumes_have_a_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_without_a_terminal_lines_are_plain_and_a_narrow_encoding_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    show = Display()
    show.title("A title")
    show.named_values([("files", "below /caf\u00e9")])
    show.conclusion(False)
    text = raw.getvalue().decode("ascii")
    assert "\x1b" not in text
    assert "A title\n" in text
    assert "/caf\\xe9" in text
    assert "NOT every file" in text


def test_options_have_their_meaning() -> None:
    options = parse(["--dir", "/x", "--limit", "5", "--serve", "--port", "0"])
    assert (options.dir, options.limit, options.serve, options.port, options.http_port) == (
        Path("/x"),
        5,
        True,
        0,
        None,
    )


@pytest.mark.parametrize(
    "wrong", [["--limit", "0"], ["--limit", "many"], ["--port", "70000"], ["--workers", "-1"], ["x"]]
)
def test_wrong_options_are_exit_code_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(wrong)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
