"""Positions in the servers' own notations: lists of GTIDs of MariaDB, sets of GTIDs of MySQL.

Pure. Always true: a position says no more than the text, and a text that cannot be a
position is a `ServerUnfit`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from shardmgr.primary import ReplicationPosition


class ServerUnfit(Exception):
    """A server cannot take part in a promotion: the text says why, and what to do."""


_GTID: Final = re.compile(r"(\d+-\d+)-(\d+)")
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


def gtid_list(value: str) -> ReplicationPosition:
    """Return the position of MariaDB's `domain-server-number,...`: of several numbers of an origin the highest."""
    last: dict[str, int] = {}
    for part in filter(None, value.split(",")):
        match = _GTID.fullmatch(part.strip())
        if match is None:
            raise ServerUnfit(f"{part!r} is not a GTID of MariaDB")
        last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    return ReplicationPosition(last)


def gtid_set(value: str) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of MySQL's `uuid:1-5:7,uuid:tag:1-3,...` by origin: a uuid, or a uuid with a tag."""
    found: dict[str, list[tuple[int, int]]] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        origin, *pieces = part.split(":")
        for piece in pieces:
            match = _RANGE.fullmatch(piece)
            if match is None:
                origin = f"{part.split(':')[0]}:{piece}"
            else:
                found.setdefault(origin, []).append((int(match[1]), int(match[2] or match[1])))
    return found


def merged(*positions: ReplicationPosition) -> ReplicationPosition:
    """Return the position of a server that has all transactions of these positions."""
    last: dict[str, int] = {}
    for each in positions:
        for origin, number in each.last.items():
            last[origin] = max(last.get(origin, 0), number)
    return ReplicationPosition(last)


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges for a person."""
    return ", ".join(f"{first}-{last}" for first, last in ranges)
