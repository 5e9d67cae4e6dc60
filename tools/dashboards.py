"""Writes the Grafana dashboards configs/grafana/{overview,topics,host}.json from the tables below.

Holds each panel once: its title, one sentence, its expressions and its section of the
runbook. Always true: the same tables give the same bytes; each panel has a sentence
and a link. Knows nothing of a Grafana server.

    python tools/dashboards.py            writes
    python tools/dashboards.py --check    exits 1 when a file is not up to date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "configs" / "grafana"
_COLUMNS: Final = 24
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
RATE: Final = "[$__rate_interval]"


@dataclass(slots=True, frozen=True)
class Panel:
    """One panel.

    Attributes:
        text: one sentence: what it shows.
        runbook: the anchor of a section of docs/runbook.md: what to do if it looks bad.
        queries: pairs of an expression and the name of its lines.
        red_from: from this value on it is bad. None: no value is.
        columns: its width; 24 fill a row.
    """

    title: str
    text: str
    runbook: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    red_from: float | None = None
    kind: str = "timeseries"
    columns: int = 8


@dataclass(slots=True, frozen=True)
class Dashboard:
    """One dashboard.

    Attributes:
        variables: choices at its top: (name, label, the query of its values, whether several may be chosen).
    """

    name: str
    title: str
    text: str
    panels: Sequence[Panel]
    variables: Sequence[tuple[str, str, str, bool]] = ()


def _rate(metric: str, by: str = "", labels: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{labels}{RATE}))"


def _p99(metric: str, by: str = "", labels: str = "") -> str:
    inner = ", ".join(filter(None, [by, "le"]))
    return f"histogram_quantile(0.99, sum by ({inner}) (rate({metric}_bucket{labels}{RATE})))"


def _stat(title: str, text: str, runbook: str, query: str, unit: str = "short", red_from: float = 1) -> Panel:
    return Panel(title, text, runbook, [(query, title)], unit, red_from, "stat", columns=6)


_STATES: Final = ("ready", "deferred", "leased", "dead")
_KINDS: Final = ("enqueued", "delivered", "acked", "nacked", "released", "timed_out", "dead_lettered")

OVERVIEW: Final = Dashboard(
    "overview",
    "FOQS overview",
    "The whole cluster: what waits, what flows, and what needs a person.",
    [
        _stat(
            "Hosts down",
            "Hosts that do not answer Prometheus.",
            "foqshostdown",
            'count(up{job="foqs"} == 0) or vector(0)',
        ),
        _stat(
            "Shards not served",
            "Shards that no host serves; their items cannot be delivered.",
            "foqsshardnotserved",
            "count(count by (shard) (foqs_shard_state)) - "
            '(count(count by (shard) (foqs_shard_state{state="owned"} == 1)) or vector(0))',
        ),
        _stat(
            "Databases away",
            "Served shards whose database does not answer their host.",
            "foqsdatabasedown",
            "count(foqs_database_up == 0) or vector(0)",
        ),
        _stat(
            "Oldest ready item",
            "How long the oldest item that could be delivered has waited.",
            "foqsitemswait",
            "max(foqs_oldest_ready_age_seconds) or vector(0)",
            "s",
            900,
        ),
        Panel(
            "Items by state",
            "All items: ready to be delivered, waiting for their time, at a consumer, or dead.",
            "foqsitemswait",
            [(f"sum(foqs_{state}_items)", state) for state in _STATES],
        ),
        Panel(
            "Flow",
            "Items per second through each step; enqueued above acked means that a backlog grows.",
            "foqsitemswait",
            [(_rate(f"foqs_{kind}_items_total"), kind.replace("_", " ")) for kind in _KINDS],
            "cps",
        ),
        Panel(
            "Time to empty",
            "How long the ready items last if items come and go as now; without a line the backlog does not shrink.",
            "foqsitemswait",
            [
                (
                    "sum(foqs_ready_items) / "
                    f"(({_rate('foqs_acked_items_total')} - {_rate('foqs_enqueued_items_total')}) > 0)",
                    "time to empty",
                )
            ],
            "s",
        ),
        Panel(
            "Latency of calls, p99",
            "The slowest of a hundred calls; a dequeue includes its wait for items.",
            "foqsflushslow",
            [(_p99(f"foqs_{call}_duration_seconds"), call) for call in ("enqueue", "dequeue", "ack", "nack")],
            "s",
        ),
        Panel(
            "Calls that fail",
            "Answered calls by error; RATE_LIMITED is a tenant at its limit, OVERLOADED a host.",
            "foqscallsfail",
            [(_rate("foqs_calls_total", "code", '{code!="OK"}'), "{{code}}")],
            "cps",
        ),
        Panel(
            "Lost time",
            "Items per second whose lease ended without an ack, and items that died.",
            "foqsleasesend",
            [
                (_rate("foqs_due_items_total", "", '{kind="lease"}'), "leases ended"),
                (_rate("foqs_dead_lettered_items_total"), "died"),
            ],
            "cps",
        ),
        Panel(
            "Flushes by shard, p99",
            "How long a write transaction takes; every reply waits for one.",
            "foqsflushslow",
            [(_p99("foqs_flush_duration_seconds", "shard"), "shard {{shard}}")],
            "s",
            1,
        ),
        Panel(
            "Largest namespaces",
            "The items of each tenant in all states.",
            "foqsitemswait",
            [("topk(10, sum by (namespace) (foqs_namespace_items))", "{{namespace}}")],
        ),
        Panel(
            "Items over a limit",
            "Items per second that a limit of their namespace refused.",
            "foqscallsfail",
            [(_rate("foqs_limited_items_total", "limit"), "{{limit}}")],
            "cps",
        ),
        Panel(
            "Shards of the tier by state",
            "The states of all shards as each host sees them; in a cluster at rest all are owned.",
            "foqsshardnobodys",
            [("max by (state) (foqs_cluster_shards)", "{{state}}")],
        ),
        Panel(
            "Planner",
            "One host plans who owns which shard; 1 in failing means that a host cannot follow the plan.",
            "foqsnotplanned",
            [("sum(foqs_planner_elected)", "elected planners"), ("max(foqs_plan_failing)", "failing")],
        ),
        Panel(
            "Primaries of databases",
            "Of databases with a server in each region: 1 while the primary serves, 1 while hosts would replace it if it were lost, "
            "how many replicas prove what they acknowledged, and 1 in blocked while writes wait because no replica acknowledges.",
            "foqsackersnotproven",
            [
                ("max by (database) (foqs_database_serving)", "{{database}} serves"),
                ("max by (database) (foqs_database_replaceable)", "{{database}} could be replaced"),
                ("max by (database) (foqs_database_proven_ackers)", "{{database}} proven ackers"),
                ("max by (database) (foqs_database_blocked)", "{{database}} blocked"),
            ],
        ),
        Panel(
            "Order",
            "The share of deliveries, estimated from a sample, that passed over a better ready item: by priority, or by age alone.",
            "order",
            [
                (
                    f"{_rate('foqs_order_passed_over_deliveries_total', 'by')} "
                    f"/ on () group_left {_rate('foqs_order_deliveries_total')}",
                    "{{by}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Age of gossip",
            "How old each host's view of the others is; with an old view it delivers, but not always the best item.",
            "foqshostdown",
            [("max by (instance) (foqs_gossip_age_seconds)", "{{instance}}")],
            "s",
        ),
    ],
)

_OF_TOPICS: Final = '{namespace=~"$namespace", topic=~"$topic"}'


def _topic_items(state: str) -> str:
    labels = f'{{namespace=~"$namespace", topic=~"$topic", state="{state}"}}'
    return f"sum by (namespace, topic) (foqs_topic_items{labels})"


_TOPIC: Final = "{{namespace}} {{topic}}"
_DELIVERABLE: Final = f"sum by (namespace, topic) (foqs_topic_deliverable_items{_OF_TOPICS})"
_READY_AGE: Final = f"max by (namespace, topic) (foqs_topic_oldest_ready_age_seconds{_OF_TOPICS})"
_ACKED: Final = _rate("foqs_topic_acked_items_total", "namespace, topic", _OF_TOPICS)

TOPICS: Final = Dashboard(
    "topics",
    "FOQS topics",
    "The topics with the most items or acks at each host; all others together are other.",
    [
        Panel("Ready", "Items that a consumer could have now.", "foqsitemswait", [(_topic_items("ready"), _TOPIC)]),
        Panel(
            "Oldest ready item",
            "How long the oldest ready item of each topic has waited.",
            "foqsitemswait",
            [(_READY_AGE, _TOPIC)],
            "s",
            900,
        ),
        Panel("Acked", "Items per second that consumers finished.", "foqsitemswait", [(_ACKED, _TOPIC)], "cps"),
        Panel(
            "Time to empty at this rate",
            "How long consumers need for the ready items if no more come; no line means no acks.",
            "foqsitemswait",
            [(f"{_topic_items('ready')} / ({_ACKED} > 0)", _TOPIC)],
            "s",
        ),
        Panel(
            "Leased",
            "Items at consumers; a flat line at many leases and no acks means consumers that hang.",
            "foqsleasesend",
            [(_topic_items("leased"), _TOPIC)],
        ),
        Panel("Deferred", "Items that wait for their time.", "foqstimerslate", [(_topic_items("deferred"), _TOPIC)]),
        Panel(
            "Dead",
            "Items that were given up; they wait for a redrive or the end of their retention.",
            "foqsitemsdie",
            [(_topic_items("dead"), _TOPIC)],
            red_from=1,
        ),
        Panel(
            "Passed over, p99",
            "Better ready items in the cluster over which a delivery passed: 99 of 100 samples are below, by host.",
            "order",
            [
                (
                    'max by (namespace, topic) (foqs_topic_displacement_items{namespace=~"$namespace", topic=~"$topic", '
                    'quantile="0.99"})',
                    _TOPIC,
                )
            ],
        ),
        Panel(
            "Wait of the passed over, p99",
            "For how long the best item that was passed over had been ready.",
            "order",
            [
                (
                    'max by (namespace, topic) (foqs_topic_passed_over_age_seconds{namespace=~"$namespace", '
                    'topic=~"$topic", quantile="0.99"})',
                    _TOPIC,
                )
            ],
            "s",
        ),
        Panel(
            "Ready and deliverable",
            "Of topics whose groups have a limit: all ready items, and those that no group holds back, as far as hosts know.",
            "foqsitemswait",
            [
                (f"{_topic_items('ready')} and {_DELIVERABLE}", f"{_TOPIC} ready"),
                (_DELIVERABLE, f"{_TOPIC} deliverable"),
            ],
            columns=12,
        ),
        Panel(
            "Groups in memory",
            "The groups of topics whose policy has rules for them, of those that wait or are at consumers.",
            "foqsitemswait",
            [(f"sum by (namespace, topic) (foqs_topic_groups{_OF_TOPICS})", _TOPIC)],
            columns=12,
        ),
        Panel(
            "All topics now",
            "The ready items of each topic at this moment.",
            "foqsitemswait",
            [(_topic_items("ready"), "")],
            kind="table",
            columns=16,
        ),
    ],
    [
        ("namespace", "Namespace", "label_values(foqs_topic_items, namespace)", True),
        ("topic", "Topic", 'label_values(foqs_topic_items{namespace=~"$namespace"}, topic)', True),
    ],
)

_HERE: Final = '{instance=~"$instance"}'


def _here(metric: str, function: str = "sum", by: str = "instance") -> str:
    return f"{function} by ({by}) ({metric}{_HERE})"


HOST: Final = Dashboard(
    "host",
    "FOQS host",
    "One host: its load, its memory, its shards and their databases.",
    [
        Panel(
            "CPU",
            "Cores that the process uses; calls and flushes share one core, so a host is full near 1.",
            "foqsoverloaded",
            [(f"rate(process_cpu_seconds_total{_HERE}{RATE})", "{{instance}}")],
            "short",
            0.95,
        ),
        Panel(
            "Memory",
            "Resident memory of the process; its parts have limits in the configuration.",
            "foqsmemoryfull",
            [(f"process_resident_memory_bytes{_HERE}", "{{instance}}")],
            "bytes",
        ),
        Panel(
            "Connections",
            "Open client connections and their limit.",
            "foqsconnectionsfull",
            [
                (_here("foqs_connections"), "{{instance}}"),
                (_here("foqs_connections_limit"), "limit of {{instance}}"),
                (_rate("foqs_connections_refused_total", "instance", _HERE), "refused per second"),
            ],
        ),
        Panel(
            "Memory of calls",
            "Bytes of the calls in flight and of frames that are being read, and their limit.",
            "foqsmemoryfull",
            [
                (_here("foqs_calls_in_flight_bytes"), "{{instance}}"),
                (_here("foqs_calls_in_flight_limit_bytes"), "limit of {{instance}}"),
            ],
            "bytes",
        ),
        Panel(
            "Calls",
            "Answered calls per second by method.",
            "foqsoverloaded",
            [(_rate("foqs_calls_total", "method", _HERE), "{{method}}")],
            "cps",
        ),
        Panel(
            "Waiting dequeues",
            "Dequeues that wait for items; they cost nothing but their connections.",
            "foqsconnectionsfull",
            [(_here("foqs_waiting_dequeues"), "{{instance}}"), (_here("foqs_calls_in_flight"), "calls in flight")],
        ),
        Panel(
            "Flushes, p99",
            "How long the write transactions of each shard take.",
            "foqsflushslow",
            [(_p99("foqs_flush_duration_seconds", "shard", _HERE), "shard {{shard}}")],
            "s",
            1,
        ),
        Panel(
            "Operations of a flush",
            "How many operations a flush carries on average, and how many it may.",
            "foqsflushslow",
            [
                (
                    f"{_rate('foqs_flush_items_sum', 'shard', _HERE)} / {_rate('foqs_flush_items_count', 'shard', _HERE)}",
                    "shard {{shard}}",
                ),
                (_here("foqs_flush_items_limit", "max", "shard"), "limit of shard {{shard}}"),
            ],
        ),
        Panel(
            "Operations that wait",
            "Operations that wait for a flush, by kind.",
            "foqsflushslow",
            [
                (_here("foqs_writer_queue_items", by="kind"), "{{kind}}"),
                (_here("foqs_writer_blocked_items"), "blocked"),
            ],
        ),
        Panel(
            "Trouble with databases",
            "Lost connections, repeated flushes, unknown outcomes, and writes that the database refused.",
            "foqsdatabaseunstable",
            [
                (_rate("foqs_database_reconnects_total", "", _HERE), "reconnects"),
                (_rate("foqs_flush_retries_total", "", _HERE), "repeated flushes"),
                (_rate("foqs_unknown_commit_outcomes_total", "", _HERE), "unknown outcomes"),
                (_rate("foqs_read_failures_total", "", _HERE), "failed reads"),
                (_rate("foqs_refused_writes_total", "", _HERE), "refused writes"),
            ],
            "cps",
        ),
        Panel(
            "Circuit breakers",
            "Shards of each breaker state; an open one refuses new items.",
            "foqsflushslow",
            [(_here("foqs_shard_breaker_state", by="state"), "{{state}}")],
        ),
        Panel(
            "Ready index",
            "Items in memory from which dequeues take; refills read more from the table.",
            "foqsitemswait",
            [
                (_here("foqs_ready_index_items"), "items"),
                (_rate("foqs_ready_index_refills_total", "", _HERE), "refills per second"),
                (_rate("foqs_ready_index_evicted_items_total", "", _HERE), "evicted per second"),
            ],
        ),
        Panel(
            "Groups",
            "Memory of the groups of topics with a limit or turns, its limit, topics that wait for room, and pages read for them.",
            "foqsitemswait",
            [
                (_here("foqs_group_units", "max", "shard"), "units, shard {{shard}}"),
                (_here("foqs_group_limit_units", "max"), "limit"),
                (_here("foqs_full_group_topics"), "topics without room"),
                (_rate("foqs_group_pages_total", "", _HERE), "pages per second"),
            ],
        ),
        Panel(
            "Row cache",
            "Memory of the rows that need not be read again, and its limit, by pool.",
            "foqsmemoryfull",
            [
                (_here("foqs_row_cache_bytes", by="pool"), "{{pool}}"),
                (_here("foqs_row_cache_limit_bytes", by="pool"), "limit of {{pool}}"),
            ],
            "bytes",
        ),
        Panel(
            "Timers",
            "How late the scans for due items are, and the age of the moment up to which all due items are processed.",
            "foqstimerslate",
            [
                (_here("foqs_timer_overdue_seconds", "max", "shard"), "overdue, shard {{shard}}"),
                (_here("foqs_timer_watermark_age_seconds", "max", "shard"), "watermark, shard {{shard}}"),
            ],
            "s",
            10,
        ),
        Panel(
            "Remembered lease ends",
            "Memory of the lease ends in ranges, its limit, and lease walks per second.",
            "foqsleasesforgotten",
            [
                (_here("foqs_lease_ranges", "max", "shard"), "shard {{shard}}"),
                (_here("foqs_lease_ranges_limit", "max"), "limit"),
                (_rate("foqs_lease_walks_total", "", _HERE), "lease walks per second"),
            ],
        ),
        Panel(
            "Journal",
            "Items whose rows are not written yet, rows of the journal, and rows written back per second.",
            "foqsjournallags",
            [
                (_here("foqs_journal_dirty_items", "max", "shard"), "items, shard {{shard}}"),
                (_here("foqs_journal_rows", "max", "shard"), "rows, shard {{shard}}"),
                (_rate("foqs_journal_written_back_rows_total", "", _HERE), "rows written back per second"),
            ],
        ),
        Panel(
            "Idempotency keys",
            "Enqueues that repeated an earlier one, and keys that were used for different items.",
            "foqskeysconflict",
            [
                (_rate("foqs_repeated_enqueues_total", "", _HERE), "repeats"),
                (_rate("foqs_key_conflicts_total", "", _HERE), "conflicts"),
            ],
            "cps",
        ),
        Panel(
            "Session with ZooKeeper",
            "The time for which the host may serve without another reply of ZooKeeper, and new sessions.",
            "foqshostcutoff",
            [
                (_here("foqs_cluster_serving_left_seconds", "min"), "{{instance}}"),
                (_rate("foqs_cluster_sessions_total", "", _HERE), "new sessions per second"),
            ],
            "s",
        ),
    ],
    [("instance", "Host", 'label_values(up{job="foqs"}, instance)', True)],
)

DASHBOARDS: Final = (OVERVIEW, TOPICS, HOST)


# ------------------------------------------------------------------- to JSON


def render(dashboard: Dashboard) -> str:
    """Return the JSON of a dashboard."""
    panels: list[dict[str, Any]] = []
    x = y = row_height = 0
    for number, panel in enumerate(dashboard.panels, 1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.columns > _COLUMNS:
            x, y = 0, y + row_height
            row_height = 0
        panels.append(_panel(panel, number, {"h": height, "w": panel.columns, "x": x, "y": y}))
        x, row_height = x + panel.columns, max(row_height, height)
    whole = {
        "uid": f"foqs-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["foqs"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [{"title": "FOQS", "type": "dashboards", "tags": ["foqs"], "asDropdown": False, "keepTime": True}],
        "templating": {"list": [*_FIXED_VARIABLES, *(_variable(*each) for each in dashboard.variables)]},
        "panels": panels,
    }
    return json.dumps(whole, indent=1) + "\n"


_FIXED_VARIABLES: Final[Sequence[Mapping[str, Any]]] = (
    {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
    {
        "name": "runbook",
        "label": "Address of the runbook",
        "type": "textbox",
        "query": "docs/runbook.md",
        "current": {"text": "docs/runbook.md", "value": "docs/runbook.md"},
    },
)


def _variable(name: str, label: str, query: str, is_multiple: bool) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": is_multiple,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    found: dict[str, Any] = {
        "id": number,
        "title": panel.title,
        "type": panel.kind,
        "description": panel.text,
        "links": [{"title": "Runbook", "url": f"${{runbook}}#{panel.runbook}", "targetBlank": True}],
        "gridPos": place,
        "datasource": _DATASOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _DATASOURCE,
                "expr": query,
                "legendFormat": legend,
                **({"instant": True, "format": "table"} if panel.kind == "table" else {}),
            }
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }
    if panel.kind == "stat":
        found["options"] = {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "timeseries" and panel.red_from is not None:
        found["fieldConfig"]["defaults"]["custom"] = {"thresholdsStyle": {"mode": "dashed"}}
    return found


def main(arguments: Sequence[str]) -> int:
    for dashboard in DASHBOARDS:
        path, text = FOLDER / f"{dashboard.name}.json", render(dashboard)
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is out of date; run python tools/dashboards.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
