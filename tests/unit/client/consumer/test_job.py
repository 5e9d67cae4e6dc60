"""Tests the values that a handler gives: a wrong one is refused in the handler, by name."""

from __future__ import annotations

from typing import Any

import pytest

from foqs_client import Delivery, InvalidArgument, Item
from foqs_client.consumer import Job, Retry


class WholeNumber:
    """An integer of another library."""

    def __index__(self) -> int:
        return 200


@pytest.mark.parametrize("delay_ms", [1.5, "5", -1, 2**63, [1]])
def test_retry_refuses_a_delay_that_is_no_whole_number(delay_ms: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Retry(delay_ms)
    assert refused.value.field == "delay_ms"


@pytest.mark.parametrize("metadata", ["text", 5, [b"x"]])
def test_retry_refuses_metadata_that_is_no_bytes(metadata: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Retry(metadata=metadata)
    assert refused.value.field == "metadata"


def test_retry_converts_values_of_other_types_that_fit() -> None:
    retry = Retry(WholeNumber(), bytearray(b"m"))  # type: ignore[arg-type]
    assert (retry.delay_ms, retry.metadata) == (200, b"m")
    assert (type(retry.delay_ms), type(retry.metadata)) == (int, bytes)


def test_done_refuses_what_is_no_item_and_the_last_call_counts() -> None:
    job = Job(Delivery(id="3-17"), lambda job, ms: None)
    with pytest.raises(InvalidArgument) as caught:
        job.done([Item("t"), "t"])  # type: ignore[list-item]
    assert caught.value.field == "then[1]"
    with pytest.raises(InvalidArgument) as caught:
        job.done([Item("t", "text")])  # type: ignore[arg-type]
    assert caught.value.field == "payload"
    assert not job.then
    job.done([Item("t"), Item("t", bytearray(b"bytes"))])  # type: ignore[arg-type]
    payloads = [item.payload for item in job.then]
    assert payloads == [b"", b"bytes"]
    job.done()
    assert not job.then


@pytest.mark.parametrize("lease_ms", ["x", 1.5, 0, -5, 2**63, None])
def test_extend_refuses_what_is_no_duration(lease_ms: Any) -> None:
    extended: list[int] = []
    job = Job(Delivery(id="0-1"), lambda _, lease_ms: extended.append(lease_ms))
    with pytest.raises(InvalidArgument) as refused:
        job.extend(lease_ms)
    assert refused.value.field == "lease_ms"
    assert extended == []
