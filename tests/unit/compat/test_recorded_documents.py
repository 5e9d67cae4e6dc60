"""Documents of earlier versions are read and written alike, and planted mistakes are found."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shardmgr.documents
from foqs.catalog import document as catalog
from shardmgr.local_coordinator import FileEpochBook
from tests.compat.documents_check import KINDS, Kind, faults, has_default_fields, recorded


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_documents_of_earlier_versions_are_read_and_written_alike(kind: Kind) -> None:
    versions = recorded(kind)
    assert list(versions) == [1]
    for before in versions.values():
        assert faults(kind, before) == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_samples_set_every_field(kind: Kind) -> None:
    samples = [kind.value, *getattr(kind.value, "shards", {1: None}).values()][:2]
    samples += [*getattr(kind.value, "assignments", {}).values(), *getattr(kind.value, "namespaces", {}).values()][:1]
    assert [has_default_fields(sample) for sample in samples if sample is not None and sample != samples[0]] == [
        [] for sample in samples if sample is not None and sample != samples[0]
    ]
    assert has_default_fields(kind.value) == []


def test_coordinator_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.json"
    file.write_text('{"epochs": {"0": 3, "12": 7}, "newer": true}\n')
    assert FileEpochBook(file).load() == {0: 3, 12: 7}
    FileEpochBook(file).save({0: 3, 12: 8})
    assert file.read_text() == '{"epochs": {"0": 3, "12": 8}}\n'


def changed_module(module: ModuleType, changes: dict[str, str]) -> Any:
    """Return a copy of a module in which each text is replaced."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    for old, new in changes.items():
        assert old in source, old
        source = source.replace(old, new)
    copy = ModuleType(f"changed_{module.__name__.replace('.', '_')}")
    sys.modules[copy.__name__] = copy
    try:
        exec(compile(source, copy.__name__, "exec"), copy.__dict__)
    finally:
        del sys.modules[copy.__name__]
    return copy


PLANTED = [
    ("member", {'alias="wants"': 'alias="taken"', "        wants={": "        taken={"}, "taken_epochs is read as {}"),
    ("layout", {"    pins: dict": "    pinned: dict", "        pins={": "        pinned={", "form.pins": "form.pinned"}, "pins is read as {}"),
    ("plan", {"    leaving: bool = False\n    term": "    leaving: bool\n    term"}, "assignments.1.leaving: it was optional, and is required now"),
    ("member", {"    capacity: _Weight = 1": "    cost: int\n    capacity: _Weight = 1"}, "cost: a document of the earlier version is refused: this is missing"),
    ("member", {"        region=member.region,\n": ""}, "region: it is not written any more"),
    ("member", {"        region=member.region,\n": "        region=member.region,\n        zone=1,\n"}, "zone: it is new; hosts of the earlier version do not know it"),
    ("layout", {"FORMAT: Final = 1": "FORMAT: Final = 2"}, "format: a document of the earlier version is refused"),
    ("layout", {"weight=None if spec.weight == 1 else spec.weight": "weight=None if spec.weight == 1 else spec.weight + 1"}, "shards.1.weight: it is written as 3"),
    ("catalog", {"    paused: Annotated[frozenset[_Name], Field(strict=False)]": "    paused: Annotated[frozenset[_Name], Field(strict=False, alias='stopped')]", 'fields["paused"]': 'fields["stopped"]'}, "unknown={'paused': ['slow']}"),
]  # fmt: skip
"""Mistakes in the code of documents: the kind, the replaced texts, and the sentence that names the field."""


@pytest.mark.parametrize(("name", "changes", "sentence"), PLANTED, ids=[row[2][:30] for row in PLANTED])
def test_planted_mistake_is_named(name: str, changes: dict[str, str], sentence: str) -> None:
    kind = KINDS[name]
    copy = changed_module(catalog if name == "catalog" else shardmgr.documents, changes)
    planted = Kind(
        name,
        kind.value,
        {
            "layout": getattr(copy, "parse_layout", None),
            "plan": getattr(copy, "parse_plan", None),
            "member": lambda text: copy.parse_member("n-1", text),
            "catalog": getattr(copy, "parse", None),
        }[name],  # type: ignore[arg-type]
        getattr(copy, f"render_{name}", None) or copy.render_stored,
        kind.required,
    )
    found = faults(planted, recorded(kind)[1])
    assert any(sentence in fault for fault in found), found
