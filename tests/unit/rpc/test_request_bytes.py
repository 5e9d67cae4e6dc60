"""What is read from the bytes of a large request is what Thrift's decoder reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.topic_keys import NO_TOPIC_KEYS
from foqs.rpc import request_structs
from foqs.rpc.messages import BadMessage, DecodeLimits, Decoder, call_head
from foqs.rpc.methods import contract_methods
from foqs.rpc.request_bytes import UsualItems, UsualLeases, read_ack, read_enqueue
from foqs.rpc.type_check import WrongType
from foqs_client import Item
from foqs_contract.idl import ttypes
from foqs_contract.struct_bytes import ENTRIES_MIN
from foqs_contract.thrift_method import ThriftMethod

LIMITS = DecodeLimits(string_bytes_max=400, container_items_max=200)
DECODER = Decoder(LIMITS)
METHODS = contract_methods({})
HEADS = {name: call_head(name.encode()) for name in ("enqueue", "ack")}
READERS = {"enqueue": read_enqueue, "ack": read_ack}
SETTINGS = NamespaceSettings(payload_bytes_max=60, metadata_bytes_max=60)


def message(name: str, request: Any) -> bytes:
    method = ThriftMethod(name)
    return method.frame(7, method.encode(request))[4:]


def decoded(name: str, sent: bytes) -> Any:
    """Return the request as Thrift's decoder and the check of types read it; None if they refuse it."""
    method, head = METHODS[name.encode()], HEADS[name]
    try:
        arguments = DECODER.decode(sent, head, method.args_spec)
        method.type_check.check(sent, head, arguments)
    except (BadMessage, WrongType):
        return None
    return arguments.request


def read(name: str, sent: bytes) -> Any:
    return READERS[name](sent, HEADS[name].body_start, LIMITS.string_bytes_max, LIMITS.container_items_max)


def assert_as_decoded(name: str, entries: str, sent: bytes) -> bool:
    """Check the request unless the reader leaves it to the decoder; return whether it was read."""
    found = read(name, sent)
    if found is None:
        return False
    wanted = decoded(name, sent)
    assert wanted is not None, "a request that must be refused was read"
    packed = getattr(found, entries)
    assert len(packed) == len(getattr(wanted, entries)) > 0
    assert packed
    assert packed[len(packed) - 1] == getattr(wanted, entries)[-1]
    setattr(found, entries, list(packed))
    assert found == wanted
    return True


TEXTS = st.sampled_from(["t", "u", "tt"]) | st.text(max_size=20)
RUNS = st.tuples(
    st.integers(1, 40),
    st.builds(
        Item,
        topic=TEXTS,
        priority=st.integers(-1, 1) | st.integers(-(1 << 31), (1 << 31) - 1),
        payload=st.sampled_from([b"", b"p", b"\0" * 50, b"x" * 401]) | st.binary(max_size=70),
        metadata=st.sampled_from([b"", b"m"]) | st.binary(max_size=70),
        idempotency_key=st.none() | st.sampled_from(["k1", "k2"]) | TEXTS,
        lease_ms=st.sampled_from([None] * 9 + [5]),
        key_until_ms=st.sampled_from([None, 5, 5, 6]),
    ),
)
IDS = st.sampled_from(["3-8796093022209", "12-8796093022210", "", "x"]) | st.text(max_size=20)
LEASES = st.tuples(st.integers(1, 40), st.builds(ttypes.Lease, IDS, st.integers(-(1 << 63), (1 << 63) - 1)))
FLAWS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255) | st.sampled_from([0, 1, 11, 12])), max_size=2)


def flawed(sent: bytes, flaws: list[tuple[int, int]], cut: int) -> bytes:
    data = bytearray(sent)
    for place, value in flaws:
        data[HEADS["ack"].body_start + place % (len(data) - HEADS["ack"].body_start)] = value
    return bytes(data[: len(data) - cut] if cut >= 0 else data + bytes(-cut))


@given(
    st.lists(RUNS, min_size=1, max_size=4),
    FLAWS,
    st.sampled_from([0] * 9 + [1, 5, -1]),
    st.sampled_from([None] * 4 + [True]),
)
def test_enqueue_is_read_as_thrift_reads_it(
    runs: list[tuple[int, Item]], flaws: list[tuple[int, int]], cut: int, forwarded: bool | None
) -> None:
    items: list[Any] = [item for count, item in runs for _ in range(count)]
    sent = message("enqueue", ttypes.EnqueueRequest("n", items, 1_000, forwarded))
    place_of_flaws = [(place + 6, value) for place, value in flaws]
    assert_as_decoded("enqueue", "items", flawed(sent, place_of_flaws, cut))


