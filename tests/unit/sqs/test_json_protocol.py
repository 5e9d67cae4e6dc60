"""AWS JSON: the bodies of replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.sqs.json_protocol import JsonProtocol

PROTOCOL = JsonProtocol(is_query_mode=False)


def body(result: Mapping[str, Any]) -> bytes:
    return b"".join(PROTOCOL.encode("ReceiveMessage", result, "request"))


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"Messages": []},
        {"Messages": [{"Body": "a"}, {"Body": "b", "Attributes": {"SenderId": "s"}}]},
        {"Successful": [{"Id": "a"}], "Failed": [{"Id": "b", "SenderFault": True}]},
        {"Attributes": {"a": "b"}, "Version": 1, "NextToken": None},
    ],
)
def test_a_result_is_the_same_in_parts_and_at_once(result: Mapping[str, Any]) -> None:
    assert body(result) == json.dumps(result).encode()


@given(st.dictionaries(st.text(), st.lists(st.text())))
def test_any_text_can_be_read_again(result: Mapping[str, Any]) -> None:
    assert json.loads(body(result)) == result


def test_text_is_no_longer_than_in_utf8() -> None:
    text = "\u00e9\u4e2d\U0001f600" * 1_000
    assert len(body({"Messages": [text]})) < len(text.encode()) + 30


def test_half_of_a_pair_is_escaped() -> None:
    assert body({"Messages": ["\ud800"]}) == b'{"Messages": ["\\ud800"]}'
