"""Tests of the log: one line per event, as text or JSON, without secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from foqs.telemetry import logs

LOGGER = logging.getLogger("foqs.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(style: str, stream: io.StringIO | None = None, level: str = "info") -> io.StringIO:
    stream = stream or io.StringIO()
    logs.setup_logging(level, style, stream)  # type: ignore[arg-type]
    return stream


def test_log_for_programs_is_one_json_object_per_line() -> None:
    stream = written("auto")
    LOGGER.info("shard %d is owned", 3, extra={"shard": 3, "epoch": None, "path": "a\nb"})
    [line] = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("time").endswith("Z")
    assert event == {
        "level": "info",
        "logger": "foqs.test",
        "message": "shard 3 is owned",
        "shard": 3,
        "epoch": None,
        "path": "a\nb",
    }


def test_log_on_a_terminal_is_one_plain_line_per_event() -> None:
    stream = written("auto", Terminal())
    LOGGER.warning("database is down", extra={"retry_ms": 50})
    [line] = stream.getvalue().splitlines()
    assert line.endswith("Z WARNING foqs.test database is down retry_ms=50")
    assert "\x1b" not in line


def test_value_cannot_look_like_another_field() -> None:
    stream = written("text")
    LOGGER.info("purgeTopic: OK", extra={"peer": 'a principal="boss"', "target": "topic=mail"})
    assert stream.getvalue().endswith(r' purgeTopic: OK peer="a principal=\"boss\"" target=topic=mail' + "\n")


@pytest.mark.parametrize(("style", "stream"), [("json", Terminal()), ("text", io.StringIO())])
def test_chosen_style_wins_over_the_terminal(style: str, stream: io.StringIO) -> None:
    written(style, stream)
    LOGGER.info("x")
    assert stream.getvalue().startswith("{") is (style == "json")


@pytest.mark.parametrize("style", ["text", "json"])
def test_secrets_are_never_written(style: str) -> None:
    stream = written(style)
    LOGGER.error(
        "cannot open mysql://foqs:hunter2@db/queue",
        extra={"password": "hunter2", "Token": "hunter2", "url": "mysql://foqs:hunter2@db/queue"},
    )
    LOGGER.error("failed", exc_info=OSError("mysql://foqs:hunter2@db/queue refused"))
    assert "hunter2" not in stream.getvalue()
    assert "mysql://foqs:***@db/queue" in stream.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
def test_exception_stays_within_its_line(style: str) -> None:
    stream = written(style)
    LOGGER.error("failed", exc_info=ValueError("first\nsecond"), extra={"shard": 1})
    [line] = stream.getvalue().splitlines()
    assert "ValueError" in line
    assert "second" in line


def test_control_characters_cannot_forge_a_line_or_move_the_cursor() -> None:
    stream = written("text")
    LOGGER.info("topic %s", "a\n2025 ERROR b\x1b[2J\u2028c")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\\n2025" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_event_cannot_overwrite_time_and_level() -> None:
    stream = written("json")
    LOGGER.info("true", extra={"time": "never", "level": "none"})
    event = json.loads(stream.getvalue())
    assert event["level"] == "info"
    assert event["time"] != "never"


def test_events_below_the_level_are_not_written() -> None:
    stream = written("text", level="error")
    LOGGER.warning("x")
    assert stream.getvalue() == ""
    assert stream is not sys.stderr


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("text", ["x" * 1_000_000, "://" + "a:" * 500_000, "x://" * 250_000, "\x00" * 100_000])
def test_long_text_is_written_in_time_that_grows_with_its_length(style: str, text: str) -> None:
    """A search that begins again at every character would take hours here; the test's own time limit ends it."""
    stream = written(style)
    LOGGER.warning("%s", text, extra={"error": text}, exc_info=ValueError(text))
    assert stream.getvalue().count("characters are left out") == 3


@pytest.mark.parametrize("style", ["text", "json"])
def test_beginning_and_end_of_a_long_text_are_written(style: str) -> None:
    stream = written(style)
    LOGGER.warning("it begins %s and ends", "x" * logs.TEXT_CHARS_MAX)
    assert "it begins xxx" in stream.getvalue()
    assert "xxx and ends" in stream.getvalue()
    assert len(stream.getvalue()) < logs.TEXT_CHARS_MAX + 200


@pytest.mark.parametrize(
    "url", ["mysql://a@b:hunter2@db/q", "1.x://foqs:hunter2@db", "://:hunter2@db", "X://é:hunter2@db"]
)
def test_password_is_hidden_whatever_the_user_and_the_scheme_are(url: str) -> None:
    stream = written("text")
    LOGGER.warning("cannot open %s", url)
    assert "hunter2" not in stream.getvalue()


def test_address_without_a_password_is_written_as_it_is() -> None:
    stream = written("text")
    LOGGER.info("foqs://one:7400,two:7400 and mail@two")
    assert "foqs://one:7400,two:7400 and mail@two" in stream.getvalue()
