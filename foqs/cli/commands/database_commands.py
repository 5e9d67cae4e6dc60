"""The commands for databases that have a server in each region: adopt, move, promote, rejoin, remove-acker, abort, forget.

Always true: each command can be interrupted and started again; a move that waits can be
aborted until the next term has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foqs.cli.commands.primary_runs import PrimarySession, config_option, run_in_session, show_move
from foqs.cli.output import confirm, print_message

if TYPE_CHECKING:
    from shardmgr.primary import Primary


@click.group()
def database() -> None:
    """Databases with a server in each region: which of them is the primary."""


@database.command(
    "adopt",
    epilog="\b\nExample:\n  foqs database adopt main --config host.toml --primary a --region a=r1 --region b=r2 --region c=r3",
)
@click.argument("name", metavar="DATABASE")
@config_option
@click.option("--primary", required=True, help="The server that has the data now.")
@click.option("--region", "regions", multiple=True, required=True, metavar="SERVER=REGION", help="For each server.")
@click.option(
    "--policy",
    type=click.Choice(["semi-sync", "async"]),
    default="semi-sync",
    show_default=True,
    help="With semi-sync, each commit waits for a server of another region.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def adopt(name: str, file: Path, primary: str, regions: tuple[str, ...], policy: str, yes: bool) -> None:
    """Let the cluster steer which server of DATABASE is the primary. Safe to repeat.

    The primary is the server that hosts use now; another one is refused. All other servers are read-only, have nothing that
    it lacks, and begin to follow it. Calls to the shards wait for some seconds.
    """
    # Imported before the session begins, which is kept alive by this process.
    from foqs.cluster.membership import own_versions
    from shardmgr.first_entry import make_first_entry
    from shardmgr.primary import LossPolicy
    from shardmgr.primary_changes import PromotionRefused
    from shardmgr.primary_document import read_primary
    from shardmgr.registry.port import RegistryConflict

    by_server = dict(_pair(text) for text in regions)
    if not yes:
        confirm(f"Make {primary} the primary of {name} in term 1? Its shards are not served for some seconds.")

    async def work(session: PrimarySession) -> Primary:
        if await read_primary(session.registry, name) is None:
            servers, hosts_use, schema = session.servers(name), session.server_of_hosts(name), own_versions().schema
            # A conflict: another process has adopted it meanwhile.
            with suppress(RegistryConflict):
                await make_first_entry(
                    session.registry, name, servers, hosts_use, by_server, primary, LossPolicy(policy), schema
                )
        entry = await session.entry(name)
        if entry.server != primary:
            raise PromotionRefused(
                f"{name} has an entry already, and {entry.server} is its primary; move it with foqs database move"
            )
        await session.run_until_serving(name)
        return await session.entry(name)

    _say_primary(name, run_in_session(file, work))


@database.command(
    "move",
    epilog="\b\nExamples:\n  foqs database move main --config host.toml --to r2 --dry-run\n"
    "  foqs database move main --config host.toml --to r2",
)
@click.argument("name", metavar="DATABASE")
@config_option
@click.option("--to", "region", required=True, help="The region of the next primary.")
@click.option("--dry-run", is_flag=True, help="Say what would move, and change nothing.")
def move(name: str, file: Path, region: str, dry_run: bool) -> None:
    """Move the primary of DATABASE to another region; its shards follow. Nothing is lost.

    Start it again if it was interrupted: it goes on where it is.
    """

    async def work(session: PrimarySession) -> Primary:
        from shardmgr.primary_moves import move_to

        entry = await session.entry(name)
        if dry_run:
            move_to(entry, region)
            reading, primaries = await session.primaries()
            show_move(reading, primaries.entries, name, region)
            return entry
        await session.move(name, lambda entry, reached: region)
        return await session.entry(name)

    entry = run_in_session(file, work)
    if not dry_run:
        _say_primary(name, entry)


@database.command(
    "promote",
    epilog="\b\nExamples:\n  foqs database promote main --config host.toml --lost a\n"
    "  foqs database promote main --config host.toml --lost a --accept-loss --to r2",
)
@click.argument("name", metavar="DATABASE")
@config_option
@click.option("--lost", required=True, metavar="SERVER", help="The primary that is lost.")
@click.option("--accept-loss", "accepts_loss", is_flag=True, help="Promote although acknowledged items may be lost.")
@click.option("--to", "region", default="", help="With --accept-loss: the region of the next primary.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def promote(name: str, file: Path, lost: str, accepts_loss: bool, region: str, yes: bool) -> None:
    """Replace the primary of DATABASE that is lost. Hosts do this themselves with the policy semi-sync.

    Without --accept-loss a replica is promoted that has everything that was acknowledged, or the command says what is
    missing and waits. With it, the most advanced replica that is reached is promoted, or the one of a region, after the
    sessions of the hosts that may still use the lost server. Until the next term has begun, foqs database abort ends it.
    """

    async def check_lost(session: PrimarySession) -> bool:
        return await session.check_lost(name, lost, region, accepts_loss=accepts_loss)

    if run_in_session(file, check_lost):
        print_message(f"{name}: {lost} is reached from here and accepts commits, so its shards may be served")
    if not yes:
        effect = "Acknowledged items may be lost for good." if accepts_loss else "Nothing is lost."
        confirm(f"Replace {lost}? The shards of {name} are not served until a replica has taken its place. {effect}")

    async def work(session: PrimarySession) -> Primary:
        await session.replace_lost(name, lost, region, accepts_loss=accepts_loss)
        return await session.entry(name)

    _say_primary(name, run_in_session(file, work))


@database.command("rejoin", epilog="\b\nExample:\n  foqs database rejoin main a --config host.toml")
@click.argument("name", metavar="DATABASE")
@click.argument("server", metavar="SERVER")
@config_option
def rejoin(name: str, server: str, file: Path) -> None:
    """Let SERVER follow the primary of DATABASE and acknowledge for it again, as a former primary that is back. Safe to repeat.

    Refused if it accepts commits, or has transactions that the primary lacks; they are listed. A server that was removed is also
    refused while its replication account is locked at the primary or at another replica.
    """

    async def work(session: PrimarySession) -> Primary:
        from shardmgr.rejoin import rejoin as let_rejoin

        await session.entry(name)
        await let_rejoin(
            session.registry, name, session.servers(name), server, lambda text: print_message(f"{name}: {text}")
        )
        await session.run_until_proven(name, server)
        return await session.entry(name)

    entry = run_in_session(file, work)
    _say_primary(name, entry)
    has_all = bool(entry.ackers.get(server))
    print_message(f"{name}: {server} {'has all that it has' if has_all else 'does not have all that it has yet'}")


@database.command("remove-acker", epilog="\b\nExample:\n  foqs database remove-acker main c --config host.toml")
@click.argument("name", metavar="DATABASE")
@click.argument("server", metavar="SERVER")
@config_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_acker(name: str, server: str, file: Path, yes: bool) -> None:
    """Let SERVER acknowledge for DATABASE no more, for example because it will not come back. Safe to repeat.

    While an acker is away, nobody can prove what a lost primary has acknowledged; without it, the others prove it. Hosts replace
    a lost primary by themselves only if another server acknowledges for the next one, so with three servers not before SERVER
    or another one is back: the command says so. Lock the account with which SERVER receives first, at the primary: with the
    policy semi-sync the command is refused before. foqs database rejoin brings SERVER back, once it is unlocked.

    With the policy async no account is locked. The last replica can be removed as well: enqueues that are refused because it is
    away are accepted again, and nothing bounds what a lost primary costs until a server has rejoined.
    """

    left: Sequence[str] | None = None

    async def question(session: PrimarySession) -> str:
        nonlocal left
        from shardmgr.primary import LossPolicy
        from shardmgr.primary_changes import without_acker

        after = without_acker(await session.entry(name), server)
        left = list(after.ackers)
        if not after.ackers:
            return (
                f"Remove {server}, the last replica of {name}? A lost primary is then lost with all its items, until a server has "
                "rejoined."
            )
        others = "The others must catch up once more before they are proven."
        return f"Remove {server} from the ackers of {name}?" + (
            f" {others}" if after.policy is LossPolicy.SEMI_SYNC else ""
        )

    if not yes:
        confirm(run_in_session(file, question))

    async def work(session: PrimarySession) -> tuple[Primary, Sequence[str] | None]:
        from shardmgr import acker_removal

        await session.entry(name)
        await acker_removal.remove_acker(session.registry, name, session.servers(name), server, left)
        lacks = await session.run_until_serving(name)
        return await session.entry(name), lacks

    entry, lacks = run_in_session(file, work)
    if entry.policy.value == "async":
        print_message(f"{name}: {server} is no replica any more; left are: {', '.join(sorted(entry.ackers)) or 'none'}")
        return
    proven = [acker for acker, standing in sorted(entry.ackers.items()) if standing]
    print_message(f"{name}: {server} acknowledges no more; proven are: {', '.join(proven) or 'none'}")
    if lacks:
        print_message(
            f"{name}: hosts would not replace {entry.server} by themselves if it were lost now: {'; '.join(lacks)}"
        )


@database.command("abort", epilog="\b\nExample:\n  foqs database abort main --config host.toml")
@click.argument("name", metavar="DATABASE")
@config_option
def abort(name: str, file: Path) -> None:
    """Let the primary of DATABASE go on in its term. Refused once the next term has begun."""

    async def work(session: PrimarySession) -> Primary:
        from shardmgr.primary import PrimaryState
        from shardmgr.primary_changes import abort as aborted
        from shardmgr.primary_document import change_primary

        await change_primary(
            session.registry, name, lambda entry: entry if entry.state is PrimaryState.SERVING else aborted(entry)
        )
        await session.run_until_serving(name)
        return await session.entry(name)

    _say_primary(name, run_in_session(file, work))


@database.command("forget", epilog="\b\nExample:\n  foqs database forget main --config host.toml")
@click.argument("name", metavar="DATABASE")
@config_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(name: str, file: Path, yes: bool) -> None:
    """Remove the entry of DATABASE: it has one server again, and nothing takes its place. Safe to repeat.

    Its primary must be the server of databases.DATABASE.url at all hosts. It waits for no other server any more. An adoption
    that cannot go on is ended by this too.
    """
    if not yes:
        confirm(f"Remove the entry of {name}? If its server is lost then, its items are not served.")

    async def work(session: PrimarySession) -> Primary:
        from shardmgr.first_entry import forget_entry

        await session.entry(name)
        session.servers(name)  # refused before the entry is changed
        entry = await forget_entry(session.registry, name, session.server_of_hosts(name))
        await session.run_until_released(name)
        return entry

    entry = run_in_session(file, work)
    print_message(f"{name}: it has no entry any more, and hosts use {entry.server} by their configuration")


def _pair(text: str) -> tuple[str, str]:
    server, equals, region = text.partition("=")
    if not (server and equals and region):
        raise click.UsageError(f"--region: {text!r} is not SERVER=REGION.")
    return server, region


def _say_primary(name: str, entry: Primary) -> None:
    region = entry.servers[entry.server].region
    print_message(f"{name}: {entry.server} in {region} is the primary in term {entry.term}")
