"""The hosts of a cluster, as the last reading of the registry lists them.

Holds `HostViews`. Always true: the list is the same object while no host in it changes.
Knows nothing of the states of shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from foqs.routing.port import Address, HostView
from shardmgr.model import ClusterView, Member


class HostViews:
    """Returns the hosts of a cluster as `HostView`s, sorted by name.

    Args:
        view: returns the cluster as this host last read it; None before the first reading.
        nonce: the nonce of this host.
        version: the version of this host's program.
    """

    def __init__(self, view: Callable[[], ClusterView | None], nonce: str, version: str = "") -> None:
        self._view = view
        self._nonce = nonce
        self._version = version
        self._source: ClusterView | None = None
        """The reading from which `_hosts` come."""
        self._hosts: Sequence[HostView] = ()

    def __call__(self) -> Sequence[HostView]:
        """Return the hosts of the last reading; empty before the first one."""
        view = self._view()
        return () if view is None else self.of(view)

    def of(self, view: ClusterView) -> Sequence[HostView]:
        """Return the hosts of this reading, which is the last one."""
        if self._source is not view:
            owned = Counter(assignment.nonce for assignment in view.plan.assignments.values())
            members = sorted(view.members, key=lambda member: (member.name, member.nonce))
            hosts = [self._host_view(member, view, owned[member.nonce]) for member in members]
            self._source = view
            if hosts != self._hosts:
                self._hosts = hosts
        return self._hosts

    def _host_view(self, member: Member, view: ClusterView, shard_count: int) -> HostView:
        return HostView(
            member.name,
            address_of(member),
            member.tier,
            member.region,
            shard_count,
            member.nonce,
            member.capacity,
            member.load,
            member.name in view.layout.drained,
            member.leaving,
            self._version if member.nonce == self._nonce else "",
        )


def address_of(member: Member) -> Address:
    """Split a member's address into host and port; an IPv6 host loses its brackets."""
    host, _, port = member.address.rpartition(":")
    return host.strip("[]"), int(port)
