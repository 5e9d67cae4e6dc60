"""The documents of a cluster as earlier versions wrote them, and the check that versions understand each other.

Holds, for each kind of document, a value with every field set, and how it is read and
written. `documents/N` has what version N wrote for these values. Always true: `faults`
names the field of each mistake. Knows nothing of where documents are stored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final

from foqs.catalog import document as catalog
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs_contract.call_table import Permission
from shardmgr import documents
from shardmgr.model import Assignment, HeldShard, Layout, MalformedDocument, Member, Plan, ShardSpec

WITHHELD: Final = frozenset({"term", "policies"})
"""Fields that an earlier version does not know. They are written only when no host of an earlier version is in the cluster: for
a database with an entry, and with a policy of a topic. So the samples leave them out."""

FOLDER: Final = Path(__file__).with_name("documents")

LAYOUT: Final = Layout(
    {1: ShardSpec(1, "main", "gold", 2, "west", draining=True), 2: ShardSpec(2, "spare")},
    frozenset({"alpha"}),
    {2: "beta"},
)
PLAN: Final = Plan({1: Assignment("alpha", "n-1", 7, "main", leaving=True)}, {1: 7, 2: 3})
MEMBER: Final = Member(
    "alpha", "n-1", "10.0.0.1:7411", "gold", "west", 3, 16.0, True, {1: HeldShard(7, "owned")}, {2: 9}
)
CATALOG: Final = catalog.Document(
    5,
    {
        "orders": catalog.NamespaceRecord(
            "gold",
            {name: low for name, (low, _) in SETTING_RANGES.items()},
            {"mailer": frozenset(Permission)},
            frozenset({"slow"}),
            frozenset({2}),
            11,
            queues={"mail": catalog.QueueEntry({"DelaySeconds": "5"}, {"team": "a"}, 1_700_000_000, 1_800_000_000)},
        ),
        "plain": catalog.NamespaceRecord(),
    },
    {"gold": {1: frozenset(range(512)), 2: frozenset(range(512, 1024, 2))}},
    13,
)


@dataclass(slots=True, frozen=True)
class Kind:
    """One kind of document.

    Attributes:
        value: a value with every field set.
        parse, render: text to value and back. `parse` raises MalformedDocument.
        required: the paths that a document must have.
    """

    name: str
    value: Any
    parse: Callable[[bytes], Any]
    render: Callable[[Any], bytes]
    required: frozenset[str]


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(
            "layout",
            LAYOUT,
            documents.parse_layout,
            documents.render_layout,
            frozenset({"format", "shards.1.database", "shards.2.database"}),
        ),
        Kind(
            "plan",
            PLAN,
            documents.parse_plan,
            documents.render_plan,
            frozenset(
                {"format", "assignments.1.name", "assignments.1.nonce", "assignments.1.epoch", "epochs", "epochs.1"}
            ),
        ),
        Kind(
            "member",
            MEMBER,
            lambda text: documents.parse_member("n-1", text),
            documents.render_member,
            frozenset({"format", "name", "nonce", "address", "holdings.1.epoch", "holdings.1.state"}),
        ),
        Kind(
            "catalog",
            CATALOG,
            catalog.parse,
            catalog.render_stored,
            frozenset({"format", "version", "namespaces"}),
        ),
    )
}


def recorded(kind: Kind) -> dict[int, Any]:
    """Return the document of this kind that each version wrote, by version."""
    files = {int(folder.name): folder / f"{kind.name}.json" for folder in FOLDER.iterdir()}
    return {version: json.loads(file.read_text()) for version, file in sorted(files.items())}


def faults(kind: Kind, before: Any) -> list[str]:
    """Return a sentence for each field that this version and the one that wrote `before` understand differently."""
    found = list(_reading_faults(kind, before))
    if not found:
        found += _writing_faults(before, json.loads(kind.render(kind.value)), "")
    return found


def _reading_faults(kind: Kind, before: Any) -> Iterator[str]:
    try:
        value = kind.parse(_text(before))
    except MalformedDocument as error:
        yield f"{error.path}: a document of the earlier version is refused: {error.problem}"
        return
    if value != kind.value:
        yield from _value_faults(value, kind.value, kind.name)
    for path in _paths(before):
        if path in kind.required:
            continue
        try:
            kind.parse(_text(_without(before, path)))
        except MalformedDocument as error:
            yield f"{path}: it was optional, and is required now: {error}"


def _value_faults(value: Any, expected: Any, name: str) -> Iterator[str]:
    """Yield the fields of a value that were read wrongly."""
    for field in fields(value):
        got, wanted = getattr(value, field.name), getattr(expected, field.name)
        if got != wanted:
            yield f"{name}: {field.name} is read as {got!r}, and was written as {wanted!r}; a field keeps its name"


def _writing_faults(before: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() | now.keys():
            inner = f"{path}.{name}" if path else name
            if name not in now:
                yield f"{inner}: it is not written any more; hosts of the earlier version need it"
            elif name not in before:
                yield f"{inner}: it is new; hosts of the earlier version do not know it"
            else:
                yield from _writing_faults(before[name], now[name], inner)
    elif before != now:
        yield f"{path}: it is written as {now!r}, and was written as {before!r}"


def has_default_fields(value: Any) -> list[str]:
    """Return the fields of a sample value that have their defaults, and so test nothing."""
    return [
        field.name
        for field in fields(value)
        if field.init
        and field.name not in {"unknown", *WITHHELD}
        and getattr(value, field.name)
        == (field.default_factory() if field.default_factory is not MISSING else field.default)
    ]


def _text(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def _paths(document: Any, path: str = "") -> Iterator[str]:
    for name, value in document.items():
        inner = f"{path}.{name}" if path else name
        yield inner
        if isinstance(value, dict):
            yield from _paths(value, inner)


def _without(document: Any, path: str) -> Any:
    copy = json.loads(json.dumps(document))
    *outer, last = path.split(".")
    part = copy
    for step in outer:
        part = part[step]
    del part[last]
    return copy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the documents of this version.")
    parser.add_argument("folder", type=Path, help="tests/compat/documents/M")
    folder: Path = parser.parse_args().folder
    folder.mkdir(exist_ok=True)
    for kind in KINDS.values():
        (folder / f"{kind.name}.json").write_bytes(kind.render(kind.value).strip() + b"\n")
