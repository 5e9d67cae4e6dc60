"""The samples of databases with regions: at the elected promoter those of the entry, at each owner the lags of replicas."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from foqs.telemetry.cluster_samples import _database_samples, _position_samples
from foqs.telemetry.metric_table import CLUSTER_METRICS
from shardmgr.primary import LossPolicy, PrimaryState
from shardmgr.promoter import PromoterRound
from shardmgr.promotion import AwaitChange
from tests.unit.cluster.test_position_publisher import ENTRY

NAMES = {metric.name for metric in CLUSTER_METRICS}


def test_promoter_shows_the_entries_of_its_databases_and_a_host_its_counters_of_all() -> None:
    entry = replace(ENTRY, policy=LossPolicy.SEMI_SYNC)
    done = PromoterRound(entry, AwaitChange(), is_reached=True, proven=["b"])
    rounds = {
        "main": done,
        "away": replace(done, is_reached=False, lacks_if_lost=["b is not reached"], blocked="writes wait"),
        "moved": replace(done, entry=replace(entry, state=PrimaryState.DRAINING)),
        "later": replace(done, entry=ENTRY),
    }
    counters = {"weakened": {"main": 2, "not elected": 0}, "unacknowledged": {"main": 4, "not elected": 0}}
    unserved = {"moved", "steered by a command"}
    found = _database_samples(cast(Any, SimpleNamespace(rounds=rounds, unserved=unserved, **counters)))
    assert found["foqs_semisync_weakened"] == [(("main",), 2.0), (("not elected",), 0.0)]
    assert found["foqs_semisync_unacknowledged"] == [(("main",), 4.0), (("not elected",), 0.0)]
    assert found["foqs_database_ackers"] == [((name,), 2.0) for name in rounds]
    assert found["foqs_database_proven_ackers"] == [((name,), 1.0) for name in ("main", "away", "moved")]
    assert found["foqs_database_replaceable"] == [(("main",), 1.0), (("away",), 0.0)]
    assert found["foqs_database_blocked"] == [(("main",), 0.0), (("away",), 1.0), (("moved",), 0.0)]
    assert found["foqs_database_serving"] == [
        (("main",), 1.0),
        (("away",), 0.0),
        (("moved",), 0.0),
        (("later",), 1.0),
        (("steered by a command",), 0.0),
    ]
    assert found.keys() <= NAMES


def test_owner_shows_how_far_replicas_are_behind_and_the_bound() -> None:
    positions = SimpleNamespace(lags_ms=lambda: {("main", "b"): 1_500}, bounds_ms=lambda: {"main": 10_000})
    found = _position_samples(cast(Any, positions))
    assert found == {
        "foqs_replica_lag_seconds": [(("main", "b"), 1.5)],
        "foqs_replica_lag_max_seconds": [(("main",), 10.0)],
    }
    assert found.keys() <= NAMES
