"""A cluster read from its registry: layout, plan and members, each of a moment of its own.

Always true: the plan is the oldest of the three, so whoever it names had been
announced before the members were read, and is gone when not among them. An entry
that is no member is left out, and said. Knows nothing of what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardmgr.documents import LAYOUT, MEMBERS, PLAN, parse_layout, parse_member, parse_plan
from shardmgr.model import Layout, MalformedDocument, Member, Plan
from shardmgr.registry.port import Registry

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class ClusterReading:
    """What was found.

    Attributes:
        layout: None where nobody has made one.
        plan: empty where there is none.
        plan_version: None where there is none.
        members: by name, then nonce.
        malformed: what is wrong with each entry that is no member, by the entry's name.
    """

    layout: Layout | None
    plan: Plan
    plan_version: int | None
    members: Sequence[Member]
    malformed: Mapping[str, str]

    def checked_layout(self) -> Layout | None:
        """The layout. Raises Malformed where one that a plan was made from has gone: it may come back, and nothing changes meanwhile."""
        if self.layout is None and self.plan.assignments:
            shards = len(self.plan.assignments)
            raise MalformedDocument(
                LAYOUT, f"it is gone, and a plan of {shards} shards is there; write the layout again"
            )
        return self.layout


async def read_cluster(registry: Registry) -> ClusterReading:
    """Reads it, in three requests.

    Raises:
        RegistryFailed: it cannot be read now.
        Malformed: the layout or the plan is not one; the path begins with the document's name.
    """
    plan = await registry.read(PLAN)
    layout = await read_layout(registry)
    entries = await registry.members(MEMBERS)
    members: list[Member] = []
    malformed: dict[str, str] = {}
    for nonce, data in sorted(entries.items()):
        try:
            members.append(parse_member(nonce, data))
        except MalformedDocument as error:
            malformed[nonce] = str(error)
    return ClusterReading(
        None if layout is None else layout[0],
        Plan() if plan is None else _parse_named(PLAN, parse_plan, plan.data),
        None if plan is None else plan.version,
        sorted(members, key=lambda member: (member.name, member.nonce)),
        malformed,
    )


async def read_layout(registry: Registry) -> tuple[Layout, int] | None:
    """The layout and its version; None where nobody has made one. Raises as `read_cluster` does."""
    entry = await registry.read(LAYOUT)
    return None if entry is None else (_parse_named(LAYOUT, parse_layout, entry.data), entry.version)


def _parse_named(document: str, parse: Callable[[bytes], T], text: bytes) -> T:
    try:
        return parse(text)
    except MalformedDocument as error:
        raise MalformedDocument(f"{document}: {error.path}" if error.path else document, error.problem) from None
