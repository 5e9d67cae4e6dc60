"""The planned move of a database's primary to another region, from the first word to the last.

Always true: a move can be started again by any process at any moment, and goes on where
it is; rounds are run only by the elected promoter of the database. Knows neither SQL nor
how an administrator is shown the progress.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import PromotionRefused, start_drain
from shardmgr.primary_document import change_primary, name_part, read_primary
from shardmgr.promoter import ElectedPromoter, Promoter, PromoterRound
from shardmgr.promotion import AwaitChange, PromotionStep, ReplaceEntry, SendCommand
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed

ELECTION_FOLDER: Final = "promoters"
"""The folder of the elected promoters; each entry has the name of its database, see `name_part`."""
_TEXT_CHARS_MAX: Final = 2_000
_TEXT_PAUSE_MS: Final = 1_000
"""How long a published text stays if nothing else changes: some texts count, and each change wakes all hosts."""


def server_in(entry: Primary, region: str) -> str:
    """Return the name of the database's server in a region. Raises `PromotionRefused` if there is none."""
    found = [name for name, server in sorted(entry.servers.items()) if server.region == region]
    if not found:
        regions = ", ".join(sorted({server.region for server in entry.servers.values()}))
        raise PromotionRefused(f"the database has no server in region {region}; it has some in {regions}")
    acknowledging = [name for name in found if name in entry.ackers or name == entry.server]
    return (acknowledging or found)[0]


def move_to(entry: Primary, region: str) -> Primary:
    """Return the entry with which the primary moves to a region; the same if it is there, or on its way.

    Raises:
        PromotionRefused: there is no server that could take its place now; it is on its way to another region, or lost.
    """
    target = server_in(entry, region)
    if entry.state is PrimaryState.SERVING:
        if entry.server == target:
            return entry
        if entry.ackers.get(target) == "":
            raise PromotionRefused(
                f"{target} has not received all that {entry.server} has; wait until it has, and try again"
            )
        return start_drain(entry, target)
    if entry.state is not PrimaryState.REVOKING and destination(entry) == target:
        return entry
    raise PromotionRefused(f"the database is {entry.state.value} already; wait until it serves, or abort that first")


def reached_in(done: PromoterRound) -> Collection[str] | None:
    """Return the servers that the elected promoter reached last; None: its version does not publish them."""
    return done.reached if done.elected is None else done.elected.reached


def check_reached(entry: Primary, region: str, reached: Collection[str] | None) -> None:
    """Raise `PromotionRefused` if the primary would move to a server that the elected promoter did not reach last.

    Its standing does not say it, which stays when a server dies. A move that has begun goes on.

    Args:
        reached: see `reached_in`.
    """
    target = server_in(entry, region)
    if entry.state is PrimaryState.SERVING and target != entry.server and reached is not None and target not in reached:
        raise PromotionRefused(
            f"{target} is not reached, so the database would wait for it; bring it back, and try again"
        )


def serves_outside(entry: Primary, region: str) -> bool:
    """Return whether the primary serves in another region."""
    return entry.state is PrimaryState.SERVING and entry.servers[entry.server].region != region


def drained_to(entry: Primary, region: str, reached: Collection[str] | None = None) -> str:
    """Return the region to which a primary moves, or is on its way, when a region is drained.

    A semi-sync primary moves only where another server outside of the region acknowledges for it: the region may be switched
    off afterwards.

    Args:
        reached: see `reached_in`; None: all count.

    Raises:
        PromotionRefused: no server could take its place now, or it is on its way to that region.
    """
    servers = entry.servers
    if entry.state is not PrimaryState.SERVING:
        if servers[destination(entry)].region == region:
            raise PromotionRefused(f"the database is {entry.state.value}, with a target in {region}; abort that first")
        return servers[destination(entry)].region
    ackers = [name for name in sorted(entry.ackers) if servers[name].region != region]
    outside = [name for name in ackers if reached is None or name in reached]
    away = ", ".join(f"{name} is not reached" for name in ackers if name not in outside)
    able = [name for name in outside if entry.ackers[name]]
    if not able:
        raise PromotionRefused(
            f"no acker outside of {region} has received all that {entry.server} has; wait until one has"
            + (f" ({away})" if away else "")
        )
    if entry.policy is LossPolicy.SEMI_SYNC and len(outside) < 2:
        raise PromotionRefused(
            f"no other server outside of {region} would acknowledge for {able[0]}{f' ({away})' if away else ''}; let one rejoin, "
            "or use foqs database move"
        )
    return servers[able[0]].region


