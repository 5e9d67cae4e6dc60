"""The requests of the contract: a good one of every method, and every field of them by its path.

Always true: what is here follows the contract's own tables and comments, so that
a field that is added is met by every test that goes through all of them. Knows
nothing of what a host answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from thrift.Thrift import TType

from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import ItemState, Permission
from foqs_contract.method_table import METHODS as METHODS

CONTRACT: Final = Path(__file__).resolve().parents[2] / "thrift" / "foqs.thrift"


@dataclass(slots=True, frozen=True)
class Names:
    """The names in a request."""

    namespace: str = "default"
    topic: str = "topic"
    id: str = "3-8796093022209"
    token: int = 1


def good(method: str, names: Names) -> Any:
    """Return a request of this method with nothing wrong in it.

    Its usual fields have values by their name or struct, and those of `_MORE` the values there.
    """
    kind, fields = METHODS[method].request_spec
    request = kind()
    for _, ttype, name, args, _ in filter(None, fields):
        value = _value(ttype, name, args, names)
        if value is not None:
            setattr(request, name, value)
    for name, of_names in _MORE.get(method, {}).items():
        setattr(request, name, of_names(names))
    return request


def _value(ttype: int, name: str, args: Any, names: Names) -> Any:
    """Return the value of a field; None for one that is left out."""
    if ttype == TType.STRUCT:
        of_names = _STRUCTS.get(args[0])
        return None if of_names is None else of_names(names)
    if ttype == TType.LIST and args[0] == TType.STRUCT:
        of_names = _STRUCTS.get(args[1][0])
        return None if of_names is None else [of_names(names)]
    of_names = _FIELDS.get(name)
    return None if of_names is None else of_names(names)


_FIELDS: Final[Mapping[str, Callable[[Names], Any]]] = {
    "namespace_name": lambda n: n.namespace,
    "topic": lambda n: n.topic,
    "id": lambda n: n.id,
    "ids": lambda n: [n.id],
    "shard": lambda n: 3,
    "action": lambda n: 2,
    "json": lambda n: '{"format": 1, "version": 1, "namespaces": {}}',
}
_STRUCTS: Final[Mapping[type, Callable[[Names], Any]]] = {
    ttypes.NewItem: lambda n: ttypes.NewItem(n.topic, payload=b"x" * 50),
    ttypes.RestoredItem: lambda n: ttypes.RestoredItem(n.topic, payload=b"x" * 50, restore_key="1"),
    ttypes.TopicCount: lambda n: ttypes.TopicCount(n.topic, 3),
    ttypes.Lease: lambda n: ttypes.Lease(n.id, n.token),
    ttypes.Completion: lambda n: ttypes.Completion(n.id, n.token, 1),
    ttypes.Nack: lambda n: ttypes.Nack(n.id, n.token),
    ttypes.Extension: lambda n: ttypes.Extension(n.id, n.token),
    ttypes.TopicFilter: lambda n: ttypes.TopicFilter(n.topic, [ItemState.READY]),
    ttypes.ItemFilter: lambda n: ttypes.ItemFilter(n.topic, [ItemState.READY]),
    ttypes.Change: lambda n: ttypes.Change(7),
    ttypes.Page: lambda n: ttypes.Page(5),
    ttypes.NamespaceSettings: lambda n: ttypes.NamespaceSettings(n.namespace),
    ttypes.TopicPolicy: lambda n: ttypes.TopicPolicy(n.topic, 3, ttypes.Fairness.ITEMS, [ttypes.GroupWeight("Ada", 2)]),
    ttypes.Grant: lambda n: ttypes.Grant("somebody", n.namespace, [Permission.CONSUME]),
}
_MORE: Final[Mapping[str, Mapping[str, Callable[[Names], Any]]]] = {
    "abandonDequeues": {"sequence_ids": lambda n: [9]},
    "moveItems": {"topic": lambda n: "elsewhere"},
    "startBulkJob": {"rate_per_s": lambda n: 5, "expected": lambda n: 3, "start_key": lambda n: "key"},
    "controlBulkJob": {"id": lambda n: "0" * 16, "command": lambda n: 1},
    "listAudit": {"limit": lambda n: 5},
    "bindTopic": {"regions": lambda n: ["here"]},
    "addShard": {"database_name": lambda n: "main"},
    "moveShard": {"target": lambda n: ttypes.HostAddress("h", 1)},
    "drainHost": {"host": lambda n: ttypes.HostAddress("h", 1)},
    "undrainHost": {"host": lambda n: ttypes.HostAddress("h", 1)},
    "rankItem": {"priority": lambda n: 1, "deliver_after_ms": lambda n: 1},
    "getRouting": {"version": lambda n: 3},
}
"""By method: the values of fields that only it has, or that mean something else there."""


@dataclass(slots=True, frozen=True)
class Field:
    """One field of a request.

    Attributes:
        path: as an error names it: `items[0].topic`.
        name: its own name; of a list's entry that of the list.
        ttype: of Thrift.
        steps: how to get there: names of fields and places in lists.
        must: the contract says that it must be there.
    """

    path: str
    name: str
    ttype: int
    steps: tuple[str | int, ...]
    must: bool

    def changed(self, request: Any, value: Any) -> Any:
        """A copy of the request in which this field is something else, or (None) missing."""
        result = deepcopy(request)
        inner = result
        for step in self.steps[:-1]:
            inner = inner[step] if isinstance(step, int) else getattr(inner, step)
        last = self.steps[-1]
        if isinstance(last, int):
            inner[last] = value
        else:
            setattr(inner, last, value)
        return result


def fields(request: Any) -> Iterator[Field]:
    """Every field of the request's structs, missing ones too, and the entries of lists; the outer before the inner."""
    yield from _fields(request, "", ())


def _fields(struct: Any, path: str, steps: tuple[str | int, ...]) -> Iterator[Field]:
    kind = type(struct).__name__
    for spec in filter(None, struct.thrift_spec):
        ttype, name, args = spec[1:4]
        here = f"{path}.{name}" if path else name
        to = (*steps, name)
        yield Field(here, name, ttype, to, (kind, name) in musts())
        value = getattr(struct, name)
        if value is None:
            continue
        if ttype == TType.STRUCT:
            yield from _fields(value, here, to)
        elif ttype == TType.LIST:
            for place, entry in enumerate(value):
                if args[0] == TType.STRUCT:
                    yield from _fields(entry, f"{here}[{place}]", (*to, place))
                else:
                    yield Field(f"{here}[{place}]", name, args[0], (*to, place), False)


@cache
def musts() -> frozenset[tuple[str, str]]:
    """(struct, field) of each field whose comment in the contract begins with "Must"."""
    found = set()
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\}", CONTRACT.read_text(), re.M | re.S):
        for comment, field in re.findall(r"/\*\*(.*?)\*/\s*\d+: optional [\w<>]+ (\w+)", body, re.S):
            if comment.strip(" *\n").startswith("Must"):
                found.add((name, field))
    return frozenset(found)