@given(st.lists(LEASES, min_size=1, max_size=4), FLAWS, st.sampled_from([0] * 9 + [1, 5, -1]))
def test_ack_is_read_as_thrift_reads_it(runs: list[tuple[int, Any]], flaws: list[tuple[int, int]], cut: int) -> None:
    leases = [lease for count, lease in runs for _ in range(count)]
    sent = message("ack", ttypes.AckRequest("n", leases, 1_000))
    assert_as_decoded("ack", "leases", flawed(sent, flaws, cut))


@pytest.mark.parametrize(("key", "until_ms"), [(None, None), ("~1ffkey", None), ("~1ffkey", 5), ("~1ffkey", -1)])
@pytest.mark.parametrize("metadata", [b"", b"m"])
@pytest.mark.parametrize("count", [ENTRIES_MIN, 100, 200])
def test_usual_items_are_read_and_parsed_without_structs(
    count: int, metadata: bytes, key: str | None, until_ms: int | None
) -> None:
    items: list[Any] = [
        Item(
            f"t{place % 2}",
            b"%03d" % place,
            place,
            metadata=metadata,
            idempotency_key=None if key is None else f"{key}-{place + 84}",
            key_until_ms=until_ms,
        )
        for place in range(count)
    ]
    items[-1] = replace(items[-1], topic="t2", payload=b"y" * 61, priority=0)
    sent = message("enqueue", ttypes.EnqueueRequest("n", items, 1_000))
    assert assert_as_decoded("enqueue", "items", sent)
    packed, structs = read("enqueue", sent).items, decoded("enqueue", sent).items
    assert isinstance(packed, UsualItems)
    good, errors = request_structs.parse_new_items(packed, "n", SETTINGS, NO_TOPIC_KEYS)
    wanted, wanted_errors = request_structs.parse_new_items(structs, "n", SETTINGS, NO_TOPIC_KEYS)
    assert good == wanted
    assert list(map(type, good)) == list(map(type, wanted))
    assert {place: (str(error), error.field) for place, error in errors.items()} == {
        place: (str(error), error.field) for place, error in wanted_errors.items()
    }
    place, error = errors.popitem()
    assert (place, str(error), error.field) == (count - 1, str(wanted_errors[place]), f"items[{place}].payload")


def test_usual_leases_are_read_and_parsed_without_structs() -> None:
    leases = [ttypes.Lease(f"{3 if place < 60 else 12}-{8796093022209 + place}", place) for place in range(100)]
    sent = message("ack", ttypes.AckRequest("n", leases, 1_000))
    assert assert_as_decoded("ack", "leases", sent)
    packed = read("ack", sent).leases
    assert isinstance(packed, UsualLeases)
    assert (
        request_structs.parse_lease_columns(packed)
        == request_structs.parse_lease_columns(decoded("ack", sent).leases)
        is not None
    )
    twice = read("ack", message("ack", ttypes.AckRequest("n", [*leases[:-1], leases[0]], 1_000))).leases
    assert request_structs.parse_lease_columns(twice) is None


@pytest.mark.parametrize("sizes", [[1, 2] * 50, [*[5] * 20, *range(80)]], ids=["alternating", "growing"])
def test_entries_of_many_sizes_are_left_to_thrift(sizes: list[int]) -> None:
    items = [ttypes.NewItem("t", payload=b"p" * size) for size in sizes]
    assert read("enqueue", message("enqueue", ttypes.EnqueueRequest("n", items, 1_000))) is None
    leases = [ttypes.Lease("3" * size, 1) for size in sizes]
    assert read("ack", message("ack", ttypes.AckRequest("n", leases, 1_000))) is None


@pytest.mark.parametrize("count", [1, ENTRIES_MIN - 1, LIMITS.container_items_max + 1])
def test_few_and_too_many_entries_are_left_to_thrift(count: int) -> None:
    assert read("enqueue", message("enqueue", ttypes.EnqueueRequest("n", [ttypes.NewItem("t")] * count, 1_000))) is None
    assert read("ack", message("ack", ttypes.AckRequest("n", [ttypes.Lease("3-1", 1)] * count, 1_000))) is None
