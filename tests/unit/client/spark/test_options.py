"""Tests the options and columns of the Spark sink, and their errors on the driver."""

from __future__ import annotations

import pytest

from foqs_client.spark.item_columns import COLUMNS, SinkError, checked_columns
from foqs_client.spark.options import NUMBER_OPTIONS, OPTION_NAMES, OnError, SinkOptions

URL = "foqs://one:1,two"


def test_missing_options_have_their_defaults() -> None:
    options = SinkOptions.parse({"url": URL})
    assert (options.url, options.token, options.defaults) == (URL, None, {})
    assert {name: getattr(options, name) for name in NUMBER_OPTIONS} == {
        name: NUMBER_OPTIONS[name].default for name in NUMBER_OPTIONS
    }


def test_each_unnamed_write_is_a_separate_run() -> None:
    assert SinkOptions.parse({"url": URL}).run != SinkOptions.parse({"url": URL}).run
    assert SinkOptions.parse({"url": URL, "run": "monday"}).run == "monday"


def test_option_with_the_name_of_a_column_is_parsed_like_its_values() -> None:
    given = {
        "topic": "mail",
        "payload": "ä",
        "priority": "-5",
        "metadata": "m",
        "deliver_after": "1970-01-01T00:00:01.500+00:00",
        "ttl": "60000",
        "lease": "1",
        "idempotency_key": "k",
        "namespace": "orders",
        "trace_context": "00-ab",
        "item_group": "ü",
    }
    assert given.keys() == COLUMNS.keys()
    assert SinkOptions.parse({"url": URL, **given}).defaults == {
        "topic": "mail",
        "payload": "ä".encode(),
        "priority": -5,
        "metadata": b"m",
        "deliver_after": 1_500,
        "ttl": 60_000,
        "lease": 1,
        "idempotency_key": "k",
        "namespace": "orders",
        "trace_context": b"00-ab",
        "item_group": "ü",
    }
    assert SinkOptions.parse({"url": URL, "deliver_after": "-7"}).defaults == {"deliver_after": -7}


def test_time_of_an_option_is_exact_to_the_millisecond() -> None:
    first = 1_896_076_800_000
    for ms in range(1_000):
        given = {"url": URL, "deliver_after": f"2030-01-31T08:00:00.{ms:03d}999+00:00"}
        assert SinkOptions.parse(given).defaults == {"deliver_after": first + ms}
    given = {"url": URL, "deliver_after": "1969-12-31T23:59:59.999500+00:00"}
    assert SinkOptions.parse(given).defaults == {"deliver_after": -1}, "it is rounded down"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": None}, r'name the hosts: \.option\("url", "foqs://'),
        ({"url": "http://one"}, "the option url is not an address: 'http://one' must begin with foqs://"),
        (
            {"foo": "1", "batchitems": "1"},
            r"unknown options: batchitems \(write batch_items\), foo; known are url, token, .*batch_items",
        ),
        ({"path": "/x"}, r"end the write with \.save\(\)"),
        ({"token": "a", "token_file": "b"}, "token or token_file, not both"),
        ({"run": ""}, "the option run is empty"),
        ({"batch_items": "0"}, "batch_items is '0'; it must be a whole number from 1 to 100000"),
        ({"timeout_ms": "10s"}, "timeout_ms is '10s'; it must be a whole number from 1000 to"),
        ({"calls_in_flight": "٣"}, "calls_in_flight is .* whole number"),
        ({"priority": "2147483648"}, "priority is '2147483648'; it must be .* from -2147483648 to 2147483647"),
        ({"ttl": "0"}, "ttl is '0'; it must be a whole number from 1"),
        ({"deliver_after": "2030-01-31T08:00:00"}, "a time with its zone as in"),
        ({"deliver_after": "soon"}, "deliver_after is 'soon'; it must be milliseconds"),
        ({"on_error": "ignore"}, "on_error is 'ignore'; it must be fail, skip or deadletter"),
        ({"on_error": "deadletter"}, r'dead letters need a topic: \.option\("dead_letter_topic", "..."\)'),
        ({"dead_letter_topic": "bad"}, r'dead_letter_topic needs \.option\("on_error", "deadletter"\)'),
        ({"replay_window_ms": "3600000"}, "replay_window_ms is only for df.writeStream"),
    ],
)
def test_bad_option_is_refused_with_its_name_and_a_remedy(given: dict[str, str | None], message: str) -> None:
    options = {name: value for name, value in {"url": URL, **given}.items() if value is not None}
    with pytest.raises(SinkError, match=message):
        SinkOptions.parse(options)


