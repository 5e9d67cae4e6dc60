"""Structs survive both protocols, and the decoder reads nothing beyond its limits."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest

from foqs_contract import struct_bytes
from foqs_contract.idl import ttypes
from foqs_contract.struct_bytes import (
    FIELD_HEAD_BYTES,
    I32,
    I32_BYTES,
    I32_FIELD_BYTES,
    I64,
    I64_FIELD_BYTES,
    STOP,
    STRING_HEAD,
    STRING_HEAD_BYTES,
    DecodeSource,
    field_head,
    list_head,
)

SPEC = [ttypes.AckRequest, ttypes.AckRequest.thrift_spec]
REQUEST = ttypes.AckRequest("n", [ttypes.Lease("3-1", 7), ttypes.Lease("3-2", 8)])
PROTOCOLS = [
    (struct_bytes.encode_binary, struct_bytes.decode_binary),
    (struct_bytes.encode_compact, struct_bytes.decode_compact),
]
Encode = Callable[[Any, Any], bytes]
Decode = Callable[[Any, Any, Any], None]


def decoded(decode: Decode, data: bytes, source: DecodeSource) -> Any:
    source.cstringio_buf = BytesIO(data)
    request = ttypes.AckRequest()
    decode(request, source, SPEC)
    return request


@pytest.mark.parametrize(("encode", "decode"), PROTOCOLS)
def test_struct_is_decoded_as_it_was_encoded(encode: Encode, decode: Decode) -> None:
    data = encode(REQUEST, SPEC)
    assert decoded(decode, data, DecodeSource(container_items_max=2)) == REQUEST
    with pytest.raises(EOFError, match="too short"):
        decoded(decode, data[:-1], DecodeSource(container_items_max=2))


@pytest.mark.parametrize(("encode", "decode"), PROTOCOLS)
def test_string_or_list_over_its_limit_is_refused(encode: Encode, decode: Decode) -> None:
    data = encode(REQUEST, SPEC)
    for source in (DecodeSource(2, 2), DecodeSource(100, 1)):
        with pytest.raises(OverflowError, match="limit"):
            decoded(decode, data, source)


def test_sizes_of_fields_are_those_of_the_encoder() -> None:
    sized = (
        (ttypes.Lease("1234", None), STRING_HEAD_BYTES + 4),
        (ttypes.Lease(None, 7), I64_FIELD_BYTES),
        (ttypes.NewItem(None, 7), I32_FIELD_BYTES),
        (ttypes.AckRequest(None, []), FIELD_HEAD_BYTES + 1 + I32_BYTES),
    )
    for value, size in sized:
        empty = type(value)(*[None for field in value.thrift_spec if field])
        spec = [type(value), value.thrift_spec]
        assert len(struct_bytes.encode_binary(value, spec)) - len(struct_bytes.encode_binary(empty, spec)) == size


def test_heads_are_those_of_the_encoder() -> None:
    data = struct_bytes.encode_binary(REQUEST, SPEC)
    lease = field_head(ttypes.Lease, "id") + I32.pack(3) + b"3-1" + field_head(ttypes.Lease, "token") + I64.pack(7)
    start = STRING_HEAD.pack(field_head(ttypes.AckRequest, "namespace_name"), 1) + b"n"
    assert data.startswith(start + list_head(ttypes.AckRequest, "leases") + I32.pack(2) + lease + STOP)
