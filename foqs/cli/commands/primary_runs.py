"""What the commands for databases and regions share: a registry session, promoters, and the progress of a move.

Always true: each command can be interrupted at any moment and started again by anybody; the
entry says how far it is. Calls ZooKeeper and the servers of databases, but no host.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from foqs.cli.host_session import USAGE, CommandFailed, configuration
from foqs.cli.output import print_message
from foqs.cli.registry_session import open_registry

if TYPE_CHECKING:
    from foqs.options.config import Config
    from foqs.store.mysql.mysql_server import MysqlServers
    from foqs.store.mysql.server_of_hosts import MysqlServerOfHosts
    from shardmgr.cluster_reader import ClusterReading
    from shardmgr.primary import Primaries, Primary
    from shardmgr.promoter import ElectedPromoter, PromoterRound
    from shardmgr.registry.port import Registry

_PAUSE_S: Final = 0.1
"""The pause before a round that would do the same as the one before."""
_SHOW_PAUSE_MS: Final = 1_000
"""A text that differs from an earlier one by its numbers only is shown again after this time."""
_PROOF_WAIT_S: Final = 30.0
"""How long a command waits for an acker that cannot follow, or has much to receive, before it says so."""
_VACANT_MS: Final = 8_000
"""A command is the promoter only if no host was for this time: its rounds show no metrics, so alerts would be quiet. A host that
may be elected looks at the election every five seconds or sooner, and one that has withdrawn rests for ten."""
T = TypeVar("T")
RunUntil: TypeAlias = "Callable[[Callable[[PromoterRound], bool]], Awaitable[None]]"
"""Runs rounds of a promoter until one is done."""


@dataclass(slots=True, frozen=True)
class PrimarySession:
    """An open registry session of a command, and the configuration of a host."""

    config: Config
    registry: Registry

    def servers(self, database: str) -> MysqlServers:
        """Return the servers of a database, as promoters reach them. Raises CommandFailed."""
        from foqs.store.factories import mysql_settings
        from foqs.store.primary_servers import promoter_servers

        options = self.config.databases.get(database)
        if options is None or not options.servers or not options.promoter_user:
            raise CommandFailed(
                f"databases.{database}.servers and promoter_user are not both set; write them into the configuration",
                USAGE,
            )
        return promoter_servers(self.config, database, mysql_settings(self.config, database))

    def server_of_hosts(self, database: str) -> MysqlServerOfHosts:
        """Return the server that hosts use without an entry."""
        from foqs.store.factories import mysql_settings
        from foqs.store.mysql.server_of_hosts import MysqlServerOfHosts

        addresses = self.config.databases[database].server_addresses
        return MysqlServerOfHosts(mysql_settings(self.config, database), addresses)

    async def entry(self, database: str) -> Primary:
        """Return the entry of a database. Raises CommandFailed."""
        from shardmgr.primary_document import read_primary

        found = await read_primary(self.registry, database)
        if found is None:
            raise CommandFailed(
                f"the database {database!r} has no entry; make one with: foqs database adopt {database}", USAGE
            )
        return found.entry

    async def primaries(self) -> tuple[ClusterReading, Primaries]:
        """Return the cluster, and the entries of its databases. Say which of them cannot be read."""
        from shardmgr.cluster_reader import read_cluster
        from shardmgr.primary_document import read_primaries

        reading = await read_cluster(self.registry)
        shards = {} if reading.layout is None else reading.layout.shards
        found = await read_primaries(self.registry, (spec.database for spec in shards.values()))
        for database, problem in found.malformed.items():
            print_message(f"{database}: its entry cannot be read, so it is left out: {problem}")
        return reading, found

    async def elected(self, databases: Iterable[str]) -> Mapping[str, ElectedPromoter]:
        """Return what the elected promoters of these databases have published last."""
        from shardmgr.primary_moves import elected_promoters

        return await elected_promoters(self.registry, databases)

    async def move(self, database: str, choose: Callable[[Primary, Collection[str] | None], str]) -> None:
        """Move the primary of a database to another region, or go on with that; show the progress.

        Args:
            choose: returns the region. It gets the entry, and which servers are reached, if that is known. Raises
                PromotionRefused.

        Raises:
            CommandFailed: the move has ended, and the primary is in another region: somebody has aborted it, for example.
        """
        from shardmgr.primary import PrimaryState
        from shardmgr.primary_moves import (
            check_reached,
            has_moved,
            is_at_rest,
            reached_in,
            serves_outside,
            start_move,
        )

        async with self._promoter(database) as run:
            rounds: list[PromoterRound] = []

            def is_ready(done: PromoterRound) -> bool:
                # The standings of ackers are recorded first: a target without one is refused.
                rounds[:] = [done]
                return done.entry.state is not PrimaryState.SERVING or is_at_rest(done)

            await run(is_ready)
            entry = await self.entry(database)
            reached = reached_in(rounds[-1]) if rounds else None
            region = choose(entry, reached)
            check_reached(entry, region, reached)
            await start_move(self.registry, database, region)
            await run(
                lambda done: serves_outside(done.entry, region) or (has_moved(done.entry, region) and is_at_rest(done))
            )
        entry = await self.entry(database)
        if serves_outside(entry, region):
            raise CommandFailed(
                f"{database} was not moved to {region}, because the move was aborted or has ended elsewhere: {entry.server} in "
                f"{entry.servers[entry.server].region} serves in term {entry.term}"
            )

    async def check_lost(self, database: str, lost: str, region: str, *, accepts_loss: bool) -> bool:
        """Return whether a primary that shall be replaced accepts commits, seen from here. Nothing is changed.

        Raises:
            CommandFailed: there is no entry, or the servers are not configured.
            PromotionRefused: it cannot be replaced so.
        """
        from shardmgr.primary_changes import replace_lost
        from shardmgr.primary_moves import server_in

        found = await self.entry(database)
        replace_lost(found, lost, target=server_in(found, region) if region else "", accepts_loss=accepts_loss)
        return lost in self.servers(database).names and await self.server_of_hosts(database).accepts_commits(lost)

    async def replace_lost(self, database: str, lost: str, region: str, *, accepts_loss: bool) -> None:
        """Replace a primary that is lost, and show the progress.

        Args:
            region: the region of the next primary; empty: that of the server which has most.

        Raises:
            CommandFailed: it was aborted.
            PromotionRefused
        """
        from shardmgr.primary_changes import replace_lost
        from shardmgr.primary_document import change_primary
        from shardmgr.primary_moves import server_in

        found = await self.entry(database)
        target = server_in(found, region) if region else ""

        def change(entry: Primary) -> Primary:
            return replace_lost(entry, lost, target=target, accepts_loss=accepts_loss)

        change(found)  # refused before the servers are reached
        async with self._promoter(database) as run:
            await change_primary(self.registry, database, change)
            await run(lambda done: done.entry.is_serving)
        entry = await self.entry(database)
        if entry.server == lost and entry.is_serving:
            raise CommandFailed(
                f"{lost} was not replaced: it came back, or somebody has aborted that; it serves in term {entry.term}"
            )

    async def run_until_serving(self, database: str) -> Sequence[str] | None:
        """Run a promoter until the database serves and its ackers have their standings; show the progress.

        Return why hosts would not replace its primary by themselves if it were lost then; None: it is not known.
        """
        from shardmgr.primary import PrimaryState
        from shardmgr.primary_moves import is_at_rest

        async with self._promoter(database) as run:
            await run(lambda done: done.entry.state is PrimaryState.SERVING and is_at_rest(done))
            elected = (await self.elected([database])).get(database)
        return None if elected is None else elected.lacks_if_lost

    async def run_until_released(self, database: str) -> None:
        """Run a promoter until the database has no entry; show the progress.

        Raises:
            CommandFailed: somebody else has ended the removal of the entry.
        """
        from shardmgr.primary import PrimaryState

        async with self._promoter(database) as run:
            after: list[Primary] = []

            def is_over(done: PromoterRound) -> bool:
                after.append(done.entry)
                return done.entry.state is not PrimaryState.RELEASING

            await run(is_over)
        if after and after[-1].state is not PrimaryState.RELEASING:
            raise CommandFailed(f"{database} keeps its entry, which is {after[-1].state.value} now; repeat this")

    async def run_until_proven(self, database: str, server: str) -> None:
        """Run a promoter until an acker has its standing, or for some time while it has not; show the progress."""
        from shardmgr.primary_moves import is_at_rest

        until_s = time.monotonic() + _PROOF_WAIT_S
        async with self._promoter(database) as run:
            await run(
                lambda done: (
                    done.entry.is_serving
                    and (done.entry.ackers.get(server, "") != "" or (is_at_rest(done) and time.monotonic() >= until_s))
                )
            )

    @asynccontextmanager
    async def _promoter(self, database: str) -> AsyncIterator[RunUntil]:
        from foqs.runtime.clock import SystemClock
        from shardmgr.primary_moves import run_promoter
        from shardmgr.promoter import Promoter, ShardsFree
        from shardmgr.suspicion import Suspicion

        session_ms, boot_ms = self.config.cluster.session_timeout_ms, SystemClock().monotonic_ms
        registry, nonce, progress = self.registry, secrets.token_hex(8), _Progress(database, boot_ms)
        free = ShardsFree(registry, database, session_ms, boot_ms)
        # It is elected for as long as it runs, and a server may be lost meanwhile.
        suspicion = Suspicion(self.config.cluster.lost_primary_ms)
        promoter = Promoter(registry, database, self.servers(database), free, suspicion, boot_ms)

        async def run(is_done: Callable[[PromoterRound], bool]) -> None:
            def after(done: PromoterRound) -> bool:
                progress.show(done)
                return is_done(done)

            await run_promoter(registry, database, nonce, promoter, after, _pause, boot_ms, vacant_ms=_VACANT_MS)

        try:
            yield run
        finally:
            await promoter.close()


class _Progress:
    """Shows what the rounds of a promoter do, without repetitions."""

    def __init__(self, database: str, boot_ms: Callable[[], int]) -> None:
        from shardmgr.step_texts import StepTexts

        self._database = database
        self._boot_ms = boot_ms
        self._texts = StepTexts(_SHOW_PAUSE_MS)

    def show(self, done: PromoterRound) -> None:
        from shardmgr.primary_moves import progress_text

        if self._texts.is_news(text := progress_text(done), done.version, self._boot_ms()):
            print_message(f"{self._database}: {text}")


async def _pause(_: PromoterRound | None) -> None:
    await asyncio.sleep(_PAUSE_S)


def run_in_session(file: Path, work: Callable[[PrimarySession], Awaitable[T]]) -> T:
    """Open a registry session by a configuration file, and run `work` in it. Raises CommandFailed."""
    config = configuration(file)
    if not config.cluster.zookeeper:
        raise CommandFailed(f"{file}: cluster.zookeeper: it is not set; name the ZooKeeper servers, HOST:PORT", USAGE)
    return asyncio.run(_run_in_session(config, work))


async def _run_in_session(config: Config, work: Callable[[PrimarySession], Awaitable[T]]) -> T:
    from foqs.options.config import ConfigError
    from shardmgr.primary_changes import PromotionRefused
    from shardmgr.server_port import ServerFailed

    # With the session timeout of hosts: if this command is killed, another one is elected after that time.
    async with open_registry(config, config.cluster.session_timeout_ms) as registry:
        try:
            return await work(PrimarySession(config, registry))
        except (PromotionRefused, ConfigError) as error:
            raise CommandFailed(str(error), USAGE) from None
        except ServerFailed as error:
            raise CommandFailed(str(error)) from None


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the file of a host's configuration."""
    return click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        envvar="FOQS_CONFIG",
        required=True,
        help="The configuration of any of the hosts: [cluster], and [databases.NAME] with its servers.",
    )(command)