def test_option_names_are_in_lower_case() -> None:
    assert all(name == name.lower() for name in OPTION_NAMES)


def test_the_token_is_not_shown() -> None:
    assert "hidden" not in repr(SinkOptions.parse({"url": URL, "token": "hidden"}))


def test_frame_of_known_columns_passes() -> None:
    checked_columns(
        [("topic", "string"), ("payload", "binary"), ("deliver_after", "timestamp"), ("ttl", "long")], False
    )
    checked_columns([("payload", "string"), ("priority", "short"), ("deliver_after", "long")], True)


def test_names_of_columns_are_read_without_their_case_and_null_columns_are_absent() -> None:
    frame = [("Topic", "string"), ("PAYLOAD", "string"), ("metadata", "void"), ("Priority", "void")]
    assert checked_columns(frame, False) == [("topic", "string"), ("payload", "string")]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([("topic", "string"), ("value", "string"), ("x", "long")], "does not know: value, x; .* topic, payload, prio"),
        ([("topic", "string"), ("Value", "string")], "does not know: Value"),
        ([("topic", "string"), ("payload", "string"), ("PAYLOAD", "string")], "the column payload 2 times"),
        ([("topic", "string"), ("payload", "void"), ("payload", "string")], "the column payload 2 times"),
        ([("topic", "void"), ("payload", "string")], "add a column topic, or .option"),
        ([("topic", "string"), ("topic", "string")], "the column topic 2 times"),
        ([("topic", "string"), ("priority", "double")], "priority is of type double; cast it to byte or short or"),
        ([("topic", "string"), ("deliver_after", "timestamp_ntz")], "timestamp_ntz; cast it to .* or timestamp"),
        ([("topic", "binary")], "topic is of type binary; cast it to string"),
        ([("payload", "string")], "add a column topic, or .option"),
    ],
)
def test_bad_frame_is_refused_with_the_column_and_a_remedy(schema: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        checked_columns(schema, False)


def test_stream_has_its_own_options_and_passes_over_those_of_spark() -> None:
    given = {
        "url": URL,
        "checkpointlocation": "/x",
        "queryname": "q",
        "on_error": "SKIP",
        "replay_window_ms": "3600000",
    }
    options = SinkOptions.parse(given, is_stream=True)
    assert (options.on_error, options.replay_window_ms) == (OnError.SKIP, 3_600_000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "/x"}, r"end the write with \.start\(\)"),
        ({"run": "monday"}, "the option run is not for streams"),
        ({"replaywindowms": "1"}, r"replaywindowms \(write replay_window_ms\)"),
        ({"replay_window_ms": "1"}, "must be a whole number from 120000 to"),
    ],
)
def test_bad_option_of_a_stream_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        SinkOptions.parse({"url": URL, **given}, is_stream=True)


def test_identity_of_options_leaves_out_only_the_run() -> None:
    assert SinkOptions.parse({"url": URL}).identity() == SinkOptions.parse({"url": URL}).identity()
    assert SinkOptions.parse({"url": URL}).identity() != SinkOptions.parse({"url": URL, "topic": "t"}).identity()
    assert SinkOptions.parse({"url": URL}).identity() != SinkOptions.parse({"url": URL, "token": "t"}).identity()
