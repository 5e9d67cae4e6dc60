"""Tests of tables on a terminal: values that are copied stay in one piece at any width."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable

import click
import pytest

from foqs.cli import root
from foqs.cli.output import (
    Column,
    Format,
    Row,
    StreamFailed,
    confirm,
    print_message,
    show_banner,
    show_document,
    show_rows,
)

ROW = {"id": "1-8796093022814", "token": "8796093022316", "payload": "dear all, this is a rather long letter"}
COLUMNS: list[Column] = [
    ("ID", lambda row: row["id"]),
    ("LEASE TOKEN", lambda row: row["token"]),
    ("PAYLOAD", lambda row: row["payload"]),
]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Row, int], list[str]]:
    """Return the lines of a row's table on a terminal of this width."""

    def draw(row: Row, columns: int) -> list[str]:
        for name, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        show_rows([row], COLUMNS, "table")
        return screen.getvalue().splitlines()

    return draw


def below(lines: list[str]) -> list[str]:
    """The lines of the row."""
    return lines[next(n for n, line in enumerate(lines) if line.startswith("1-")) :]


def words(lines: list[str]) -> list[str]:
    """Return the last column without its header."""
    return " ".join(line[32:] for line in below(lines)).split()


def test_a_table_that_fits_has_a_line_for_a_row(drawn: Callable[[Row, int], list[str]]) -> None:
    assert below(drawn(ROW, 70)) == ["1-8796093022814  8796093022316  dear all, this is a rather long letter"]


def test_long_text_is_broken_between_words_and_nothing_is_cut(drawn: Callable[[Row, int], list[str]]) -> None:
    lines = drawn(ROW, 50)
    assert max(map(len, below(lines))) <= 50
    assert any(line.startswith("1-8796093022814  8796093022316  dear all, this is") for line in lines)
    assert words(lines) == str(ROW["payload"]).split()


def test_id_is_not_broken_on_a_narrow_terminal(drawn: Callable[[Row, int], list[str]]) -> None:
    lines = drawn(ROW, 20)
    assert any(line.startswith("1-8796093022814  8796093022316  dear") for line in lines)
    assert "letter" in words(lines)


def test_wide_characters_count_as_two(drawn: Callable[[Row, int], list[str]]) -> None:
    row = {**ROW, "payload": "日本語 の手紙"}
    assert [line[32:].strip() for line in below(drawn(row, 41))] == ["日本語", "の手紙"]


def test_message_that_names_a_topic_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("Purged \x1b]0;forged\x07mail\n1 of 1 topics.")
    assert capsys.readouterr().err == "Purged \\x1b]0;forged\\x07mail\\n1 of 1 topics.\n"


def test_document_of_a_host_is_the_same_json_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"paused": ["mail\x9b2J", "\u202eé 東", "\x1b[2J"]}
    show_document(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    shown = capsys.readouterr().out
    assert json.loads(shown) == document
    assert shown.replace("\n", "").isprintable()


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class ReaderGone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_closed_output_ends_the_command_with_a_sentence(monkeypatch: pytest.MonkeyPatch, form: Format) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(StreamFailed, match="is closed"):
        show_rows([ROW], COLUMNS, form)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["enqueue", "--help"], ["config", "default"], ["version", "-o", "table"]]
)
def test_output_that_cannot_be_written_ends_the_program_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    with pytest.raises(SystemExit) as ended:
        root.main(arguments, prog_name="foqs")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "Error: the output cannot be written: No space left on device\n"


def test_reader_that_has_left_is_not_a_failure_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", ReaderGone())
    with pytest.raises(BrokenPipeError):
        show_rows([ROW], COLUMNS, "json")


def test_host_serves_although_its_banner_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    show_banner(["calls 127.0.0.1:7411"])
    assert "standard output is closed" in caplog.text


def test_question_at_the_end_of_standard_input_names_the_option_that_answers_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(StreamFailed, match=r"nothing was done.*--yes"):
        confirm("Delete 3 items?")
    assert capsys.readouterr().out == ""


def test_question_without_standard_input_names_the_option_that_answers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(StreamFailed, match="--yes"):
        confirm("Delete 3 items?")


def test_command_does_nothing_if_its_result_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    context = click.Context(root)
    with pytest.raises(StreamFailed, match="nothing can be shown"):
        root.resolve_command(context, ["enqueue", "mail", "hello"])
    for service in ("dev", "host", "worker"):
        assert root.resolve_command(context, [service])[0] == service
