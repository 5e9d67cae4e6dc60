"""The commands for regions: list their primaries, and drain one.

Always true: a drain moves one database after the other, and can be started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.commands.primary_runs import PrimarySession, config_option, run_in_session, show_move
from foqs.cli.host_session import CommandFailed
from foqs.cli.output import Column, Format, Row, output_option, print_message, show_rows

if TYPE_CHECKING:
    from shardmgr.loss_report import LastFlush, LossReport
    from shardmgr.primary import Primary
    from shardmgr.promoter import ElectedPromoter

_COLUMNS: Final[list[Column]] = [
    ("DATABASE", lambda row: row["database"]),
    ("REGION", lambda row: row["region"]),
    ("PRIMARY", lambda row: row["primary"]),
    ("TERM", lambda row: str(row["term"])),
    ("STATE", lambda row: row["state"]),
    ("TARGET", lambda row: row["target"] or "-"),
    ("POLICY", lambda row: row["policy"]),
    ("PROVEN", lambda row: f"{_count(row['proven'])} of {len(row['ackers'])} ackers"),
    ("IF LOST NOW", lambda row: _if_lost(row)),
]

_REPORT_COLUMNS: Final[list[Column]] = [
    ("DATABASE", lambda row: row["database"]),
    ("TERM", lambda row: str(row["term"])),
    ("SERVER", lambda row: row["server"]),
    ("SHARD", lambda row: str(row["shard"])),
    ("EPOCH", lambda row: "-" if row["problem"] else str(row["epoch"])),
    ("LAST FLUSH", lambda row: "-" if row["problem"] else str(row["flush"])),
    ("WRITTEN", lambda row: "not read" if row["problem"] else row["written"] or "never"),
    ("LOST FLUSHES", lambda row: _at_least(row["lost_flushes_min"])),
    ("LOST ENQUEUES", lambda row: _range(row)),
]


@click.group()
def region() -> None:
    """Regions: where the primaries of databases are."""


@region.command("list", epilog="\b\nExample:\n  foqs region list --config host.toml")
@config_option
@output_option
def region_list(file: Path, form: Format) -> None:
    """List the databases with a server in each region, by the region of the primary.

    IF LOST NOW is whether hosts would replace the primary by themselves, as the host says that watches it. A message below the
    table says if writes wait because no replica acknowledges. In JSON that is the key blocked: empty if they do not wait, null if
    it is not known.
    """

    async def work(session: PrimarySession) -> list[Row]:
        entries = (await session.primaries())[1].entries
        elected = await session.elected(entries)
        rows = [_row(name, entry, elected.get(name)) for name, entry in entries.items()]
        return sorted(rows, key=lambda row: (row["region"], row["database"]))

    rows = run_in_session(file, work)
    show_rows(rows, _COLUMNS, form)
    for row in rows:
        if row["blocked"]:
            print_message(f"{row['database']}: {row['blocked']}")


@region.command("report", epilog="\b\nExample:\n  foqs region report --config host.toml")
@config_option
@output_option
def report(file: Path, form: Format) -> None:
    """List what the last accepted loss of each database has left, and what was lost, by shard.

    WRITTEN is when the last flush that is left was written. What was acknowledged later is lost. LOST ENQUEUES is how many items
    were inserted later: also those whose callers got no answer, and those that were delivered and acked already, which nobody
    misses. Items that were acked later and inserted before are delivered again. A database that is not listed has lost nothing
    by a promotion.
    """

    async def work(session: PrimarySession) -> list[Row]:
        from shardmgr.loss_report import read_loss_report

        rows: list[Row] = []
        for name in sorted((await session.primaries())[1].entries):
            found = await read_loss_report(session.registry, name)
            if found is not None:
                rows += [_left(name, found, each) for each in found.left]
        return rows

    rows = run_in_session(file, work)
    show_rows(rows, _REPORT_COLUMNS, form)
    for row in rows:
        if row["problem"]:
            print_message(f"shard {row['shard']}: its owner row could not be read at {row['server']}: {row['problem']}")
    if not rows:
        print_message("No loss was accepted: nothing that was acknowledged is lost by a promotion.")


@region.command(
    "drain",
    epilog="\b\nExamples:\n  foqs region drain r1 --config host.toml --dry-run\n  foqs region drain r1 --config host.toml",
)
@click.argument("name", metavar="REGION")
@config_option
@click.option("--dry-run", is_flag=True, help="Say what would move, and change nothing.")
def drain(name: str, file: Path, dry_run: bool) -> None:
    """Move all primaries out of REGION, one database after the other; their shards follow. Nothing is lost.

    Start it again if it was interrupted. Its hosts are drained with: foqs host drain
    """

    async def work(session: PrimarySession) -> int:
        from shardmgr.primary_moves import drained_to, serves_outside

        reading, primaries = await session.primaries()
        entries = primaries.entries
        found = {database: entry for database, entry in sorted(entries.items()) if not serves_outside(entry, name)}
        for database, entry in found.items():
            if dry_run:
                show_move(reading, entries, database, drained_to(entry, name))
            else:
                await session.move(database, lambda entry, reached: drained_to(entry, name, reached))
        if primaries.malformed:
            raise CommandFailed(
                f"{', '.join(primaries.malformed)} may be in {name}: correct the entry, and start this again"
            )
        return len(found)

    if not run_in_session(file, work):
        print_message(f"No primary is in {name}.")
    elif not dry_run:
        print_message(f"{name} is drained; see foqs region list")


def _left(database: str, found: LossReport, left: LastFlush) -> Row:
    # A takeover keeps the time of the flush before it: none if the shard was taken over, and nothing was ever written.
    written = (
        datetime.fromtimestamp(left.written_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        if left.written_ms
        else ""
    )
    return {
        "database": database,
        "term": found.term,
        "server": found.server,
        "shard": left.shard,
        "epoch": left.epoch,
        "flush": left.flush,
        "written": written,
        "problem": left.problem,
        "lost_flushes_min": None if left.lost is None else left.lost.flushes_min,
        "lost_enqueues_min": None if left.lost is None else left.lost.items_min,
        "lost_enqueues_max": None if left.lost is None else left.lost.items_max,
    }


def _at_least(count: int | None) -> str:
    return "unknown" if count is None else f"at least {count}"


def _range(row: Row) -> str:
    least, most = row["lost_enqueues_min"], row["lost_enqueues_max"]
    if least is None:
        return "unknown"
    if most is None:
        return f"at least {least}"
    return str(least) if least == most else f"{least} to {most}"


def _count(names: Sequence[str] | None) -> str:
    return "unknown" if names is None else str(len(names))


def _if_lost(row: Row) -> str:
    if row["state"] != "serving":
        return "-"
    if row["lacks_if_lost"] is None:
        return "unknown"
    return "not replaced: " + "; ".join(row["lacks_if_lost"]) if row["lacks_if_lost"] else "replaced"


def _row(database: str, entry: Primary, elected: ElectedPromoter | None) -> Row:
    # The standings of the entry do not say it: they stay when an acker dies.
    proven = None if elected is None else elected.proven
    return {
        "database": database,
        "region": entry.servers[entry.server].region,
        "primary": entry.server,
        "term": entry.term,
        "state": entry.state.value,
        "target": entry.target,
        "policy": entry.policy.value,
        "ackers": sorted(entry.ackers),
        "proven": None if proven is None else sorted(set(proven) & entry.ackers.keys()),
        "lacks_if_lost": None if elected is None or elected.lacks_if_lost is None else list(elected.lacks_if_lost),
        "blocked": None if elected is None else elected.blocked,
    }
