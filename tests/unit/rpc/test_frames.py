"""Frames: complete messages for any split of the bytes, and memory that grows with received bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.rpc.frames import SHED_HEAD_BYTES, BadFrame, ByteBudget, FrameReader


def frame(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_messages_are_complete_for_any_split_of_their_bytes(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, messages))
    ends = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    room = ByteBudget(1 << 20)
    frames = FrameReader(100, room)
    got = []
    for start, end in zip([0, *ends], [*ends, len(stream)], strict=True):
        got += list(frames.feed(stream[start:end]))
    assert got == [(message, False) for message in messages]
    assert not frames.is_mid_frame
    assert room.reserved_bytes == sum(map(len, messages))


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"\x7f\xff\xff\xff", "larger than the limit"),
        (b"\x00\x00\x00\x65", "larger than the limit of 100"),
        (b"\x00\x00\x00\x00", "cannot have 0 bytes"),
        (b"\xff\xff\xff\xff", "cannot have -1 bytes"),
        (b"\x80\x01\x00\x01", "unframed Thrift"),
        (b"\x82\x21\x01\x07", "unframed Thrift client (compact)"),
        (b"GET ", "HTTP"),
        (b"PRI ", "HTTP"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"SSH-", "SSH"),
    ],
)
def test_impossible_length_is_refused_with_a_reason(first: bytes, says: str) -> None:
    room = ByteBudget(1 << 20)
    with pytest.raises(BadFrame) as caught:
        list(FrameReader(100, room).feed(first + b"more"))
    assert says in str(caught.value)
    assert room.reserved_bytes == 0


def test_announced_length_costs_no_memory_until_its_bytes_arrive() -> None:
    room = ByteBudget(1 << 30)
    frames = FrameReader(1 << 30, room)
    assert list(frames.feed(struct.pack(">i", 1 << 29))) == []
    assert room.reserved_bytes == 0
    list(frames.feed(b"x" * 10))
    assert room.reserved_bytes == 10
    assert frames.is_mid_frame
    frames.discard()
    assert room.reserved_bytes == 0


def test_frames_before_a_bad_length_are_returned() -> None:
    frames = FrameReader(100, ByteBudget(1 << 20))
    got: list[tuple[bytes, bool]] = []
    with pytest.raises(BadFrame):
        got.extend(frames.feed(frame(bytes(100)) + b"\xff\xff\xff\xff"))
    assert got == [(bytes(100), False)], "a frame may be as long as the limit"


def test_frame_over_the_byte_budget_keeps_only_its_head_and_the_next_one_is_complete() -> None:
    room = ByteBudget(1_000)
    frames = FrameReader(100_000, room)
    message = bytes(range(256)) * 40
    got = []
    stream = frame(message) + frame(b"next")
    for start in range(0, len(stream), 500):
        got += list(frames.feed(stream[start : start + 500]))
        assert room.reserved_bytes <= 1_000
    assert got == [(message[:SHED_HEAD_BYTES], True), (b"next", False)]
    assert room.reserved_bytes == len(b"next")


def test_connection_that_ends_in_a_shed_frame_gives_back_its_bytes_once() -> None:
    room = ByteBudget(1_000)
    frames = FrameReader(100_000, room)
    for part in (struct.pack(">i", 5_000) + bytes(800), bytes(800)):
        assert list(frames.feed(part)) == []
    frames.discard()
    assert room.reserved_bytes == 0
