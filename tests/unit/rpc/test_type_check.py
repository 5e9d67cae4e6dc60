"""Known fields of the wrong type, and unknown fields, are refused and named."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from thrift.Thrift import TType

from foqs.rpc.messages import BadMessage, DecodeLimits, Decoder, bytes_spec, encode_struct, read_head
from foqs.rpc.methods import contract_methods
from foqs.rpc.type_check import VALUES_MAX, TypeCheck, UnknownField, WrongType
from foqs_contract.idl import Foqs, ttypes
from tests.support.rpc_server import call, enqueue, head

SPEC = bytes_spec(Foqs.enqueue_args)
REQUEST_FIELDS = SPEC[1][1][3][1]
CHECK = TypeCheck(SPEC)
DECODER = Decoder(DecodeLimits(1 << 20, 40_000))


def field(ttype: int, number: int) -> bytes:
    return struct.pack(">bh", ttype, number)


def text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def items(*bodies: bytes) -> bytes:
    """enqueue's arguments with these raw NewItem bodies."""
    entries = b"".join(body + b"\0" for body in bodies)
    lead = field(TType.STRUCT, 1) + field(TType.LIST, 2) + bytes((TType.STRUCT,)) + struct.pack(">i", len(bodies))
    return lead + entries + b"\0\0"


def check(body: bytes) -> None:
    message = head("enqueue") + body
    parsed, _ = read_head(message)
    CHECK.check(message, parsed, DECODER.decode(message, parsed, SPEC))


LONG = field(TType.STRING, 3) + text(b"x" * 3_000)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("payload", [None, b"", b"\xff\x00", b"x" * 127, b"x" * 128, b"x" * 16_383, b"x" * 16_384])
def test_request_of_a_generated_client_passes_without_a_walk(
    compact: bool, payload: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs.rpc.type_check.TypeWalker", None)
    request = enqueue(
        "a",
        "b",
        "x" * 255,
        "x" * 255,
        "x" * 255,
        "x" * 255,
        payload=payload,
        delay_ms=5,
        delivery_policy=ttypes.DeliveryPolicy.AT_MOST_ONCE,
        priority=-1,
    )
    message = call("enqueue", request, compact=compact)[4:]
    parsed, _ = read_head(message)
    CHECK.check(message, parsed, DECODER.decode(message, parsed, SPEC))


def test_payloads_of_a_long_message_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[bytes] = []

    def encode(*arguments: Any) -> bytes:
        encoded.append(encode_struct(*arguments))
        return encoded[-1]

    monkeypatch.setattr("foqs.rpc.type_check.encode_struct", encode)
    check(items(LONG))
    assert [len(message) < 100 for message in encoded] == [True]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (field(TType.I32, 1) + b"\0\0\0\1\0", "request"),
        (items(b"", field(TType.I32, 5) + b"\0\0\0\1"), "items[1].delay_ms"),
        (items(field(TType.STRING, 2) + text(b"\xff\xfe")), "items[0].priority"),
        (items(field(TType.LIST, 1) + bytes((TType.BOOL,)) + struct.pack(">i", 0)), "items[0].topic"),
        (items(field(TType.STRING, 1) + text(b"a") + field(TType.STRING, 1) + text(b"b")), "items[0].topic"),
        (items(LONG, field(TType.I32, 5) + b"\0\0\0\1"), "items[1].delay_ms"),
        (items(LONG, field(TType.LIST, 3) + bytes((TType.BOOL,)) + struct.pack(">i", 0)), "items[1].payload"),
        (items(LONG, LONG + LONG), "items[1].payload"),
        (items(LONG, LONG + field(TType.I32, 3) + b"\0\0\0\1"), "items[1].payload"),
        (field(TType.STRUCT, 1) + LONG + field(TType.STRUCT, 2) + b"\0\0\0", "timeout_ms"),
    ],
)
def test_a_known_field_of_the_wrong_type_or_twice_is_named(body: bytes, path: str) -> None:
    with pytest.raises(WrongType) as caught:
        check(body)
    assert caught.value.field == path


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (field(TType.STRUCT, 1) + field(TType.LIST, 2) + b"\x06\0\0\0\1\0\1\0\0", "items"),
        (items(field(TType.I64, 1) + b"\0" * 8)[:-5], "items[0].topic"),
        (items(field(TType.STRING, 1) + text(b"a"))[:-3], None),
        (field(TType.STRUCT, 9) * 20_000, None),
        (field(TType.LIST, 9) + b"\x0f\0\0\0\1" * 20_000, None),
        (field(TType.LIST, 9) + b"\x06\x7f\xff\xff\xff", None),
    ],
)
def test_decode_error_names_the_field_if_it_is_known(body: bytes, path: str | None) -> None:
    message = head("enqueue") + body
    parsed, _ = read_head(message)
    with pytest.raises(BadMessage):
        DECODER.decode(message, parsed, SPEC)
    fault = CHECK.find_fault(message, parsed)
    assert (None if fault is None else fault.field) == path


