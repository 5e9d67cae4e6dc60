"""Hosts and shards as the command line shows them.

Always true: a shard's `owner` is the name of the host that should own it, None if
no host should. Knows nothing of commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foqs.cli.listen_addresses import bracketed
from foqs.cli.output import Column, Row
from foqs.telemetry.findings import duplicate_names_sentence
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs_client import Host, Shard


def host_row(host: Host) -> Row:
    """Return the fields of a host."""
    address = _format_address((host.host, host.port))
    return {
        "name": host.name or address,
        "address": address,
        "tier": host.tier,
        "region": host.region,
        "shards": host.shards,
        "capacity": host.capacity,
        "load": host.load,
        "draining": host.draining,
        "leaving": host.leaving,
        "nonce": host.nonce,
        "version": host.version,
    }


def shard_row(shard: Shard) -> Row:
    """Return the fields of a shard."""
    address = None if shard.owner is None else _format_address(shard.owner)
    return {
        "shard": shard.shard,
        "owner": shard.owner_name or address,
        "owner_address": address,
        "epoch": shard.epoch,
        "state": shard.state,
        "tier": shard.tier,
        "region": shard.region,
        "database": shard.database,
        "weight": shard.weight,
        "draining": shard.draining,
        "pinned_to": shard.pinned_to,
        "queued_items": shard.queued_items,
        "reason": shard.reason,
    }


HOST_COLUMNS: Final[list[Column]] = [
    ("HOST", lambda row: row["name"]),
    ("ADDRESS", lambda row: row["address"]),
    ("TIER", lambda row: row["tier"] or "-"),
    ("REGION", lambda row: row["region"] or "-"),
    ("SHARDS", lambda row: _format_number(row["shards"])),
    ("CAPACITY", lambda row: _format_number(row["capacity"])),
    ("STATE", lambda row: "leaving" if row["leaving"] else "drained" if row["draining"] else ""),
]
SHARD_COLUMNS: Final[list[Column]] = [
    ("SHARD", lambda row: str(row["shard"])),
    ("STATE", lambda row: row["state"] or "-"),
    ("OWNER", lambda row: row["owner"] or "-"),
    ("EPOCH", lambda row: _format_number(row["epoch"])),
    ("DATABASE", lambda row: row["database"] or "-"),
    ("WEIGHT", lambda row: _format_number(row["weight"])),
    ("TIER", lambda row: row["tier"] or "-"),
    ("NOTE", lambda row: _note(row)),
]


def unserved_warning(shards: list[Row]) -> str:
    """Return a sentence about the shards that are not served; empty if all are served."""
    count = sum(row["state"] != "owned" for row in shards)
    return f"{count} of {counted(len(shards), 'shard')} {'is' if count == 1 else 'are'} not served." if count else ""


def duplicate_names_warning(hosts: list[Row]) -> str:
    """Return a sentence about hosts with the same name; empty if there are none."""
    return duplicate_names_sentence(row["name"] for row in hosts)


def _note(row: Row) -> str:
    notes = ["accepts no new items"] if row["draining"] else []
    notes += [f"moved to {row['pinned_to']}"] if row["pinned_to"] else []
    notes += [row["reason"]] if row["reason"] else []
    return "; ".join(notes)


def _format_address(address: tuple[str, int]) -> str:
    return f"{bracketed(address[0])}:{address[1]}"


def _format_number(value: int | None) -> str:
    return "-" if value is None else str(value)
