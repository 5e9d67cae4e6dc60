"""The catalog's document: its JSON form, errors with their place, and its changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.catalog import changes
from foqs.catalog import document as catalog_document
from foqs.catalog.document import (
    EMPTY_DOCUMENT,
    FORMAT_VERSION,
    FORMAT_WITH_POLICIES,
    IDENTITY_MAX,
    TIME_S_MAX,
    Document,
    MalformedDocument,
    NamespaceRecord,
    Permission,
    PolicyRecord,
    QueueEntry,
    format_of,
    parse,
    render,
    render_stored,
)
from foqs.catalog.namespace_settings import SETTING_RANGES, NamespaceSettings, check_consistent
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.idempotency_keys import INCARNATION_MAX
from foqs.core.items.item import SHARD_MAX
from foqs.options.options import NamespaceOptions
from foqs_contract.errors import FoqsError, InvalidArgument, LimitExceeded, NamespaceNotFound
from foqs_contract.key_slots import KEY_SLOT_COUNT
from tests.support.example_counts import examples

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
SETTINGS = st.fixed_dictionaries({}, optional={name: st.integers(*span) for name, span in SETTING_RANGES.items()})
SECONDS = st.integers(0, TIME_S_MAX)
TEXT_MAPS = st.dictionaries(NAMES, NAMES, max_size=2)
KEY_WINDOWS = st.none() | st.integers(*SETTING_RANGES["key_window_ms"])
QUEUES = st.dictionaries(
    NAMES,
    st.builds(QueueEntry, TEXT_MAPS, TEXT_MAPS, SECONDS, SECONDS, KEY_WINDOWS, st.booleans(), st.booleans(), SECONDS),
    max_size=2,
)
NAMESPACES = st.builds(
    NamespaceRecord,
    st.none() | NAMES,
    SETTINGS,
    st.dictionaries(NAMES, st.frozensets(st.sampled_from(list(Permission)), min_size=1), max_size=3),
    st.frozensets(NAMES, max_size=3),
    st.none() | st.frozensets(st.integers(0, SHARD_MAX), max_size=3),
    st.integers(0, INCARNATION_MAX),
    QUEUES,
)
HOLDINGS = st.dictionaries(st.integers(0, KEY_SLOT_COUNT - 1), st.integers(0, SHARD_MAX)).map(
    lambda holders: {
        shard: frozenset(slot for slot, holder in holders.items() if holder == shard) for shard in holders.values()
    }
)
DOCUMENTS = st.builds(
    Document,
    st.integers(1, (1 << 63) - 1),
    st.dictionaries(NAMES, NAMESPACES, max_size=3),
    st.dictionaries(NAMES, HOLDINGS, max_size=2),
    st.integers(0, IDENTITY_MAX),
)


@settings(max_examples=examples(50))
@given(DOCUMENTS)
def test_document_survives_rendering_and_parsing(document: Document) -> None:
    assert parse(render(document)) == document
    assert parse(render(document).encode()) == document


@settings(max_examples=examples(50))
@given(DOCUMENTS)
def test_stored_document_is_the_same_with_a_line_for_each_namespace(document: Document) -> None:
    stored = render_stored(document)
    assert json.loads(stored) == json.loads(render(document))
    assert parse(stored) == document
    assert stored.count(b"\n") == max(1, len(document.namespaces)) + 2
    assert render_stored(parse(stored)) == stored


def test_change_renders_only_the_namespace_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Document(1, {name: NamespaceRecord(paused=frozenset({"t"})) for name in "abc"})
    render_stored(before)
    rendered: list[NamespaceRecord] = []
    to_json = catalog_document._namespace_to_json

    def noted(namespace: NamespaceRecord) -> dict[str, Any]:
        rendered.append(namespace)
        return to_json(namespace)

    monkeypatch.setattr(catalog_document, "_namespace_to_json", noted)
    after = changes.pause(before, "b", "u", paused=True)
    assert parse(render_stored(after)) == after
    assert rendered == [after.namespaces["b"]]


@settings(max_examples=examples(50))
@given(st.text() | st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_other_text_is_malformed(text: str | bytes) -> None:
    with pytest.raises(MalformedDocument):
        parse(text)


def form(**members: Any) -> str:
    return json.dumps({"format": 1, "version": 1, "namespaces": {"a": members}})


def slots(held: Any) -> str:
    return json.dumps({"format": 1, "version": 1, "namespaces": {}, "slots": {"t": held}})


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ('{"format": 1,\n "version": }', "line 2, column 13", "not JSON"),
        (b"\xff", "byte 0", "UTF-8"),
        ("[" * 100_000, "", "not JSON"),
        ('{"format": 1, "version": 1' + "0" * 5_000 + "}", "", "not JSON"),
        ("{}", "format", "null"),
        ('{"format": 3}', "format", "1 to 2"),
        ('{"format": true}', "format", "true"),
        ('{"format": 1, "version": -1}', "version", "-1"),
        ('{"format": 1, "version": 1}', "namespaces", "missing"),
        ('{"format": 1, "version": 1, "namespaces": 1}', "namespaces", "object"),
        ('{"format": 1, "version": 1, "namespaces": {}, "slots": 1}', "slots", "object"),
        ('{"format": 1, "version": 1, "namespaces": {"a": {}, "a": {}}}', "namespaces", "twice"),
        ('{"format": 1, "version": 1, "namespaces": {"": {}}}', "namespaces.", "empty"),
        ('{"format": 1, "version": 1, "namespaces": {"\\ud800": {}}}', "namespaces.\\ud800", "UTF-8"),
        ('{"format": 1, "version": 1, "namespaces": {}, "\\ud800": {}}', "", 'Unicode, not "\\ud800"'),
        (f'{{"format": 1, "version": 1, "namespaces": {{}}, "{"x" * 1_000}": 1}}', "x" * 60 + "...", "no such field"),
        ('{"format": 1, "version": 1, "namespaces": {}, "identity": -1}', "identity", "greater than or equal to 0"),
        (form(tier=1), "namespaces.a.tier", "string"),
        (form(pause=[]), "namespaces.a.pause", "no such field"),
        (form(**{"[key]": {}}), "namespaces.a.[key]", "no such field"),  # pydantic's mark of a name that is wrong
        (form(settings={"wait": 1}), "namespaces.a.settings.wait", "no such field"),
        (form(settings={"weight": 0}), "namespaces.a.settings.weight", "greater than or equal to 1, not 0"),
        (form(settings={"weight": 1.0}), "namespaces.a.settings.weight", "whole number"),
        (form(settings={"weight": True}), "namespaces.a.settings.weight", "whole number"),
        (form(grants={"p": []}), "namespaces.a.grants.p", "nothing"),
        (form(grants={"p": ["enqueue", "own"]}), "namespaces.a.grants.p[1]", "own"),
        (form(grants={"p": [[]]}), "namespaces.a.grants.p[0]", "permission"),
        (form(paused={}), "namespaces.a.paused", "list"),
        (form(paused=["a", "b\0"]), "namespaces.a.paused[1]", "NUL"),
        (form(paused=["x" * 256]), "namespaces.a.paused[0]", "256 bytes"),
        (form(incarnation=-1), "namespaces.a.incarnation", "greater than or equal to 0"),
        (form(queues={"q": {"key_window_ms": 1}}), "namespaces.a.queues.q.key_window_ms", "equal to 120000, not 1"),
        (form(deleting=[0, -1]), "namespaces.a.deleting[1]", "greater than or equal to 0"),
        (slots({"0": "0-7"}), "slots.t.0", "list"),
        (slots({"0": ["0", 7]}), "slots.t.0[1]", "4-10/2"),
        (slots({"0": ["0-1024"]}), "slots.t.0[0]", "0 to 1023"),
        (slots({"65536": []}), "slots.t.65536", "number"),
        (slots({"01": []}), "slots.t.01", "number"),
        (slots({"9" * 5_000: []}), "slots.t." + "9" * 60 + "...", "number"),
        (slots({"0": ["0-7"], "1": ["6"]}), "slots.t.1", "slots 6 of shard 1 are recorded as those of shard 0"),
    ],
)
def test_malformed_value_is_named_with_its_place(text: str | bytes, path: str, words: str) -> None:
    with pytest.raises(MalformedDocument) as caught:
        parse(text, allow_unknown=False)
    assert caught.value.path == path
    assert words in caught.value.problem


NEWER = json.dumps(
    {
        "format": 1,
        "version": 7,
        "namespaces": {
            "a": {"settings": {"weight": 2, "order": ["x"]}, "copy": {"of": "b"}},
            "b": {"settings": {"order": 1}},
        },
        "quotas": [1, None],
    }
)
"""A catalog as a newer version might write it."""


def test_document_with_policies_has_a_format_that_older_hosts_refuse() -> None:
    before = Document(1, {"a": NamespaceRecord()})
    after = changes.set_policy(before, "a", "orders", PolicyRecord(3))
    assert (format_of(before), format_of(after)) == (FORMAT_VERSION, FORMAT_WITH_POLICIES)
    text = render(after)
    assert (json.loads(text)["format"], parse(text)) == (2, after)
    assert parse(render_stored(after)) == after
    assert changes.set_policy(after, "a", "orders", PolicyRecord(3)) is after
    without = changes.set_policy(after, "a", "orders", PolicyRecord())
    assert without.namespaces == before.namespaces
    assert json.loads(render(without))["format"] == 1


def test_policy_with_turns_is_stored_with_its_weights() -> None:
    before = Document(1, {"a": NamespaceRecord()})
    policy = PolicyRecord(2, Fairness.TIME, {"b": 3, "a": 100})
    after = changes.set_policy(before, "a", "t", policy)
    assert after.namespaces["a"].policies["t"] == policy
    assert policy.rules == GroupRules(2, Fairness.TIME, {"b": 3, "a": 100})
    assert parse(render(after)) == parse(render_stored(after)) == after
    assert format_of(after) == FORMAT_WITH_POLICIES
    assert json.loads(render(after))["namespaces"]["a"]["policies"]["t"] == {
        "group_leases_max": 2,
        "fair": "time",
        "weights": {"a": 100, "b": 3},
    }
    assert changes.set_policy(after, "a", "t", policy) is after
    assert changes.set_policy(after, "a", "t", PolicyRecord()).namespaces == before.namespaces


def test_policy_of_a_relaxed_topic_is_stored_without_rules_for_groups() -> None:
    before = Document(1, {"a": NamespaceRecord()})
    after = changes.set_policy(before, "a", "t", PolicyRecord(is_relaxed=True))
    assert json.loads(render(after))["namespaces"]["a"]["policies"] == {"t": {"order": "relaxed"}}
    assert parse(render(after)) == parse(render_stored(after)) == after
    assert format_of(after) == FORMAT_WITH_POLICIES
    assert after.namespaces["a"].policies["t"].rules is None
    assert changes.set_policy(after, "a", "t", PolicyRecord()).namespaces == before.namespaces


@pytest.mark.parametrize(
    ("policy", "path", "words"),
    [
        ({"order": "any"}, "order", "relaxed"),
        ({"order": True}, "order", "relaxed"),
        ({"fair": "all"}, "fair", "use items or time"),
        ({"fair": 1}, "fair", "use items or time"),
        ({"fair": "items", "weights": {"a": 0}}, "weights.a", "1"),
        ({"fair": "items", "weights": {"a": 101}}, "weights.a", "100"),
        ({"fair": "items", "weights": {"": 1}}, "weights.", "name"),
        ({"fair": "items", "weights": dict.fromkeys(map(str, range(101)), 1)}, "weights", "100"),
        ({"group_leases_max": 1, "weights": {"a": 1}}, "", "give fair"),
    ],
)
def test_malformed_policy_is_named_with_its_place(policy: Any, path: str, words: str) -> None:
    text = json.dumps({"format": 2, "version": 1, "namespaces": {"a": {"policies": {"t": policy}}}})
    with pytest.raises(MalformedDocument) as caught:
        parse(text, allow_unknown=False)
    assert caught.value.path.startswith(f"namespaces.a.policies.t.{path}".rstrip("."))
    assert words in caught.value.problem


def test_policy_with_a_field_of_a_newer_version_stays_without_its_limit() -> None:
    policy = {"group_leases_max": 1, "colour": "green"}
    document = parse(json.dumps({"format": 2, "version": 1, "namespaces": {"a": {"policies": {"t": policy}}}}))
    after = changes.set_policy(document, "a", "t", PolicyRecord())
    assert json.loads(render(after))["namespaces"]["a"]["policies"] == {"t": {"colour": "green"}}


def test_fields_of_a_newer_version_survive_a_change() -> None:
    before = parse(NEWER)
    assert before.namespaces["a"].settings == {"weight": 2}
    assert before.namespaces["b"].settings == {}
    changed = changes.update(changes.pause(before, "b", "t", paused=True), "a", None, {"weight": 3})
    written = json.loads(render(changed))
    assert parse(render(changed)) == changed
    assert written["quotas"] == [1, None]
    assert written["namespaces"] == {
        "a": {"settings": {"order": ["x"], "weight": 3}, "copy": {"of": "b"}},
        "b": {"settings": {"order": 1}, "paused": ["t"]},
    }


def test_fields_of_a_newer_version_end_with_their_namespace() -> None:
    again = changes.create(changes.delete(parse(NEWER), "a"), "a", None, {})
    assert json.loads(render(again))["namespaces"]["a"] == {}


def test_import_names_a_field_that_this_version_does_not_know() -> None:
    with pytest.raises(MalformedDocument) as caught:
        parse(NEWER, allow_unknown=False)
    assert caught.value.path == "namespaces.a.settings.order"
    assert caught.value.problem == "there is no such field"


@pytest.mark.parametrize("value", ['{"x": 1, "x": 2}', '"\\ud800"', "1e400", '{"\\ud800": 1}'])
def test_newer_field_that_cannot_be_written_back_is_refused(value: str) -> None:
    with pytest.raises(MalformedDocument, match="cannot be kept"):
        parse(f'{{"format": 1, "version": 1, "namespaces": {{}}, "newer": {value}}}')


def test_setting_ranges_cover_the_namespace_settings() -> None:
    assert set(SETTING_RANGES) == set(NamespaceSettings.model_fields) - {"incarnation", "incarnation_number"}
    assert all(
        SETTING_RANGES[name][0] <= getattr(NamespaceOptions(), name) <= SETTING_RANGES[name][1]
        for name in SETTING_RANGES
    )


# ------------------------------------------------------------------- changes

ONE = changes.create(EMPTY_DOCUMENT, "a", None, {"weight": 2, "lease_ms_default": 5})
Change = Callable[[Document], Document]


@pytest.mark.parametrize(
    ("change", "namespace"),
    [
        (
            lambda d: changes.update(d, "a", "t", {"weight": 3}),
            NamespaceRecord("t", {"weight": 3, "lease_ms_default": 5}),
        ),
        (
            lambda d: changes.grant(d, "a", "p", frozenset({Permission.ADMIN})),
            NamespaceRecord(None, ONE.namespaces["a"].settings, {"p": frozenset({Permission.ADMIN})}),
        ),
        (
            lambda d: changes.pause(d, "a", "t", paused=True),
            NamespaceRecord(None, ONE.namespaces["a"].settings, {}, frozenset({"t"})),
        ),
        (lambda d: changes.delete(d, "a"), None),
        (lambda d: changes.restore(d, Document(77, {"a": NamespaceRecord()})), NamespaceRecord()),
        (
            lambda d: changes.restore(d, Document(77, {"a": NamespaceRecord(deleting=frozenset({1}))})),
            NamespaceRecord(),
        ),
    ],
)
def test_change_returns_the_next_version_and_keeps_the_old_one(
    change: Change, namespace: NamespaceRecord | None
) -> None:
    before = changes.create(ONE, "b", None, {})
    copy = parse(render(before))
    after = change(before)
    assert after.version == before.version + 1
    assert after.namespaces.get("a") == namespace
    assert before == copy


@pytest.mark.parametrize(
    "change",
    [
        lambda d: changes.create(d, "a", None, {"weight": 2, "lease_ms_default": 5}),
        lambda d: changes.update(d, "a", None, {"weight": 2}),
        lambda d: changes.grant(d, "a", "nobody", frozenset()),
        lambda d: changes.pause(d, "a", "t", paused=False),
        lambda d: changes.restore(d, Document(9, d.namespaces)),
    ],
)
def test_change_without_effect_returns_the_same_document(change: Change) -> None:
    assert change(ONE) is ONE


@pytest.mark.parametrize(
    "change",
    [
        lambda d: changes.create(d, "b", None, {}),
        lambda d: changes.update(d, "a", None, {"weight": 3}),
        lambda d: changes.delete(d, "a"),
        lambda d: changes.pause(d, "a", "t", paused=True),
        lambda d: changes.restore(d, Document(9, {})),
    ],
)
def test_changes_of_namespaces_keep_key_slots(change: Change) -> None:
    before = changes.record_slots(ONE, "default", {1: frozenset()}, [1])
    assert len(before.slots["default"][1]) == KEY_SLOT_COUNT
    assert change(before).slots == before.slots


def test_changes_can_be_reverted() -> None:
    granted = changes.grant(ONE, "a", "p", frozenset(Permission))
    assert changes.grant(granted, "a", "p", frozenset()).namespaces == ONE.namespaces
    paused = changes.pause(ONE, "a", "t", paused=True)
    assert changes.pause(paused, "a", "t", paused=False).namespaces == ONE.namespaces


@pytest.mark.parametrize(
    ("change", "kind", "field"),
    [
        (lambda d: changes.create(d, "a", None, {}), InvalidArgument, "settings.name"),
        (lambda d: changes.create(d, "b", None, {"weight": 0}), InvalidArgument, "settings.weight"),
        (lambda d: changes.update(d, "a", None, {"weight": 1_001}), LimitExceeded, "settings.weight"),
        (lambda d: changes.update(d, "b", None, {}), NamespaceNotFound, "settings.name"),
        (lambda d: changes.delete(d, "b"), NamespaceNotFound, "namespace_name"),
        (lambda d: changes.pause(d, "b", "t", paused=True), NamespaceNotFound, "namespace_name"),
        (lambda d: changes.grant(d, "b", "p", frozenset()), NamespaceNotFound, "grant.namespace_name"),
    ],
)
def test_refused_change_names_the_field(change: Change, kind: type[FoqsError], field: str) -> None:
    with pytest.raises(kind) as caught:
        change(ONE)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"lease_ms_default": 2, "lease_ms_max": 1}, "settings.lease_ms_default"),
        ({"backoff_ms_min": 2, "backoff_ms_max": 1}, "settings.backoff_ms_min"),
    ],
)
def test_contradicting_settings_are_refused(own: Mapping[str, int], field: str) -> None:
    check_consistent(NamespaceOptions().model_dump())
    with pytest.raises(InvalidArgument) as caught:
        check_consistent({**NamespaceOptions().model_dump(), **own})
    assert caught.value.field == field