def destination(entry: Primary) -> str:
    """Return the name of the server that is the primary, or becomes it."""
    is_leaving = entry.state in (PrimaryState.DRAINING, PrimaryState.REVOKING, PrimaryState.FENCED)
    return (entry.target if is_leaving else "") or entry.server


async def start_move(registry: Registry, database: str, region: str) -> Primary:
    """Start a move, or go on with one. Return the entry. Raises as `move_to` and `change_primary`."""
    return await change_primary(registry, database, lambda entry: move_to(entry, region))


async def run_promoter(
    registry: Registry,
    database: str,
    nonce: str,
    promoter: Promoter,
    is_done: Callable[[PromoterRound], bool],
    pause: Callable[[PromoterRound | None], Awaitable[None]],
    boot_ms: Callable[[], int],
    *,
    vacant_ms: int = 0,
) -> None:
    """Run rounds of a promoter while it is elected, until one is done, or the database has no entry. It is closed while another is.

    Args:
        nonce: identifies this run of the process.
        is_done: called after each round. While another promoter is elected, a round only reads the entry, and what the
            other one has published.
        pause: waits before a round that would do the same as one before, as when its step had no effect. It gets that
            round; None: the registry has failed.
        boot_ms: the boot-time clock.
        vacant_ms: it stands for election only after nobody was elected for this time.

    Raises:
        MalformedDocument: nothing is done until the entry is corrected.
        RegistryOutcomeUnknown: the entry may have been written; a further run reads it.
    """
    asked: set[PromotionStep] = set()  # since the entry has its version, or since there was nothing to do
    version = 0
    published_ms = boot_ms() - _TEXT_PAUSE_MS
    seen_ms = boot_ms()  # somebody was elected then, or this run began
    while True:
        done: PromoterRound | None = None
        try:
            elected = await _elected(registry, database, nonce, stands=boot_ms() - seen_ms >= vacant_ms)
            if elected.nonce:
                seen_ms = boot_ms()
            if elected.nonce != nonce:
                await promoter.close()
                done = await _watched_round(registry, database, elected)
            else:
                done = await promoter.run_round()
            if done is None:
                return
            if done.elected is None:
                is_due = boot_ms() - published_ms >= _TEXT_PAUSE_MS
                if await _publish(registry, database, done, elected, is_text_due=is_due):
                    published_ms = boot_ms()
            if is_done(done):
                return
            if done.version != version or done.is_waiting:
                version = done.version
                asked.clear()
            if not done.is_waiting and done.step not in asked:
                asked.add(done.step)
                continue  # a step that is asked for again had no effect yet
        except RegistryFailed:
            pass  # the session may begin again
        await pause(done)


async def _elected(registry: Registry, database: str, nonce: str, *, stands: bool) -> ElectedPromoter:
    """Return the elected promoter; if nobody is, stand for election, or return one without a nonce. Raises RegistryFailed."""
    name = name_part(database)
    found = (await registry.members(ELECTION_FOLDER)).get(name)
    if found is not None:
        return _parse_elected(found)
    own = ElectedPromoter(nonce if stands else "")
    if not stands:
        return own
    try:
        await registry.announce(ELECTION_FOLDER, name, _render_elected(own))
    except RegistryConflict:
        return ElectedPromoter("")
    return own


