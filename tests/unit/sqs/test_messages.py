"""Messages: attributes and their MD5, and the envelope in the payload of an item."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.reserved_starts import MESSAGE_START
from foqs.sqs import envelope
from foqs.sqs.envelope import Message
from foqs.sqs.errors import SqsError
from foqs.sqs.message_attributes import (
    MessageAttribute,
    md5_of,
    md5_of_attributes,
    parse_attributes,
    parse_system_attributes,
    select_attributes,
    x_ray_trace,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
ATTRIBUTES = st.builds(
    lambda name, kind, text, data: (
        MessageAttribute(name, kind, data, True)
        if kind.startswith("Binary")
        else MessageAttribute(name, kind, text.encode(), False)
    ),
    TEXTS,
    st.sampled_from(("String", "Number.int", "Binary", "Binary.gif")),
    TEXTS,
    st.binary(max_size=30),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
MESSAGES = st.builds(
    Message, TEXTS, st.lists(ATTRIBUTES, max_size=10), NAMES, TEXTS, st.binary(max_size=30), deduplication_id=NAMES
)


@given(MESSAGES)
def test_an_envelope_gives_back_its_message(message: Message) -> None:
    assert envelope.decode(envelope.encode(message)) == message


def test_an_envelope_is_little_longer_than_what_it_holds() -> None:
    attributes = [MessageAttribute("n" * 256, "String", b"v", is_binary=False)] * 10
    message = Message("b", attributes, "s" * 255, "g" * 128, b"t" * 1_024)
    held = 1 + sum(attribute.size_bytes for attribute in attributes)
    assert len(envelope.encode(message)) - held <= envelope.OVERHEAD_BYTES_MAX


@given(st.binary(max_size=60))
def test_any_other_payload_is_a_message_too(payload: bytes) -> None:
    for data in (payload, MESSAGE_START + payload):
        message = envelope.decode(data)
        assert isinstance(message.body, str)
        if message.attributes and message.attributes[0].name == envelope.ENCODING_ATTRIBUTE:
            assert base64.b64decode(message.body) == data


def test_text_of_another_producer_is_the_body_and_bytes_are_base64() -> None:
    assert envelope.decode("grüße".encode()) == Message("grüße")
    message = envelope.decode(b"\xff\x00")
    assert message.body == base64.b64encode(b"\xff\x00").decode()
    assert [attribute.value for attribute in message.attributes] == [b"base64"]


def attribute(data_type: str, **values: str) -> dict[str, Any]:
    return {"DataType": data_type, **values}


def test_attributes_have_the_md5_that_sdks_compute() -> None:
    number = parse_attributes({"timestamp": attribute("Number", StringValue="1493147359900")})
    assert md5_of_attributes(number) == "235c5c510d26fb653d073faed50ae77c"
    custom = parse_attributes({"somevalue": attribute("String.custom", StringValue="somevalue")})
    assert md5_of_attributes(custom) == "9e05cca738e70ff6c6041e82d5e77ef1"
    assert md5_of_attributes([]) is None
    assert md5_of(b"derp") == "58fd9edd83341c29f1aebba81c31e257"


def test_the_md5_does_not_depend_on_the_order() -> None:
    one = MessageAttribute("a", "Binary", b"\x00", is_binary=True)
    two = MessageAttribute("b", "String", b"x", is_binary=False)
    assert md5_of_attributes([one, two]) == md5_of_attributes([two, one])


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"a§": attribute("String", StringValue="x")}, "Attribute name can contain letters"),
        ({"AWS.x": attribute("String", StringValue="x")}, "must not start with AWS"),
        ({".x": attribute("String", StringValue="x")}, "must not start or end with a period"),
        ({"x..y": attribute("String", StringValue="x")}, "periods in succession"),
        ({"n" * 257: attribute("String", StringValue="x")}, "at most 256"),
        ({"x": attribute("InvalidNumber", StringValue="x")}, "prefixes is Binary, Number, and String"),
        ({"x": {"StringValue": "x"}}, "non-empty message attribute type"),
        ({"x": attribute("String", StringValue="")}, "must contain a non-empty value"),
        ({"x": attribute("Binary", StringValue="eA==")}, "must contain a non-empty value"),
        ({"x": attribute("String", StringValue="x", BinaryValue="eA==")}, "must contain a non-empty value"),
        ({"x": attribute("Number", StringValue="12a")}, "Can't cast"),
        ({"x": attribute("Binary", BinaryValue="*")}, "not Base64"),
        ({"x": "text"}, "must be an object of texts"),
        ("text", "must be an object"),
        ({f"x{n}": attribute("String", StringValue="x") for n in range(11)}, r"\[11\] exceeds"),
    ],
)
def test_attributes_that_sqs_does_not_allow_are_refused(raw: Any, says: str) -> None:
    with pytest.raises(SqsError, match=says):
        parse_attributes(raw)


@pytest.mark.parametrize("parse", [parse_attributes, parse_system_attributes])
@pytest.mark.parametrize("text", ["\0", "\ud800", "\uffff"])
def test_a_forbidden_character_in_an_attribute_is_an_invalid_value(parse: Callable[[Any], Any], text: str) -> None:
    for wrong in (attribute("String", StringValue=text), attribute(f"String.{text}", StringValue="x")):
        with pytest.raises(SqsError, match="Invalid characters found") as refused:
            parse({"AWSTraceHeader" if parse is parse_system_attributes else "x": wrong})
        assert refused.value.shape == "InvalidParameterValueException"


def test_a_name_may_have_letters_of_any_alphabet() -> None:
    assert [found.name for found in parse_attributes({"größe_1.中": attribute("String", StringValue="x")})] == [
        "größe_1.中"
    ]


@pytest.mark.parametrize(
    ("header", "is_trace"),
    [
        (b"Root=1-5759e988-bd862e3fe1be46a994272793", True),
        (b"Self=1-67891234-12456789abcdef012345678;Root=1-67891233-abcdef012345678912345678", True),
        (b"Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8; Sampled=1", True),
        (b"Root=" + b"x" * 507, True),
        (b"Root=" + b"x" * 508, False),
        (b"", False),
        (b"Root=", False),
        (b"Root=1\xff", False),
        (b"Root=1\r\n", False),
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", False),
    ],
)
def test_a_trace_of_x_ray_names_its_root(header: bytes, is_trace: bool) -> None:
    assert x_ray_trace(header) == (header if is_trace else b"")


def test_only_the_trace_header_is_a_system_attribute() -> None:
    (header,) = parse_system_attributes({"AWSTraceHeader": attribute("String", StringValue="Root=1")})
    assert header.value == b"Root=1"
    with pytest.raises(SqsError, match="'Other' is invalid"):
        parse_system_attributes({"Other": attribute("String", StringValue="x")})
    with pytest.raises(SqsError, match="at most 1024 bytes"):
        parse_system_attributes({"AWSTraceHeader": attribute("String", StringValue="x" * 1_025)})


def test_attributes_are_selected_by_name_prefix_or_all() -> None:
    found = parse_attributes({name: attribute("String", StringValue="x") for name in ("a.b", "a.c", "d")})

    def names(*wanted: str) -> list[str]:
        return [attribute.name for attribute in select_attributes(found, wanted)]

    assert names("All") == names(".*") == names("*") == ["a.b", "a.c", "d"]
    assert names("a.*") == ["a.b", "a.c"]
    assert names("d", "x") == ["d"]
    assert names() == []