@pytest.mark.parametrize(
    "unknown",
    [
        field(TType.I64, 99) + b"\0" * 8,
        field(TType.STRING, 99) + text(b"\xff\xfe"),
        field(TType.STRUCT, 99) + field(TType.BOOL, 1) + b"\1\0",
        field(TType.LIST, 99) + bytes((TType.LIST,)) + struct.pack(">ibi", 1, TType.BYTE, 1) + b"\5",
        field(TType.MAP, 99) + bytes((TType.I32, TType.STRING)) + struct.pack(">ii", 1, 7) + text(b"x"),
        field(TType.SET, 99) + bytes((TType.DOUBLE,)) + struct.pack(">i", 1) + b"\0" * 8,
    ],
)
def test_field_of_a_newer_version_is_refused_with_its_number(unknown: bytes) -> None:
    with pytest.raises(UnknownField, match="field 99 is not in version") as caught:
        check(items(b"", field(TType.STRING, 1) + text(b"topic") + unknown))
    assert caught.value.field == "items[1]"


def test_field_of_a_newer_version_in_the_request_itself_is_refused() -> None:
    with pytest.raises(UnknownField, match="field 99 ") as caught:
        check(field(TType.STRUCT, 1) + field(TType.I64, 99) + b"\0" * 8 + b"\0\0")
    assert caught.value.field == "request"


@pytest.mark.parametrize("number", [-1, 0, len(REQUEST_FIELDS)])
def test_number_beside_those_of_the_contract_is_no_field(number: int) -> None:
    with pytest.raises(UnknownField, match=f"field {number} "):
        check(field(TType.STRUCT, 1) + field(TType.I64, number) + b"\0" * 8 + b"\0\0")


def test_a_list_that_comes_twice_is_refused_before_it_is_decoded_again() -> None:
    once = field(TType.LIST, 2) + bytes((TType.STRUCT,)) + struct.pack(">i", 10_000) + b"\0" * 10_000
    cut_short = once[:-1]
    message = head("enqueue") + field(TType.STRUCT, 1) + once + cut_short
    parsed, _ = read_head(message)
    spec = contract_methods({})[b"enqueue"].args_spec
    for _ in range(2):
        with pytest.raises(BadMessage, match="items came twice"):
            DECODER.decode(message, parsed, spec)
    fault = CHECK.find_fault(message, parsed)
    assert fault is not None
    assert fault.field == "items"


def test_containers_occur_once_in_a_request_and_never_in_list_entries() -> None:
    def look(spec: Any, path: str, *, in_list: bool) -> None:
        for each in filter(None, spec[1]):
            number, ttype, name, args, _ = each
            if ttype in (TType.STRUCT, TType.LIST, TType.MAP, TType.SET):
                assert not in_list, f"{path}.{name}: a message could hold any number of these"
                assert ttype in (TType.STRUCT, TType.LIST), f"{path}.{name}"
                assert not isinstance(number, int), f"{path}.{name} could come again and again"
            if ttype == TType.STRUCT:
                look(args, f"{path}.{name}", in_list=False)
            elif ttype == TType.LIST and args[0] == TType.STRUCT:
                look(args[1], f"{path}.{name}", in_list=True)

    for name, method in contract_methods({}).items():
        look(method.args_spec, name.decode(), in_list=False)


def test_too_many_values_are_refused_before_all_are_walked() -> None:
    twice = field(TType.STRING, 1) + text(b"a") + field(TType.STRING, 1) + text(b"b")
    with pytest.raises(WrongType, match="too many values"):
        check(items(*[field(TType.STRING, 1) + text(b"a")] * VALUES_MAX, twice))


def test_too_deeply_nested_message_does_not_affect_the_next_one() -> None:
    for _ in range(100):
        with pytest.raises(BadMessage, match="recursion"):
            check(field(TType.STRUCT, 9) * 1_000 + b"\0" * 1_001)
    check(items(field(TType.STRING, 1) + text(b"topic")))