async def _publish(
    registry: Registry, database: str, done: PromoterRound, before: ElectedPromoter, *, is_text_due: bool
) -> bool:
    """Publish what a round has done, if it is not what the registry had when the round began. Return whether it was published.

    Another session may have begun since this process published last; what it has published is gone then.

    Args:
        is_text_due: publish it also if only texts and what is proven differ.
    """
    text = progress_text(done)[:_TEXT_CHARS_MAX]
    proven, lacks_if_lost = tuple(sorted(done.proven)), tuple(each[:_TEXT_CHARS_MAX] for each in done.lacks_if_lost)
    reached = tuple(sorted(done.reached))
    blocked = done.blocked[:_TEXT_CHARS_MAX]
    found = ElectedPromoter(before.nonce, done.version, is_at_rest(done), text, proven, lacks_if_lost, reached, blocked)
    but_texts = replace(before, nonce=found.nonce, version=found.version, is_at_rest=found.is_at_rest)
    if found == before or (but_texts == before and not is_text_due):
        return False
    with suppress(RegistryConflict):  # another one is elected meanwhile
        await registry.announce(ELECTION_FOLDER, name_part(database), _render_elected(found))
    return True


async def elected_promoters(registry: Registry, databases: Iterable[str]) -> Mapping[str, ElectedPromoter]:
    """Return what the elected promoters of these databases have published, of those that have one. Raises RegistryFailed."""
    published = await registry.members(ELECTION_FOLDER)
    names = {database: name_part(database) for database in databases}
    return {database: _parse_elected(published[name]) for database, name in names.items() if name in published}


def _render_elected(elected: ElectedPromoter) -> bytes:
    fields = {
        "nonce": elected.nonce,
        "version": elected.version,
        "at_rest": elected.is_at_rest,
        "text": elected.text,
        "proven": elected.proven,
        "lacks_if_lost": elected.lacks_if_lost,
        "reached": elected.reached,
        "blocked": elected.blocked,
    }
    return json.dumps(fields).encode()


def _parse_elected(data: bytes) -> ElectedPromoter:
    """Return what was published. Of another form: only that somebody is elected."""
    try:
        fields = json.loads(data)
        return ElectedPromoter(
            str(fields["nonce"]),
            int(fields["version"]),
            fields["at_rest"] is True,
            str(fields["text"]),
            _texts(fields.get("proven")),
            _texts(fields.get("lacks_if_lost")),
            _texts(fields.get("reached")),
            None if fields.get("blocked") is None else str(fields["blocked"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ElectedPromoter("")


def _texts(found: object) -> tuple[str, ...] | None:
    return tuple(map(str, found)) if isinstance(found, list) else None


async def _watched_round(registry: Registry, database: str, elected: ElectedPromoter) -> PromoterRound | None:
    found = await read_primary(registry, database)
    if found is None:
        return None
    return PromoterRound(
        found.entry,
        AwaitChange(("another process promotes it, or is to be elected",)),
        version=found.version,
        elected=elected,
    )


def is_at_rest(done: PromoterRound) -> bool:
    """Return whether further rounds would change nothing: each acker has its standing, or says why it has none.

    Without its primary no database is at rest: a move would take its shards away, and not end.
    """
    if done.elected is not None:
        return done.elected.is_at_rest and done.elected.version == done.version
    if done.entry.server in done.problems:
        return False
    in_trouble = done.problems.keys() | done.complaints.keys()
    step = done.step
    is_idle = isinstance(step, AwaitChange) or (isinstance(step, SendCommand) and step.server in in_trouble)
    return is_idle and all(standing or name in in_trouble for name, standing in done.entry.ackers.items())


def has_moved(entry: Primary, region: str) -> bool:
    """Return whether the primary serves in a region."""
    return entry.state is PrimaryState.SERVING and entry.servers[entry.server].region == region


def progress_text(done: PromoterRound) -> str:
    """Return a line for a person: the state, what was done in a round, and what it waits for."""
    if done.elected is not None and done.elected.text and done.elected.version == done.version:
        return done.elected.text
    step = done.step
    if isinstance(step, SendCommand):
        what = f"{step.server}: {step.command.value}" + (f" {step.source}" if step.source else "")
    elif isinstance(step, ReplaceEntry):
        what = f"now {step.entry.state.value} in term {step.entry.term}"
    else:
        what = "waits: " + "; ".join(step.missing) if isinstance(step, AwaitChange) and step.missing else "at rest"
    if done.blocked:
        what = done.blocked if what == "at rest" else f"{what}; {done.blocked}"
    problems = [*done.problems.values(), *(f"{name}: {text}" for name, text in done.complaints.items())]
    return f"{done.entry.state.value}: {what}" + "".join(f" ({text})" for text in problems)
