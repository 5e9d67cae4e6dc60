"""Doctor's check of the journals of a running host's shards, by its metrics.

Always true: nothing but the host's HTTP server is asked, so no database is read. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from foqs.cli.listen_addresses import local_address, port_problem
from foqs.options.config import Config
from foqs.telemetry.findings import Finding
from foqs_contract.plurals import counted

LAG_S_WARNING: Final = 60.0
"""The lag from which the alert FoqsJournalLags fires."""
_PREFIX: Final = "foqs_journal_"
_TIMEOUT_S: Final = 5.0
_PAGE_BYTES_MAX: Final = 64 << 20
_SHOWN_MAX: Final = 3
_WHERE: Final = "docs/runbook.md, FoqsJournalLags"


async def check_journals(config: Config) -> Sequence[Finding]:
    """Check the journals of the host that runs here. No finding without such a host, and if none of its shards journals."""
    host, port = config.server.http_host, config.server.http_port
    if port_problem(host, port, "http_port") is None:
        return []
    try:
        lines = await asyncio.to_thread(_journal_lines, f"http://{local_address(host)}:{port}/metrics")
        return journal_findings(_by_shard(lines))
    except (HTTPException, OSError, ValueError):
        return []  # the check of the port says what is wrong


def journal_findings(shards: Mapping[str, Mapping[str, float]]) -> Sequence[Finding]:
    """Return the finding about these journals, if there are any.

    Args:
        shards: the host's metrics of each shard that journals, without `foqs_journal_`.
    """
    if not shards:
        return []
    late = {shard: figures for shard, figures in shards.items() if figures.get("lag_seconds", 0) > LAG_S_WARNING}
    if late:
        described = "; ".join(
            f"shard {shard} has {_contents(figures)}, and rows have been due for {figures['lag_seconds']:,.0f} s"
            for shard, figures in _first(late)
        )
        return [
            Finding(
                "Journal",
                "warning",
                f"rows are not written back in time: {described}{_more(late)}",
                f"make room on the database's disk, or make the database faster; see /readyz, the log and {_WHERE}",
            )
        ]
    refused = {shard: figures for shard, figures in shards.items() if figures.get("refused_items", 0)}
    if refused:
        described = "; ".join(
            f"{counted(int(figures['refused_items']), 'item')} of shard {shard}" for shard, figures in _first(refused)
        )
        return [
            Finding(
                "Journal",
                "warning",
                f"rows are not written back: the database refuses them, or the journal lacks their payloads: {described}"
                f"{_more(refused)}",
                f"the log names the items and the reason: mend the table, or cancel them ({_WHERE})",
            )
        ]
    total: defaultdict[str, float] = defaultdict(float)
    for figures in shards.values():
        for name, value in figures.items():
            total[name] = max(total[name], value) if name == "lag_seconds" else total[name] + value
    due = f"the oldest row is {total['lag_seconds']:,.1f} s late" if total["lag_seconds"] else "no row is late"
    return [Finding("Journal", "ok", f"{counted(len(shards), 'shard')}: {_contents(total)}; {due}")]


def _contents(figures: Mapping[str, float]) -> str:
    """Return what a journal holds, in words."""
    items, rows = (int(figures.get(name, 0)) for name in ("dirty_items", "rows"))
    size = figures.get("bytes", 0) / (1 << 20)
    return f"{counted(items, 'item')} without current rows in {counted(rows, 'flush', 'flushes')} of {size:,.1f} MiB"


def _first(shards: Mapping[str, Mapping[str, float]]) -> Iterable[tuple[str, Mapping[str, float]]]:
    return [*shards.items()][:_SHOWN_MAX]


def _more(shards: Mapping[str, Mapping[str, float]]) -> str:
    return f"; and {len(shards) - _SHOWN_MAX} more" if len(shards) > _SHOWN_MAX else ""


def _journal_lines(url: str) -> str:
    """Return the lines of a page of metrics that are about journals."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:  # noqa: S310 - our own http URL
        page = reply.read(_PAGE_BYTES_MAX).decode()
    return "".join(f"{line}\n" for line in page.splitlines() if line.startswith(_PREFIX))


def _by_shard(lines: str) -> Mapping[str, Mapping[str, float]]:
    shards: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            shard = sample.labels.get("shard")
            if shard is not None:
                shards[shard][sample.name.removeprefix(_PREFIX)] = sample.value
    return shards
