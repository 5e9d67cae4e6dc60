"""The primary of a database: which server it is, in which term, and how its place is being taken by another one.

Holds one entry of the document of primaries, and what a server reports of itself. Always
true of an entry: its term rises with each promotion, and a term belongs to one server.
Pure; knows neither the JSON form, nor SQL, nor the content of a database.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from shardmgr.model import Unknown


class PrimaryState(enum.Enum):
    """How far the primary of a database is from being replaced."""

    SERVING = "serving"
    """Hosts may use the server of the entry."""
    DRAINING = "draining"
    """The owners give the database's shards back, and the primary becomes read-only then."""
    REVOKING = "revoking"
    """The primary may be lost: its ackers stop receiving, so that it can acknowledge nothing more."""
    FENCED = "fenced"
    """The term acknowledges nothing more, and `position` is all that it has acknowledged."""
    PROMOTING = "promoting"
    """The next term has begun: its server becomes the primary. There is no way back to the former one."""
    RELEASING = "releasing"
    """The database shall have no entry: its server waits for no acks any more, and hosts use it by their configuration then."""
    RELEASED = "released"
    """Readers treat it as no entry. The document stays, so that a promoter with an old entry cannot replace a later one."""


class LossPolicy(enum.Enum):
    """What the loss of a primary may cost."""

    SEMI_SYNC = "semi-sync"
    """Nothing that was acknowledged: each commit waits for an acker."""
    ASYNC = "async"
    """What the replicas have not received, at most `max_lag_ms`."""


@dataclass(slots=True, frozen=True)
class ReplicationPosition:
    """The transactions that a server has.

    Attributes:
        last: by origin, the number of the last transaction; all before it are there too. An origin is a domain
            and server of MariaDB, or a server of MySQL.
    """

    last: Mapping[str, int] = field(default_factory=dict, hash=False)

    def covers(self, other: Self) -> bool:
        """Return whether all transactions of the other position are in this one."""
        return all(self.last.get(origin, 0) >= number for origin, number in other.last.items())


def greatest(positions: Iterable[ReplicationPosition]) -> ReplicationPosition | None:
    """Return the position that covers all others; None if there is none: the servers have diverged, or there is no server."""
    found = list(positions)
    return next((each for each in found if all(each.covers(other) for other in found)), None)


@dataclass(slots=True, frozen=True)
class DatabaseServer:
    """A server of a database, as all hosts know it. Its address is in the configuration of each host.

    Attributes:
        server_id: the number that its configuration file sets; no two servers of a cluster have the same.
        unknown: the fields that a newer version has written; they are kept.
    """

    region: str
    server_id: int
    unknown: Unknown = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class Primary:
    """The entry of one database.

    Attributes:
        server: the name of the server that is the primary in this term, or becomes it.
        ackers: by name of each server that may acknowledge commits of the primary, its *standing*: that of the
            server when it last had all that the primary had. Empty: it is not known to have all that it acknowledged.
        target: the server that shall become the primary; empty while none is chosen.
        position: once fenced, what the next primary must have applied.
        loss_accepted: an administrator has accepted that acknowledged transactions may be lost.
        has_served: hosts have used the server in this term. Until then the term has acknowledged nothing.
        servers: all servers of the database by name.
        shut_out: the servers that were removed from the ackers after their replication accounts were locked: they cannot
            receive before an administrator unlocks these and lets them rejoin.
        unknown: the fields that a newer version has written; they are kept.
    """

    term: int
    server: str
    policy: LossPolicy
    ackers: Mapping[str, str] = field(default_factory=dict, hash=False)
    state: PrimaryState = PrimaryState.SERVING
    target: str = ""
    position: ReplicationPosition | None = None
    loss_accepted: bool = False
    has_served: bool = True
    servers: Mapping[str, DatabaseServer] = field(default_factory=dict, hash=False)
    shut_out: tuple[str, ...] = ()
    unknown: Unknown = field(default_factory=dict, hash=False)

    @property
    def is_serving(self) -> bool:
        """Whether hosts may use its server."""
        return self.state is PrimaryState.SERVING

    @property
    def is_in_use(self) -> bool:
        """Whether hosts commit at its server: it serves, or owners write their last flushes there before they give shards back."""
        return self.is_serving or (self.state is PrimaryState.DRAINING and self.has_served)


@dataclass(slots=True, frozen=True)
class Primaries:
    """The entries of databases.

    Attributes:
        entries: by database. One without an entry is missing, and one whose entry is malformed too.
        malformed: what is wrong with an entry that cannot be read, by database. Its server is not known, so nothing of the
            database may be changed.
    """

    entries: Mapping[str, Primary] = field(default_factory=dict)
    malformed: Mapping[str, str] = field(default_factory=dict)


def usable_term(entry: Primary | None) -> int | None:
    """Return the term in which hosts may use a database, 0 if it has no entry; None if they may not use it now."""
    if entry is None:
        return 0
    return entry.term if entry.state is PrimaryState.SERVING else None


def is_over(entry: Primary | None, term: int) -> bool:
    """Return whether a term of a database has ended for good: nothing more is acknowledged in it, whatever its owners do.

    The time before the first entry has term 0. It ends when the first primary has its position.
    """
    return entry is not None and term < entry.term and (entry.has_served or entry.position is not None)


@dataclass(slots=True, frozen=True)
class ServerReport:
    """What a promoter reads of one server, over one connection and in the order of the attributes.

    The order matters: a position that is read after a state holds all that was written before the state.

    Attributes:
        term: the term in the server's own tables.
        is_read_only: hosts cannot commit.
        waits_for_acks: as a primary it answers no commit that no acker has; it has no time limit for that.
        kept_log: when it started last, it cut nothing off its log.
        source: the server from which it receives; empty: none.
        is_receiving: its reception runs.
        acknowledges: it acknowledges what it receives.
        standing: when the server was started, and how often its reception was since. It is read before and after all others;
            empty if it has changed meanwhile.
        received: all that it has, applied or not; None: not known, because it was restarted or its reception was.
        applied: what it has applied.
        complaint: why it does not receive or does not apply, as the server says it; empty: it names nothing.
        heard: another text each time that it hears from its source, which is at least once a second; empty: it is not
            connected.
        acknowledgers: how many replicas that acknowledge are connected to it. One that has gone is counted for a moment longer.
        unacknowledged: how many commits returned without an ack since it was started, while it should wait for acks.
        acknowledged: how many returned with one since then.
        waiting_commits: how many wait for one now.
    """

    term: int
    is_read_only: bool
    waits_for_acks: bool
    kept_log: bool
    source: str
    is_receiving: bool
    acknowledges: bool
    standing: str
    received: ReplicationPosition | None
    applied: ReplicationPosition
    complaint: str
    heard: str = ""
    acknowledgers: int = 0
    unacknowledged: int = 0
    acknowledged: int = 0
    waiting_commits: int = 0

    @property
    def has_applied_all(self) -> bool:
        """Whether a start of the reception, which throws away what is not applied, would lose nothing that is known."""
        return self.received is None or self.applied.covers(self.received)
