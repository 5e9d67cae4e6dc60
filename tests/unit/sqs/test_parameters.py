"""Parameters: types, limits, and documents that no client sends."""

from __future__ import annotations

import json
import time
import tracemalloc
from contextlib import suppress

import pytest

from foqs.sqs.errors import MESSAGE_CHARS_MAX, SHAPES, SqsError, from_foqs_error
from foqs.sqs.parameters import Parameters, parse_body
from foqs_contract import errors as foqs_errors


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"1",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": 1' + b"0" * 5_000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        b"[" * 100_000,
        b'{"a":[' + b"[]," * 40_000 + b"[]]}",
        b'{"a": 1.' + b"0" * 100 + b"}",
    ],
    ids=lambda body: body[:12].decode(errors="replace"),
)
def test_a_body_that_is_no_object_of_json_is_refused(body: bytes) -> None:
    with pytest.raises(SqsError) as refused:
        parse_body(body)
    assert refused.value.shape == "SerializationException"


def test_a_large_body_of_texts_is_read() -> None:
    text = '{"quoted": [1, 2, 3]}' * 40_000
    assert parse_body(json.dumps({"MessageBody": text}).encode()).text("MessageBody") == text
    assert parse_body(b"").members == {}


@pytest.mark.parametrize(
    "body",
    [b'"' + b'\\"' * 50_000, b'{"a": "' + b"\\\\" * 2_000_000 + b'"}', b'"' * 200_001],
    ids=["a text without an end", "a long text", "quotes"],
)
def test_a_large_body_takes_neither_long_nor_much_memory(body: bytes) -> None:
    started_s = time.process_time()
    tracemalloc.start()
    try:
        with suppress(SqsError):
            parse_body(body)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - started_s < 5


def test_members_must_have_their_types() -> None:
    members = Parameters({"text": 1, "number": "1", "flag": True, "list": ["a", 1], "map": {"a": 1}, "null": None})
    for read in (
        lambda: members.text("text"),
        lambda: members.integer("number"),
        lambda: members.integer("flag"),
        lambda: members.texts("list"),
        lambda: members.text_map("map"),
    ):
        with pytest.raises(SqsError) as refused:
            read()
        assert refused.value.shape == "SerializationException"
    assert members.text("null") is None
    assert members.integer("absent") is None
    with pytest.raises(SqsError, match="must contain the parameter QueueUrl"):
        members.required_text("QueueUrl")


def test_texts_of_maps_hold_no_character_that_sqs_forbids() -> None:
    with pytest.raises(SqsError, match="Invalid characters"):
        Parameters({"Tags": {"a": "\ud800"}}).text_map("Tags")


def batch(*ids: str) -> Parameters:
    return Parameters({"Entries": [{"Id": entry_id} for entry_id in ids]})


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        (Parameters({}), "EmptyBatchRequest"),
        (batch(), "EmptyBatchRequest"),
        (batch(*map(str, range(11))), "TooManyEntriesInBatchRequest"),
        (batch("a", "b", "b", "a"), "BatchEntryIdsNotDistinct"),
        (batch(""), "InvalidBatchEntryId"),
        (batch("i" * 81), "InvalidBatchEntryId"),
        (batch("é"), "InvalidBatchEntryId"),
        (Parameters({"Entries": [{}]}), "MissingRequiredParameterException"),
        (Parameters({"Entries": [1]}), "SerializationException"),
        (Parameters({"Entries": {}}), "SerializationException"),
    ],
)
def test_a_batch_that_is_wrong_as_a_whole_is_refused(parameters: Parameters, shape: str) -> None:
    with pytest.raises(SqsError) as refused:
        parameters.entries("SendMessageBatchRequestEntry")
    assert refused.value.shape == shape


def test_the_first_repeated_id_is_named() -> None:
    with pytest.raises(SqsError, match="Id b repeated"):
        batch("a", "b", "b", "a").entries("SendMessageBatchRequestEntry")


def test_limits_have_sqs_texts() -> None:
    with pytest.raises(
        SqsError, match=r"Value 901 for parameter DelaySeconds is invalid\. Reason: DelaySeconds must be"
    ):
        Parameters({"DelaySeconds": 901}).delay_s()
    with pytest.raises(SqsError, match="Value 43201 for parameter VisibilityTimeout"):
        Parameters({"VisibilityTimeout": 43_201}).visibility_timeout()
    with pytest.raises(SqsError, match="must contain the parameter VisibilityTimeout"):
        Parameters({}).visibility_timeout(is_required=True)


def test_every_error_of_foqs_has_a_shape_and_only_those_that_may_be_repeated_are_repeated_by_sdks() -> None:
    for kind in foqs_errors.ERROR_BY_CODE.values():
        error = from_foqs_error(kind("text"))
        shape = SHAPES[error.shape]
        is_repeated = shape.status >= 500 or error.shape == "RequestThrottled"
        may_be_repeated = kind("text").may_succeed_later or kind is foqs_errors.KeyConflict
        assert is_repeated == may_be_repeated, kind


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'"' * 100_000, "too many members"),
        (b'{"a": ' + b'""' * 50_000 + b"}", "too many members"),
        (b'{"a": [' + b",".join([b"9" * 4_000] * 100) + b"]}", "not JSON"),
        (b'{"a": ' + b"9" * 65 + b"}", "not JSON"),
        (b'{"a": 0.' + b"9" * 65 + b"}", "not JSON"),
    ],
)
def test_a_body_that_takes_long_to_read_is_refused_before(body: bytes, problem: str) -> None:
    with pytest.raises(SqsError, match=problem):
        parse_body(body)


def test_a_text_may_hold_as_many_quotes_as_it_likes() -> None:
    text = '"' * 100_000
    assert parse_body(json.dumps({"a": text}).encode()).members == {"a": text}


def test_an_error_repeats_the_beginning_of_a_value_only() -> None:
    assert len(SqsError("InvalidParameterValueException", "x" * 1_000_000).message) == MESSAGE_CHARS_MAX + 3
