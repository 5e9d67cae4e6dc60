"""The methods of service Foqs: their structs, and which of them write.

Holds `METHODS`, and the first bytes of arguments and results. Always true: every method
of the contract has an entry; its arguments are one struct, in field 1; its result is
`success` in field 0 or `failed` in field 1. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from thrift.Thrift import TType

from foqs_contract.idl import Foqs

ARGUMENTS_HEAD: Final = bytes((TType.STRUCT, 0, 1))
"""Begins the arguments of each call. `STOP` ends them, and the result of each reply."""
SUCCESS_HEAD: Final = bytes((TType.STRUCT, 0, 0))
"""Begins the result of a reply that is no error."""

READ_ONLY_METHODS: Final = frozenset(
    (
        "authenticate",
        "getActiveTopics",
        "peek",
        "getItem",
        "explain",
        "countItems",
        "listItems",
        "listDead",
        "listAudit",
        "listBulkJobs",
        "getNamespace",
        "listNamespaces",
        "getUsage",
        "listGrants",
        "exportConfig",
        "listShards",
        "listHosts",
        "getRouting",
        "gossip",
        "rankItem",
    )
)
"""Methods that never write: a call that ends without a reply had no effect."""


@dataclass(slots=True, frozen=True)
class MethodDescription:
    """One method of the contract.

    Attributes:
        is_write: it can change something.
        arguments, result: the generated classes of its two structs.
    """

    name: str
    is_write: bool
    arguments: Any
    result: Any

    @property
    def request_spec(self) -> list[Any]:
        """[class, fields] of the request, the only argument."""
        spec: list[Any] = self.arguments.thrift_spec[1][3]
        return spec


METHODS: Final = {
    name: MethodDescription(
        name, name not in READ_ONLY_METHODS, getattr(Foqs, f"{name}_args"), getattr(Foqs, f"{name}_result")
    )
    for name in vars(Foqs.Iface)
    if not name.startswith("_")
}
"""Every method by its name."""
