"""Tests messages that no generated client writes, for every call and field: a typed error names the field."""

from __future__ import annotations

from collections.abc import Iterator

from thrift.Thrift import TType

from tests.behaviour.test_bad_fields import INVALID
from tests.behaviour.wires import Outcome, WireSite, wire_story
from tests.support.malformed_requests import VALUES, field_of_type, malformed_frame, nested_field
from tests.support.requests import METHODS, Field, Names, fields, good

DEPTH = 20_000


def wrong_types(method: str, names: Names) -> Iterator[tuple[str, bytes, Outcome]]:
    """Yield each field with each other type, and twice."""
    request = good(method, names)
    compact = False
    for field in fields(request):
        if isinstance(field.steps[-1], int):
            continue
        for ttype in VALUES:
            compact = not compact
            if ttype == field.ttype and ttype != TType.LIST:  # a list of another type is another list
                continue
            frame = malformed_frame(method, request, field, field_of_type(ttype), 1, compact=compact)
            yield f"{field.path} of type {ttype}", frame, (INVALID, field.path)
        value = request
        for step in field.steps:
            value = value[step] if isinstance(step, int) else getattr(value, step)
        if value is not None and field.ttype != TType.LIST:
            frame = malformed_frame(method, request, field, field_of_type(field.ttype), 1, compact=compact, twice=True)
            yield f"{field.path} twice", frame, (INVALID, field.path)


@wire_story
async def test_field_of_another_type_or_twice_is_named_and_changes_nothing(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("t")
    wrong = []
    tried = 0
    for method in METHODS:
        before = await site.all()
        for words, frame, expected in wrong_types(method, names):
            tried += 1
            outcome = (await site.outcomes_of(method, frame))[0]
            if outcome != expected:
                wrong.append(f"{method}: {words}: {outcome}, not {expected}")
        if await site.all() != before:
            wrong.append(f"{method} changed something")
    assert wrong == []
    assert tried > 1_500


@wire_story
async def test_deep_nesting_is_refused_by_every_call_and_changes_nothing(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("t")
    before = await site.all()
    for method in METHODS:
        request = good(method, names)
        first: Field = next(iter(fields(request)))
        for ttype in (TType.STRUCT, TType.LIST):
            for compact in (False, True):
                frame = malformed_frame(
                    method, request, first, nested_field(ttype, DEPTH), 1, compact=compact, twice=True
                )
                assert await site.outcomes_of(method, frame) == [(INVALID, None)], (method, ttype, compact)
    assert await site.all() == before
