"""The methods of the contract, and what serves them.

Holds the shape of one method and of one answer. Always true: every method of
service Foqs has an entry; one that nothing serves answers NOT_IMPLEMENTED.
Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from foqs.core.errors import NotImplementedYet
from foqs.wire.message import raw_spec
from foqs_client.idl import Foqs

READ_ONLY: Final = frozenset(
    (
        "authenticate",
        "getActiveTopics",
        "peek",
        "getItem",
        "explain",
        "countItems",
        "listDead",
        "getNamespace",
        "listNamespaces",
        "getUsage",
        "listGrants",
        "exportConfig",
        "listShards",
        "listHosts",
        "getRouting",
    )
)
"""What cannot have written when it ends unanswered."""


@dataclass(slots=True, frozen=True)
class Answer:
    """What a call answers.

    `give_back` is called when the answer cannot be written at all, and not
    otherwise. `complaint` is a line for the log: the client sent bytes that no
    correct client sends.
    """

    reply: Any
    give_back: Callable[[], None] | None = None
    complaint: str | None = None


Serve: TypeAlias = Callable[[Any, float], Awaitable[Answer]]
"""(request, deadline on the loop's clock) to an answer, or raises FoqsError."""


@dataclass(slots=True, frozen=True)
class Method:
    """One method: its structs and its server."""

    name: str
    writes: bool
    serve: Serve
    args: list[Any]
    result: list[Any]

    @property
    def result_class(self) -> Any:
        return self.result[0]


class Calls(Protocol):
    """What the server needs of whoever serves the calls."""

    @property
    def methods(self) -> Mapping[bytes, Method]: ...

    def timeout_s(self, request: Any) -> float:
        """How long the call may take. Raises FoqsError."""
        ...


def contract(served: Mapping[str, Serve]) -> dict[bytes, Method]:
    """Every method of the contract by name; `served` are those that something serves."""
    names = [name for name in vars(Foqs.Iface) if not name.startswith("_")]
    unknown = set(served) - set(names)
    if unknown:
        raise ValueError(f"not in the contract: {sorted(unknown)}")
    return {name.encode(): _method(name, served.get(name) or _unserved(name)) for name in names}


def _method(name: str, serve: Serve) -> Method:
    result = getattr(Foqs, f"{name}_result")
    return Method(
        name=name,
        writes=name not in READ_ONLY,
        serve=serve,
        args=raw_spec(getattr(Foqs, f"{name}_args")),
        result=[result, result.thrift_spec],
    )


def _unserved(name: str) -> Serve:
    async def serve(request: Any, deadline: float) -> Answer:
        raise NotImplementedYet(f"{name} is not served by this version")

    return serve
