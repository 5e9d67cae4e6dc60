"""What the overview says is wrong."""

from __future__ import annotations

from typing import Any

from foqs.console.health import find_problems
from foqs.queue.tier_figures import PeerState
from foqs.telemetry.findings import served_shards_finding
from foqs_client import Host, Shard
from foqs_client.types import Routing

HOST = Host("127.0.0.1", 7411, None, "default", 1, False, 0.0, "0.2.0", "a")
SHARD = Shard(0, "default", ("127.0.0.1", 7411), 1, "owned", 0, None, None, "a")


def problems(**changes: Any) -> list[tuple[str, str]]:
    given: dict[str, Any] = {
        "hosts": [HOST],
        "shards": [SHARD],
        "breakers": {0: "closed"},
        "peers": [PeerState("b", True, "")],
        "not_ready_reasons": {},
    }
    return [(each.state, f"{each.check}: {each.detail}") for each in find_problems(**{**given, **changes})]


def test_nothing_is_wrong_with_a_sound_cluster() -> None:
    assert problems() == []


def test_shards_that_are_not_served_are_what_doctor_finds() -> None:
    lost = Shard(1, "default", None, 0, "free", None, None, "no host is running")
    routing = Routing(1, [HOST], [SHARD, lost])
    doctors = served_shards_finding(routing.shards)
    assert problems(shards=routing.shards) == [("bad", f"{doctors.check}: {doctors.detail}")]
    assert "shard 1 (free: no host is running)" in doctors.detail


def test_the_worst_comes_first() -> None:
    found = problems(
        hosts=[HOST, HOST],
        breakers={0: "closed", 1: "open", 2: "half-open"},
        peers=[PeerState("b", True, "connection refused"), PeerState("c", False, "")],
        not_ready_reasons={"shard 3": "recovering", "cluster": "no session"},
    )
    assert [state for state, _ in found] == ["bad", "warning", "warning", "warning", "warning"]
    assert found[0][1] == "Host: this host is not ready: cluster: no session"
    text = "\n".join(sentence for _, sentence in found)
    assert "Several hosts are named a" in text
    assert "shard 1 (open), shard 2 (half-open)" in text
    assert "b was not reached: connection refused" in text
    assert "no shard of c accepts new items" in text
