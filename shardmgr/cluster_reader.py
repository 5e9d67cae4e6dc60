"""Reads a cluster from its registry: layout, plan and members, each at its own moment.

Always true: the plan is the oldest of the three. So a host that it names was
announced before the members were read, and is gone if it is not among them. A
malformed member's entry is left out and reported. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from foqs_contract.plurals import counted
from shardmgr.documents import LAYOUT, MEMBERS, PLAN, parse_layout, parse_member, parse_plan
from shardmgr.model import Layout, MalformedDocument, Member, Plan
from shardmgr.registry.port import Registry

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class ClusterReading:
    """A cluster as it was read.

    Attributes:
        layout: None if there is none yet.
        plan: empty if there is none yet.
        plan_version: None if there is no plan.
        members: by name, then nonce.
        malformed: the problem of each malformed entry, by its name.
    """

    layout: Layout | None
    plan: Plan
    plan_version: int | None
    members: Sequence[Member]
    malformed: Mapping[str, str]

    def checked_layout(self) -> Layout | None:
        """Return the layout. Raises MalformedDocument if there is a plan but no layout: nothing may change until it is restored."""
        if self.layout is None and self.plan.assignments:
            shards = counted(len(self.plan.assignments), "shard")
            raise MalformedDocument(
                LAYOUT, f"it is missing, although there is a plan of {shards}; write the layout again"
            )
        return self.layout


async def read_cluster(registry: Registry) -> ClusterReading:
    """Read a cluster in three requests.

    Raises:
        RegistryFailed: the cluster cannot be read now.
        MalformedDocument: the layout or the plan is malformed; the path begins with the document's name.
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
    """Return the layout and its version; None if there is none. Raises as `read_cluster`."""
    entry = await registry.read(LAYOUT)
    return None if entry is None else (_parse_named(LAYOUT, parse_layout, entry.data), entry.version)


def _parse_named(document: str, parse: Callable[[bytes], T], text: bytes) -> T:
    try:
        return parse(text)
    except MalformedDocument as error:
        raise MalformedDocument(f"{document}: {error.path}" if error.path else document, error.problem) from None
