"""The changes of an entry by administrators: its first form and its end, a drain, a loss, an accepted
loss, an abort, a server that rejoins, one that acknowledges no more.

Pure functions. Always true: a change that does not fit the state of the entry is refused,
with a sentence that says what to do. Knows neither the registry nor the servers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState


class PromotionRefused(Exception):
    """The entry cannot be changed so: the text says why and what to do."""


def first_entry(server: str, policy: LossPolicy, servers: Mapping[str, DatabaseServer], term: int = 1) -> Primary:
    """Return the entry of a database that has none yet: its server, which hosts use, is drained to itself.

    The hosts give the shards back, the server becomes read-only, and the entry gets its position then. If it is lost
    before it serves, only a server that has this position takes its place.

    Raises:
        PromotionRefused: it is none of the servers.
    """
    _check_name(server, servers, "server of the database")
    ackers = {name: "" for name in servers if name != server}
    return Primary(term, server, policy, ackers, PrimaryState.DRAINING, has_served=False, servers=servers)


def start_drain(entry: Primary, target: str) -> Primary:
    """Return the entry with which the primary is drained. Raises `PromotionRefused`."""
    if entry.state is not PrimaryState.SERVING:
        raise PromotionRefused(f"the database is {entry.state.value}; wait until it serves")
    _check_name(target, entry.ackers, "acker of the database")
    return replace(entry, state=PrimaryState.DRAINING, target=target)


def start_revoking(entry: Primary) -> Primary:
    """Return the entry with which a primary that may be lost is replaced. Raises `PromotionRefused`.

    A loss that was accepted for a term that nobody has used is not accepted for the next one: the position is kept.
    """
    if entry.state in (PrimaryState.REVOKING, PrimaryState.FENCED):
        raise PromotionRefused(f"the database is {entry.state.value} already; wait, or accept the loss")
    return replace(entry, state=PrimaryState.REVOKING, loss_accepted=False)


def accept_loss(entry: Primary, target: str = "") -> Primary:
    """Return the entry with which a server is promoted without a proof: the target, or else the most advanced one.

    A target that is not reached is waited for: another one may have less.

    Raises:
        PromotionRefused: the primary is not lost, or the target is neither an acker nor the primary.
    """
    if entry.state not in (PrimaryState.REVOKING, PrimaryState.FENCED):
        raise PromotionRefused(f"the database is {entry.state.value}; a loss is accepted only when its primary is lost")
    if target:
        _check_name(target, (*entry.ackers, entry.server), "acker of the database")
    return replace(entry, state=PrimaryState.REVOKING, target=target, loss_accepted=True)


def replace_lost(entry: Primary, lost: str, *, target: str = "", accepts_loss: bool = False) -> Primary:
    """Return the entry with which an administrator replaces a primary that is lost; the same if that has begun already.

    Args:
        lost: the primary. Naming it makes a repetition harmless: the next primary is not replaced.
        target: the server to promote if the loss is accepted; empty: the most advanced one.

    Raises:
        PromotionRefused: another server is the primary, or the loss must be accepted.
    """
    if entry.server != lost or entry.state is PrimaryState.PROMOTING:
        raise PromotionRefused(f"{entry.server} is the primary in term {entry.term}; nothing is to be replaced")
    is_begun = entry.state in (PrimaryState.REVOKING, PrimaryState.FENCED)
    if accepts_loss:
        return accept_loss(entry if is_begun else start_revoking(entry), target)
    if target:
        raise PromotionRefused(
            "without an accepted loss the server that has everything is promoted; leave the region out"
        )
    if entry.policy is LossPolicy.ASYNC:
        raise PromotionRefused("its policy is async, so nobody knows what is lost; repeat with the loss accepted")
    return entry if is_begun else start_revoking(entry)


def abort(entry: Primary) -> Primary:
    """Return the entry with which the primary goes on in its term. Raises `PromotionRefused`."""
    if entry.state is PrimaryState.PROMOTING:
        raise PromotionRefused(
            "its next term has begun; wait until it serves, and drain it then, or remove its entry with foqs database forget"
        )
    if not entry.has_served:
        raise PromotionRefused("its first term has not begun; remove its entry with foqs database forget")
    return replace(entry, state=PrimaryState.SERVING, target="", position=None, loss_accepted=False)


def start_release(entry: Primary) -> Primary:
    """Return the entry with which a database goes back to a life without one. Raises `PromotionRefused`.

    Its server has all that was acknowledged in the states that are allowed. It waits for no acks from now on, so no acker
    is proven, whatever comes next.
    """
    if entry.state is PrimaryState.RELEASING:
        return entry
    is_first = entry.state is PrimaryState.DRAINING and not entry.has_served
    if not is_first and entry.state not in (PrimaryState.SERVING, PrimaryState.PROMOTING):
        raise PromotionRefused(f"the database is {entry.state.value}; wait until it serves, or abort that first")
    return replace(entry, state=PrimaryState.RELEASING, ackers=dict.fromkeys(entry.ackers, ""), loss_accepted=False)


def admit_acker(entry: Primary, server: str) -> Primary:
    """Return the entry in which a server that has rejoined may acknowledge. Raises `PromotionRefused`."""
    if entry.state not in (PrimaryState.SERVING, PrimaryState.PROMOTING):
        raise PromotionRefused(f"the database is {entry.state.value}; wait until the next primary is chosen")
    if server == entry.server:
        raise PromotionRefused(f"{server} is the primary")
    _check_name(server, entry.servers, "server of the database")
    shut_out = tuple(name for name in entry.shut_out if name != server)
    return replace(entry, ackers={**entry.ackers, server: ""}, shut_out=shut_out)


def without_acker(entry: Primary, server: str) -> Primary:
    """Return the entry in which a server acknowledges no more; the same if it does not.

    Nobody knows what only this server has acknowledged, so all others must catch up once more before they are proven. With
    the policy semi-sync its account is locked, so it is shut out until it rejoins. With async the last one may be removed: it
    proves nothing, and while the entry names none, nothing bounds the loss.

    Raises:
        PromotionRefused: it is the primary, no server of the database, or the last acker with semi-sync, where each commit
            would wait; or the database does not serve.
    """
    if entry.state is not PrimaryState.SERVING:
        raise PromotionRefused(f"the database is {entry.state.value}; wait until it serves")
    if server == entry.server:
        raise PromotionRefused(f"{server} is the primary; move it first")
    _check_name(server, entry.servers, "server of the database")
    if server not in entry.ackers:
        return entry
    others = [name for name in entry.ackers if name != server]
    if not others and entry.policy is LossPolicy.SEMI_SYNC:
        raise PromotionRefused(
            f"{server} is the last acker, and without one each commit would wait; let another server rejoin first, or remove the "
            "entry with foqs database forget"
        )
    shut_out = {*entry.shut_out, server} if entry.policy is LossPolicy.SEMI_SYNC else entry.shut_out
    return replace(entry, ackers=dict.fromkeys(others, ""), shut_out=tuple(sorted(shut_out)))


def _check_name(name: str, possible: Collection[str], what: str) -> None:
    if name not in possible:
        raise PromotionRefused(f"{name} is no {what}; name one of {', '.join(sorted(possible))}")
