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

from foqs_contract.idl import Foqs, ttypes
from foqs_contract.idl.ttypes import ItemState, Permission

CONTRACT: Final = Path(__file__).resolve().parents[2] / "thrift" / "foqs.thrift"
METHODS: Final = tuple(name for name in vars(Foqs.Iface) if not name.startswith("_"))


@dataclass(slots=True, frozen=True)
class Names:
    """The names in a request."""

    namespace: str = "default"
    topic: str = "topic"
    id: str = "3-8796093022209"
    token: int = 1


def good(method: str, names: Names) -> Any:
    """A request of this method with nothing wrong in it, every list and struct of it with something in it."""
    return _GOOD[method](names)


_GOOD: Final[Mapping[str, Callable[[Names], Any]]] = {
    "authenticate": lambda n: ttypes.AuthenticateRequest(),
    "enqueue": lambda n: ttypes.EnqueueRequest(n.namespace, [ttypes.NewItem(n.topic, payload=b"x" * 50)]),
    "dequeue": lambda n: ttypes.DequeueRequest(n.namespace, [ttypes.TopicCount(n.topic, 3)]),
    "abandonDequeues": lambda n: ttypes.AbandonDequeuesRequest([9]),
    "ack": lambda n: ttypes.AckRequest(n.namespace, [ttypes.Lease(n.id, n.token)]),
    "nack": lambda n: ttypes.NackRequest(n.namespace, [ttypes.Nack(n.id, n.token)]),
    "extendLease": lambda n: ttypes.ExtendLeaseRequest(n.namespace, [ttypes.Extension(n.id, n.token)]),
    "release": lambda n: ttypes.ReleaseRequest(n.namespace, [ttypes.Lease(n.id, n.token)]),
    "getActiveTopics": lambda n: ttypes.GetActiveTopicsRequest(
        n.namespace, ttypes.TopicFilter(n.topic, [ItemState.READY]), ttypes.Page(5)
    ),
    "peek": lambda n: ttypes.PeekRequest(n.namespace, n.topic, page=ttypes.Page(5)),
    "getItem": lambda n: ttypes.GetItemRequest(n.namespace, n.id),
    "explain": lambda n: ttypes.GetItemRequest(n.namespace, n.id),
    "cancel": lambda n: ttypes.CancelRequest(n.namespace, [n.id]),
    "update": lambda n: ttypes.UpdateRequest(n.namespace, [n.id], ttypes.Change(7)),
    "extendHeldLeases": lambda n: ttypes.ExtendHeldLeasesRequest(n.namespace, [n.id]),
    "countItems": lambda n: ttypes.CountItemsRequest(n.namespace, ttypes.ItemFilter(n.topic, [ItemState.READY])),
    "bulk": lambda n: ttypes.BulkRequest(
        n.namespace, ttypes.ItemFilter(n.topic, [ItemState.READY]), 2, ttypes.Change(7), ttypes.Page(5)
    ),
    "startBulkJob": lambda n: ttypes.StartBulkJobRequest(
        n.namespace,
        ttypes.ItemFilter(n.topic, [ItemState.READY]),
        2,
        ttypes.Change(7),
        rate_per_s=5,
        expected=3,
        start_key="key",
    ),
    "listBulkJobs": lambda n: ttypes.ListBulkJobsRequest(n.namespace),
    "controlBulkJob": lambda n: ttypes.ControlBulkJobRequest(n.namespace, "0" * 16, 1),
    "listAudit": lambda n: ttypes.ListAuditRequest(5),
    "listItems": lambda n: ttypes.ListItemsRequest(
        n.namespace, ttypes.ItemFilter(n.topic, [ItemState.READY]), 3, ttypes.Page(5)
    ),
    "listDead": lambda n: ttypes.ListDeadRequest(n.namespace, n.topic, ttypes.Page(5)),
    "redrive": lambda n: ttypes.RedriveRequest(n.namespace, [n.id]),
    "moveItems": lambda n: ttypes.MoveItemsRequest(n.namespace, [n.id], "elsewhere"),
    "restoreItems": lambda n: ttypes.RestoreItemsRequest(
        n.namespace, [ttypes.RestoredItem(n.topic, payload=b"x" * 50, restore_key="1")]
    ),
    "createNamespace": lambda n: ttypes.SetNamespaceRequest(ttypes.NamespaceSettings(n.namespace)),
    "updateNamespace": lambda n: ttypes.SetNamespaceRequest(ttypes.NamespaceSettings(n.namespace)),
    "getNamespace": lambda n: ttypes.NamespaceRequest(n.namespace),
    "listNamespaces": lambda n: ttypes.ListRequest(ttypes.Page(5)),
    "deleteNamespace": lambda n: ttypes.NamespaceRequest(n.namespace),
    "getUsage": lambda n: ttypes.NamespaceRequest(n.namespace),
    "setGrant": lambda n: ttypes.GrantRequest(ttypes.Grant("somebody", n.namespace, [Permission.CONSUME])),
    "listGrants": lambda n: ttypes.NamespaceRequest(n.namespace),
    "pauseTopic": lambda n: ttypes.TopicRequest(n.namespace, n.topic),
    "resumeTopic": lambda n: ttypes.TopicRequest(n.namespace, n.topic),
    "purgeTopic": lambda n: ttypes.TopicRequest(n.namespace, n.topic),
    "bindTopic": lambda n: ttypes.BindTopicRequest(n.namespace, n.topic, ["here"]),
    "exportConfig": lambda n: ttypes.ListRequest(ttypes.Page(5)),
    "importConfig": lambda n: ttypes.ConfigDocument('{"format": 1, "version": 1, "namespaces": {}}'),
    "listShards": lambda n: ttypes.ListRequest(ttypes.Page(5)),
    "addShard": lambda n: ttypes.AddShardRequest(3, "main"),
    "removeShard": lambda n: ttypes.ShardRequest(3),
    "moveShard": lambda n: ttypes.ShardRequest(3, ttypes.HostAddress("h", 1)),
    "drainShard": lambda n: ttypes.ShardRequest(3),
    "undrainShard": lambda n: ttypes.ShardRequest(3),
    "listHosts": lambda n: ttypes.ListRequest(ttypes.Page(5)),
    "drainHost": lambda n: ttypes.HostRequest(ttypes.HostAddress("h", 1)),
    "undrainHost": lambda n: ttypes.HostRequest(ttypes.HostAddress("h", 1)),
    "gossip": lambda n: ttypes.GossipRequest(),
    "rankItem": lambda n: ttypes.RankItemRequest(n.namespace, n.topic, 1, 1),
    "getRouting": lambda n: ttypes.GetRoutingRequest(3),
}


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
