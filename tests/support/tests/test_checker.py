"""The checker: it finds one violation of each invariant, and none in near misses and correct runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.checker import check, summary
from tests.support.clock_bounds import ClockBounds
from tests.support.hand_written_history import BOUNDS, HandWrittenHistory, item
from tests.support.history import UNKNOWN, Event, History, mark, read, read_files
from tests.support.item_histories import sort_by_item
from tests.support.server_model import FLAWS, ServerModel, run_model

ROW = {"id": "0-1"}

BROKEN_HISTORIES: dict[str, tuple[int, HandWrittenHistory]] = {
    "cancelled by another namespace": (17, item().op("cancel", 20, 30, namespace="m").present(40)),
    "delivered to another namespace": (17, item().dequeue(20, 30, 1, namespace="m")),
    "gone after another namespace failed to cancel it": (
        1,
        item().op("cancel", 20, 30, namespace="m", error="NOT_FOUND").present(40),
    ),
    # 1
    "acknowledged and gone": (1, item().present(100)),
    "delivered, not acked, and gone": (1, item().dequeue(20, 30, 1).present(5000)),
    "gone long before its ttl": (1, item(ttl_ms=1000).present(900)),
    "gone though its ack was for another item": (1, item().op("ack", 40, 50, 1, id="0-2").present(5000)),
    "at most once, gone while leased": (1, item(at_most_once=True).dequeue(20, 30, 1).present(900)),
    "dead and gone before retention": (
        1,
        item(attempts_max=1).dequeue(20, 30, 1).op("nack", 40, 50, 1).present(9_000),
    ),
    "gone without being among the known drops": (1, item(ttl_ms=10).drops_known().present(5000)),
    "dropped as expired too early": (1, item(ttl_ms=1000).dropped(900, "expired").present(5000)),
    "dropped as expired without a ttl": (1, item().dropped(900, "expired").present(5000)),
    "dropped at most once, being at least once": (1, item().dropped(900, "at most once").present(5000)),
    "dropped by retention too early": (
        1,
        item(attempts_max=1).dequeue(20, 30, 1).op("nack", 40, 50, 1).dropped(9000, "retention").present(20_000),
    ),
    "dropped and still there": (1, item(ttl_ms=10).dropped(900, "expired").present(5000, ROW)),
    # 2
    "delivered and never enqueued": (2, HandWrittenHistory().dequeue(20, 30, 1)),
    "present and never enqueued": (2, HandWrittenHistory().present(30, ROW)),
    "other bytes": (2, item().dequeue(20, 30, 1, mark="b")),
    "other topic": (2, item().dequeue(20, 30, 1, topic="u")),
    "other priority": (2, item().dequeue(20, 30, 1, priority=1)),
    "other metadata": (2, item(metadata="m").dequeue(20, 30, 1, metadata="x")),
    "metadata of a nack that failed": (
        2,
        item(metadata="m")
        .dequeue(20, 30, 1, metadata="m")
        .op("nack", 40, 50, 1, error="STALE_LEASE", metadata="x")
        .dequeue(1060, 1070, 2, metadata="x"),
    ),
    "row with other topic": (2, item().present(30, ROW | {"topic": "u"})),
    "delivered before it was enqueued": (2, HandWrittenHistory().dequeue(0, 5, 1).enqueue(10, 20)),
    "one id for two payloads": (2, item().enqueue(20, 30, payload="b")),
    "one id for two enqueues": (2, item().enqueue(20, 30)),
    "one enqueue, two items": (2, item().present(30, ROW, {"id": "0-2"})),
    "one unknown enqueue, two items": (2, HandWrittenHistory().enqueue(0, None).present(30, ROW, {"id": "0-2"})),
    "more than was asked for": (
        2,
        item()
        .enqueue(20, 30, id="0-2", payload="b")
        .call(
            40,
            50,
            "dequeue",
            [],
            [
                {"id": f"0-{n}", "token": 1, "mark": m, "topic": "t", "priority": 0, "attempt": 1}
                for n, m in ((1, "a"), (2, "b"))
            ],
            topics={"t": 1},
        ),
    ),
    # 3
    "two ids for a key": (3, item(key="k").enqueue(20, 30, id="0-2", key="k")),
    "two ids for a key, one of an unknown enqueue": (
        3,
        HandWrittenHistory()
        .enqueue(0, None, key="k")
        .enqueue(20, 30, id="0-2", payload="b", key="k")
        .present(40, ROW, {"id": "0-2", "mark": "b"}),
    ),
    "an id from before a deletion of its namespace": (
        3,
        item(key="k").call(13, 15, "delete", [], [{}]).enqueue(20, 30, key="k", repeated=True),
    ),
    "two payloads for a key": (3, item(key="k").enqueue(20, 30, payload="b", key="k", repeated=True)),
    # 4
    "delivered after its ack": (4, item().dequeue(20, 30, 1).op("ack", 40, 50, 1).dequeue(2000, 2010, 2)),
    "delivered after its cancel": (4, item().op("cancel", 40, 50).dequeue(51, 60, 1)),
    "delivered after its cancel, by a poll that began later": (
        4,
        item().op("cancel", 40, 50).dequeue(60, 65, 1, asked_at=51.0),
    ),
    "delivered after an ack that found it gone": (4, item().op("ack", 40, 50, 1, gone=True).dequeue(51, 60, 2)),
    "leased again while its ack was under way": (
        4,
        item(lease_ms=10).dequeue(20, 30, 1).op("ack", 40, 60, 1).dequeue(45, 55, 2),
    ),
    "in the tables after its ack": (4, item().dequeue(20, 30, 1).op("ack", 40, 50, 1).present(60, ROW)),
    # 5
    "received again during its lease": (5, item().dequeue(20, 30, 1).dequeue(500, 510, 2)),
    "received again in the last moment of its lease": (5, item().dequeue(20, 30, 1).dequeue(500, 1018, 2)),
    "received again during a lease of the call": (5, item().dequeue(20, 30, 1, lease=2000).dequeue(1500, 1510, 2)),
    "received again during an extended lease": (
        5,
        item().dequeue(20, 30, 1).op("extend", 900, 910, 1, lease_ms=1000).dequeue(1500, 1510, 2),
    ),
    "received again although the nack failed": (
        5,
        item().dequeue(20, 30, 1).op("nack", 40, 50, 1, error="UNAVAILABLE", delay_ms=0).dequeue(60, 70, 2),
    ),
    "received again before the nack was sent": (
        5,
        item().dequeue(20, 30, 1).dequeue(40, 50, 2).op("nack", 60, 70, 1, error="STALE_LEASE"),
    ),
    "one lease to two consumers": (5, item().dequeue(20, 30, 1).dequeue(25, 2000, 1)),
    "the third received during the first's lease": (
        5,
        item().dequeue(20, 30, 1).dequeue(500, 2000, 2).dequeue(505, 510, 3),
    ),
    # 6
    "nack with a superseded token": (
        6,
        item().dequeue(20, 30, 1).dequeue(1100, 1110, 2).op("nack", 1120, 1130, 1),
    ),
    "ack with a superseded token": (6, item().dequeue(20, 30, 1).dequeue(1100, 1110, 2).op("ack", 1120, 1130, 1)),
    "extend after nack": (6, item().dequeue(20, 30, 1).op("nack", 40, 50, 1).op("extend", 60, 70, 1)),
    "extend after release": (6, item().dequeue(20, 30, 1).op("release", 40, 50, 1).op("extend", 60, 70, 1)),
    "nack after nack": (6, item().dequeue(20, 30, 1).op("nack", 40, 50, 1).op("nack", 60, 70, 1)),
    "release after a nack and an extension before it": (
        6,
        item().dequeue(20, 30, 1).op("extend", 31, 35, 1).op("nack", 40, 50, 1).op("release", 60, 70, 1),
    ),
    "release after ack": (6, item().dequeue(20, 30, 1).op("ack", 40, 50, 1).op("release", 60, 70, 1)),
    "extend after cancel": (6, item().dequeue(20, 30, 1).op("cancel", 40, 50).op("extend", 60, 70, 1)),
    "nacked and released at once": (
        6,
        item().dequeue(20, 30, 1).op("nack", 40, 60, 1).op("release", 45, 65, 1),
    ),
    "received again during the lease that a poll had brought": (
        5,
        item().dequeue(600, 610, 1, asked_at=500.0).dequeue(1400, 1410, 2),
    ),
    "received again too soon after its enqueue, the lease brought by a poll that began before": (
        5,
        HandWrittenHistory().enqueue(800, 810).dequeue(820, 830, 1, asked_at=0.0).dequeue(1700, 1710, 2),
    ),
    "tokens that fall, brought by a poll": (
        6,
        item(lease_ms=10).dequeue(60, 65, 1, asked_at=56.0).dequeue(45, 55, 2),
    ),
    "tokens that fall": (6, item().dequeue(20, 30, 2, attempt=1).dequeue(1100, 1110, 1, attempt=2)),
    # 7
    "at most once, delivered twice": (7, item(at_most_once=True).dequeue(20, 30, 1).dequeue(1100, 1110, 2)),
    "at most once, delivered again after a nack": (
        7,
        item(at_most_once=True).dequeue(20, 30, 1).op("nack", 40, 50, 1, delay_ms=0).dequeue(60, 70, 2),
    ),
    # 8
    "more deliveries than attempts": (
        8,
        item(attempts_max=1).dequeue(20, 30, 1).dequeue(1100, 1110, 2, attempt=1),
    ),
    "an attempt beyond the last": (8, item(attempts_max=2).dequeue(20, 30, 1, attempt=3)),
    "an attempt that was not counted": (8, item().dequeue(20, 30, 1).dequeue(1100, 1110, 2, attempt=1)),
    "attempts that fall": (
        8,
        item().dequeue(20, 30, 1, attempt=2).op("release", 40, 50, 1).dequeue(1100, 1110, 2, attempt=1),
    ),
    "dead without a reason": (
        8,
        item(attempts_max=3).dequeue(20, 30, 1).present(60, ROW | {"state": "dead", "attempt": 1}),
    ),
    # 9
    "delivered before its delay": (9, item(delay_ms=1000).dequeue(500, 998, 1)),
    "delivered before its moment": (9, item(deliver_after_in_ms=1000).dequeue(500, 998, 1)),
    "delivered before its nack's delay": (
        9,
        item().dequeue(20, 30, 1).op("nack", 40, 50, 1, delay_ms=1000).dequeue(500, 1030, 2),
    ),
    "delivered after its ttl": (9, item(ttl_ms=1000).dequeue(1012, 1020, 1)),
    # 11
    "ready, wanted and not delivered": (
        11,
        item().healed(1000).dequeue(1100, 1700).present(2000, ROW),
    ),
    "ready, and not delivered to one who asks again and again": (
        11,
        item().healed(1000).dequeue(1100, 1400).dequeue(1410, 1650).present(2000, ROW),
    ),
    "ready again after its lease, wanted and not delivered": (
        11,
        item().dequeue(20, 30, 1).healed(1000).dequeue(1100, 1700).present(2000, ROW),
    ),
    "overdue": (
        11,
        item()
        .dequeue(20, 30, 1)
        .healed(1000)
        .present(2000, ROW | {"state": "leased", "due_in_ms": -501, "attempt": 1}),
    ),
    # 16
    "enqueue failed and was delivered": (16, item(error="OVERLOADED").dequeue(20, 30, 1)),
    "enqueue failed and is present": (16, item(error="OVERLOADED").present(30, ROW)),
    "two of three enqueues failed and two items are there": (
        16,
        item().enqueue(20, 30, error="RATE_LIMITED").present(60, ROW, {"id": "0-2"}),
    ),
    "ack failed and the item is gone": (
        16,
        item().dequeue(20, 30, 1).op("ack", 40, 50, 1, error="STALE_LEASE").present(5000),
    ),
    "cancel failed and the item is gone": (16, item().op("cancel", 40, 50, error="UNAVAILABLE").present(5000)),
    # 19
    "purged and delivered": (19, item().purge(20, 30).dequeue(40, 50, 1)),
    "purged and present": (19, item().purge(20, 30).present(40, ROW)),
    "purged while leased and delivered again": (19, item().dequeue(11, 19, 1).purge(20, 30).dequeue(5000, 5010, 2)),
    "gone after the purge of another topic": (1, item().purge(20, 30, "u").present(40)),
    "gone after the purge of another namespace's topic": (1, item().purge(20, 30, namespace="m").present(40)),
    "gone after a purge that failed": (1, item().purge(20, 30, failed="UNAVAILABLE").present(40)),
    "gone after a purge that was over before it came": (
        1,
        HandWrittenHistory().purge(0, 5).enqueue(10, 20).present(40),
    ),
}

VALID_HISTORIES: dict[str, HandWrittenHistory] = {
    "cancelled while a poll brought it that a later call took over": item()
    .op("cancel", 40, 50)
    .dequeue(51, 60, 1, asked_at=45.0),
    "received again after the lease that a poll had brought": item()
    .dequeue(600, 610, 1, asked_at=300.0)
    .dequeue(1390, 1400, 2),
    "leased again before a call took over the poll that had brought it": item(lease_ms=10)
    .dequeue(60, 65, 1, asked_at=20.0)
    .dequeue(45, 55, 2),
    "another namespace gets that it is gone": (
        item().op("cancel", 20, 30).op("cancel", 40, 50, gone=True, namespace="m").present(60)
    ),
    # 1
    "present": item().present(100, ROW),
    "acked": item().dequeue(20, 30, 1).op("ack", 40, 50, 1).present(100),
    "ack unknown, gone": item().dequeue(20, 30, 1).op("ack", 40, None, 1).present(100),
    "ack unknown, there": item().dequeue(20, 30, 1).op("ack", 40, 50, 1, error=UNKNOWN).present(100, ROW),
    "cancelled": item().op("cancel", 40, 50).present(100),
    "enqueue unknown, nothing there": HandWrittenHistory().enqueue(0, None).present(100),
    "enqueue unknown, item there": HandWrittenHistory().enqueue(0, 10, error=UNKNOWN).present(100, ROW),
    "enqueue failed, nothing there": item(error="OVERLOADED").present(100),
    "expired at the end": item(ttl_ms=1000).present(1000),
    "expired, and known so": item(ttl_ms=1000).drops_known().dropped(1005, "expired").present(2000),
    "aged out": item(attempts_max=1).dequeue(20, 30, 1).op("nack", 40, 50, 1).present(10_040),
    "given up and aged out": item().dequeue(20, 30, 1).op("nack", 40, 50, 1, dead=True).present(10_040),
    "at most once, lease over": item(at_most_once=True).dequeue(20, 30, 1).present(1020),
    "at most once, nacked": item(at_most_once=True).dequeue(20, 30, 1).op("nack", 40, 50, 1).present(60),
    "at most once, delivered unseen": item(at_most_once=True).dequeue(20, None).present(60),
    "no tables to look into": item().dequeue(20, 30, 1),
    # 2
    "delivered while its enqueue is under way": HandWrittenHistory().enqueue(0, 100).dequeue(20, 30, 1),
    "delivered while its enqueue is under way, at the same moment": HandWrittenHistory()
    .dequeue(0, 10, 1)
    .enqueue(5, 20),
    "unknown and retried: two items": HandWrittenHistory()
    .enqueue(0, None)
    .enqueue(20, 30)
    .present(40, ROW, {"id": "0-2"}),
    "metadata of a nack": item(metadata="m")
    .dequeue(20, 30, 1, metadata="m")
    .op("nack", 40, 50, 1, delay_ms=0, metadata="x")
    .dequeue(60, 70, 2, metadata="x"),
    # 3
    "key repeated": item(key="k").enqueue(20, 30, key="k", repeated=True).present(40, ROW),
    "key unknown, then repeated": HandWrittenHistory()
    .enqueue(0, None, key="k")
    .enqueue(20, 30, key="k")
    .present(40, ROW),
    "key in conflict": item(key="k").enqueue(20, 30, payload="b", key="k", error="KEY_CONFLICT").present(40, ROW),
    "key used again after its window": item(key="k")
    .enqueue(4990, 5010, id="0-2", payload="b", key="k")
    .present(6000, ROW, {"id": "0-2", "mark": "b"}),
    "key used again after a deletion of its namespace": item(key="k")
    .op("cancel", 12, 14)
    .call(15, 17, "delete", [], [{}])
    .call(17, 18, "create", [], [{}])
    .enqueue(20, 30, id="0-2", payload="b", key="k")
    .present(6000, {"id": "0-2", "mark": "b"}),
    "key repeated while a deletion of its namespace is under way": item(key="k")
    .op("cancel", 12, 18)
    .call(13, 25, "delete", [], [{}])
    .enqueue(20, 30, key="k", repeated=True)
    .present(40),
    "key repeated late, then used again": item(key="k")
    .enqueue(4900, 4910, key="k", repeated=True)
    .enqueue(5005, 5015, id="0-2", payload="b", key="k")
    .present(6000, ROW, {"id": "0-2", "mark": "b"}),
    # 4
    "delivered while an ack of its first lease is under way, and both acked": item(lease_ms=10)
    .dequeue(20, 30, 1)
    .op("ack", 40, 90, 1, gone=True)
    .dequeue(45, 55, 2)
    .op("ack", 60, 70, 2),
    "ack refused, delivered again": item(lease_ms=10)
    .dequeue(20, 30, 1)
    .dequeue(35, 45, 2)
    .op("ack", 50, 60, 1, error="STALE_LEASE")
    .op("ack", 70, 80, 2),
    "reply of a dequeue overtaken by a cancel": item().dequeue(20, 90, 1).op("cancel", 40, 50),
    "acked twice": item().dequeue(20, 30, 1).op("ack", 40, 50, 1).op("ack", 60, 70, 1, gone=True).present(80),
    # 5
    "received again just after its lease": item().dequeue(20, 30, 1).dequeue(500, 1019, 2),
    "received again after a nack": item().dequeue(20, 30, 1).op("nack", 40, 50, 1, delay_ms=0).dequeue(60, 70, 2),
    "received again after an unknown nack": item().dequeue(20, 30, 1).op("nack", 40, None, 1).dequeue(60, 70, 2),
    "received again while the release is under way": item()
    .dequeue(20, 30, 1)
    .op("release", 40, 90, 1)
    .dequeue(50, 60, 2, attempt=1),
    "lease shortened by an extension": item()
    .dequeue(20, 30, 1)
    .op("extend", 40, 50, 1, lease_ms=100)
    .dequeue(100, 140, 2),
    "lease perhaps shortened": item()
    .dequeue(20, 30, 1)
    .op("extend", 40, None, 1, lease_ms=100)
    .op("extend", 60, 70, 1, lease_ms=1000)
    .dequeue(100, 140, 2),
    "extension refused": item()
    .dequeue(20, 30, 1)
    .op("extend", 1010, 1015, 1, error="STALE_LEASE", lease_ms=5000)
    .dequeue(1016, 1020, 2),
    "short lease of the call": item().dequeue(20, 30, 1, lease=50).dequeue(40, 70, 2),
    # 6
    "nack under way while it is delivered again": item()
    .dequeue(20, 30, 1)
    .op("nack", 1000, 1200, 1, delay_ms=0)
    .dequeue(1100, 1110, 2),
    "ack after nack": item().dequeue(20, 30, 1).op("nack", 40, 50, 1).op("ack", 60, 70, 1).present(80),
    "nacked, the second refused": item()
    .dequeue(20, 30, 1)
    .op("nack", 40, 50, 1)
    .op("nack", 60, 70, 1, error="STALE_LEASE"),
    "tokens that fall in replies that overlap": item(lease_ms=5).dequeue(20, 80, 1).dequeue(30, 60, 2),
    # 7
    "at most once, released and delivered again": item(at_most_once=True)
    .dequeue(20, 30, 1)
    .op("release", 40, 50, 1)
    .dequeue(60, 70, 2, attempt=1),
    "at most once, given up and redriven": item(at_most_once=True)
    .dequeue(20, 30, 1)
    .op("nack", 40, 50, 1, dead=True)
    .op("redrive", 60, 70)
    .dequeue(80, 90, 2, attempt=1),
    # 8
    "as many deliveries as attempts": item(attempts_max=2).dequeue(20, 30, 1).dequeue(1100, 1110, 2),
    "attempts lost in unknown dequeues": item().dequeue(20, None).dequeue(1100, 1110, 2, attempt=2),
    "dead for good reason": item(attempts_max=1)
    .dequeue(20, 30, 1)
    .present(1100, ROW | {"state": "dead", "attempt": 1}),
    "dead on demand": item()
    .dequeue(20, 30, 1)
    .op("nack", 40, None, 1, dead=True)
    .present(60, ROW | {"state": "dead", "attempt": 1}),
    # 9
    "delivered when due": item(delay_ms=1000).dequeue(500, 999, 1),
    "delivered when its nack is due": item()
    .dequeue(20, 30, 1)
    .op("nack", 40, 50, 1, delay_ms=1000)
    .dequeue(500, 1039, 2),
    "asked for before its ttl was over": item(ttl_ms=1000).dequeue(1011, 1500, 1),
    # 11
    "consumer did not wait long": item().healed(1000).dequeue(1100, 1500).present(2000, ROW),
    "consumer asked often and waited little": item()
    .healed(1000)
    .dequeue(1100, 1300)
    .dequeue(1400, 1600)
    .present(2000, ROW),
    "ready only lately": item(delay_ms=1500).healed(1000).dequeue(1100, 1700).present(2000, ROW),
    "leased until lately": item().dequeue(900, 930, 1).healed(1000).dequeue(1100, 1700).present(2100, ROW),
    "perhaps leased by a call whose connection broke": item()
    .dequeue(900, None)
    .healed(1000)
    .dequeue(1100, 1700)
    .present(2100, ROW),
    "nobody wanted it": item().healed(1000).present(20_000, ROW),
    "not healed yet": item().dequeue(1100, 1700).present(2000, ROW),
    "a little overdue": item()
    .dequeue(20, 30, 1)
    .healed(1000)
    .present(2000, ROW | {"state": "leased", "due_in_ms": -500, "attempt": 1}),
    "overdue while broken": item().healed(1000).present(1400, ROW | {"state": "deferred", "due_in_ms": -900}),
    "the consumer was served something else": item()
    .enqueue(0, 10, id="0-2", payload="b")
    .healed(1000)
    .dequeue(1100, 1700, 1, id="0-2", mark="b")
    .present(2000, ROW, {"id": "0-2", "mark": "b", "state": "leased"}),
    # 19
    "purged": item().purge(20, 30).present(40),
    "purged while its consumer has it": item()
    .dequeue(20, 30, 1)
    .purge(40, 50)
    .op("ack", 60, 70, 1, gone=True)
    .present(80),
    "asked for while it was purged": item().purge(20, 40).dequeue(30, 60, 1).present(5000),
    "enqueued while its topic was purged, and kept": HandWrittenHistory().purge(0, 30).enqueue(10, 20).present(40, ROW),
    "enqueued while its topic was purged, and gone": HandWrittenHistory().purge(0, 30).enqueue(10, 20).present(40),
    "perhaps purged, and there": item().purge(20, None).dequeue(40, 50, 1).present(60, ROW | {"state": "leased"}),
    "perhaps purged, and gone": item().purge(20, None).dequeue(40, 50, 1).present(5000),
    # 16
    "failed once, then enqueued": item(error="RATE_LIMITED").enqueue(20, 30).present(60, ROW),
    "ack failed, item there": item().dequeue(20, 30, 1).op("ack", 40, 50, 1, error="STALE_LEASE").present(5000, ROW),
}


@pytest.mark.parametrize("name", BROKEN_HISTORIES)
def test_a_broken_invariant_is_found(name: str) -> None:
    invariant, history = BROKEN_HISTORIES[name]
    assert invariant in history.broken()


@pytest.mark.parametrize("name", VALID_HISTORIES)
def test_a_near_miss_passes(name: str) -> None:
    violations = check(VALID_HISTORIES[name].events(), BOUNDS)
    assert not violations, "\n".join(map(str, violations))


def test_every_invariant_is_broken_by_some_history() -> None:
    assert {invariant for invariant, _ in BROKEN_HISTORIES.values()} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 19}


def test_a_violation_shows_all_events_of_its_item() -> None:
    history = item().enqueue(5, 15, id="0-2", payload="b").dequeue(20, 30, 1).op("extend", 35, 38, 1).present(40)
    violations = [each for each in check(history.events(), BOUNDS) if each.items == ("0-1",)]
    assert [each.invariant for each in violations] == [1]
    story = "\n".join(violations[0].timeline)
    for part in (
        "enqueue run#1 requests",
        "enqueue run#1: ok id=0-1",
        "delivers it",
        "token=1",
        "extend run#4",
        "not in the tables",
    ):
        assert part in story
    assert "0-2" not in story
    times = [float(line.split()[0]) for line in violations[0].timeline]
    assert times == sorted(times)
    assert str(violations[0]).startswith("invariant 1: ")


def test_clock_drift_within_the_slew_bound_is_allowed() -> None:
    history = item().dequeue(20, 30, 1).dequeue(500, 1000, 2)
    events = history.events()
    assert check(events, BOUNDS)
    assert not check(events, ClockBounds(lease_ms_default=1000, slew_ms=25))
    assert not check(events, ClockBounds(lease_ms_default=1000, slew_ratio=0.05))


def test_call_with_an_unknown_setting_is_no_violation() -> None:
    assert 5 not in item().dequeue(20, 30, 1, lease_remaining_ms=None).dequeue(40, 50, 2).broken(ClockBounds())
    assert 5 in item().dequeue(20, 30, 1).dequeue(40, 50, 2).broken(ClockBounds())


def test_events_of_several_files_are_merged_by_the_clock(tmp_path: Path) -> None:
    now = [0.0]
    one = History(lambda: now[0], source="one", path=tmp_path / "one.jsonl")
    two = History(lambda: now[0], source="two", path=tmp_path / "two.jsonl")
    call = one.invoke("p", "enqueue", [{"mark": "a", "topic": "t"}], namespace="n")
    now[0] = 5.0
    other = two.invoke("q", "dequeue", [], namespace="n", topics={"t": 1})
    now[0] = 3.0 + 4.0
    one.ok(call, [{"id": "0-1"}])
    two.ok(other, [])
    one.close()
    two.close()
    with (tmp_path / "two.jsonl").open("ab") as file:
        file.write(b'{"at": 9, "cut by a ki')
    events = read_files(tmp_path.glob("*.jsonl"))
    assert [(event["source"], event["event"]) for event in events] == [
        ("one", "invoke"),
        ("two", "invoke"),
        ("one", "ok"),
        ("two", "ok"),
    ]
    assert not check(events, BOUNDS)
    assert json.loads(one.text().splitlines()[0]) == events[0]


def test_stamps_of_two_clocks_at_one_moment_prove_no_order() -> None:
    """An ack that returned when another process asked may have come after it; within one source it did not."""

    def history(second: str) -> list[Event]:
        history = item().dequeue(20, 30, 1).op("ack", 40, 50, 1, gone=True)
        events = history.events()
        later = HandWrittenHistory().dequeue(50, 60, 2).events()
        for event in later:
            event["source"] = second
            event["call"] += 100
            event["seq"] += 100
        return events + later

    assert 4 in {each.invariant for each in check(history("run"), BOUNDS)}
    assert 4 not in {each.invariant for each in check(history("other"), BOUNDS)}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_a_correct_model_has_no_violation(seed: int, drops_known: bool) -> None:
    history = run_model(ServerModel(random.Random(seed)), drops_known=drops_known)
    violations = check(history.events, ServerModel.BOUNDS)
    assert not violations, "\n".join(map(str, violations))


@pytest.mark.parametrize("flaw", sorted(FLAWS))
def test_a_model_with_a_flaw_has_violations(flaw: str) -> None:
    found: set[int] = set()
    for seed in range(30):
        history = run_model(ServerModel(random.Random(seed), flaw), drops_known=True)
        found |= {violation.invariant for violation in check(history.events, ServerModel.BOUNDS)}
    assert FLAWS[flaw] in found


def test_the_same_run_gives_the_same_bytes() -> None:
    first, second = (run_model(ServerModel(random.Random(5)), drops_known=True).text() for _ in range(2))
    assert first == second
    assert first != run_model(ServerModel(random.Random(6)), drops_known=True).text()


def test_a_summary_counts_items() -> None:
    history = item().enqueue(5, None, payload="b").dequeue(20, 30, 1).op("ack", 40, 50, 1).present(60)
    assert summary(sort_by_item(read(history.events()))) == {
        "enqueued": 1,
        "unknown": 1,
        "delivered": 1,
        "acked": 1,
        "cancelled": 0,
        "dropped": 0,
        "present": 0,
    }


def test_marks_are_short_and_differ() -> None:
    assert len(mark(b"a")) == 16
    assert mark(b"a") != mark(b"b")