def show_move(reading: ClusterReading, primaries: Mapping[str, Primary], database: str, region: str) -> None:
    """Show what a move would do: the servers, the shards, and what the hosts of the region would have to carry."""
    from shardmgr.primary_moves import server_in

    entry = primaries[database]
    shards = {} if reading.layout is None else reading.layout.shards
    moving = [number for number, spec in sorted(shards.items()) if spec.database == database]
    print_message(
        f"{database}: {server_in(entry, region)} in {region} would take the place of {entry.server}; "
        f"shards {', '.join(map(str, moving))} would move"
    )
    hosts = [member for member in reading.members if member.region == region and not member.leaving]
    if not hosts:
        print_message(f"{database}: {region} has no host; hosts of other regions would own these shards")
        return
    after = {name: each.servers[each.server].region for name, each in primaries.items()} | {database: region}
    weight = sum(spec.weight for spec in shards.values() if after.get(spec.database, spec.region) == region)
    total = sum(spec.weight for spec in shards.values())
    capacity, everywhere = sum(host.capacity for host in hosts), sum(member.capacity for member in reading.members)
    short = "; that is short of capacity" if weight * everywhere > total * capacity else ""
    print_message(
        f"{database}: the hosts of {region} would have shards of weight {weight} and a capacity of {capacity}, of "
        f"{total} and {everywhere} in the cluster{short}"
    )
